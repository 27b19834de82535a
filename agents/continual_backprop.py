"""Continual backprop: now and then the least useful unit of a hidden layer is born again (Dohare et al. 2024).

A unit i of a layer says x_i to the layer that reads it, by weights w_ki. After every step of the optimiser

    u_i <- 0.99 u_i + 0.01 E|x_i| mean_k |w_ki|        its utility
    f_i <- 0.99 f_i + 0.01 E x_i                       what it says on average

both over 1 - 0.99^age, as Adam's moments are. Units older than ``maturity`` steps may be replaced, the share ``rate``
of them a step: their number is added up until it is one, and then the unit of the least utility

    gives what it says on average to the biases of its readers, b_k += w_ki f_i, and nothing else any more, w_ki = 0;
    draws its incoming weights anew, as the layer's were drawn at first; and begins with moments of zero.

Adam divides by 1 - beta^t, t its steps. That is for moments that were zero t steps ago; those of a newborn were zero
``age`` steps ago, and it would run away at up to 6.5 times the learning rate. So its steps are scaled to what they are
with its own age for t (the paper has an Adam that counts steps weight by weight; the same, up to Adam's epsilon).

The layers are the hidden ones of encoder and heads, without convolutions. The encoder's last is read through its
LayerNorm by the token, twice: as the present and as the last observation. x is what is behind the norm. Where a norm
lies between units and reader (there, and with ``layer_norm``), the others notice a newborn by the norm's mean and
variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lifelong.agents.actor_critic import ActorCritic
from lifelong.agents.distributed import ALONE, Group

_DECAY = 0.99


class HiddenLayer(NamedTuple):
    """Units, and who reads them."""

    incoming: Any  # nn.Linear
    norms: list[Any]  # nn.LayerNorm, with a gain and a bias for each unit
    outgoing: Any  # nn.Linear
    reads: int  # how often the first columns of ``outgoing`` read all units, side by side

    @property
    def width(self) -> int:
        return int(self.incoming.out_features)

    def columns(self, units: Tensor) -> Tensor:
        """Those of ``outgoing`` that read ``units``."""
        return (torch.arange(self.reads).unsqueeze(1) * self.width + units).flatten()

    def rows(self) -> list[nn.Parameter]:
        """All that has a row for each unit."""
        return [self.incoming.weight, self.incoming.bias, *(p for norm in self.norms for p in (norm.weight, norm.bias))]


def hidden_layers(agent: ActorCritic) -> list[HiddenLayer]:
    """Those of encoder and heads."""
    encoder = agent.encoder
    chain = [encoder.first, *encoder.rest]
    layers = []
    for number, incoming in enumerate(chain):
        last = number == len(chain) - 1
        norms = [*encoder.hidden_norms[number : number + 1], *([encoder.norm] if last else [])]
        outgoing = agent.token if last else chain[number + 1]
        layers.append(HiddenLayer(incoming, norms, outgoing, reads=2 if last else 1))
    for head in (agent.policy, agent.value):
        if isinstance(head, nn.Sequential):
            norms = [module for module in head if isinstance(module, nn.LayerNorm)]
            layers.append(HiddenLayer(head[0], norms, head[-1], reads=1))
    return layers


class _Units:
    """What is known of the units of a layer: [width], or [reads * width] by column."""

    def __init__(self, layer: HiddenLayer) -> None:
        self.utility = torch.zeros(layer.width, dtype=torch.float64)
        self.average = torch.zeros(layer.reads * layer.width, dtype=torch.float64)
        self.age = torch.zeros(layer.width, dtype=torch.int64)
        self.pending = 0.0


class ContinualBackprop:
    """Takes the optimiser's steps, and replaces units after them.

    Args:
        agent: the network.
        optimizer: Adam's kind, of all of its weights.
        rate: share of the mature units replaced in a step.
        maturity: steps of the optimiser before which a unit is safe.
        generator: on the CPU, in the same state on all ranks; new weights are drawn from it.
        group: the ranks over which minibatches lie.
    """

    def __init__(
        self,
        agent: ActorCritic,
        optimizer: torch.optim.AdamW,
        rate: float,
        maturity: int,
        generator: torch.Generator,
        group: Group = ALONE,
    ) -> None:
        self.layers = hidden_layers(agent)
        self.optimizer = optimizer
        self.rate = rate
        self.maturity = maturity
        self.generator = generator
        self.group = group
        self.units = [_Units(layer) for layer in self.layers]
        self.steps = 0
        self.replaced = 0
        self._said = [torch.empty(0)] * len(self.layers)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Inside, what is said to readers with gradients (in the update's run of the network) is noted."""
        with ExitStack() as stack:
            for number, layer in enumerate(self.layers):

                def note(_: nn.Module, inputs: tuple[Tensor, ...], number: int = number) -> None:
                    if torch.is_grad_enabled():
                        said = inputs[0].detach()[..., : len(self.units[number].average)].flatten(0, -2)
                        self._said[number] = torch.stack([said.abs().mean(0), said.mean(0)])

                stack.callback(layer.outgoing.register_forward_pre_hook(note).remove)
            yield

    @torch.no_grad()
    def step(self, share: float = 1.0) -> None:
        """A step of the optimiser with the gradients at hand, then what follows it; ``share`` is that of this process
        in the minibatch.
        """
        self.steps += 1
        self._step_by_age()
        self._judge(share)
        for layer, units in zip(self.layers, self.units, strict=True):
            mature = units.age > self.maturity
            units.pending += self.rate * int(mature.sum())
            count = int(units.pending)
            if count:
                units.pending -= count
                utility = (units.utility / _weight_of(units.age)).masked_fill(~mature, torch.inf)
                self._replace(layer, units, utility.argsort(stable=True)[:count])
                self.replaced += count

    def _step_by_age(self) -> None:
        ages = self._young_weights()
        before = {weight: weight.clone() for weight in ages}
        self.optimizer.step()
        for weight, old in before.items():
            scale = _step_scale(ages[weight], self.steps, self.optimizer.defaults["betas"])
            weight.copy_(torch.lerp(old, weight, scale.to(weight)))

    def _young_weights(self) -> dict[Tensor, Tensor]:
        """Steps since the moments of each weight were zero, this one counted, for tensors with weights of newborns."""
        ages: dict[Tensor, Tensor] = {}
        for layer, units in zip(self.layers, self.units, strict=True):
            age = units.age + 1
            if bool((age == self.steps).all()):
                continue
            for weight in (*layer.rows(), layer.outgoing.weight):
                ages.setdefault(weight, torch.full(weight.shape, self.steps))
            for weight in layer.rows():
                own = ages[weight]
                torch.minimum(own, age.reshape(-1, *[1] * (own.dim() - 1)), out=own)
            read = ages[layer.outgoing.weight][:, : layer.reads * layer.width]
            read.copy_(torch.minimum(read, age.repeat(layer.reads)))
        return ages

    def _judge(self, share: float) -> None:
        """Move utilities and averages on by what was said in the minibatch."""
        own = torch.cat([said.flatten() for said in self._said]).double().cpu()
        said = torch.stack([part * values for part, values in self.group.gather((share, own))]).sum(0)
        parts = said.split([2 * len(units.average) for units in self.units])
        for layer, units, part in zip(self.layers, self.units, parts, strict=True):
            size, average = part.view(2, -1)
            heard = layer.outgoing.weight[:, : len(average)].double().abs().mean(0).cpu()
            units.utility.lerp_((size * heard).view(layer.reads, -1).mean(0), 1 - _DECAY)
            units.average.lerp_(average, 1 - _DECAY)
            units.age += 1

    def _replace(self, layer: HiddenLayer, units: _Units, chosen: Tensor) -> None:
        columns = layer.columns(chosen)
        average = units.average / _weight_of(units.age).repeat(layer.reads)
        weight = layer.outgoing.weight
        layer.outgoing.bias += weight[:, columns] @ average[columns].to(weight)
        bound = layer.incoming.in_features**-0.5  # as nn.Linear draws weights and biases
        for parameter in (layer.incoming.weight, layer.incoming.bias):
            fresh = torch.empty(parameter[chosen].shape).uniform_(-bound, bound, generator=self.generator)
            parameter[chosen] = fresh.to(parameter)
        for norm in layer.norms:
            norm.weight[chosen] = 1.0
            norm.bias[chosen] = 0.0
        weight[:, columns] = 0.0
        for moment in ("exp_avg", "exp_avg_sq"):
            for parameter in layer.rows():
                self.optimizer.state[parameter][moment][chosen] = 0.0
            self.optimizer.state[weight][moment][:, columns] = 0.0
        units.utility[chosen] = 0.0
        units.average[columns] = 0.0
        units.age[chosen] = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "units": [dict(vars(units)) for units in self.units],
            "steps": self.steps,
            "replaced": self.replaced,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps, self.replaced = state["steps"], state["replaced"]
        for units, stored in zip(self.units, state["units"], strict=True):
            for name in ("utility", "average", "age"):
                getattr(units, name).copy_(stored[name])
            units.pending = stored["pending"]


def _weight_of(age: Tensor) -> Tensor:
    """What the exponential average of ``age`` values has of them; the rest is the zero that it began with."""
    return 1 - _DECAY ** age.double()


def _step_scale(age: Tensor, steps: int, betas: tuple[float, float]) -> Tensor:
    """Adam's step with ``age`` for its count of steps, over that with ``steps``; exactly 1 where they agree."""
    mean, square = (torch.expm1(age.float() * math.log(beta)) / math.expm1(steps * math.log(beta)) for beta in betas)
    return torch.where(age == steps, 1.0, square.sqrt() / mean)
