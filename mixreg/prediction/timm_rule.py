"""The rule of a network that was trained elsewhere, with timm's `Mixup`, from the numbers that were given to it.

timm mixes a batch (or each pair, or each sample) with probability `prob`: where both are on, by CutMix with probability
`switch_prob` and by Mixup otherwise. λ is that of the row's own image, so that a row may show mostly its partner, the
same row of the reversed batch; naming every mixed sample by its larger part makes it the form of Theorem 1, whose means
do not depend on who is named first. Labels are smoothed, by 0.1 unless told otherwise, before they are mixed. Boxes are
those of timm 1.0.31 (earlier ones: `mixreg.theory.boxes`). So, with p = `prob` and q = `switch_prob`,

    S̄ = 1 − p (1 − (1 − q) θ̄ − q m)        t̄ = 1 − p (1 − (1 − q) θ̄ − q mean(m)).
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence

import torch
from torch import Tensor

from mixreg.prediction.rule import Rule
from mixreg.theory.boxes import own_share, own_share_between

MODES = ("batch", "pair", "elem")
# What each of several labels is smoothed towards.
SEVERAL_TOWARDS = 0.5


def timm_rule(
    x_mean: Tensor | None,
    y_mean: Tensor | None = None,
    *,
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
    image_size: int | Sequence[int] | None = None,
) -> Rule:
    """The rule that belongs to `timm.data.Mixup(mixup_alpha=…, …)`.

    Args:
        x_mean: x̄ of the training images as the network saw them: channels × height × width; or channels (or
            channels × 1 × 1) values for all pixels.
        y_mean: ȳ of the labels before smoothing, num_classes; by default uniform, as of balanced classes; needed where
            a sample has several labels.
        image_size: height and width (one number if they are equal), needed for CutMix where `x_mean` does not tell.

    All others are timm's, with timm's defaults. `mode` changes nothing on average.
    """
    if not isinstance(x_mean, Tensor):
        raise TypeError("the rule needs x_mean, the mean of the training images as the network saw them, or moments")
    require_timm_options(mixup_alpha, cutmix_alpha, cutmix_minmax, prob, switch_prob, mode, label_smoothing)
    if y_mean is None and multi_label:
        raise ValueError("with multi_label=True the rule needs y_mean, how often each label is given")
    if y_mean is None:
        y_mean = torch.full((num_classes,), 1 / num_classes, dtype=x_mean.dtype, device=x_mean.device)
    elif y_mean.shape != (num_classes,):
        raise ValueError(f"y_mean must be {num_classes} numbers (num_classes={num_classes}), got {tuple(y_mean.shape)}")
    if x_mean.ndim == 1:
        x_mean = x_mean.reshape(-1, 1, 1)
    cuts = cutmix_minmax is not None or cutmix_alpha > 0
    rules, odds = [], []
    if mixup_alpha > 0:
        rules.append(Rule.of_mixup(mixup_alpha, x_mean, y_mean))
        odds.append(1 - switch_prob if cuts else 1.0)
    if cuts:
        if not correct_lam and cutmix_minmax is None:
            raise ValueError("with correct_lam=False labels are not mixed by the area of boxes: there is no such rule")
        height, width = _size(x_mean, image_size)
        if cutmix_minmax is not None:
            low, high = cutmix_minmax
            share = own_share_between(low, high, height, width)
        else:
            share = own_share(float(cutmix_alpha), height, width)
        rules.append(Rule(share, float(share.mean()), x_mean, y_mean))
        odds.append(switch_prob if mixup_alpha > 0 else 1.0)
    return Rule.mixture(rules, odds).applied(prob).smoothed(label_smoothing, SEVERAL_TOWARDS if multi_label else None)


def require_timm_options(
    mixup_alpha: float,
    cutmix_alpha: float,
    cutmix_minmax: Sequence[float] | None,
    prob: float,
    switch_prob: float,
    mode: str,
    label_smoothing: float,
) -> None:
    """What timm's `Mixup` takes, or an error that says what is wrong with it."""
    if mode not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}, got {mode!r}")
    for name, value in (("mixup_alpha", mixup_alpha), ("cutmix_alpha", cutmix_alpha)):
        if not _is_number(value):
            raise ValueError(f"{name} must be a number, got {value!r}")
    for name, value in (("prob", prob), ("switch_prob", switch_prob), ("label_smoothing", label_smoothing)):
        if not _is_number(value) or not 0 <= value <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
    if cutmix_minmax is not None and (len(cutmix_minmax) != 2 or not all(map(_is_number, cutmix_minmax))):
        raise ValueError(f"cutmix_minmax is two fractions of an image's sides, got {cutmix_minmax!r}")
    if cutmix_minmax is None and not cutmix_alpha > 0 and not mixup_alpha > 0:
        raise ValueError("one of mixup_alpha, cutmix_alpha and cutmix_minmax must be on: above 0, or given")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _size(x_mean: Tensor, image_size: int | Sequence[int] | None) -> tuple[int, int]:
    if image_size is None:
        if x_mean.ndim != 3 or min(x_mean.shape[1:]) < 2:
            raise ValueError("the rule of CutMix has a share for every pixel: give image_size")
        return int(x_mean.shape[1]), int(x_mean.shape[2])
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    if x_mean.ndim == 3 and tuple(x_mean.shape[1:]) not in ((1, 1), (height, width)):
        raise ValueError(f"x_mean is of images of {tuple(x_mean.shape[1:])}, image_size says {(height, width)}")
    return int(height), int(width)
