"""The one home of delicate numerics: gamma-function ratios and Beta draws that survive extreme α.

**The ratio.** Everything that θ's distribution needs is one function,

    L(α) = log( Γ(α + ½) / (√π Γ(α + 1)) ),        L(0) = 0,   L(α) ~ −½ log(π α).

The difference of two library log-gammas loses it at both ends (at 0 it is a small difference of O(1) numbers,
at ∞ one of O(α log α) numbers), so it is summed directly:

* α < ⅛: Taylor's series of log Γ around ½ and 1. With ψ⁽ᵏ⁻¹⁾(z) = (−1)ᵏ (k−1)! ζ(k, z) and
  ζ(k, ½) = (2ᵏ − 1) ζ(k),

      L(α) = −2 log 2 · α + Σ_{k≥2} (−1)ᵏ (2ᵏ − 2) ζ(k) αᵏ / k.

* α ≥ ⅛: Γ(z + 1) = z Γ(z) moves the argument up by 16,

      L(α) = L(α + 16) + Σ_{k<16} log(1 + ½ / (α + k + ½)),

  and there Stirling's series with B_k(½) − B_k(1) = −(2 − 2^{1−k}) B_k for the Bernoulli numbers B_k,

      L(w) = −½ log(π w) − Σ_{k=2,4,…} (2 − 2^{1−k}) B_k / (k (k−1) w^{k−1}).

Both are sums of smooth elementary functions, so derivatives of any order in α are as accurate as the values.

**The draw.** If U, V are uniform on (0, 1) then cos(2πV) √(2α (U^{−1/α} − 1)) has Student's distribution with 2α
degrees of freedom (Bailey, 1994), and T ↦ ½ (1 + T / √(2α + T²)) carries it to Beta(α, α). With E = −log U and

    r = (e^{E/α} − 1) cos²(2πV)        |2λ − 1| = √(r / (1 + r))        min(λ, 1 − λ) = ½ / (1 + r + √r √(1 + r))

nothing cancels or underflows at any α, there is no rejection, and the draw is a smooth function of α. At α = 0 it is
0 or 1, at α = ∞ it is ½, both exactly.

For one α that is not extreme, G / (G + H) with Gamma(α) variables G and H takes fewer calls, which is what the hundred
numbers of a batch cost: min(λ, 1 − λ) = min(G, H) / (G + H), as accurate. It is not for small α, where G and H both
underflow: at α = 1e-3 a quarter of the draws of `torch.distributions.Beta` land in (0.4, 0.6), where 0.04 % belong
(pytorch#84625).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mixreg._support.random import device_of, gamma, uniform

# Where two Gamma(α) variables do not both underflow (less than one pair in 10¹⁵ does), and their sum does not overflow.
_GAMMA_FROM, _GAMMA_TO = {torch.float32: 0.2, torch.float64: 0.025}, 1e6

# Below ⅛ consecutive Taylor terms shrink by at least 4 and 27 of them reach the last bit of a float64.
_SERIES_END = 0.125
_ZETA = torch.special.zeta(torch.arange(2, 28, dtype=torch.float64), torch.ones((), dtype=torch.float64))
_TAYLOR = [0.0, -2.0 * math.log(2.0)] + [
    (-1) ** k * (2.0**k - 2.0) * zeta / k for k, zeta in enumerate(_ZETA.tolist(), start=2)
]

# From 16 on, the first omitted Stirling term (k = 16) is below 1e-19.
_SHIFT = 16
_BERNOULLI = {2: 1 / 6, 4: -1 / 30, 6: 1 / 42, 8: -1 / 30, 10: 5 / 66, 12: -691 / 2730, 14: 7 / 6}
_STIRLING = [(2.0 - 2.0 ** (1 - k)) * b / (k * (k - 1)) for k, b in _BERNOULLI.items()]


def _horner(coefficients: list[float], z: Tensor) -> Tensor:
    total = torch.full_like(z, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * z + c
    return total


def log_half_gamma_ratio(alpha: Tensor) -> Tensor:
    """L(α) = log(Γ(α + ½) / (√π Γ(α + 1))) for finite float64 α ≥ 0, with relative error near 1e-15.

    Args:
        alpha: any shape, float64.
    """
    is_small = alpha < _SERIES_END
    # Each branch sees only arguments it is made for: `where` would let a NaN of the other into the gradient.
    small = _horner(_TAYLOR, torch.where(is_small, alpha, 0.0))
    z = torch.where(is_small, 1.0, alpha)
    up = sum(torch.log1p(0.5 / (z + (k + 0.5))) for k in range(_SHIFT))
    w = z + _SHIFT
    stirling = -0.5 * torch.log(math.pi * w) - _horner(_STIRLING, 1 / (w * w)) / w
    return torch.where(is_small, small, stirling + up)


def draw_beta(
    alpha: float | Tensor, shape: tuple[int, ...], generator: torch.Generator | None, dtype: torch.dtype
) -> Tensor:
    """Independent draws of λ ~ Beta(α, α), on the device of the generator.

    Reparametrised: gradients flow to a tensor α wherever 0 < α < ∞.

    Args:
        alpha: in [0, ∞]; a tensor must broadcast to the shape.
        shape: of the result.
        generator: on a device that knows float64.
        dtype: that the result is rounded to.
    """
    if _is_uniform(alpha):
        return uniform(shape, generator, dtype)
    ratio, angle = uniform((2, *shape), generator, torch.float64)
    cosine = torch.cos(angle * (2 * math.pi))
    share = _smaller_part(alpha, ratio, cosine)
    return torch.where(cosine > 0, 1 - share, share).to(dtype)


def draw_smaller_part(
    alpha: float | Tensor, shape: tuple[int, ...], generator: torch.Generator | None, dtype: torch.dtype
) -> Tensor:
    """Independent draws of min(λ, 1 − λ) = 1 − θ, with full relative accuracy; arguments as for `draw_beta`."""
    if _is_uniform(alpha):
        return uniform(shape, generator, dtype).mul_(0.5)
    if not isinstance(alpha, Tensor):
        kind = dtype if alpha >= _GAMMA_FROM.get(dtype, math.inf) else torch.float64
        if _GAMMA_FROM[kind] <= alpha <= _GAMMA_TO:
            concentration = torch.full((2, *shape), alpha, dtype=kind, device=device_of(generator))
            gammas = gamma(concentration, generator)
            return (gammas.amin(0) / gammas.sum(0)).to(dtype)
    ratio, angle = uniform((2, *shape), generator, torch.float64)
    return _smaller_part(alpha, ratio, torch.cos(angle * (2 * math.pi))).to(dtype)


def _is_uniform(alpha: float | Tensor) -> bool:
    """α = 1, the default, where λ is uniform: for a small batch the long way costs as much as the mixing."""
    return not isinstance(alpha, Tensor) and alpha == 1


# Beyond this e^{E/α} overflows, and λ is 0 or 1 to 300 digits: an infinity would make the gradient NaN.
_LARGEST_EXPONENT = 700.0


def _smaller_part(alpha: float | Tensor, ratio: Tensor, cosine: Tensor) -> Tensor:
    """min(λ, 1 − λ) by the formula of the module's head, differentiable in a tensor α."""
    if isinstance(alpha, Tensor):
        rate: float | Tensor = alpha.to(cosine.device, torch.float64).reciprocal()
    elif alpha == 0:
        return torch.zeros_like(ratio)
    else:
        rate = 1 / alpha
    r = torch.expm1((torch.log(ratio) * -rate).clip(max=_LARGEST_EXPONENT)) * (cosine * cosine)
    above = r + 1
    return 0.5 / (above + torch.sqrt(r) * torch.sqrt(above))
