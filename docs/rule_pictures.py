"""Small pictures for the page on the rule: inline SVG in the page's own colours, computed with mixreg.

One cloud of points of two classes is mixed, shrunk and stretched; whatever is drawn is what the package computes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mixreg import Mixup, Theta
from mixreg.theory.modified import shrink, stretch

ALPHA = 1.0
_WIDTH, _HEIGHT, _SCALE = 300, 220, 46


def cloud() -> tuple[Tensor, Tensor]:
    """Two classes of points, 60 × 2, and their labels."""
    generator = torch.Generator().manual_seed(3)
    y = torch.arange(60) % 2
    centres = torch.tensor([[-1.2, -0.6], [1.3, 0.7]])
    return centres[y] + 0.55 * torch.randn(60, 2, generator=generator), y


def picture(name: str) -> str:
    """One of the page's pictures by name."""
    x, y = cloud()
    mean, share = x.mean(0), Theta(ALPHA).mean
    small = shrink(x, mean, share)
    if name == "pair":
        return _drawn("Two points and a mixture between them", _pair(x, y))
    if name == "mixed":
        mixed, parts = Mixup(ALPHA, generator=torch.Generator().manual_seed(0))(x, y, parts=True)
        marks = [*_dots(x, y, "faint"), *_dots(mixed, parts.y), _cross(mean)]
        return _drawn("The cloud, faint, and what training sees: mixtures, nearer to the middle", marks)
    if name == "shrunk":
        lines = [_line(a, b, "faint-line") for a, b in zip(x, small, strict=True)]
        return _drawn(
            "Every point moved a fixed part of the way to the middle", [*lines, *_dots(small, y), _cross(mean)]
        )
    if name == "rule":
        return _drawn("The network fits the small data (dots); shrink, ask, stretch fits the data (rings)", _curves())
    raise ValueError(f"there is no picture {name!r}")


def _pair(x: Tensor, y: Tensor) -> list[str]:
    """A point of either class, and mixtures at some shares."""
    first, second = x[y == 0][2], x[y == 1][4]
    marks = [*_dots(x, y, "faint"), _line(first, second, "line")]
    for share in (0.25, 0.5, 0.75):
        marks.append(_circle(first + share * (second - first), "between", 5))
    return [*marks, _circle(first, "a", 6), _circle(second, "b", 6)]


def _curves() -> list[str]:
    """Numbers to be predicted from numbers: a curve fitted to shrunk data, and the same used as the rule says."""
    x = torch.linspace(-2.4, 2.4, 13, dtype=torch.float64).unsqueeze(1)
    y, share = 0.9 + 0.9 * (1.1 * x).sin(), Theta(ALPHA).mean
    small_x, small_y = shrink(x, x.mean(0), share), shrink(y, y.mean(0), share)
    powers = torch.arange(6)
    weights = torch.linalg.lstsq(small_x**powers, small_y).solution
    along = torch.linspace(-2.4, 2.4, 60, dtype=torch.float64).unsqueeze(1)
    learnt = along**powers @ weights
    used = stretch(shrink(along, x.mean(0), share) ** powers @ weights, y.mean(0), share)
    rings, dots = torch.cat([x, y], 1), torch.cat([small_x, small_y], 1)
    return [
        _path(torch.cat([along, learnt], 1), "learnt"),
        _path(torch.cat([along, used], 1), "used"),
        *(_circle(point, "a ring", 4) for point in rings),
        *(_circle(point, "b", 3.2) for point in dots),
    ]


def _dots(x: Tensor, y: Tensor, more: str = "") -> Iterable[str]:
    return [_circle(point, f"{'ab'[int(label)]} {more}".strip(), 3.2) for point, label in zip(x, y, strict=True)]


def _place(point: Tensor) -> tuple[str, str]:
    return f"{_WIDTH / 2 + _SCALE * float(point[0]):.1f}", f"{_HEIGHT / 2 - _SCALE * float(point[1]):.1f}"


def _circle(point: Tensor, kind: str, radius: float) -> str:
    across, down = _place(point)
    return f'<circle class="{kind}" cx="{across}" cy="{down}" r="{radius:g}"/>'


def _line(start: Tensor, end: Tensor, kind: str) -> str:
    (x1, y1), (x2, y2) = _place(start), _place(end)
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _path(points: Tensor, kind: str) -> str:
    return f'<path class="{kind}" d="M{"L".join(" ".join(_place(point)) for point in points)}"/>'


def _cross(point: Tensor) -> str:
    across, down = _place(point)
    return f'<path class="cross" d="M{across} {down}m-7 0h14m-7 -7v14"/>'


def _drawn(title: str, marks: Iterable[str]) -> str:
    head = f'<svg class="rule" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">'
    caption = f"<figcaption>{title}</figcaption>"
    return f'<figure class="rule">{head}{"".join(marks)}</svg>{caption}</figure>'
