"""Can the slow weights still learn? Units that sleep, a trunk that loses directions, weights that grow.

Measured on the segment just learned from, with the weights as they are after it.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.agents.actor_critic import ActorCritic
from lifelong.agents.faults import NonFinite
from lifelong.memory.health import effective_rank

# Lives that are run through again.
_SAMPLE = 4


class WeightsBefore:
    """The matrices of each part of the agent (encoder, token, core, policy, value) as they are now.

    Vectors are left out: the ones in gains would hide what matrices do.
    """

    def __init__(self, agent: ActorCritic) -> None:
        self._before = {name: _flat(part).clone() for name, part in _parts(agent).items()}

    def update_ratios(self, agent: ActorCritic) -> dict[str, float]:
        """``plasticity/update_ratio_PART``: how far the weights have moved since, over their norm then."""
        return {
            f"plasticity/update_ratio_{name}": update_ratio(self._before[name], _flat(part))
            for name, part in _parts(agent).items()
        }


@torch.no_grad()
def plasticity(agent: ActorCritic, segment: TensorDict) -> dict[str, float]:
    """``plasticity/...``: dormant shares of the hidden layers of encoder and heads, effective rank of the trunk, root
    mean square of the matrices of each part. Of the first four lives of ``segment``.

    Raises:
        NonFinite: with these weights the trunk is not finite.
    """
    few = segment[:_SAMPLE]
    trunk, _ = agent.sequence(few["steps"], few["memory"])
    if not bool(trunk.isfinite().all()):
        raise NonFinite("the trunk is not finite after the update; learning_rate may be too high")
    hidden = {"encoder": agent.encoder.hidden(dict(few["steps", "observation"].items()))}
    for name, head in (("policy", agent.policy), ("value", agent.value)):
        hidden[name] = [head[:-1](trunk)] if isinstance(head, nn.Sequential) else []
    found = {
        f"dormant_{name}": sum(map(dormant_share, layers)) / len(layers) for name, layers in hidden.items() if layers
    }
    found["effective_rank"] = float(effective_rank(trunk.flatten(0, -2)))
    for name, part in _parts(agent).items():
        found[f"weight_rms_{name}"] = root_mean_square(_flat(part))
    return {f"plasticity/{name}": value for name, value in found.items()}


def dormant_share(activations: Tensor, threshold: float = 0.025) -> float:
    """Share of units i with E|h_i| / mean_k E|h_k| <= threshold in a layer [..., units] (ReDo, Sokar et al. 2023).

    Relative to the layer's mean, so that a layer of small numbers is not asleep. ReDo reports thresholds 0 and 0.1
    too; MEAL's "dormant" (|h| < 0.01 per entry) is another quantity.
    """
    size = activations.double().abs().flatten(0, -2).mean(0)
    return float((size <= threshold * size.mean()).double().mean())


def root_mean_square(values: Tensor) -> float:
    """sqrt(mean x^2)."""
    return float(values.double().square().mean().sqrt())


def update_ratio(before: Tensor, after: Tensor) -> float:
    """||after - before|| / ||before||; inf where nothing was there and something is now, 0 where nothing changed."""
    before = before.double()
    change, size = float((after.double() - before).norm()), float(before.norm())
    if change == 0.0:
        return 0.0
    return change / size if size > 0.0 else float("inf")


def _parts(agent: ActorCritic) -> dict[str, nn.Module]:
    return {
        name: part for name, part in agent.named_children() if any(weight.dim() > 1 for weight in part.parameters())
    }


def _flat(part: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in part.parameters() if weight.dim() > 1])
