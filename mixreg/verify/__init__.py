"""Every theorem, lemma, corollary and proposition of the paper as a number: how far its two sides are apart.

`verify()` checks them on a small smooth network with random data, in float64; `verify(net, x, y, ...)` checks those
that speak of a network on yours. Expectations over θ are Gauss rules, over partners all of them, so that residuals are
rounding, not noise. Each row holds the package against something it does not use itself (listed noise, automatic
differentiation, least squares written out): `tests/test_verify_mutations.py` breaks the one and sees the row fail.

Errata are rows of their own, with the residual of what the paper prints beside that of the corrected statement.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from mixreg.losses import BUILT_IN, SampleLoss
from mixreg.verify.errata import errata
from mixreg.verify.examples import Row, example
from mixreg.verify.jacobian_targets import jacobian_targets, weighted_least_squares
from mixreg.verify.limits import limits
from mixreg.verify.networks import about_a_network
from mixreg.verify.statements import law_of_theta, least_squares, prediction, smoothing, squared_error_constant

__all__ = ["Row", "checks", "verify"]

# Samples of a user's data that are looked at: the checks go over all pairs.
MOST_SAMPLES = 16
ALPHAS = (0.1, 0.5, 1.0, 4.0)


def verify(
    net: nn.Module | None = None,
    x: Tensor | None = None,
    y: Tensor | None = None,
    *,
    alpha: float | None = None,
    loss: str | SampleLoss = "cross_entropy",
) -> list[Row]:
    """Check the paper, or its statements about a network on your own one.

    Args:
        net: your network; a copy in float64 and evaluation mode is checked.
        x: n × …, inputs; the first 16 are used.
        y: n integer labels, or n × … targets.
        alpha: one α; by default several.
        loss: a name or a callable on one sample.
    """
    return list(checks(net, x, y, alpha=alpha, loss=loss))


def checks(
    net: nn.Module | None = None,
    x: Tensor | None = None,
    y: Tensor | None = None,
    *,
    alpha: float | None = None,
    loss: str | SampleLoss = "cross_entropy",
) -> Iterator[Row]:
    """The rows of `verify`, one by one as they are computed."""
    alphas = ALPHAS if alpha is None else (alpha,)
    if net is not None:
        if x is None or y is None:
            raise ValueError("to verify a network give its data too: verify(net, x, y)")
        own = copy.deepcopy(net).double().eval() if isinstance(net, nn.Module) else net
        yield from about_a_network(own, x[:MOST_SAMPLES].double(), y[:MOST_SAMPLES], alphas, loss, folded=True)
        return
    yield law_of_theta(alphas)
    for name in BUILT_IN:
        short = {"cross_entropy": "CE", "logistic": "LR", "squared_error": "SE"}[name]
        for row in about_a_network(*example(name), alphas, name):
            yield replace(row, name=f"{row.name} {short}")
    yield from jacobian_targets(alphas)
    yield squared_error_constant(alphas)
    yield from least_squares(alphas)
    yield from prediction(alphas)
    yield from smoothing(alphas)
    yield from limits()
    yield weighted_least_squares()
    yield from errata()
