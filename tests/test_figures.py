"""Figures: colours everybody tells apart, names that do not overlap, and small SVG that shows the same."""

import re
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from scipy.optimize import isotonic_regression

from mixreg.evaluation.figures import save_figure
from mixreg.report.curves import label_ends, mean_curve, new_figure, put_caption, zero_line
from mixreg.report.end_labels import EndLabels, spread
from mixreg.report.palette import FITTED, METHODS, OTHER, REFERENCE, ink, luminance, shades, style
from mixreg.report.vector import embedded

# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
DEFICIENCIES = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(linear: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB (white point D65)."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    ratio = np.array(to_xyz) @ np.clip(linear, 0, 1) / [0.95047, 1.0, 1.08883]
    root = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("deficiency", [None, *DEFICIENCIES])
def test_colours_of_methods_are_told_apart(deficiency: str | None) -> None:
    seen = {}
    for colour in {*METHODS.values(), FITTED}:
        linear = np.array([v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(colour)])
        seen[colour] = lab(np.array(DEFICIENCIES[deficiency]) @ linear if deficiency else linear)
    least = min((float(np.linalg.norm(seen[a] - seen[b])), a, b) for a, b in combinations(sorted(seen), 2))
    # A just noticeable difference is about 2.
    assert least[0] > 15, least


def test_text_in_a_methods_colour_can_be_read() -> None:
    for colour in {*METHODS.values(), FITTED}:
        assert 1.05 / (luminance(*ink(colour)) + 0.05) >= 4.5
    assert ink(METHODS["erm"]) == to_rgb(METHODS["erm"])


def in_the_dark(colour: tuple[float, float, float]) -> tuple[float, float, float]:
    """What browsers make of a colour by the filter of the report and the site (Filter Effects Module Level 1)."""
    inverted = [0.9 - 0.8 * part for part in colour]
    turned = np.array([[-0.574, 1.43, 0.144], [0.426, 0.43, 0.144], [0.426, 1.43, -0.856]]) @ inverted
    return tuple(np.clip(turned, 0, 1).tolist())


def test_text_of_figures_can_be_read_in_the_dark() -> None:
    root = Path(__file__).parent.parent
    for style_sheet in ("docs/site.css", "mixreg/report/page.css"):
        (amount,) = re.findall(r"filter: invert\(0?(\.\d)\) hue-rotate\(180deg\)", (root / style_sheet).read_text())
        assert amount == ".9"
    ground = luminance(*in_the_dark((1.0, 1.0, 1.0)))
    for colour in {*METHODS.values(), FITTED, OTHER, REFERENCE, *shades(5), "0.35", "black"}:
        text = luminance(*in_the_dark(ink(colour)))
        assert (text + 0.05) / (ground + 0.05) >= 4.5, colour


def test_lines_say_how_is_predicted() -> None:
    assert style("mixup") == {"color": METHODS["mixup"], "linestyle": "-"}
    assert style("mixup", "rescaled")["linestyle"] == style("erm", "rescaled")["linestyle"] == "--"
    assert style("mixup", "refreshed")["linestyle"] == "-."
    assert style("mixup", "fitted")["color"] == FITTED


def test_places_are_the_nearest_that_are_apart() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        ends = generator.uniform(0, 10, size=generator.integers(1, 8))
        found = np.array(spread(ends.tolist(), 1.5, -100, 100))
        order = np.argsort(ends)
        steps = 1.5 * np.arange(len(ends))
        assert found[order] == pytest.approx(isotonic_regression(ends[order] - steps).x + steps)
        inside = np.sort(spread(ends.tolist(), 1.0, 0, 10))
        assert inside[0] >= 0
        assert inside[-1] <= 10 + 1e-9
        assert (np.diff(inside) >= 1 - 1e-9).all()


def crowded():
    """Curves that end at almost the same place."""
    figure = new_figure(6, 3)
    axes = figure.subplots()
    for index, method in enumerate(("erm", "mixup", "modified", "approximate")):
        mean_curve(axes, range(5), [[0.01 * index + k for k in range(5)]] * 3, f"curve {index}", **style(method))
    zero_line(axes)
    label_ends(axes)
    put_caption(figure, "what it was made with")
    return figure, axes


def test_names_of_curves_do_not_overlap_and_are_on_the_figure() -> None:
    figure, axes = crowded()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (labels,) = [artist for artist in axes.get_children() if isinstance(artist, EndLabels)]
    boxes = sorted((text.get_window_extent() for text in labels.texts), key=lambda box: box.y0)
    assert [text.get_text() for text in labels.texts] == [f"curve {k}" for k in range(4)]
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
    assert all(box.x0 > axes.bbox.x1 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_svg_is_small_and_shows_the_same(tmp_path: Path) -> None:
    """Every curve has its points, to a hundredth, as Matplotlib itself places them; twice the same bytes."""
    figure, axes = crowded()
    paths = save_figure(figure, tmp_path, "crowded")
    again = save_figure(crowded()[0], tmp_path / "again", "crowded")
    assert [path.suffix for path in paths] == [".png", ".pdf", ".svg"]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    svg = paths[-1].read_text()
    assert "metadata" not in svg
    assert "what it was made with" in svg
    root = ElementTree.fromstring(svg)
    drawn = [element.get("d") for element in root.iter("{http://www.w3.org/2000/svg}path")]
    figure.set_dpi(72)
    height = float(root.get("viewBox").split()[3])
    for line in axes.get_lines()[:4]:
        points = axes.transData.transform(line.get_xydata())
        expected = [(x, height - y) for x, y in points]
        # What lies on one line may be left out.
        ends = [[tuple(map(float, p.split())) for p in re.findall(r"[-\d.]+ [-\d.]+", path)] for path in drawn]
        assert any(
            found and np.allclose([found[0], found[-1]], [expected[0], expected[-1]], atol=0.011) for found in ends
        )


def test_as_a_part_of_a_page(tmp_path: Path) -> None:
    svg = save_figure(crowded()[0], tmp_path, "crowded")[-1].read_text()
    part = embedded(svg, "first", 'a "title"')
    assert 'aria-label="a &quot;title&quot;"' in part
    assert "http" not in part
    # The page says the caption; the room that it took is gone too.
    assert "what it was made with" not in part
    assert "curve 3" in part
    before, after = (float(re.search(r'viewBox="([^"]+)"', text)[1].split()[3]) for text in (svg, part))
    assert 10 < before - after < 40
    names = set(re.findall(r' id="([^"]+)"', part))
    assert names
    assert all(name.startswith("first-") for name in names)
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', part)) <= {(n, "") for n in names} | {
        ("", n) for n in names
    }
