"""``lifelong record RUN``: a life as a film, with what the agent was paid and how surprised its memory was underneath.

Where the environment can be drawn (Gymnasium with ``rgb_array``, MiniGrid), the world stands on top. GIF needs nothing;
for MP4: ``pip install lifelong[video]``.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from minigrid.minigrid_env import MiniGridEnv
from numpy.typing import NDArray
from PIL import Image

from lifelong.agents import ActorCritic, Lives
from lifelong.envs import BatchedEnv, EnvironmentFault
from lifelong.experiments.build import build_agent, build_env, set_up_process
from lifelong.experiments.checkpoint import load_checkpoint
from lifelong.experiments.config import RunConfig, plugin_names
from lifelong.experiments.errors import UserError, did_you_mean, whole_number
from lifelong.experiments.evaluate import Weights
from lifelong.experiments.evaluate_options import HELD_OUT, folder_beside, import_what_is_allowed
from lifelong.experiments.run_folder import find_checkpoint

Picture = NDArray[np.uint8]

_SHOWN = 200  # steps that the traces look back on
_WIDTH, _TRACE_HEIGHT, _WORLD_HEIGHT = 640, 90, 320  # pixels


@dataclasses.dataclass
class RecordOptions:
    """What may follow RUN."""

    steps: int = 300  # of the life
    skip: int = 0  # steps lived before the film begins
    seed: int = 0  # of the held-out life and the actions
    fps: int = 10  # steps shown in a second
    out: str | None = None  # .gif or .mp4; None: life.gif in the run's folder


@dataclasses.dataclass(frozen=True)
class Moment:
    """One step of the life that is shown."""

    life_step: int
    world: Picture | None  # [height, width, 3]
    reward: float
    surprise: float | None  # |v - S k| before the write; None for a memory that has none
    regime: int | None  # of the hidden rule, where the environment says
    changed: bool  # the rule is new at this step


def record(arguments: list[str]) -> int:
    """``lifelong record RUN [steps=300] [skip=0] [seed=0] [fps=10] [out=life.gif] [plugins=[...]]``."""
    if not arguments or "=" in arguments[0]:
        raise UserError("record needs a run folder: lifelong record RUN [steps=300] [out=life.gif]")
    words = arguments[1:]
    allowed = [name for word in words if word.startswith("plugins=") for name in plugin_names(word[len("plugins=") :])]
    options = parse_options([word for word in words if not word.startswith("plugins=")])
    checkpoint, config = find_checkpoint(arguments[0])
    import_what_is_allowed(config, allowed)
    target = Path(options.out) if options.out else folder_beside(checkpoint) / "life.gif"
    device = set_up_process(config)
    env = build_env(_drawable(config), HELD_OUT + options.seed, 1)
    agent = build_agent(config, env, device)
    load_checkpoint(checkpoint, Weights(agent=agent), None)
    agent.eval()
    try:
        pictures = _pictures(moments(env, agent, options))
        (_write_mp4 if target.suffix == ".mp4" else _write_gif)(target, pictures, options.fps)
    except EnvironmentFault as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{target} was not written: {error.strerror or error}") from error
    finally:
        env.close()
    print(f"written: {target}")
    return 0


@torch.no_grad()
def moments(env: BatchedEnv, agent: ActorCritic, options: RecordOptions) -> Iterator[Moment]:
    """Live, and tell of every step from ``skip`` on."""
    lives = Lives(env, agent, torch.Generator(agent.token.weight.device).manual_seed(options.seed))
    lives.start()
    lives.situation = getattr(env, "privileged", {})
    previous = agent.embed_previous(lives.last)
    for life_step in range(options.skip + options.steps):
        shown = life_step >= options.skip
        assert lives.observation is not None
        if shown:
            token = agent.peek_token(lives.observation, lives.reset, previous)
            health = agent.core.health(lives.state, token, lives.reset)
            world, situation = _draw(env), lives.situation
        _, step, previous = lives.act(previous)
        if shown:
            regime = situation.get("regime")
            since = situation.get("steps_since_change")
            yield Moment(
                life_step,
                world,
                float(step.reward[0]),
                health.get("surprise_before"),
                None if regime is None else int(regime[0]),
                since is not None and life_step > 0 and int(since[0]) == 0,
            )


def parse_options(words: list[str]) -> RecordOptions:
    """``key=value`` words to options.

    Raises:
        UserError: an unknown key, or a value that cannot be.
    """
    options = RecordOptions()
    names = [field.name for field in dataclasses.fields(RecordOptions)]
    for word in words:
        key, _, value = word.partition("=")
        if key not in names:
            raise UserError(f"{word}: unknown; allowed: {', '.join(names)}{did_you_mean(key, names)}")
        if key == "out":
            if Path(value).suffix not in (".gif", ".mp4"):
                raise UserError(f"{word}: must end in .gif or .mp4")
            options.out = value
        else:
            setattr(options, key, whole_number(word, lowest=0 if key in ("seed", "skip") else 1))
    return options


def _drawable(config: RunConfig) -> RunConfig:
    """Gymnasium's environments draw only if they were made to."""
    if config.env["name"] != "gymnasium":
        return config
    return dataclasses.replace(
        config, env={**config.env, "kwargs": {**config.env.get("kwargs", {}), "render_mode": "rgb_array"}}
    )


