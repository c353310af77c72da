"""The distribution of θ, the share a sample keeps of itself (§3 of the paper).

Mixup draws λ ~ Beta(α, α). By symmetry a pair (i, j) at λ is the pair (j, i) at 1 − λ, so the pair can be named by
its larger part: θ = max(λ, 1 − λ), which is the paper's Beta(α, α) truncated to [½, 1]. Its moments are closed forms.
With g(α) = Γ(α + ½) / (√π Γ(α + 1)) = E|2λ − 1|,

    θ̄  = E θ         = ½ (1 + g)
    σ² = Var θ       = ¼ (1 / (2α + 1) − g²)          because E(2λ − 1)² = 1 / (2α + 1)
    γ² = E (1 − θ)²  = σ² + (1 − θ̄)²

α = 0 is no mixing (θ = 1: empirical risk minimisation) and α = ∞ mixes every pair half and half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from mixreg._support.numbers import require_alpha
from mixreg.theory.numerics import draw_beta, draw_smaller_part, log_half_gamma_ratio


class ClosedForms(NamedTuple):
    """θ̄, 1 − θ̄, σ² and γ², each with full relative accuracy."""

    mean: Tensor
    shrinkage: Tensor
    var: Tensor
    gamma2: Tensor


def closed_forms(alpha: Tensor) -> ClosedForms:
    """The moments of θ for a float64 tensor of α in [0, ∞], differentiable in α."""
    is_finite = torch.isfinite(alpha)
    a = torch.where(is_finite, alpha, 0.0)
    log_g = log_half_gamma_ratio(a)
    g = torch.where(is_finite, torch.exp(log_g), 0.0)
    shrinkage = torch.where(is_finite, 0.5 * (0.0 - torch.expm1(log_g)), 0.5)
    # The same σ² twice: as a difference from 1 for small α and as it stands for large, where each is accurate.
    near_one = (0.0 - torch.expm1(2 * log_g)) - 2 * a / (1 + 2 * a)
    var = 0.25 * torch.where(a < 1, near_one, 1 / (1 + 2 * a) - g * g)
    var = torch.where(is_finite, var, 0.0)
    return ClosedForms(0.5 * (1 + g), shrinkage, var, var + shrinkage**2)


class ScalarForms(NamedTuple):
    """α as a float and the moments of its θ as floats."""

    alpha: float
    mean: float
    shrinkage: float
    var: float
    gamma2: float


@lru_cache(maxsize=256)
def _float_closed_forms(alpha: float) -> ScalarForms:
    return ScalarForms(alpha, *(v.item() for v in closed_forms(torch.tensor(alpha, dtype=torch.float64, device="cpu"))))


def scalar_forms(alpha: float, user: str) -> ScalarForms:
    """The moments for one α, for a `user` that cannot take a tensor of them."""
    value = validate_alpha(alpha)
    if isinstance(value, Tensor):
        raise TypeError(f"{user} takes one alpha as a number, got a tensor")
    return _float_closed_forms(value)


def validate_alpha(alpha: float | Tensor) -> float | Tensor:
    """α itself (an int becomes a float), or an error that says what α may be."""
    if isinstance(alpha, Tensor):
        if not alpha.is_floating_point():
            raise TypeError(f"alpha must be a floating-point tensor, got dtype {alpha.dtype}")
        if not bool((alpha.detach() >= 0).all()):
            raise ValueError(f"every alpha must lie in [0, inf], got {alpha.detach().tolist()}")
        return alpha
    return require_alpha(alpha)


@dataclass(frozen=True)
class Theta:
    """The distribution of θ for Mixup with parameter α.

    >>> Theta(1.0).mean, round(Theta(1.0).var * 48, 12)
    (0.75, 1.0)

    Args:
        alpha: in [0, ∞]. A float gives floats; a tensor gives tensors of its shape, dtype and device through
            which gradients flow to α.
    """

    alpha: float | Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", validate_alpha(self.alpha))

    def _moment(self, index: int) -> float | Tensor:
        if isinstance(self.alpha, Tensor):
            # On the CPU in float64 whatever α's home is: not every device has float64, and α is small.
            value = closed_forms(self.alpha.to("cpu", torch.float64))[index]
            return value.to(self.alpha.device, self.alpha.dtype)
        return _float_closed_forms(self.alpha)[1 + index]

    @property
    def mean(self) -> float | Tensor:
        """θ̄ = E θ, the factor by which Mixup shrinks the data towards its mean."""
        return self._moment(0)

    @property
    def shrinkage(self) -> float | Tensor:
        """1 − θ̄, accurate also where θ̄ rounds to 1; the strength of the implied label smoothing."""
        return self._moment(1)

    @property
    def var(self) -> float | Tensor:
        """σ² = Var θ."""
        return self._moment(2)

    @property
    def gamma2(self) -> float | Tensor:
        """γ² = E (1 − θ)²."""
        return self._moment(3)

    def sample(
        self,
        shape: int | Sequence[int] = (),
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draws of θ in [½, 1]; a tensor α must broadcast to `shape` and receives reparametrised gradients."""
        return 1 - self.sample_share(shape, generator, dtype, device)

    def sample_share(
        self,
        shape: int | Sequence[int] = (),
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draws of 1 − θ in [0, ½], the partner's share; accurate also where θ rounds to 1."""
        return self._draw(draw_smaller_part, shape, generator, dtype, device)

    def sample_lambda(
        self,
        shape: int | Sequence[int] = (),
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draws of λ ~ Beta(α, α) in [0, 1], right at any α."""
        return self._draw(draw_beta, shape, generator, dtype, device)

    def _draw(
        self,
        draw: Callable[..., Tensor],
        shape: int | Sequence[int],
        generator: torch.Generator | None,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> Tensor:
        """`draw` where float64 exists, moved to the device that the result belongs on."""
        if isinstance(self.alpha, Tensor):
            dtype, device = dtype or self.alpha.dtype, device or self.alpha.device
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if isinstance(self.alpha, Tensor):
            own, trailing = self.alpha.shape, shape[max(0, len(shape) - self.alpha.ndim) :]
            if len(own) > len(shape) or any(a not in (1, s) for a, s in zip(own, trailing, strict=True)):
                raise ValueError(f"alpha of shape {tuple(self.alpha.shape)} does not broadcast to shape {shape}")
        target = torch.device(device) if device is not None else torch.empty(0).device
        return draw(self.alpha, shape, generator, dtype or torch.get_default_dtype()).to(target)
