"""Reliability diagrams: bars reach the accuracy, gaps the confidence, and the example's numbers are its table's."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from mixreg.calibration import ReliabilityHistogram
from mixreg.calibration.bins import Reliability
from mixreg.report.curves import new_figure
from mixreg.report.diagrams import ACCURACY_COLOUR, reliability_diagram

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.py"
# Two bins: under-confident by 0.3, over-confident by 0.2.
TWO = {"lower": [0.0, 0.5], "upper": [0.5, 1.0], "count": [60, 40], "confidence": [0.4, 0.9], "accuracy": [0.7, 0.7]}


@pytest.fixture
def two() -> Reliability:
    return Reliability(**{name: torch.tensor(values, dtype=torch.float64) for name, values in TWO.items()})


def test_bars_reach_the_accuracy_and_gaps_the_confidence(two: Reliability) -> None:
    axes = new_figure(4, 4).subplots()
    reliability_diagram(axes, two, "two bins")
    bars = {container.get_label(): [patch.get_bbox() for patch in container] for container in axes.containers}
    assert [(box.y0, box.y1) for box in bars["accuracy"]] == [(0.0, 0.7), (0.0, 0.7)]
    assert [(box.x0, box.y0, box.y1) for box in bars["under-confident by"]] == [(0.0, 0.4, 0.7)]
    assert [(box.x0, box.y0, pytest.approx(box.y1)) for box in bars["over-confident by"]] == [(0.5, 0.7, 0.9)]
    assert axes.get_title() == "two bins\nECE 26.0 %"


def test_what_is_called_accuracy_is_seen_up_to_the_accuracy(two: Reliability) -> None:
    """In the picture itself: the colour of the legend's "accuracy" is found in the whole bar, gap or not."""
    figure = new_figure(4, 4)
    axes = figure.subplots()
    reliability_diagram(axes, two)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = np.asarray(canvas.buffer_rgba())[::-1, :, :3] / 255
    is_dark = (abs(picture - to_rgb(ACCURACY_COLOUR)) < 0.02).all(2)

    def dark_share(low: float, high: float) -> float:
        """Of the part of the first bin between two heights, beside the line of shares."""
        (left, bottom), (right, top) = axes.transData.transform([(0.05, low), (0.45, high)]).astype(int)
        return float(is_dark[bottom:top, left:right].mean())

    assert dark_share(0.05, 0.35) > 0.9
    assert dark_share(0.45, 0.68) > 0.3
    assert dark_share(0.72, 0.95) == 0


def test_another_error_can_be_given(two: Reliability) -> None:
    axes = new_figure(4, 4).subplots()
    reliability_diagram(axes, two, "pooled", "ECE 1.0 ± 0.1 %")
    assert axes.get_title() == "pooled\nECE 1.0 ± 0.1 %"


@pytest.fixture
def digits():
    specification = importlib.util.spec_from_file_location("digits_example", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_pictures_ece_is_the_tables(digits, tmp_path: Path, monkeypatch, capsys) -> None:
    """Mean over seeds, both; and the picture says that its bars are pooled."""
    drawn = {}
    draw = digits.reliability_diagram
    monkeypatch.setattr(
        digits, "reliability_diagram", lambda axes, *given: (drawn.update({given[1]: axes}), draw(axes, *given))
    )
    monkeypatch.setattr(sys, "argv", ["digits.py", "--seeds", "2", "--epochs", "2", "--out", str(tmp_path)])
    threads = torch.get_num_threads()
    try:
        digits.main()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    printed = [re.findall(r"[-\d.]+ ± [-\d.]+", line) for line in capsys.readouterr().out.splitlines() if "±" in line]
    printed = [cells for cells in printed if len(cells) == 3]
    rows = json.loads((tmp_path / "values.json").read_text())["rows"]
    places = {"ERM": ("ERM", "plain"), "Mixup": ("Mixup", "plain"), "Mixup, rescaled": ("Mixup", "rescaled")}
    for title, (method, way) in places.items():
        (index,) = [k for k, row in enumerate(rows) if (row["method"], row["prediction"]) == (method, way)]
        assert drawn[title].get_title() == f"{title}\nECE {printed[index][2]} %"
        assert float(printed[index][2].split(" ")[0]) == pytest.approx(50 * sum(rows[index]["ECE"]), abs=0.051)
    caption = drawn["ERM"].get_figure().get_suptitle().replace("\n", " ")
    assert "bars: predictions of 2 seeds pooled; ECE: mean ± 95 % interval over seeds" in caption


def test_bars_of_the_example_and_its_ece_have_the_same_bins(digits) -> None:
    logits, labels = torch.randn(300, 10, generator=torch.Generator().manual_seed(0)), torch.arange(300) % 10
    pooled = ReliabilityHistogram(bins=digits.BINS)
    pooled.update(logits, labels)
    assert float(pooled.compute().expected_error) == pytest.approx(float(digits.MEASURES["ECE"](logits, labels)))
