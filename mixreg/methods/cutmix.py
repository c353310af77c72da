"""CutMix (Yun et al., 2019) as shrunk data with noise, and the prediction rule that follows: a share for every pixel.

A box of another image replaces a part of one's own (`mixreg.theory.boxes`), and labels are mixed by the area that is
left of it. Each mixed sample is named by its larger part. Let M_p ∈ {0, 1} say whether pixel p is taken from that part,
and θ = mean_p M_p ∈ [½, 1]. With the partner j uniform over the data,

    x̂_p = M_p x_{ip} + (1 − M_p) x_{jp}        E[x̂_p | i] = x̄_p + m_p (x_{ip} − x̄_p),       m_p = E M_p,
    ŷ   = θ y_i + (1 − θ) y_j                   E[ŷ | i]  = ȳ + θ̄ (y_i − ȳ),                  θ̄ = E θ = mean_p m_p.

Dense targets (segmentation masks, n × H × W, and anything else with the image's last two dimensions) are not mixed by
area but cut with the same box: every pixel keeps the label of the image it came from, so that t̄ is the map m, too.

So a network trained with CutMix has learnt a map from inputs that are shrunk pixel by pixel, the less the nearer to the
corners, which boxes rarely reach: its rule has the map m as the share of inputs and θ̄ as that of outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mixreg._support.fields import Keys
from mixreg._support.random import permutation
from mixreg._support.structure import common_dtype, leaves, of_kind, rebuild
from mixreg.losses.mixed_targets import MixedTargets
from mixreg.losses.target_trees import Classes, validate_classes
from mixreg.methods.method import Augmentation
from mixreg.methods.pairing import Pairing, is_chosen, mix, paired, unmixed_parts
from mixreg.methods.partners import Partners
from mixreg.methods.recipe import Recipe
from mixreg.prediction.rule import Rule
from mixreg.theory.boxes import draw_boxes, own_share
from mixreg.theory.moments import DataMoments


class CutMix(Recipe, Augmentation):
    """Replaces a box of every image by that of another: `x, y = CutMix(alpha=1.0, num_classes=10)(x, y)`.

    Args:
        alpha: in [0, ∞]; 0 cuts nothing.
        num_classes: needed when targets are integer labels, which become soft labels; of several targets a tree.
        generator: random number generator; by default PyTorch's global one.
        per_sample: draw a box for every image, or one for the batch.
        probability: that an image gets a box (or the whole batch, if not `per_sample`), in [0, 1].
        label_smoothing: ε in [0, 1) of a smoothing towards the uniform label, before mixing.
        partners: "uniform" or "balanced" over classes.
            In Python also a callable (y, generator) that gives the partner of each.
        ignore_index: the class index (255, −100) that has no part in the loss: all its soft labels are 0.
        inputs: where a batch that is no pair holds x; y is at `targets`.
        targets: the same of y.
    """

    name = "cutmix"
    about = "boxes of other images, labels by area (Yun et al., 2019)"
    options = ("probability", "per_sample", "partners")

    def __init__(
        self,
        alpha: float = 1.0,
        num_classes: Classes = None,
        generator: torch.Generator | None = None,
        per_sample: bool = True,
        probability: float = 1.0,
        label_smoothing: float = 0.0,
        partners: Partners = "uniform",
        ignore_index: int | None = None,
        inputs: Keys | None = None,
        targets: Keys | None = None,
    ) -> None:
        self.alpha, self.num_classes, self.generator = alpha, validate_classes(num_classes), generator
        self.per_sample, self.probability, self.label_smoothing = per_sample, probability, label_smoothing
        self.partners, self.ignore_index = partners, ignore_index
        self.inputs, self.targets = inputs, targets

    def draw(self, x: Tensor, y: Any, generator: torch.Generator | None = None) -> tuple[Tensor, Any]:
        """A batch with boxes of other images.

        x: n × … × height × width; y: n integer labels, n × … targets, or dense ones, … × height × width.
        """
        return self._cut(x, y, generator, parts=False)

    def draw_parts(self, x: Tensor, y: Any, generator: torch.Generator | None = None) -> tuple[Tensor, Any]:
        return self._cut(x, y, generator, parts=True)

    def _cut(self, x: Tensor, y: Any, generator: torch.Generator | None, parts: bool) -> tuple[Tensor, Any]:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 3:
            given = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"CutMix takes floating-point images n × … × height × width, got {given}")
        if 0 in x.shape[-2:]:
            raise ValueError(f"CutMix takes images of at least one pixel, got shape {tuple(x.shape)}")
        values = self._parts(x, y) if parts else self._targets(x, y)
        for _, target in leaves(values, "y"):
            _require_cuttable(target, x)
        n, height, width = x.shape[0], x.shape[-2], x.shape[-1]
        if self.alpha == 0 or n == 0:
            return unmixed_parts(x.clone(), values) if parts else (x.clone(), rebuild(values, torch.clone))
        count = n if self.per_sample else 1
        boxes = draw_boxes(count, self.alpha, height, width, generator)
        partner = self._drawn_partners(y, generator)
        partner = permutation(n, generator) if partner is None else partner
        area = boxes.area()
        covers_most = 2 * area > height * width
        share = torch.where(covers_most, height * width - area, area).double() / (height * width)
        # Where the box is the larger part, it is what stays.
        replaced = boxes.masks(height, width) ^ covers_most.reshape(-1, 1, 1)
        if self.probability < 1:
            is_cut = is_chosen(count, self.probability, generator)
            share, replaced = share * is_cut, replaced & is_cut.reshape(-1, 1, 1)
        replaced, pairing = replaced.expand(n, -1, -1), Pairing(partner, share.expand(n).to(common_dtype(x)))

        def cut(target: Tensor) -> Any:
            if parts:
                return _parts_of(target, pairing, replaced)
            return pasted(target, partner, replaced) if target.ndim > 2 else mix(target, pairing)

        return pasted(x, partner, replaced), rebuild(values, cut)

    def full_rule(self, moments: DataMoments) -> Rule:
        """A share for every pixel of images, and of dense targets, which are cut with them."""
        x_mean, y_mean = moments.x_mean, moments.y_mean
        if not isinstance(x_mean, Tensor) or x_mean.ndim < 2:
            raise TypeError("the rule of CutMix is for images … × height × width; these moments are of something else")
        share = own_share(self.alpha, *x_mean.shape[-2:])
        is_dense = y_mean.ndim > 1 and y_mean.shape[-2:] == x_mean.shape[-2:]
        return Rule(share, share if is_dense else float(share.mean()), x_mean, y_mean)

    def __repr__(self) -> str:
        shown = [f"alpha={self.alpha}", f"num_classes={self.num_classes}", *self._shown_recipe()]
        return f"CutMix({', '.join(shown)})"


def pasted(x: Tensor, partner: Tensor, replaced: Tensor, source: Tensor | None = None) -> Tensor:
    """x with the partner's pixels where `replaced` (n × height × width) says so; x: n × … × height × width.

    `source`: whose rows the partners are, by default those of x.
    """
    where = replaced.to(x.device).reshape(len(x), *[1] * (x.ndim - 3), *replaced.shape[1:])
    partners = (x if source is None else source).index_select(0, partner.to(x.device))
    # x before its partners: the result has the memory format of the first.
    return of_kind(x, torch.where(where.logical_not(), x, partners))


def _require_cuttable(target: Tensor, x: Tensor) -> None:
    if target.ndim > 2 and target.shape[-2:] != x.shape[-2:]:
        raise ValueError(
            f"dense targets are cut with the images and must end with their height and width "
            f"{tuple(x.shape[-2:])}, got targets of shape {tuple(target.shape)}"
        )


def _parts_of(target: Tensor, pairing: Pairing, replaced: Tensor) -> MixedTargets:
    """Dense targets have a map of zeros and ones for a share; others the area."""
    mixed: MixedTargets = paired(target, pairing)
    if target.ndim <= 2:
        return mixed
    where = replaced.to(target.device, pairing.share.dtype)
    return mixed._replace(share=where.reshape(len(target), *[1] * (target.ndim - 3), *replaced.shape[1:]))
