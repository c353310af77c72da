"""One colour per method in every figure, and one kind of line per way to predict.

Colours are those of Okabe and Ito (2008), which people with any kind of colour vision tell apart, with one of Tol's
for a ninth. A dashed line is a rescaled prediction, dash-dotted one with refreshed statistics; what is fitted has a
colour of its own. Figures keep a white ground of their own, on dark pages too: colours are chosen for it.
"""

from __future__ import annotations

from typing import Any

METHODS = {
    "erm": "#404040",
    "mixup": "#d55e00",
    "modified": "#0072b2",
    "approximate": "#e69f00",
    "smoothing": "#cc79a7",
    "uniform": "#cc79a7",
    "cutmix": "#56b4e9",
    "switched": "#332288",
}
FITTED = "#009e73"
# Methods without a colour of their own, where rows name them.
OTHER = "#8a8a8a"
# Zero lines, references and other marks that are no method.
REFERENCE = "#9a9a9a"
# Two classes, with white between them; none of them looks like a method's line.
CLASSES = "PRGn"
_LINES = {"plain": "-", "rescaled": "--", "refreshed": "-."}
_LEAST_CONTRAST = 4.5


def style(method: str, predictor: str = "plain") -> dict[str, Any]:
    """Colour and line of a method's plain, rescaled, refreshed or fitted predictions."""
    if predictor == "fitted":
        return {"color": FITTED, "linestyle": "-"}
    return {"color": METHODS.get(method, OTHER), "linestyle": _LINES[predictor]}


def shades(count: int, method: str = "mixup") -> list[str]:
    """A method's colour for an ordered quantity, from light to dark; alone, as it is."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = to_rgb(METHODS[method])
    found = []
    for k in range(count):
        # From half white to half black.
        white = max(0.0, 0.5 - k / (count - 1)) if count > 1 else 0.0
        left = 1 - (abs(0.5 - k / (count - 1)) if count > 1 else 0.0)
        found.append(to_hex((left * red + white, left * green + white, left * blue + white)))
    return found


def luminance(red: float, green: float, blue: float) -> float:
    """The relative luminance of an sRGB colour in [0, 1]³, as the Web Content Accessibility Guidelines define it."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink(colour: Any) -> tuple[float, float, float]:
    """The same hue, dark enough to be read on white: a contrast of at least 4.5."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    while 1.05 / (luminance(red, green, blue) + 0.05) < _LEAST_CONTRAST:
        red, green, blue = 0.95 * red, 0.95 * green, 0.95 * blue
    return red, green, blue
