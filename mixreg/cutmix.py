"""CutMix (Yun et al., 2019) as shrunk data with noise, and the prediction rule that follows: a θ̄ for every pixel.

A box of another image replaces a part of one's own. With λ ~ Beta(α, α) the box has the sides

    w = ⌊W √(1 − λ)⌋,   h = ⌊H √(1 − λ)⌋,   its corner at a uniform centre minus ⌊w/2⌋, ⌊h/2⌋, cut off at the border,

and labels are mixed by the area that is left of it. (The original code loses a pixel of odd sides.) As with Mixup
(Theorem 1), the pair (i, j) with a box is the pair (j, i) with the rest of the image, so each mixed sample can be named
by its larger part. Let M_p ∈ {0, 1} say whether pixel p is taken from that part, and θ = mean_p M_p ∈ [½, 1]. With the
partner j uniform over the data,

    x̂_p = M_p x_{ip} + (1 − M_p) x_{jp}        E[x̂_p | i] = x̄_p + m_p (x_{ip} − x̄_p),       m_p = E M_p,
    ŷ   = θ y_i + (1 − θ) y_j                   E[ŷ | i]  = ȳ + θ̄ (y_i − ȳ),                  θ̄ = E θ = mean_p m_p.

So a network trained with CutMix has learnt a map from inputs that are shrunk pixel by pixel, the less the nearer to the
corners, which boxes rarely reach; and it is to be used as one:

    pred(x) = ȳ + (f(x̄ + m ∘ (x − x̄)) − ȳ) / θ̄.

**m exactly.** Sides take finitely many values, whose probabilities are differences of the Beta distribution function,
and centres are W·H points. For given sides the box is a product of two intervals; with indicators X: W × W of columns
in it (by centre), Y: H × H of rows, and S: H × W of centres whose box covers more than half,

    Σ_centres M = (Yᶜ-or-Xᶜ over S = 0) + (Y and X over S = 1) = WH − |S| − Yᵀ (1 − S) X + Yᵀ S X.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixreg.mixing import Drawing, Pairing, mix
from mixreg.numerics import Draw, beta_draw
from mixreg.rescaling import stretch
from mixreg.targets import matched_values, validate_num_classes
from mixreg.theta import scalar_forms


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
    """Boxes of CutMix, drawn on the CPU unless the generator lives elsewhere."""
    device = generator.device if generator is not None else torch.device("cpu")
    scale = (1 - beta_draw(alpha, Draw((n,), generator, device, torch.float64))).sqrt()
    edges = []
    for side in (height, width):
        length = (side * scale).floor().long()
        centre = torch.randint(side, (n,), generator=generator, device=device)
        first = centre - length // 2
        edges.append((first.clamp(min=0), (first + length).clamp(max=side)))
    (top, bottom), (left, right) = edges
    return Boxes(top, left, bottom, right)


@lru_cache(maxsize=16)
def own_share(alpha: float, height: int, width: int) -> Tensor:
    """m: how often each pixel comes from the larger part, height × width, float64; its mean is θ̄."""
    from scipy.special import betainc

    alpha = scalar_forms(alpha, "CutMix").alpha
    if alpha == 0:
        return torch.ones(height, width, dtype=torch.float64)
    # Between neighbouring thresholds of √(1 − λ) both sides keep their lengths.
    thresholds = sorted({k / side for side in (height, width) for k in range(side + 1)})
    middles = [(a + b) / 2 for a, b in pairwise(thresholds)]
    # P(√(1 − λ) ≤ t) = P(1 − λ ≤ t²), and 1 − λ has the law of λ.
    cumulative = [betainc(alpha, alpha, t * t) if alpha < math.inf else t * t >= 0.5 for t in thresholds]
    below = torch.tensor([float(value) for value in cumulative], dtype=torch.float64)
    total = torch.zeros(height, width, dtype=torch.float64)
    for probability, scale in zip(below.diff().tolist(), middles, strict=True):
        if probability == 0:
            continue
        rows, columns = (_inside(side, int(side * scale)) for side in (height, width))
        covers_most = (2 * torch.outer(rows.sum(1), columns.sum(1)) > height * width).double()
        kept = height * width - covers_most.sum() - rows.T @ (1 - covers_most) @ columns
        total += probability * (kept + rows.T @ covers_most @ columns)
    return total / (height * width)


def _inside(side: int, length: int) -> Tensor:
    """Whether position p lies in the interval of `length` around centre c: side × side zeros and ones (c, p)."""
    place = torch.arange(side)
    first = (place - length // 2).unsqueeze(1)
    return ((place >= first) & (place < first + length)).double()


class CutMix(Drawing):
    """Replaces a box of every image by that of another: `x, y = CutMix(alpha=1.0, num_classes=10)(x, y)`.

    Args:
        alpha: in [0, ∞]; 0 cuts nothing.
        num_classes: needed when targets are integer labels, which become soft labels.
        generator: the source of chance; by default PyTorch's global one.
    """

    def __init__(
        self, alpha: float = 1.0, num_classes: int | None = None, generator: torch.Generator | None = None
    ) -> None:
        self.alpha = scalar_forms(alpha, "CutMix").alpha
        self.num_classes = validate_num_classes(num_classes)
        self.generator = generator

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mix one batch; x: n × … × height × width, y: n integer labels or n × … floating targets."""
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 3:
            given = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"CutMix takes floating-point images n × … × height × width, got {given}")
        values = matched_values(x, y, self.num_classes)
        n, height, width = x.shape[0], x.shape[-2], x.shape[-1]
        if self.alpha == 0 or n == 0:
            return x.clone(), values.clone()
        generator = self._stream()
        boxes = draw_boxes(n, self.alpha, height, width, generator)
        partner = torch.randperm(n, generator=generator, device=boxes.top.device)
        area = boxes.area()
        covers_most = 2 * area > height * width
        share = (torch.where(covers_most, height * width - area, area).double() / (height * width)).to(x.dtype)
        # Where the box is the larger part, it is what stays.
        replaced = boxes.masks(height, width) ^ covers_most.reshape(-1, 1, 1)
        replaced = replaced.to(x.device).reshape(n, *[1] * (x.ndim - 3), height, width)
        mixed = torch.where(replaced, x.index_select(0, partner.to(x.device)), x)
        return mixed, mix(values, Pairing(partner, share))

    def __repr__(self) -> str:
        return f"CutMix(alpha={self.alpha}, num_classes={self.num_classes})"


