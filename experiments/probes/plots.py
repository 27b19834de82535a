"""The probes' plots: the cores' curves in colours, the levels that they are held against in grey."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from lifelong.experiments.probes.probe import Curve, Panel, Probe

_MARKERS = "osD^vP*Xhd"
_GREY_LINES = [(0, ()), (0, (6, 3)), (0, (2, 2)), (0, (6, 2, 1, 2))]


def draw(probe: Probe, curves: dict[str, dict[str, Curve]], subtitle: str) -> Figure:
    """One figure with a plot per panel. ``curves``: for each core, by name, what the probe measured."""
    figure = Figure(figsize=(6.4 * len(probe.panels) + 0.4, 5.4), layout="constrained", dpi=110)
    figure.suptitle(f"{probe.name.replace('_', ' ')}: {probe.good}\n{subtitle}", fontsize=10)
    plots = figure.subplots(1, len(probe.panels), squeeze=False)[0]
    for axes, (key, panel) in zip(plots, probe.panels.items(), strict=True):
        _draw_panel(axes, panel, {name: measured[key] for name, measured in curves.items()})
    return figure


def _draw_panel(axes: Axes, panel: Panel, curves: dict[str, Curve]) -> None:
    axes.set_title(panel.title, fontsize=11)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.log_x:
        axes.set_xscale("log")
        if max((curve.x[-1] for curve in curves.values()), default=0) < 1000:
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))  # 10 and not 10^1
    if panel.log_y:
        axes.set_yscale("log")
    for (label, level), line in zip(panel.references().items(), _GREY_LINES, strict=False):
        if isinstance(level, Curve):
            axes.plot(level.x, level.y, color="0.45", linestyle=line, linewidth=1.4, label=label)
        else:
            axes.axhline(level, color="0.45", linestyle=line, linewidth=1.4, label=label)
    for index, (name, curve) in enumerate(curves.items()):
        axes.errorbar(
            curve.x,
            curve.y,
            yerr=curve.error or None,
            color=f"C{index % 10}",
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=5,
            linewidth=1.8,
            capsize=2,
            elinewidth=0.8,
            label=name,
        )
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, framealpha=0.85)


def draw_by_size(held: dict[str, list[tuple[float, float]]], subtitle: str) -> Figure:
    """Most pairs held against floats of state, for each core by name."""
    figure = Figure(figsize=(6.8, 5.4), layout="constrained", dpi=110)
    figure.suptitle(f"capacity by size: a good memory climbs steeply\n{subtitle}", fontsize=10)
    panel = Panel("Most pairs held", "floats of state", "pairs held", dict, log_x=True, log_y=True)
    _draw_panel(
        figure.subplots(),
        panel,
        {name: Curve([size for size, _ in points], [pairs for _, pairs in points]) for name, points in held.items()},
    )
    return figure
