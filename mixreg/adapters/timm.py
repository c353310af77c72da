"""In the place of `timm.data.Mixup`: the same arguments, the same call, and the prediction rule that belongs to it.

    from mixreg.adapters.timm import Mixup          # where the train script has: from timm.data import Mixup

What is shown has timm's distribution: with probability `prob` a batch (a pair, or each sample) is mixed with the same
rows of the reversed batch, by CutMix with probability `switch_prob` where both are on, with labels that were smoothed
before. Three things differ, none of them on average:

* a mixed sample is named by its larger part, and so is the row it stands in: λ and 1 − λ are the same two mixtures of a
  pair (the form of Theorem 1). So every sample of a batch is shown by at least half, `rule` says what is shown of it,
  and metrics may count against its own label;
* batches may be odd (the sample in the middle is its own partner), and x is not changed in place;
* random numbers come from a `generator`, by default PyTorch's global one, not NumPy's.

timm need not be installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from mixreg._support.random import device_of, uniform
from mixreg._support.structure import common_dtype
from mixreg.losses.targets import checked_values, validate_num_classes
from mixreg.methods.cutmix import pasted
from mixreg.methods.method import Augmentation, Rows
from mixreg.methods.pairing import Pairing, mix, paired
from mixreg.methods.recipe import Recipe
from mixreg.prediction.rule import Rule
from mixreg.prediction.timm_rule import SEVERAL_TOWARDS, require_timm_options, timm_rule
from mixreg.theory.boxes import Boxes, boxes_of_size, draw_boxes_between
from mixreg.theory.moments import DataMoments
from mixreg.theory.numerics import draw_beta


class Mixup(Recipe, Augmentation):
    """See the module's head; `x, target = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=1000)(x, target)`.

    Args:
        mixup_alpha: α of Mixup; off at 0.
        cutmix_alpha: α of CutMix; off at 0.
        cutmix_minmax: sides of CutMix's boxes are uniform between these two fractions of the image's, whatever
            `cutmix_alpha` is.
        prob: that a batch, a pair or a sample is mixed.
        switch_prob: that it is by CutMix, where both are on.
        mode: "batch", "pair" or "elem": one λ for all, one for each pair, or one for each sample.
        correct_lam: labels are mixed by the area of a box as the border cuts it, and not by λ.
        label_smoothing: ε of the smoothing towards the uniform label, before mixing.
        num_classes: c.
        multi_label: targets are n × c zeros and ones, several labels at once, each smoothed towards ½.
        generator: random number generator; by default PyTorch's global one.

    Attributes:
        mixup_enabled: timm's train script sets it to False for `--mixup-off-epoch`: labels are then only smoothed.
    """

    def __init__(
        self,
        mixup_alpha: float = 1.0,
        cutmix_alpha: float = 0.0,
        cutmix_minmax: Sequence[float] | None = None,
        prob: float = 1.0,
        switch_prob: float = 0.5,
        mode: str = "batch",
        correct_lam: bool = True,
        label_smoothing: float = 0.1,
        num_classes: int = 1000,
        multi_label: bool = False,
        generator: Generator | None = None,
    ) -> None:
        require_timm_options(mixup_alpha, cutmix_alpha, cutmix_minmax, prob, switch_prob, mode, label_smoothing)
        self.mixup_alpha, self.cutmix_alpha, self.cutmix_minmax = mixup_alpha, cutmix_alpha, cutmix_minmax
        self.prob, self.switch_prob, self.mode, self.correct_lam = prob, switch_prob, mode, correct_lam
        self.label_smoothing, self.num_classes = label_smoothing, validate_num_classes(num_classes)
        self.multi_label, self.generator = multi_label, generator
        self.mixup_enabled = True

    def draw(self, x: Tensor, y: Any, generator: Generator | None = None) -> Rows:
        """x: n × … × height × width (or n × … where only Mixup is on), y: n integer labels, or n × c labels at once."""
        values = self._several(x, y) if self.multi_label else self._targets(x, y)
        if not self.mixup_enabled:
            return x, values
        x, pairing = self._mixed(x, generator)
        return x, mix(values, pairing)

    def _several(self, x: Tensor, y: Any) -> Tensor:
        if not isinstance(y, Tensor) or y.ndim != 2 or y.shape[1] != self.num_classes:
            given = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            raise ValueError(f"with multi_label=True targets are n × {self.num_classes} labels, got {given}")
        return checked_values(x, y, None).lerp(torch.tensor(SEVERAL_TOWARDS).to(common_dtype(x)), self.label_smoothing)

    def draw_parts(self, x: Tensor, y: Any, generator: Generator | None = None) -> tuple[Any, Any]:
        values = self._parts(x, y)
        partner = torch.arange(len(x)).flip(0)
        x, pairing = self._mixed(x, generator) if self.mixup_enabled else (x, Pairing(partner, torch.zeros(len(x))))
        return x, paired(values, pairing)

    def _mixed(self, x: Tensor, generator: Generator | None) -> tuple[Tensor, Pairing]:
        """The mixed batch, and by how much its labels are to be."""
        n, kind = len(x), common_dtype(x)
        rows = torch.arange(n)
        partner = rows.flip(0)
        group = {"batch": torch.zeros_like(rows), "pair": torch.minimum(rows, partner), "elem": rows}[self.mode]
        count = {"batch": 1, "pair": (n + 1) // 2, "elem": n}[self.mode]
        is_mixed = uniform((count,), generator, torch.float64) < self.prob
        cuts = self._cuts(count, generator)
        lam = torch.ones_like(cuts, dtype=torch.float64)
        if self.mixup_alpha > 0:
            lam = draw_beta(self.mixup_alpha, (count,), generator, torch.float64)
        is_cut = bool(cuts.any())
        if is_cut:
            boxes, left = self._boxes(x, count, generator)
            lam = torch.where(cuts, left, lam)
        share = torch.where(is_mixed, torch.minimum(lam, 1 - lam), 0.0)
        pairing = Pairing(partner, share[group].to(kind))
        if not is_cut:
            return mix(x, pairing), pairing
        # Where the box is the larger part, it is what stays.
        replaced = boxes.masks(*x.shape[-2:]) ^ (lam < 0.5).reshape(-1, 1, 1)
        replaced = replaced & (cuts & is_mixed).reshape(-1, 1, 1)
        blended = x if bool(cuts.all()) else mix(x, Pairing(partner, torch.where(cuts, 0.0, share)[group].to(kind)))
        return pasted(blended, partner, replaced[group], x), pairing

    def _cuts(self, count: int, generator: Generator | None) -> Tensor:
        """Which are mixed by CutMix."""
        is_on = self.cutmix_minmax is not None or self.cutmix_alpha > 0
        if is_on and self.mixup_alpha > 0:
            return uniform((count,), generator, torch.float64) < self.switch_prob
        return torch.full((count,), is_on, device=device_of(generator))

    def _boxes(self, x: Tensor, count: int, generator: Generator | None) -> tuple[Boxes, Tensor]:
        """Boxes, and λ of the labels: how much of an image they leave."""
        if x.ndim < 3:
            raise TypeError(f"CutMix takes images n × … × height × width, got shape {tuple(x.shape)}")
        height, width = x.shape[-2:]
        if self.cutmix_minmax is not None:
            low, high = self.cutmix_minmax
            boxes = draw_boxes_between(count, low, high, height, width, generator)
        else:
            lam = draw_beta(self.cutmix_alpha, (count,), generator, torch.float64)
            boxes = boxes_of_size((1 - lam).sqrt(), height, width, generator)
            if not self.correct_lam:
                return boxes, lam
        return boxes, 1 - boxes.area() / (height * width)

    def rule(self, moments: DataMoments) -> Rule:
        """That of `Rule.from_timm`; once mixing is off, the network last saw data as it is, and it changes nothing."""
        if not self.mixup_enabled:
            towards = SEVERAL_TOWARDS if self.multi_label else None
            return Rule(1.0, 1.0, moments.x_mean, moments.y_mean).smoothed(self.label_smoothing, towards)
        found = timm_rule(
            moments.x_mean,
            moments.y_mean,
            mixup_alpha=self.mixup_alpha,
            cutmix_alpha=self.cutmix_alpha,
            cutmix_minmax=self.cutmix_minmax,
            prob=self.prob,
            switch_prob=self.switch_prob,
            mode=self.mode,
            correct_lam=self.correct_lam,
            label_smoothing=self.label_smoothing,
            num_classes=int(self.num_classes),
            multi_label=self.multi_label,
        )
        # One number for each channel is how the mean of images may be given; that of vectors is one for each feature.
        return replace(found, x_mean=moments.x_mean)

    def __repr__(self) -> str:
        return f"Mixup(mixup_alpha={self.mixup_alpha}, cutmix_alpha={self.cutmix_alpha}, mode={self.mode!r})"


class FastCollateMixup(Mixup):
    """In the place of `timm.data.FastCollateMixup`: collates images of bytes, and mixes them in a loader's workers.

    Its prefetching loader switches off only timm's own class: for `--mixup-off-epoch` set `mixup_enabled` here.
    """

    def __call__(self, batch: Any, _: Any = None, *, parts: bool = False) -> Any:
        """Images, bytes n × channels × height × width, and soft labels n × c, of samples (image, label).

        An image is a NumPy array or a tensor; what is not bytes stays what it is.
        """
        x = torch.stack([torch.as_tensor(image) for image, _ in batch])
        several = self.multi_label
        y = torch.stack([torch.as_tensor(label) if several else torch.tensor(int(label)) for _, label in batch])
        if x.is_floating_point():
            return super().__call__(x, y)
        mixed, soft = super().__call__(x.float(), y)
        return mixed.round().to(x.dtype), soft

    def collate_fn(self, samples: list[Any]) -> Any:
        """As a call."""
        return self(samples)
