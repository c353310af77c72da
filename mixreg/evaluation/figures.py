"""Pictures of a trained network: reliability, confidence, and the profile by which its rule was fitted."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

from mixreg._support.files import write_bytes
from mixreg.calibration import confidence_histogram, reliability
from mixreg.report.curves import new_figure
from mixreg.report.diagrams import reliability_diagram
from mixreg.report.palette import FITTED as FITTED_COLOUR
from mixreg.report.palette import METHODS, OTHER
from mixreg.report.vector import standalone
from mixreg.training.held_out_fit import FITTED

# What is not to be noted in a file, so that it is the same tomorrow.
_FORMATS: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mixreg.evaluation.table import Outputs
    from mixreg.prediction.family_fit import FamilyFit


def draw(test: Outputs, caption: str) -> Figure:
    """One column per model: its reliability diagram above the histogram of its confidence."""
    # What is fitted has its temperature already.
    shown = {name: predictions for name, _, predictions in test.rows() if name != f"{FITTED}, tempered"}
    figure = new_figure(3.2 * len(shown), 6)
    axes = figure.subplots(2, len(shown), squeeze=False)
    for column, (name, logits) in enumerate(shown.items()):
        reliability_diagram(axes[0, column], reliability(logits, test.y), name)
        counts = confidence_histogram(logits, 20)
        edges = [k / 20 for k in range(20)]
        axes[1, column].bar(
            edges, (counts / counts.sum()).tolist(), 1 / 20, align="edge", edgecolor="white", color=OTHER
        )
        axes[1, column].set(xlabel="confidence", xlim=(0, 1), ylabel="fraction of samples" if column == 0 else "")
    legend = "bars: accuracy at this confidence (light blue: under-, orange: over-confident); line: share of samples"
    figure.suptitle(f"{caption}\n{legend}", fontsize=9)
    return figure


def draw_profile(fit: FamilyFit, caption: str) -> Figure:
    """Held-out loss at the best temperature over the strength of the rule."""
    figure = new_figure(6.4, 4)
    axes = figure.subplots()
    axes.plot(
        [point.strength for point in fit.points], [point.loss for point in fit.points], "o-", color=METHODS["mixup"]
    )
    chosen = fit.at(fit.strength)
    axes.plot(chosen.strength, chosen.loss, "o", markersize=11, fillstyle="none", color=FITTED_COLOUR)
    found = f"κ = {chosen.strength:.2f}"
    named = ((0.0, "plain", "left", 10), (1.0, "rescaled", "right", -10))
    if chosen.strength not in (0.0, 1.0):
        axes.annotate(found, (chosen.strength, chosen.loss), (0, 12), textcoords="offset points")
    for strength, name, side, place in named:
        own = fit.at(strength).loss
        nearest = min((p for p in fit.points if p.strength != strength), key=lambda p: abs(p.strength - strength))
        # Where the curve does not go.
        height = -14 if nearest.loss > own else 8
        label = f"{name}, {found}" if strength == chosen.strength else name
        axes.annotate(
            label, (strength, own), (place, height), textcoords="offset points", color="0.4", horizontalalignment=side
        )
    axes.margins(y=0.16)
    error, note = fit.standard_error, "ring: what is used"
    if not math.isnan(error):
        axes.axvspan(fit.best.strength - error, fit.best.strength + error, color=FITTED_COLOUR, alpha=0.15, linewidth=0)
        note += "; band: the best κ ± one standard error"
    label = "squared error / 2" if fit.loss == "squared_error" else "loss at the best temperature"
    axes.set(xlabel="strength κ of the rule", ylabel=f"held-out {label} (lower is better)")
    figure.suptitle(f"{caption}\n{fit.samples:,} held-out samples; {note}", fontsize=9)
    return figure


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG, PDF and SVG; the same figure gives the same files."""
    from matplotlib import rc_context

    # Places are found once; each format would look for them again.
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)
    paths = []
    # Text stays text in an SVG: small, and found by a search; what is named in it has the same name every time.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        for kind, metadata in _FORMATS.items():
            content = io.BytesIO()
            figure.savefig(content, format=kind, dpi=150, metadata=metadata)
            paths.append(folder / f"{name}.{kind}")
            written = content.getvalue()
            write_bytes(paths[-1], standalone(written.decode()).encode() if kind == "svg" else written)
    return paths
