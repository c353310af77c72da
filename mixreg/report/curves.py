"""Means over repetitions with their 95 % intervals, drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mixreg._support.extras import require_package
from mixreg.report.intervals import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def mean_curve(axes: Axes, x: Sequence[float], rows: ArrayLike, label: str, **style: Any) -> None:
    """The mean of `rows` (repetitions × points) as a line over `x`, its interval as a band."""
    spans = [interval(list(column)) for column in np.asarray(rows, dtype=float).T]
    middle, half = (np.array([getattr(span, part) for span in spans]) for part in ("mean", "half_width"))
    (line,) = axes.plot(x, middle, label=label, **style)
    if not np.isnan(half).all():
        axes.fill_between(x, middle - half, middle + half, alpha=0.2, color=line.get_color(), linewidth=0)


def mean_histogram(axes: Axes, shares: ArrayLike, lowest: float, label: str = "", **style: Any) -> None:
    """The mean of histograms (repetitions × bins of equal width from `lowest` to 1)."""
    means = np.mean(np.asarray(shares, dtype=float), 0)
    edges = np.linspace(lowest, 1, len(means) + 1)
    axes.stairs(means, edges, label=label or None, **style)
    axes.set(xlim=(lowest, 1), xlabel="confidence on test points")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, whose parts find their places by themselves."""
    require_package("matplotlib", "drawing")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def put_caption(figure: Figure, text: str) -> None:
    """What a figure was made with, above it, in lines that fit."""
    width = int(figure.get_figwidth() * 13)
    figure.suptitle("\n".join(textwrap.wrap(text, width)), fontsize=9)
