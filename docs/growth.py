"""Draw how the cost of terms grows with samples, coordinates and classes: docs/images/growth.svg.

    python benchmarks/terms.py --json docs/measured/terms.json
    python docs/growth.py

Nothing but the stored measurement goes into the picture.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import matplotlib

HERE = Path(__file__).parent
_SIZE = re.compile(r"(?P<what>[ndc]) = (?P<size>\d+), (?P<way>\w+), ms")
_AXES = {"n": "samples", "d": "coordinates of an input", "c": "classes"}
_COLOURS = {"exact": "#D55E00", "tangents": "#0072B2"}


def growth(found: dict[str, float]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """By what grows and by way: (size, milliseconds), sizes ascending."""
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, milliseconds in found.items():
        match = _SIZE.fullmatch(name)
        if match:
            points = curves.setdefault(match["what"], {}).setdefault(match["way"], [])
            points.append((int(match["size"]), milliseconds))
    return {what: {way: sorted(points) for way, points in ways.items()} for what, ways in curves.items()}


def main() -> None:
    """Read, draw, write."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "mixreg"
    from matplotlib.figure import Figure

    measured = json.loads((HERE / "measured" / "terms.json").read_text())["found"]
    drawing = Figure(figsize=(9, 3), layout="constrained")
    panels = drawing.subplots(1, 3, sharey=True)
    for axes, (what, ways) in zip(panels, growth(measured).items(), strict=True):
        for way, points in ways.items():
            sizes, milliseconds = zip(*points, strict=True)
            axes.plot(sizes, milliseconds, marker="o", color=_COLOURS[way])
            # Exact terms cost more in the end, in every panel: above their curve, and below the other one.
            is_above = milliseconds[-1] == max(curve[-1][1] for curve in ways.values())
            axes.annotate(
                way,
                (sizes[-1], milliseconds[-1]),
                xytext=(0, 8 if is_above else -8),
                textcoords="offset points",
                ha="right",
                va="bottom" if is_above else "top",
                color=_COLOURS[way],
            )
        axes.set(xscale="log", yscale="log", xlabel=f"{_AXES[what]}, {what}")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("milliseconds")
    drawing.savefig(HERE / "images" / "growth.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