def _draw(env: BatchedEnv) -> Picture | None:
    """The first world, [height, width, 3]; None where it cannot be drawn."""
    environments = getattr(env, "environments", None)
    if not environments:
        return None
    inner = environments[0].unwrapped
    if isinstance(inner, MiniGridEnv):
        return np.asarray(inner.get_frame(highlight=True, tile_size=16), np.uint8)
    with suppress(Exception):  # drawing is the environment's own business, and may want what is not installed
        drawn = environments[0].render()
        if isinstance(drawn, np.ndarray) and drawn.ndim == 3:
            return drawn.astype(np.uint8)
    return None


def _pictures(life: Iterator[Moment]) -> Iterator[Picture]:
    """Every moment with the traces up to it."""
    past: deque[Moment] = deque(maxlen=_SHOWN)
    for moment in life:
        past.append(moment)
        traces = _traces(list(past))
        yield traces if moment.world is None else np.concatenate([_framed(moment.world), traces])


def _framed(world: Picture) -> Picture:
    """The world in the middle of a white band."""
    height, width = world.shape[:2]
    scale = min(_WORLD_HEIGHT / height, _WIDTH / width)
    image = Image.fromarray(world).resize((max(1, int(width * scale)), max(1, int(height * scale))))
    band = Image.new("RGB", (_WIDTH, _WORLD_HEIGHT), "white")
    band.paste(image, ((_WIDTH - image.width) // 2, (_WORLD_HEIGHT - image.height) // 2))
    return np.asarray(band)


def _traces(past: list[Moment]) -> Picture:
    """Reward, surprise and regime of the latest steps, one under the other; a line where the rule changed."""
    rows: list[tuple[str, list[float]]] = [("reward", [moment.reward for moment in past])]
    if past[-1].surprise is not None:
        rows.append(("surprise", [moment.surprise or 0.0 for moment in past]))
    if past[-1].regime is not None:
        rows.append(("regime", [float(moment.regime or 0) for moment in past]))
    figure = Figure(figsize=(_WIDTH / 100, _TRACE_HEIGHT * len(rows) / 100), dpi=100)
    canvas = FigureCanvasAgg(figure)
    steps = [moment.life_step for moment in past]
    for axes, (name, values) in zip(np.atleast_1d(figure.subplots(len(rows), sharex=True)), rows, strict=True):
        axes.step(steps, values, where="mid", linewidth=1.0, color="#0072B2")
        for moment in past:
            if moment.changed:
                axes.axvline(moment.life_step, color="#D55E00", linewidth=1.0)
        axes.set_ylabel(name, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.set_xlim(steps[0], steps[0] + _SHOWN)
    axes.set_xlabel("life step", fontsize=8)
    figure.subplots_adjust(left=0.1, right=0.98, top=0.95, bottom=0.4 / len(rows), hspace=0.35)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _write_gif(target: Path, pictures: Iterator[Picture], fps: int) -> None:
    first = Image.fromarray(next(pictures))
    rest = (Image.fromarray(picture) for picture in pictures)
    first.save(target, save_all=True, append_images=rest, duration=round(1000 / fps), loop=0)


def _write_mp4(target: Path, pictures: Iterator[Picture], fps: int) -> None:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise UserError(
            "an .mp4 needs the package imageio-ffmpeg; install it with: pip install imageio-ffmpeg, or write a .gif"
        ) from error
    first = next(pictures)
    size: Any = (first.shape[1], first.shape[0])
    writer = imageio_ffmpeg.write_frames(str(target), size, fps=fps, macro_block_size=2)
    writer.send(None)
    writer.send(np.ascontiguousarray(first))
    for picture in pictures:
        writer.send(np.ascontiguousarray(picture))
    writer.close()
