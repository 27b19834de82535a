"""A memory that is a small network, trained online: options, and how labels and gates become its training.

``lifelong.memory.network_points`` names the combinations that have a name; the mathematics is in
``lifelong.kernels.mlp_memory``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lifelong.kernels import MLPMemoryOutput, MLPMemoryState, mlp_memory, replay_window
from lifelong.memory.health import is_watched, report_answers
from lifelong.memory.labels import Gate, Labels
from lifelong.memory.layer_options import LayerOptions
from lifelong.memory.learned_reset import RESET_STATES, ResetState
from lifelong.memory.option_checks import check_at_least, check_between, check_horizons, check_word
from lifelong.memory.rule_layer import Rule, RuleCore, decay_gate, share_gate, spread_horizons

MODELS = ["matrix", "mlp"]
OBJECTIVES = ["squared_error", "windowed_squared_error"]
RETENTIONS = ["none", "scalar", "pull"]
OPTIMISERS = ["gradient", "momentum", "muon"]
IMPLEMENTATIONS = ["auto", "reference", "chunked"]


@dataclass(frozen=True, kw_only=True)
class NetworkDesign(LayerOptions):
    """Every choice of a network memory. With f the network of a head, W its weights, W_0 those of a new life:

        g   = b dL/dW at the start of the chunk,  L = 1/2 |f(k; W) - v|^2     objective
        W^- = retention(W)
        W   = W^- - g, or by the optimiser,  reads f(q; W)

    model:            matrix  f(x) = W x + w
                      mlp     f(x) = W2 gelu(W1 x + w1) + w2
    hidden:           width of the hidden layer of mlp, as a multiple of ``head_dim``
    inner_norm:       whether f(x) = x + layer_norm(net(x)), with learned gain and shift. A norm over few entries is
                      ill-conditioned where they happen to be nearly equal: in float32, gradients of steps and of a
                      sequence agree to 3e-6 from ``head_dim`` 8 on (12 random draws), but only to 2e-5 at 4
    objective:        squared_error           of the newest pair
                      windowed_squared_error  of the latest ``window`` pairs, all of them at every step (Omega)
    window:           pairs of windowed_squared_error
    chunk:            steps that share one point of the gradient, counted from the start of a life. The gradient of
                      step t is taken at the weights with which the chunk of t began; each write is read at once. An
                      agent whose key comes twice within a chunk writes twice what it should have written once. 1 is
                      exact and slow, the papers take 16 and more
    retention:        none    W^- = W
                      scalar  W^- = a W, a = sigmoid(w_a . h + c_a)
                      pull    W^- = W_0 + a (W - W_0)
    horizon_min:      horizon 1 / (1 - a) of the fastest head, in steps, at first
    horizon_max:      of the slowest; the others are spread geometrically
    optimiser:        gradient  as above
                      momentum  M = m M - g,  W = W^- + M,  m = sigmoid(w_m . h + c_m)
                      muon      M likewise with a weight sigmoid(w_g . h) of its own for b, and at the last step of a
                                chunk W = W^- + b NS(M): all singular values of the step are about b
    momentum:         m at first
    newton_schulz:    iterations NS of muon. The papers take 5; each may multiply what single precision rounds off by
                      3.4, and with 5 a step and a sequence agree no longer to 10^-5
    write_rate:       b at first. b = most sigmoid(w_b . h + c_b), where most = min(1, 2 / (chunk window)): were all
                      keys of a chunk the same, a normed or linear f would still not run away. For muon most = 1
    reset_state:      W_0: learned, or zero (a matrix without inner_norm)
    implementation:   of the kernel: auto, reference, chunked

    Raises:
        ValueError: a value out of its range, an unknown word, or words that have no implementation together.
    """

    model: str = "matrix"
    hidden: float = 2.0
    inner_norm: bool = True
    objective: str = "squared_error"
    window: int = 4
    chunk: int = 4
    retention: str = "none"
    horizon_min: float = 32.0
    horizon_max: float = 1.0e5
    optimiser: str = "gradient"
    momentum: float = 0.5
    newton_schulz: int = 3
    write_rate: float = 0.2
    reset_state: str = "learned"
    implementation: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, known in (
            ("model", MODELS),
            ("objective", OBJECTIVES),
            ("retention", RETENTIONS),
            ("optimiser", OPTIMISERS),
            ("reset_state", RESET_STATES),
            ("implementation", IMPLEMENTATIONS),
        ):
            check_word(option, getattr(self, option), known)
        check_at_least(1, window=self.window, chunk=self.chunk, newton_schulz=self.newton_schulz)
        if not self.hidden_width >= 1:
            raise ValueError(
                f"hidden={self.hidden} leaves no hidden unit at head_dim={self.head_dim}; hidden * head_dim must be 1 "
                "or more"
            )
        check_between(0, 1, momentum=self.momentum)
        limit = f"; the limit is 2 / (chunk * pairs a step learns) = 2 / ({self.chunk} * {self.pairs})"
        check_between(0, self.most_rate, limit if self.most_rate < 1.0 else "", write_rate=self.write_rate)
        check_horizons(self.horizon_min, self.horizon_max)
        key_width = self.labels(self.head_dim).key_width
        refused = [
            (
                self.inner_norm and key_width != self.head_dim,
                f"inner_norm=true adds keys to values, but key_map={self.key_map} makes keys {key_width} wide and "
                f"values are {self.head_dim}",
                "inner_norm=false, or a key_map that keeps the width",
            ),
            (
                self.reset_state == "zero" and self.model == "mlp",
                "reset_state=zero has no implementation together with model=mlp: two layers of zeros have no gradient",
                "reset_state=learned",
            ),
            (
                self.reset_state == "zero" and self.inner_norm,
                "reset_state=zero has no implementation together with inner_norm=true: zeros have no norm",
                "reset_state=learned, or inner_norm=false",
            ),
        ]
        for is_so, reason, nearest in refused:
            if is_so:
                raise ValueError(f"{reason}; the nearest that works: {nearest}")

    @property
    def pairs(self) -> int:
        """Pairs that a step learns."""
        return self.window if self.objective == "windowed_squared_error" else 1

    @property
    def hidden_width(self) -> int:
        """Width of the hidden layer of mlp."""
        return round(self.hidden * self.head_dim)

    @property
    def most_rate(self) -> float:
        """What b stays below."""
        return 1.0 if self.optimiser == "muon" else min(1.0, 2.0 / (self.chunk * self.pairs))


class NetworkRule(Rule):
    """State, with one tensor a layer of the network, l = 0, 1:

    ``weights_l`` [B, H, out, in + 1], the biases last; with chunk > 1 ``base_l``, the same, and ``phase`` [B] int64,
    steps since the start of the chunk; with momentum, and for muon, ``momentum_l``, the same; with a window
    ``window`` [B, window - 1, H, Dk + Dv + 1].

    Initialisation: with inner_norm the weights are N(0, 1): keys have unit length, so what is normed has entries of
    about one or more, and a first write at the rate b moves the answer by about b of its error. Without, the matrix
    is zero, and W1, W2 are so small that the hidden layer and the last one begin with a curvature of about one each.
    """

    def __init__(self, design: NetworkDesign, key_width: int) -> None:
        super().__init__()
        self.design = design
        heads, width, hidden = design.heads, design.head_dim, design.hidden_width
        if design.model == "matrix":
            layers = [(width, key_width, 1.0 if design.inner_norm else 0.0)]
        else:
            small = (2.0 * hidden**-0.5, hidden**-0.5)
            first, second = (1.0, 1.0) if design.inner_norm else small
            layers = [(hidden, key_width, first), (width, hidden, second)]
        shapes = {f"weights_{index}": (heads, out, into + 1) for index, (out, into, _) in enumerate(layers)}
        self.reset_state = ResetState(design.reset_state, shapes)
        with torch.no_grad():
            for weights, (_, _, scale) in zip(self.reset_state.learned.values(), layers, strict=False):
                weights[..., :-1].normal_().mul_(scale)
        if design.inner_norm:
            self.gain, self.shift = nn.Parameter(torch.ones(heads, width)), nn.Parameter(torch.zeros(heads, width))
        self._has_momentum = design.optimiser != "gradient"
        others: dict[str, tuple[int, ...]] = {}
        if self._has_momentum:
            others |= {name.replace("weights", "momentum"): shape for name, shape in shapes.items()}
        if design.pairs > 1:
            others["window"] = (design.pairs - 1, heads, key_width + width + 1)
        self.others = ResetState("zero", others, ["phase"] if design.chunk > 1 else [])

    def gates(self) -> list[Gate]:
        """Write rates; for muon, weights of pairs; decays; momentum."""
        design = self.design
        gates = [share_gate(design.heads, design.write_rate / design.most_rate)]
        if design.optimiser == "muon":
            gates.append(share_gate(design.heads, 0.5))
        if design.retention != "none":
            gates.append(decay_gate(spread_horizons(design.heads, design.horizon_min, design.horizon_max)))
        if self._has_momentum:
            gates.append(share_gate(design.heads, design.momentum))
        return gates

    def initial(
        self, batch_size: int, like: Tensor, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> dict[str, Tensor]:
        state = super().initial(batch_size, like, device, dtype)
        layers = range(len(self.reset_state.shapes) if self.design.chunk > 1 else 0)
        return state | {f"base_{layer}": state[f"weights_{layer}"].clone() for layer in layers}

    def forward(
        self, labels: Labels, gates: list[Tensor], state: Mapping[str, Tensor], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        design, gates = self.design, list(gates)
        rate = design.most_rate * gates.pop(0).sigmoid()
        update_rate = None
        if design.optimiser == "muon":
            update_rate, rate = rate, gates.pop(0).sigmoid()
        log_decay = None if design.retention == "none" else nn.functional.logsigmoid(gates.pop(0))
        momentum = gates.pop(0).sigmoid() if self._has_momentum else None
        key, value, new = labels.key, labels.value, {}
        if design.pairs > 1:
            key, value, rate, new["window"] = replay_window(key, value, rate, design.window, reset, state["window"])

        def learn(before: MLPMemoryState) -> MLPMemoryOutput:
            return mlp_memory(
                labels.query,
                key,
                value,
                rate,
                self._initial_weights(labels.query),
                log_decay,
                momentum,
                reset,
                before,
                design.implementation,
                norm=self._norm(),
                pull=design.retention == "pull",
                chunk=design.chunk,
                newton_schulz=design.newton_schulz if design.optimiser == "muon" else 0,
                update_rate=update_rate,
            )

        before = self._unpacked(state)
        found = learn(before)
        if is_watched():
            after = found.state
            if design.optimiser == "muon":
                # It writes at the end of a chunk alone: what it would write, did the chunk end with this step.
                after = learn(before._replace(phase=torch.full_like(before.phase, design.chunk - 1))).state
            self._report(labels, log_decay, before, after)
        return found.output, {**new, **self._packed(found.state)}

    def _report(self, labels: Labels, log_decay: Tensor | None, before: MLPMemoryState, after: MLPMemoryState) -> None:
        """Tell whoever watches of a write, labels [B, 1, ...], log_decay [B, 1, H]."""
        initial = self._initial_weights(labels.query)
        kept = before.weights
        if log_decay is not None:
            decay = log_decay.exp().mT.unsqueeze(-1)
            goals = initial if self.design.retention == "pull" else [torch.zeros_like(layer) for layer in initial]
            kept = tuple(torch.lerp(goal, layer, decay) for goal, layer in zip(goals, kept, strict=True))

        def answer(weights: Sequence[Tensor]) -> Tensor:
            nothing = torch.zeros_like(labels.key[..., 0])  # written, so that what is read is f(k) of the weights
            state = MLPMemoryState(tuple(weights), tuple(weights), (), torch.zeros_like(before.phase))
            key, value = labels.key, labels.value
            return mlp_memory(key, key, value, nothing, initial, initial_state=state, norm=self._norm(), chunk=1).output

        report_answers(labels.value, answer, log_decay, kept, after.weights)

    def _norm(self) -> tuple[Tensor, Tensor] | None:
        return (self.gain, self.shift) if self.design.inner_norm else None

    def _initial_weights(self, like: Tensor) -> tuple[Tensor, ...]:
        """W_0, a matrix [H, out, in + 1] a layer of the network."""
        if self.design.reset_state == "learned":
            return tuple(self.reset_state.learned.values())
        return tuple(
            torch.zeros(shape, device=like.device, dtype=like.dtype) for shape in self.reset_state.shapes.values()
        )

    def _unpacked(self, state: Mapping[str, Tensor]) -> MLPMemoryState:
        def layers(name: str) -> tuple[Tensor, ...]:
            return tuple(state[f"{name}_{index}"] for index in range(len(self.reset_state.shapes)))

        weights = layers("weights")
        chunked = self.design.chunk > 1
        phase = state["phase"] if chunked else torch.zeros(len(weights[0]), dtype=torch.int64, device=weights[0].device)
        return MLPMemoryState(
            weights, layers("base") if chunked else weights, layers("momentum") if self._has_momentum else (), phase
        )

    def _packed(self, state: MLPMemoryState) -> dict[str, Tensor]:
        kept = {"weights": state.weights, "momentum": state.momentum}
        if self.design.chunk > 1:
            kept["base"] = state.base
        packed = {f"{name}_{index}": layer for name, layers in kept.items() for index, layer in enumerate(layers)}
        return {**packed, "phase": state.phase} if self.design.chunk > 1 else packed


class NetworkCore(RuleCore):
    """Layers of network memories, by ``NetworkDesign``."""

    matrices = ("weights_0", "weights_1")

    def __init__(self, dim: int, design: NetworkDesign) -> None:
        super().__init__(dim, design, None, lambda key_width, value_dim: NetworkRule(design, key_width))
