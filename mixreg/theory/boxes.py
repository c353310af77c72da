"""The boxes of CutMix (Yun et al., 2019), and the share of its own that every pixel keeps: m, exactly.

A box of another image replaces a part of one's own. With λ ~ Beta(α, α) the box has the sides

    w = ⌊W √(1 − λ)⌋,   h = ⌊H √(1 − λ)⌋,   its corner at a uniform centre minus ⌊w/2⌋, ⌊h/2⌋, cut off at the border.

(The original code, torchvision and earlier versions of timm lose a pixel of odd sides: with α = 1 their m differs by at
most 0.02 on 32 × 32 pixels, see tests/test_cutmix.py.) As with Mixup (Theorem 1), the pair (i, j) with a box is the
pair (j, i) with the rest of the image, so each mixed sample can be named by its larger part. M_p ∈ {0, 1} says whether
pixel p is taken from that part, and m_p = E M_p.

Sides take finitely many values, whose probabilities are differences of the Beta distribution function, and centres are
W·H points. For given sides the box is a product of two intervals; with indicators X: W × W of columns in it (by
centre), Y: H × H of rows, and S: H × W of centres whose box covers more than half,

    Σ_centres M = (Yᶜ-or-Xᶜ over S = 0) + (Y and X over S = 1) = WH − |S| − Yᵀ (1 − S) X + Yᵀ S X.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from mixreg._support.random import integers, uniform
from mixreg.theory.numerics import draw_beta
from mixreg.theory.theta import scalar_forms


class Boxes(NamedTuple):
    """Where boxes are: first row and column, and the ones after the last; each n, int64."""

    top: Tensor
    left: Tensor
    bottom: Tensor
    right: Tensor

    def area(self) -> Tensor:
        """Pixels in each box, n."""
        return (self.bottom - self.top) * (self.right - self.left)

    def masks(self, height: int, width: int) -> Tensor:
        """Whether each pixel lies in the box, n × height × width."""
        device = self.top.device
        rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
        inside_rows = (rows >= self.top.unsqueeze(1)) & (rows < self.bottom.unsqueeze(1))
        inside_columns = (columns >= self.left.unsqueeze(1)) & (columns < self.right.unsqueeze(1))
        return inside_rows.unsqueeze(2) & inside_columns.unsqueeze(1)


def draw_boxes(n: int, alpha: float, height: int, width: int, generator: torch.Generator | None = None) -> Boxes:
    """Boxes of CutMix, on the device of the generator."""
    return boxes_of_size((1 - draw_beta(alpha, (n,), generator, torch.float64)).sqrt(), height, width, generator)


def boxes_of_size(scale: Tensor, height: int, width: int, generator: torch.Generator | None = None) -> Boxes:
    """Boxes of these shares of the image's sides (n, √(1 − λ)), at centres drawn uniformly."""
    edges = []
    for side in (height, width):
        # λ > 0, even where 1 − λ rounds to 1.
        length = (side * scale).floor().long().clamp(max=side - 1)
        centre = integers(side, (len(scale),), generator)
        first = centre - length // 2
        edges.append((first.clamp(min=0), (first + length).clamp(max=side)))
    (top, bottom), (left, right) = edges
    return Boxes(top, left, bottom, right)


def draw_boxes_between(
    n: int, low: float, high: float, height: int, width: int, generator: torch.Generator | None = None
) -> Boxes:
    """Boxes wholly inside the image, whose sides are uniform between two fractions of its own; see `own_share_between`.

    On the device of the generator.
    """
    edges = []
    for side in (height, width):
        shortest, end = side_range(low, high, side)
        length = shortest + (uniform((n,), generator, torch.float64) * (end - shortest)).long()
        first = (uniform((n,), generator, torch.float64) * (side - length + 1)).long()
        edges.append((first, first + length))
    (top, bottom), (left, right) = edges
    return Boxes(top, left, bottom, right)


def side_range(low: float, high: float, side: int) -> tuple[int, int]:
    """⌊low · side⌋ and ⌊high · side⌋, between which lengths lie, without the last."""
    first, end = int(side * low), int(side * high)
    if not 0 <= first < end <= side:
        raise ValueError(f"box sides from {low:g} to {high:g} of {side} pixels hold no whole number below {side}")
    return first, end


@lru_cache(maxsize=16)
def own_share(alpha: float, height: int, width: int) -> Tensor:
    """m: how often each pixel comes from the larger part, height × width, float64; its mean is θ̄."""
    from scipy.special import betainc

    alpha = scalar_forms(alpha, "CutMix").alpha
    if alpha == 0:
        return torch.ones(height, width, dtype=torch.float64, device="cpu")
    if alpha < math.inf:
        # Beyond these, where nothing changes any more, SciPy's function is wrong.
        alpha = min(max(alpha, 1e-300), 1e300)
    # Between neighbouring thresholds of √(1 − λ) both sides keep their lengths.
    thresholds = sorted({k / side for side in (height, width) for k in range(side + 1)})
    middles = [(a + b) / 2 for a, b in pairwise(thresholds)]
    # P(√(1 − λ) ≤ t) = P(1 − λ ≤ t²), and 1 − λ is distributed as λ.
    cumulative = [betainc(alpha, alpha, t * t) if alpha < math.inf else t * t >= 0.5 for t in thresholds]
    below = torch.tensor([float(value) for value in cumulative], dtype=torch.float64, device="cpu")
    total = torch.zeros(height, width, dtype=torch.float64, device="cpu")
    for probability, scale in zip(below.diff().tolist(), middles, strict=True):
        if probability == 0:
            continue
        rows, columns = (_inside(side, int(side * scale)) for side in (height, width))
        covers_most = (2 * torch.outer(rows.sum(1), columns.sum(1)) > height * width).double()
        kept = height * width - covers_most.sum() - rows.T @ (1 - covers_most) @ columns
        total += probability * (kept + rows.T @ covers_most @ columns)
    return total / (height * width)


def own_share_between(low: float, high: float, height: int, width: int) -> Tensor:
    """m of boxes whose sides are uniform between two fractions of the image's, wholly inside it (timm's `minmax`).

    Height h and width w are independent and uniform on the integers ⌊low H⌋ … ⌊high H⌋ − 1, the first row is uniform on
    0 … H − h, and likewise for columns. With r_h the probabilities of rows to lie in the box, c_w those of columns,

        m = Σ_{h,w} P(h) P(w) (r_h c_wᵀ if h w > HW / 2, else 1 − r_h c_wᵀ).
    """
    lengths, inside = [], []
    for side in (height, width):
        first, end = side_range(low, high, side)
        length = torch.arange(first, end, dtype=torch.float64).unsqueeze(1)
        # How many of the starts 0 … side − length put a place into the box.
        place, last = torch.arange(side, dtype=torch.float64), side - length
        starts = (torch.minimum(place, last) - (place - length + 1).clamp(min=0) + 1).clamp(min=0)
        lengths.append(length)
        inside.append(starts / (side - length + 1))
    is_larger = 2 * lengths[0] @ lengths[1].T > height * width
    sign = torch.where(is_larger, 1.0, -1.0).double() / is_larger.numel()
    return (~is_larger).double().mean() + inside[0].T @ sign @ inside[1]


def _inside(side: int, length: int) -> Tensor:
    """Whether position p lies in the interval of `length` around centre c: side × side zeros and ones (c, p)."""
    place = torch.arange(side, device="cpu")
    first = (place - length // 2).unsqueeze(1)
    return ((place >= first) & (place < first + length)).double()
