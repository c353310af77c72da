"""Pictures of a trained network: reliability diagrams and confidence histograms, plain and rescaled."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from mixreg._support.files import write_bytes
from mixreg.calibration import confidence_histogram, reliability
from mixreg.report.curves import new_figure
from mixreg.report.diagrams import reliability_diagram

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mixreg.evaluation.table import Outputs


def draw(test: Outputs, fitted: dict[str, float], caption: str) -> Figure:
    """One column per model: its reliability diagram above the histogram of its confidence."""
    shown = dict(test.logits)
    shown |= {f"{name}, tempered": test.logits[name] / value for name, value in fitted.items()}
    figure = new_figure(3.2 * len(shown), 6)
    axes = figure.subplots(2, len(shown), squeeze=False)
    for column, (name, logits) in enumerate(shown.items()):
        reliability_diagram(axes[0, column], reliability(logits, test.labels), name)
        counts = confidence_histogram(logits, 20)
        edges = [k / 20 for k in range(20)]
        axes[1, column].bar(edges, (counts / counts.sum()).tolist(), width=1 / 20, align="edge", edgecolor="white")
        axes[1, column].set(xlabel="confidence", xlim=(0, 1), ylabel="fraction of samples" if column == 0 else "")
    legend = "bars: accuracy at this confidence (light blue: under-, red: over-confident); line: share of samples"
    figure.suptitle(f"{caption}\n{legend}", fontsize=9)
    return figure


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and PDF; the same figure gives the same files."""
    # Places are found once; each format would look for them again.
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)
    paths = []
    for kind, metadata in (("png", {}), ("pdf", {"CreationDate": None})):
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=150, metadata=metadata)
        paths.append(folder / f"{name}.{kind}")
        write_bytes(paths[-1], content.getvalue())
    return paths
