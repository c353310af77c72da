"""Reliability diagrams: accuracy against confidence, with the gap between them and where the samples are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mixreg.calibration import Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of the palette of Okabe and Ito, as methods' colours are (`mixreg.report.palette`).
ACCURACY_COLOUR = "#0072b2"
OVER_COLOUR = "#d55e00"
UNDER_COLOUR = "#9cd3f4"


def reliability_diagram(axes: Axes, reliability: Reliability, title: str = "", error: str | None = None) -> None:
    """Draw one diagram: bars of accuracy, their gap to the confidence, and each bin's share of the samples.

    A dark bar reaches up to its bin's accuracy, always. Hatching spans from there to the bin's confidence: orange,
    above the bar, where the network is over-confident, and light blue, on the bar, where it is under-confident.

    Args:
        axes: where to draw.
        reliability: what to draw.
        title: of the diagram.
        error: what stands below the title; by default the ECE of what is drawn.
    """
    names = ("lower", "upper", "count", "confidence", "accuracy")
    lower, upper, count, confidence, accuracy = (getattr(reliability, name).cpu().numpy() for name in names)
    width, middle = upper - lower, (lower + upper) / 2
    filled = count > 0
    axes.bar(
        middle[filled], accuracy[filled], width[filled], color=ACCURACY_COLOUR, edgecolor="white", label="accuracy"
    )
    over, under = filled & (confidence > accuracy), filled & (confidence < accuracy)
    for gap, colour, face, label in (
        (over, OVER_COLOUR, (OVER_COLOUR, 0.3), "over-confident by"),
        # Not filled: below it a bar is seen to reach its accuracy.
        (under, UNDER_COLOUR, "none", "under-confident by"),
    ):
        low, high = np.minimum(confidence, accuracy)[gap], np.maximum(confidence, accuracy)[gap]
        look: dict[str, Any] = {"facecolor": face, "edgecolor": colour, "hatch": "////", "linewidth": 0}
        axes.bar(middle[gap], high - low, width[gap], low, label=label, **look)
    axes.plot([0, 1], [0, 1], color="grey", linestyle="--", linewidth=1)
    axes.step(
        np.append(lower, 1.0),
        np.append(count / count.sum(), 0.0),
        where="post",
        color="black",
        linewidth=1,
        label="share of samples",
    )
    below = f"ECE {100 * reliability.expected_error.item():.1f} %" if error is None else error
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", aspect="equal", title=f"{title}\n{below}")
