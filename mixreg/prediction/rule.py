"""The prediction rule of a pairing augmentation: two shares and two means.

Let a method show x̂ = S ∘ x_i + (1 − S) ∘ x_j and ŷ = t y_i + (1 − t) y_j with random S (a number, or one for every
coordinate) and t, independent of a partner j drawn from a distribution with means m_x, m_y (uniform: x̄, ȳ). Then

    E[x̂ | i] = m_x + S̄ ∘ (x_i − m_x)        E[ŷ | i] = m_y + t̄ (y_i − m_y),

so the network has learnt a map from shrunk inputs to shrunk outputs, and is to be used as one:

    pred(x) = m_y + (f(m_x + S̄ ∘ (x − m_x)) − m_y) / t̄,

on f's own outputs (logits), before any softmax. For Mixup S̄ = t̄ = θ̄, and this is eq. (testmodif). Mixing inputs only
has t̄ = 1, outputs only S̄ = 1; CutMix has a map S̄. With balanced classes the m_y term shifts all logits alike and the
stretch is a temperature of t̄; for centred data and a homogeneous network (f(ux) = u f(x)) Mixup's rule changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mixreg._support.structure import leaves, rebuild
from mixreg.theory.modified import shrink, stretch
from mixreg.theory.theta import scalar_forms

Share = float | Tensor


@dataclass(frozen=True, eq=False)
class Rule:
    """How much of itself a sample keeps on average, and of what the rest is.

    Attributes:
        x_share: S̄ in [0, 1], a number, or a map that broadcasts to one input.
        y_share: t̄ in (0, 1].
        x_mean: m_x, of one input's shape, or a tuple, list or dict of such for inputs of several tensors.
        y_mean: m_y, of one output's shape.
    """

    x_share: Share
    y_share: float
    x_mean: Any
    y_mean: Tensor

    def __post_init__(self) -> None:
        for name, share, kinds in (
            ("inputs", self.x_share, (int, float, Tensor)),
            ("outputs", self.y_share, (int, float)),
        ):
            if not isinstance(share, kinds) or isinstance(share, bool):
                raise TypeError(f"the share of {name} must be a number, got {type(share).__name__}")
        if not 0 < self.y_share <= 1:
            raise ValueError(f"the share of outputs must lie in (0, 1], got {self.y_share!r}")
        share = self.x_share
        if isinstance(share, Tensor) and share.is_meta:
            return  # holds no numbers yet
        if not (bool(((share >= 0) & (share <= 1)).all()) if isinstance(share, Tensor) else 0 <= share <= 1):
            raise ValueError(f"the share of inputs must lie in [0, 1], got {share!r}")

    @classmethod
    def of_mixup(cls, alpha: float, x_mean: Any, y_mean: Tensor) -> Rule:
        """Mixup's: θ̄ for both (eq. testmodif)."""
        share = scalar_forms(alpha, "a prediction rule").mean
        return cls(share, share, x_mean, y_mean)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Rule:
        """The same rule there, its means in `dtype`."""
        share = self.x_share.to(device, dtype) if isinstance(self.x_share, Tensor) else self.x_share
        x_mean = rebuild(self.x_mean, lambda mean: mean.to(device, dtype))
        return Rule(share, self.y_share, x_mean, self.y_mean.to(device, dtype))

    def to_tensors(self) -> dict[str, Tensor]:
        """As tensors, for a file; inputs of one tensor only."""
        if not isinstance(self.x_mean, Tensor):
            raise TypeError("only a rule for inputs of one tensor can be kept as tensors")
        shares = {name: torch.as_tensor(getattr(self, name), dtype=torch.float64) for name in ("x_share", "y_share")}
        tensors = shares | {"x_mean": self.x_mean, "y_mean": self.y_mean}
        return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Rule:
        """What `to_tensors` gave."""
        share = tensors["x_share"]
        x_share = share if share.ndim else float(share)
        return cls(x_share, float(tensors["y_share"]), tensors["x_mean"], tensors["y_mean"])

    def shrink(self, x: Any) -> Any:
        """m_x + S̄ ∘ (x − m_x); x: n × …, in the structure of the means."""
        return shrink_tree(x, dict(leaves(self.x_mean)), self.x_share)

    def stretch(self, u: Any) -> Tensor:
        """m_y + (u − m_y) / t̄; u: n × …, what the network makes of shrunk inputs."""
        return stretch(require_output(u), self.y_mean, self.y_share)


def shrink_tree(x: Any, means: Mapping[str, Tensor], share: Share) -> Any:
    """All tensors of x shrunk towards their means, which are named as `leaves` names them."""
    named = dict(leaves(x))
    if named.keys() != means.keys():
        raise ValueError(f"the means are those of {list(means)}, but the input holds {list(named)}")
    for name, tensor in named.items():
        if not tensor.is_floating_point():
            raise TypeError(f"{name} has dtype {tensor.dtype}; convert and normalise it as in training first")
    shrunk = (shrink(tensor, means[name], share) for name, tensor in named.items())
    return rebuild(x, lambda _: next(shrunk))


def require_output(u: Any) -> Tensor:
    """A network's output, which must be one tensor to be stretched."""
    if not isinstance(u, Tensor):
        raise TypeError(
            f"the network must return one tensor to be stretched, got {type(u).__name__}; wrap a module that "
            "returns its logits"
        )
    return u
