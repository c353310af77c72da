"""Names of curves at their right ends, instead of a legend: moved apart where they would overlap.

Heights p₁ ≤ … ≤ p_n of labels are those nearest to the ends y₁ ≤ … ≤ y_n of their curves that keep a distance h:

    minimise Σ (p_i − y_i)²   subject to   p_{i+1} − p_i ≥ h,

which is isotonic regression of y_i − i h, solved by pooling neighbours that are out of order. They are found anew
whenever a figure is drawn, so that they fit at every size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform

from mixreg.report.palette import REFERENCE, ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# In points: from the frame to the names, and between two lines of text beyond their height.
_AWAY, _APART = 9.0, 1.0


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places at least `gap` apart, nearest to the given ones, in their order; between `low` and `high` if they fit.

    >>> spread([1.0, 0.0, 5.0], 2.0, -10.0, 10.0)
    [1.5, -0.5, 5.0]
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    pools: list[tuple[float, int]] = []
    for rank, index in enumerate(order):
        mean, count = places[index] - rank * gap, 1
        while pools and pools[-1][0] > mean:
            before, of = pools.pop()
            mean, count = (mean * count + before * of) / (count + of), count + of
        pools.append((mean, count))
    found = np.repeat([mean for mean, _ in pools], [count for _, count in pools]) + gap * np.arange(len(places))
    if len(found):
        # What would leave at an end pushes the others, which stay in their order.
        steps = gap * np.arange(len(found))
        found = np.minimum(found, high - steps[::-1])
        found = np.maximum(found, low + steps)
    placed = [0.0] * len(places)
    for index, place in zip(order, found.tolist(), strict=True):
        placed[index] = place
    return placed


class EndLabels(Artist):
    """The names of an axes' curves, right of its frame, each beside the end of its curve."""

    def __init__(self, axes: Axes, size: float) -> None:
        super().__init__()
        self._place = axes
        curves = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
        self._curves = [line for line in curves if np.isfinite(_end(line)).all()]
        self.texts = [
            Text(0, 0, str(line.get_label()), color=ink(line.get_color()), fontsize=size, verticalalignment="center")
            for line in self._curves
        ]
        self._leaders = [Line2D([], [], linewidth=0.6, color=REFERENCE) for _ in self._curves]
        for part in (*self.texts, *self._leaders):
            part.set_figure(axes.figure)
            part.set_transform(IdentityTransform())

    def _arrange(self, renderer: Any) -> None:
        frame, point = self._place.bbox, self._place.figure.dpi / 72
        if not self._curves:
            return
        ends = np.array([line.get_transform().transform(_end(line)) for line in self._curves])
        height = max(text.get_window_extent(renderer).height for text in self.texts) + _APART * point
        heights = spread(np.clip(ends[:, 1], frame.y0, frame.y1).tolist(), height, frame.y0, frame.y1)
        for text, leader, (x, y), place in zip(self.texts, self._leaders, ends, heights, strict=True):
            text.set_position((frame.x1 + _AWAY * point, place))
            leader.set_data([min(x, frame.x1), frame.x1, frame.x1 + (_AWAY - 2) * point], [y, y, place])

    def get_window_extent(self, renderer: Any = None) -> Bbox:
        self._arrange(renderer)
        extents = [text.get_window_extent(renderer) for text in self.texts]
        return Bbox.union(extents) if extents else Bbox.null()

    def get_tightbbox(self, renderer: Any = None) -> Bbox | None:
        return self.get_window_extent(renderer) if self.texts else None

    def draw(self, renderer: Any) -> None:
        if self.get_visible():
            self._arrange(renderer)
            for part in (*self._leaders, *self.texts):
                part.draw(renderer)


def _end(line: Line2D) -> np.ndarray:
    """The last point of a curve that is one."""
    points = np.column_stack([np.asarray(values, dtype=float) for values in line.get_data()])
    known = points[np.isfinite(points).all(1)]
    return known[-1] if len(known) else np.full(2, np.nan)
