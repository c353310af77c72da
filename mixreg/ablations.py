"""Mixup taken apart: of inputs only, of outputs only, of both but independently, and without shrinking.

The paper's discussion explains why the parts do worse than the whole. Mixup's noise is correlated between inputs and
outputs, and this correlation is what pulls the Jacobian towards a good linear model (R1 and R3 with B_i ≠ 0):

| variant      | input                    | output              | noise            | prediction      |
|--------------|--------------------------|---------------------|------------------|-----------------|
| Mixup        | θ x_i + (1−θ) x_j        | θ y_i + (1−θ) y_j   | A_i, B_i, C_i    | shrink, stretch |
| inputs only  | θ x_i + (1−θ) x_j        | y_i                 | A_i, 0, 0        | shrink          |
| outputs only | x_i                      | θ y_i + (1−θ) y_j   | 0, 0, C_i        | stretch         |
| independent  | θ x_i + (1−θ) x_j        | θ' y_i + (1−θ') y_k | A_i, 0, C_i      | shrink, stretch |
| scaled       | x_i + (1/λ − 1)(x_j − x̄) | y_i                 | (1/λ − 1)² Σ, 0, 0 | as it is      |

with independent θ', k, and with the covariances of the noise around its mean given i. Names go by the larger part, so
an output that is not mixed is that of the larger part. Inputs only has no label smoothing to keep predictions away from
0 and 1, where R1 vanishes. Independent mixing has no interaction: J⁽ⁱ⁾ = 0, so that R1 pulls the Jacobian towards 0
instead of towards a linear model.

**Scaled** (Zhang et al., 2021, with their centred data written out): λ ~ Beta(α + 1, α). Its inputs are not shrunk,
E[x̂ | i] = x_i, so that no rescaling is needed. The noise has a second moment for α > 1 only,
E(1/λ − 1)² = (α + 1) / (α − 1).

Beta(α + 1, α) is Beta(α, α) seen by size: of λ and 1 − λ take the first with probability λ.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mixreg.mixing import Drawing, draw_pairing, mix
from mixreg.numerics import Draw, beta_draw
from mixreg.targets import matched_values, validate_num_classes
from mixreg.theta import Theta, scalar_forms

Outputs = Literal["own", "same", "independent"]
PARTS: dict[str, tuple[bool, Outputs]] = {
    "both": (True, "same"),
    "inputs": (True, "own"),
    "outputs": (False, "same"),
    "independent": (True, "independent"),
}


class PartialMixup(Drawing):
    """Mixup of some parts: `x, y = PartialMixup("inputs", alpha=1.0, num_classes=10)(x, y)`.

    Args:
        parts: "inputs", "outputs", "independent" (both, with partners and shares of their own), or "both" (Mixup).
        alpha: in [0, ∞].
        num_classes: needed when targets are integer labels, which become soft labels.
        generator: the source of chance; by default PyTorch's global one.
    """

    def __init__(
        self,
        parts: str,
        alpha: float = 1.0,
        num_classes: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if parts not in PARTS:
            raise ValueError(f"unknown parts {parts!r}; known are {', '.join(PARTS)}")
        self.parts, self.theta = parts, Theta(scalar_forms(alpha, "PartialMixup").alpha)
        self.num_classes, self.generator = validate_num_classes(num_classes), generator

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """x: n × … floating point, y: n integer labels or n × … targets."""
        mixes_inputs, outputs = PARTS[self.parts]
        values = matched_values(x, y, self.num_classes)
        generator = self._stream()
        pairing = draw_pairing(len(x), self.theta, generator=generator, dtype=x.dtype)
        mixed = mix(x, pairing) if mixes_inputs else x.clone()
        if outputs == "own":
            return mixed, values.clone()
        if outputs == "independent":
            pairing = draw_pairing(len(x), self.theta, generator=generator, dtype=x.dtype)
        return mixed, mix(values, pairing)


class ScaledMixup(Drawing):
    """x_i + (1/λ − 1)(x_j − x̄) with λ ~ Beta(α + 1, α); labels stay: `x, y = ScaledMixup(2.0, x_mean, 10)(x, y)`.

    Args:
        alpha: above 1, below which the noise has no variance; 0 changes nothing.
        x_mean: x̄, of one sample's shape.
        num_classes: needed when targets are integer labels, which become one-hot.
        generator: the source of chance; by default PyTorch's global one.
    """

    def __init__(
        self,
        alpha: float,
        x_mean: Tensor,
        num_classes: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.alpha = scalar_forms(alpha, "ScaledMixup").alpha
        if 0 < self.alpha <= 1:
            raise ValueError(f"ScaledMixup needs alpha above 1, where its noise has a variance, got {alpha!r}")
        self.x_mean, self.num_classes, self.generator = x_mean, validate_num_classes(num_classes), generator

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """x: n × … floating point, y: n integer labels or n × … targets."""
        values = matched_values(x, y, self.num_classes)
        if self.alpha == 0:
            return x.clone(), values.clone()
        generator = self._stream()
        device = generator.device if generator is not None else torch.device("cpu")
        partner = torch.randperm(len(x), generator=generator, device=device).to(x.device)
        lam = beta_draw(self.alpha, Draw((len(x),), generator, device, torch.float64))
        taken = torch.rand(len(x), generator=generator, device=device, dtype=torch.float64) < lam
        lam = torch.where(taken, lam, 1 - lam)
        weight = (1 / lam - 1).to(x.device, x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        return x + weight * (x.index_select(0, partner) - self.x_mean.to(x)), values.clone()
