"""Temperature scaling of the plain or the rescaled network, as a point of the family about another centre.

Scaled by a temperature T′ after the rule, whose own stretch at this strength is t = 1 − κ (1 − t̄), logits are

    (m_y + (u − m_y) / t) / T′ = ρ m_y + (u − ρ m_y) / T,        T = t T′,        ρ = (1 − t) / (1 − T).

The family has ρ = 1. Where classes are equally frequent both are one: m_y shifts all logits alike. Where they are not,
a temperature about m_y also moves logits towards the frequent classes, which at κ = 0 is not what temperature scaling
does (ρ = 0: u / T, every decision as it was). Held-out data says which of both is better.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mixreg.calibration.temperature import LARGEST, SMALLEST
from mixreg.prediction.family_fit import Point
from mixreg.prediction.held_out import HeldOut

# ρ has a pole at T = 1, where no centre scales anything: T is moved off it by so much.
_OFF = 1e-4
# What rounding alone makes of one loss in two ways.
_ROUNDING = 1e-9

Fit = Callable[[HeldOut, Tensor], tuple[float | tuple[float, ...], Tensor]]


class Looked(NamedTuple):
    """A point that was looked at: κ, T and mean loss, the losses of samples (n), and ρ."""

    point: Point
    losses: Tensor
    centre: float | tuple[float, ...] = 1.0


def after_the_rule(
    held: HeldOut, y_mean: Tensor, strength: float, own: float, fit: Fit, mean: Callable[[Tensor], Tensor]
) -> Looked | None:
    """The best temperature after the rule, at one strength; None where the data determines none.

    Args:
        held: outputs u on shrunk inputs, and targets.
        y_mean: m_y.
        strength: κ.
        own: t, the rule's own temperature at it.
        fit: of outputs and a centre the best temperature, and the losses of samples.
        mean: of losses, over all processes.
    """
    centre = y_mean.reshape(-1).to(held.u.device, torch.float64)
    ruled = HeldOut(centre + (held.u.double() - centre) / own, held.y)
    after, losses = fit(ruled, torch.zeros_like(centre))
    several = after if isinstance(after, tuple) else (after,)
    if not all(map(is_determined, several)):
        return None
    temperatures = [t if abs(t - 1) > _OFF else 1 + _OFF for t in (own * one for one in several)]
    centres = tuple((1 - own) / (1 - t) for t in temperatures)
    point = Point(strength, tuple(temperatures) if isinstance(after, tuple) else temperatures[0], float(mean(losses)))
    return Looked(point, losses, centres if isinstance(after, tuple) else centres[0])


def is_determined(temperature: float) -> bool:
    """Whether it is a minimum, rather than an end of what is looked at."""
    return SMALLEST < temperature < LARGEST


def is_better(looked: Looked, other: Looked) -> bool:
    """Whether a point has the lower loss, beyond rounding."""
    loss = other.point.loss
    return looked.point.loss < loss - _ROUNDING * (1 + abs(loss))
