"""A forest plot of standardised differences as HTML: a row per comparison, readable on a phone, filtered like a table.

A row shows a mean in units of its standard deviation with the 95 % interval of the mean in the same units,

    d ± t_{0.975, n−1} / √n,

on an axis that is linear near 0 and logarithmic beyond (asinh d), since some differences are a hundred deviations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mixreg.report.page import Html, element, link

_TICKS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
# What is farther out is drawn at the edge, with an arrow.
_MOST = 100.0
# Of the width, on either side of 0.
_REACH = 48.0


@dataclass(frozen=True)
class Row:
    """A comparison.

    Attributes:
        group, anchor: what it is a part of, and where that is on the page.
        label: what was compared.
        effect: mean over standard deviation, positive on the claimed side.
        repetitions: how many there are.
        told: what is shown when somebody points at it.
        kind: of its verdict, a class of the page.
        verdict: the name of its verdict, to filter by.
    """

    group: str
    anchor: str
    label: str
    effect: float
    repetitions: int
    told: str
    kind: str
    verdict: str


def half_width(repetitions: int) -> float:
    """Half of the 95 % interval of a mean, in standard deviations.

    >>> round(half_width(4), 3)
    1.591
    """
    from scipy.stats import t

    return float(t.ppf(0.975, repetitions - 1)) / math.sqrt(repetitions)


def place(effect: float, limit: float) -> float:
    """Where an effect is drawn, in per cent of the width."""
    inside = max(-limit, min(limit, effect))
    return 50 + _REACH * math.asinh(inside) / math.asinh(limit)


def forest(rows: Sequence[Row]) -> Html:
    """The plot; rows of one group stand together, below its name."""
    ends = [abs(row.effect) + half_width(row.repetitions) for row in rows]
    limit = min(_MOST, max([end for end in ends if math.isfinite(end)], default=1.0) * 1.05)
    ticks = [sign * tick for tick in _TICKS if tick <= limit for sign in ((1,) if tick == 0 else (-1, 1))]
    marks = [
        element("i", f"{tick:g}".replace("-", "−"), style=f"left:{place(tick, limit):.2f}%") for tick in sorted(ticks)
    ]
    axis = element("div", element("span", ""), element("div", *marks, class_="axis"), class_="row")
    parts, group = [axis], ""
    for row in rows:
        if row.group != group:
            group = row.group
            kinds = " ".join(dict.fromkeys(one.verdict for one in rows if one.group == group))
            parts.append(element("h3", link(f"#{row.anchor}", group), data_kinds=kinds))
        parts.append(_row(row, limit))
    return element("div", *parts, class_="forest")


def _row(row: Row, limit: float) -> Html:
    half = half_width(row.repetitions)
    low, high = (place(row.effect + sign * half, limit) for sign in (-1, 1))
    zero = element("i", class_="zero", style="left:50%")
    bar = element("i", class_="bar", style=f"left:{low:.2f}%;width:{high - low:.2f}%")
    beyond = abs(row.effect) > limit
    sign = ("▶" if row.effect > 0 else "◀") if beyond else ""
    dot = element("i", sign, class_="dot beyond" if beyond else "dot", style=f"left:{place(row.effect, limit):.2f}%")
    track = element("div", zero, bar, dot, class_="track", title=row.told, role="img", aria_label=row.told)
    return element("div", element("span", row.label), track, class_=f"row {row.kind}", data_kind=row.verdict)
