"""Reliability diagrams: accuracy against confidence, with the gap between them and where the samples are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixreg.calibration import Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACCURACY_COLOUR = "#3b6ea5"
GAP_COLOUR = "#eda3ad"


def reliability_diagram(axes: Axes, reliability: Reliability, title: str = "") -> None:
    """Draw one diagram: bars of accuracy, the gap to the diagonal, and each bin's share of the samples below.

    The pink part of a bar reaches from the accuracy to the confidence: above the blue it is over-confidence, over the
    top of the blue it is under-confidence.
    """
    lower, upper, count, confidence, accuracy = (
        t.cpu().numpy()
        for t in (
            reliability.lower,
            reliability.upper,
            reliability.count,
            reliability.confidence,
            reliability.accuracy,
        )
    )
    width, middle = upper - lower, (lower + upper) / 2
    filled = count > 0
    place, hits, gap = middle[filled], accuracy[filled], (confidence - accuracy)[filled]
    axes.bar(place, hits, width[filled], color=ACCURACY_COLOUR, edgecolor="white", label="accuracy")
    axes.bar(place, gap, width[filled], hits, color=GAP_COLOUR, edgecolor="white", label="gap to confidence")
    axes.plot([0, 1], [0, 1], color="grey", linestyle="--", linewidth=1)
    axes.step(
        np.append(lower, 1.0),
        np.append(count / count.sum(), 0.0),
        where="post",
        color="black",
        linewidth=1,
        label="share of samples",
    )
    ece = reliability.expected_error.item()
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", aspect="equal", title=f"{title}\nECE {100 * ece:.1f} %")
