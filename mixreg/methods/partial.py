"""Mixup taken apart: of inputs only, of outputs only, of both but independently.

The paper's discussion explains why the parts do worse than the whole. Mixup's noise is correlated between inputs and
outputs, and this correlation is what pulls the Jacobian towards a good linear model (R1 and R3 with B_i ≠ 0):

| variant      | input                    | output              | noise         | prediction      |
|--------------|--------------------------|---------------------|---------------|-----------------|
| Mixup        | θ x_i + (1−θ) x_j        | θ y_i + (1−θ) y_j   | A_i, B_i, C_i | shrink, stretch |
| inputs only  | θ x_i + (1−θ) x_j        | y_i                 | A_i, 0, 0     | shrink          |
| outputs only | x_i                      | θ y_i + (1−θ) y_j   | 0, 0, C_i     | stretch         |
| independent  | θ x_i + (1−θ) x_j        | θ' y_i + (1−θ') y_k | A_i, 0, C_i   | shrink, stretch |

with independent θ', k, and with the covariances of the noise around its mean given i. Names go by the larger part, so
an output that is not mixed is that of the larger part. Inputs only has no label smoothing to keep predictions away from
0 and 1, where R1 vanishes. Independent mixing has no interaction: J⁽ⁱ⁾ = 0, so that R1 pulls the Jacobian towards 0
instead of towards a linear model.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mixreg._support.fields import Keys
from mixreg._support.structure import common_dtype
from mixreg.losses.mixed_targets import MixedTargets
from mixreg.losses.targets import validate_num_classes
from mixreg.methods.method import Augmentation, Rows
from mixreg.methods.pairing import Pairing, draw_pairing, mix, paired
from mixreg.methods.partners import Partners
from mixreg.methods.recipe import Recipe
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments

MixedOutputs = Literal["own", "same", "independent"]
PARTS: dict[str, tuple[bool, MixedOutputs]] = {
    "both": (True, "same"),
    "inputs": (True, "own"),
    "outputs": (False, "same"),
    "independent": (True, "independent"),
}


class PartialMixup(Recipe, Augmentation):
    """Mixup of some parts: `x, y = PartialMixup("inputs", alpha=1.0, num_classes=10)(x, y)`.

    Args:
        parts: "inputs", "outputs", "independent" (both, with partners and shares of their own), or "both" (Mixup).
        alpha: in [0, ∞].
        num_classes: needed when targets are integer labels, which become soft labels.
        generator: random number generator; by default PyTorch's global one.
        probability: that a sample is mixed, in [0, 1].
        label_smoothing: ε in [0, 1) of a smoothing towards the uniform label, before mixing.
        partners: "uniform", "balanced" over classes, or a callable (y, generator) that gives the partner of each.
        inputs: where a batch that is no pair holds x; y is at `targets`.
        targets: the same of y.
    """

    def __init__(
        self,
        parts: str,
        alpha: float = 1.0,
        num_classes: int | None = None,
        generator: torch.Generator | None = None,
        probability: float = 1.0,
        label_smoothing: float = 0.0,
        partners: Partners = "uniform",
        inputs: Keys | None = None,
        targets: Keys | None = None,
    ) -> None:
        if parts not in PARTS:
            raise ValueError(f"unknown parts {parts!r}; known are {', '.join(PARTS)}")
        self.parts, self.alpha, self.inputs, self.targets = parts, alpha, inputs, targets
        self.num_classes, self.generator = validate_num_classes(num_classes), generator
        self.probability, self.label_smoothing, self.partners = probability, label_smoothing, partners

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        x, mixed = self._drawn(x, y, self._targets(x, y), generator)
        return x, mixed.values()

    def draw_parts(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, MixedTargets]:
        return self._drawn(x, y, self._parts(x, y), generator)

    def _drawn(
        self, x: Tensor, y: Tensor, values: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, MixedTargets]:
        mixes_inputs, outputs = PARTS[self.parts]
        pairing = self._pairing(x, y, generator)
        mixed = mix(x, pairing) if mixes_inputs else x.clone()
        if outputs == "own":
            pairing = Pairing(torch.arange(len(x)), torch.zeros_like(pairing.share))
        if outputs == "independent":
            pairing = self._pairing(x, y, generator)
        return mixed, paired(values, pairing)

    def _pairing(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Pairing:
        partner = self._drawn_partners(y, generator)
        return draw_pairing(len(x), self.alpha, True, generator, common_dtype(x), self.probability, partner)

    def full_rule(self, moments: DataMoments) -> Rule:
        """A share for what is mixed, all of the rest."""
        mixes_inputs, outputs = PARTS[self.parts]
        share = self.forms.mean
        return Rule(share if mixes_inputs else 1.0, 1.0 if outputs == "own" else share, moments.x_mean, moments.y_mean)
