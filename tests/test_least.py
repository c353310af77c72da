"""Brent's search: the points of SciPy's."""

import math

import pytest
from scipy.optimize import minimize_scalar

from mixreg.prediction.least import least_between

FUNCTIONS = {
    "parabola": lambda x: (x - 0.7) ** 2,
    "least at a bound": math.exp,
    "kinked": lambda x: abs(x - 1.3),
    "two valleys": lambda x: math.cos(5 * x) + 0.1 * x,
    "flat": lambda x: 0.0,
    "steep": lambda x: x**8 - x,
}


@pytest.mark.parametrize("most", [1, 9, 60])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_asks_where_scipy_asks(name, most) -> None:
    def asked(run) -> list[float]:
        places = []

        def function(x):
            places.append(float(x))
            return FUNCTIONS[name](x)

        run(function)
        return places

    for bounds in ((0.0, 2.0), (-1.5, 0.8)):
        options = {"maxiter": most, "xatol": 0.01}
        scipys = asked(lambda f, b=bounds, o=options: minimize_scalar(f, bounds=b, method="bounded", options=o))
        ours = asked(lambda f, b=bounds: least_between(f, b, 0.01, most))
        # SciPy looks at its limit after the second evaluation only.
        assert ours == scipys[:most]
        assert most == 1 or len(ours) == len(scipys)