class RescaledCutMix(nn.Module):
    """A CutMix-trained network with the prediction rule that belongs to it.

    Args:
        net: any module that takes images and returns one tensor.
        alpha: the α that it was trained with.
        x_mean: x̄, … × height × width.
        y_mean: ȳ, of one output's shape.
    """

    x_mean: Tensor
    y_mean: Tensor
    share: Tensor

    def __init__(self, net: nn.Module, alpha: float, x_mean: Tensor, y_mean: Tensor) -> None:
        super().__init__()
        # A copy: what is computed once is shared by all.
        share = own_share(float(alpha), x_mean.shape[-2], x_mean.shape[-1]).clone()
        self.net, self.alpha, self.theta_mean = net, float(alpha), float(share.mean())
        like = next((p for p in net.parameters() if p.is_floating_point()), x_mean)
        for name, value in (("x_mean", x_mean), ("y_mean", y_mean), ("share", share)):
            if not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name} holds values that are not finite")
            self.register_buffer(name, value.detach().to(like.device, like.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """pred(x) of the module's head; x: n × … × height × width."""
        shrunk = torch.lerp(self.x_mean.expand_as(x), x, self.share.expand_as(x))
        return stretch(self.net(shrunk), self.y_mean, self.theta_mean)

    def get_extra_state(self) -> Tensor:
        """α, as a tensor so that formats which hold only tensors can save it."""
        return torch.tensor(self.alpha, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take α, and θ̄ with it, from a `state_dict`; the map of shares is one of its buffers."""
        self.alpha = state.item()
        self.theta_mean = float(own_share(self.alpha, *self.share.shape).mean())
