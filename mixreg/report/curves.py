"""Means over repetitions with their 95 % intervals, drawn; and what figures say in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mixreg._support.extras import require_package
from mixreg.report.intervals import interval
from mixreg.report.palette import REFERENCE, ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# How the caption of a figure is known in its SVG.
CAPTION = "caption"
_FAINT = "0.35"


def mean_curve(axes: Axes, x: Sequence[float], rows: ArrayLike, label: str, **style: Any) -> None:
    """The mean of `rows` (repetitions × points) as a line over `x`, its interval as a band."""
    spans = [interval(list(column)) for column in np.asarray(rows, dtype=float).T]
    middle, half = (np.array([getattr(span, part) for span in spans]) for part in ("mean", "half_width"))
    (line,) = axes.plot(x, middle, label=label, **style)
    if not np.isnan(half).all():
        axes.fill_between(x, middle - half, middle + half, alpha=0.15, color=line.get_color(), linewidth=0)


def mean_histogram(axes: Axes, shares: ArrayLike, lowest: float, label: str = "", **style: Any) -> None:
    """The mean of histograms (repetitions × bins of equal width from `lowest` to 1)."""
    means = np.mean(np.asarray(shares, dtype=float), 0)
    edges = np.linspace(lowest, 1, len(means) + 1)
    axes.stairs(means, edges, label=label or None, **style)
    axes.set(xlim=(lowest, 1), xlabel="confidence on test points")


def label_ends(axes: Axes, size: float = 8) -> None:
    """Name every curve at its right end, in its colour; call it once all curves are drawn."""
    from mixreg.report.end_labels import EndLabels

    labels = EndLabels(axes, size)
    axes.add_artist(labels)
    labels.set_clip_on(False)


def label_corner(axes: Axes, names: Iterable[tuple[str, Any]], x: float = 0.03, y: float = 0.97) -> None:
    """Names in their colours below each other from (x, y) on, in parts of the axes: where no curve is."""
    for index, (name, colour) in enumerate(names):
        place: dict[str, Any] = {"xycoords": "axes fraction", "xytext": (0, -12 * index), "textcoords": "offset points"}
        axes.annotate(name, (x, y), color=ink(colour), fontsize=8, verticalalignment="top", **place)


def say_better(axes: Axes, direction: str) -> None:
    """Write beside the vertical axis that "higher" or "lower" is better."""
    arrow = {"higher": "→", "lower": "←"}[direction]
    axes.set_ylabel(f"{direction} is better {arrow}", fontsize=8, color=_FAINT)


def zero_line(axes: Axes, name: str = "_") -> None:
    """What differences are held against; `label_ends` writes its name."""
    axes.axhline(0, color=REFERENCE, linewidth=1, zorder=1, label=name)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, whose parts find their places by themselves."""
    require_package("matplotlib", "drawing")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def put_caption(figure: Figure, text: str) -> None:
    """What a figure was made with, above it, in lines that fit."""
    width = int(figure.get_figwidth() * 13)
    figure.suptitle("\n".join(textwrap.wrap(text, width)), fontsize=9).set_gid(CAPTION)
