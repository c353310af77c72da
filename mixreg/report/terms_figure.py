"""The picture of a `TermsMonitor`: how the risks, the terms of Theorem 3 and the Jacobian change over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixreg.report.curves import label_ends, new_figure, zero_line
from mixreg.report.palette import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Panels: title, and curves by key with their names, colours and lines.
_PANELS: tuple[tuple[str, tuple[tuple[str, str, str, str], ...]], ...] = (
    (
        "risks",
        (
            ("mixup", "Mixup risk\n(Monte Carlo)", METHODS["mixup"], "-"),
            ("total", "quadratic risk", METHODS["approximate"], "--"),
            ("base", "on modified data", METHODS["modified"], "-"),
        ),
    ),
    (
        "terms",
        (
            ("joint", "R1 + R3", METHODS["switched"], "-"),
            ("r2", "R2", METHODS["cutmix"], "-"),
            ("r4", "R4", METHODS["smoothing"], "-"),
        ),
    ),
    (
        "Jacobian",
        (("jacobian", "‖∇f‖", METHODS["erm"], "-"), ("alignment", "cosine of\n∇f and J⁽ⁱ⁾", METHODS["modified"], "--")),
    ),
    (
        "on the probe set",
        (
            ("accuracy_plain", "accuracy, plain", METHODS["mixup"], "-"),
            ("accuracy_rescaled", "accuracy, rescaled", METHODS["mixup"], "--"),
            ("ece_plain", "ECE, plain", METHODS["modified"], "-"),
            ("ece_rescaled", "ECE, rescaled", METHODS["modified"], "--"),
        ),
    ),
)


def terms_figure(history: Sequence[dict[str, float]]) -> Figure:
    """A panel for each kind of measure; `history` holds one record per measurement, each with `at`."""
    if not history:
        raise ValueError("nothing was measured yet: there is nothing to draw")
    panels = [(title, [curve for curve in curves if _is_there(history, curve[0])]) for title, curves in _PANELS]
    panels = [(title, curves) for title, curves in panels if curves]
    drawing = new_figure(4.8 * len(panels), 3.8)
    for axes, (title, curves) in zip(drawing.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for key, name, colour, line in curves:
            _draw(axes, history, key, name, colour, line)
        axes.set(title=title, xlabel="epoch or step")
        axes.locator_params(axis="x", integer=True)
        zero_line(axes)
        label_ends(axes)
    return drawing


def _is_there(history: Sequence[dict[str, float]], key: str) -> bool:
    return any(math.isfinite(record.get(key, math.nan)) for record in history)


def _draw(axes: Axes, history: Sequence[dict[str, float]], key: str, name: str, colour: str, line: str) -> None:
    at = [record["at"] for record in history]
    values = [record.get(key, math.nan) for record in history]
    errors = [2 * record.get(f"{key}_stderr", 0.0) for record in history]
    axes.plot(at, values, line, color=colour, label=name, marker=".")
    if any(errors):
        low, high = ([v + sign * e for v, e in zip(values, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
