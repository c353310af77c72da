"""Reliability diagrams: accuracy against confidence, with the gap between them and where the samples are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixreg.calibration import Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACCURACY_COLOUR = "#3b6ea5"
OVER_COLOUR = "#e4818f"
UNDER_COLOUR = "#9cc5e8"


def reliability_diagram(axes: Axes, reliability: Reliability, title: str = "") -> None:
    """Draw one diagram: bars of accuracy, the gap to the diagonal, and each bin's share of the samples below.

    Blue bars, dark and light together, reach up to the accuracy. Where the confidence is higher the difference stands
    on top in red; where it is lower the difference is the light part.
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
    axes.bar(
        middle[filled], accuracy[filled], width[filled], color=ACCURACY_COLOUR, edgecolor="white", label="accuracy"
    )
    over, under = filled & (confidence > accuracy), filled & (confidence < accuracy)
    for gap, colour, label in ((over, OVER_COLOUR, "over-confident by"), (under, UNDER_COLOUR, "under-confident by")):
        height = (confidence - accuracy)[gap]
        axes.bar(middle[gap], height, width[gap], accuracy[gap], color=colour, edgecolor="white", label=label)
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
