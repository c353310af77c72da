"""Brent's search for the least value of a function of one number between two bounds, in few evaluations.

The next point is the vertex of the parabola through the three best ones, where that lies inside the bracket [a, b] and
moves by less than half of the step before the last; otherwise the golden section of the longer part of the bracket.
The points are those of SciPy's `minimize_scalar(method="bounded")`, whose import takes longer than the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_GOLDEN = 0.5 * (3 - math.sqrt(5))
_SMALLEST_STEP = math.sqrt(2.2e-16)


def least_between(function: Callable[[float], float], bounds: tuple[float, float], tolerance: float, most: int) -> None:
    """Evaluate `function` at points that close in on its least value.

    Args:
        function: remembers what it was asked.
        bounds: a < b.
        tolerance: how near to the least value's place the last point shall be.
        most: at most so many evaluations.
    """
    a, b = bounds
    best = second = third = a + _GOLDEN * (b - a)
    at_best = at_second = at_third = function(best)
    move = before = 0.0
    for _ in range(most - 1):
        middle = 0.5 * (a + b)
        step = _SMALLEST_STEP * abs(best) + tolerance / 3
        if abs(best - middle) <= 2 * step - 0.5 * (b - a):
            return
        vertex = None
        if abs(before) > step:
            r = (best - second) * (at_best - at_third)
            q = (best - third) * (at_best - at_second)
            p = (best - third) * q - (best - second) * r
            q = 2 * (q - r)
            p, q = (-p if q > 0 else p), abs(q)
            if abs(p) < abs(0.5 * q * before) and q * (a - best) < p < q * (b - best):
                vertex = (p + 0.0) / q  # no −0
            before = move
        if vertex is None:
            before = a - best if best >= middle else b - best
            move = _GOLDEN * before
        else:
            is_near_a_bound = best + vertex - a < 2 * step or b - (best + vertex) < 2 * step
            move = math.copysign(step, middle - best) if is_near_a_bound else vertex
        place = best + math.copysign(max(abs(move), step), move)
        value = function(place)
        if value <= at_best:
            a, b = (best, b) if place >= best else (a, best)
            third, at_third, second, at_second = second, at_second, best, at_best
            best, at_best = place, value
            continue
        a, b = (place, b) if place < best else (a, place)
        if value <= at_second or second == best:
            third, at_third, second, at_second = second, at_second, place, value
        elif value <= at_third or third in (best, second):
            third, at_third = place, value
