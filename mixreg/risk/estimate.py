"""What the risks of `mixreg.risk` have in common: the losses of a chunk of mixed samples, and estimates."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from mixreg._autodiff.network import flat_outputs, refuse_non_finite
from mixreg._autodiff.problem import Problem


class Estimate(NamedTuple):
    """A Monte Carlo mean and its standard error."""

    value: Tensor
    stderr: Tensor


def losses_of(problem: Problem, x: Tensor, y: Tensor, where: Callable[[int], str]) -> Tensor:
    """ℓ of a chunk, float64: m; `where` names a row of it, should its loss not be finite."""
    values = problem.loss.value(y, flat_outputs(problem.net, x)).double()
    return refuse_non_finite(values, "the network's output or its loss", where)


def sample(first: int) -> Callable[[int], str]:
    """Names for rows that follow each other."""
    return lambda row: f"sample {first + row}"


def pair(i: Tensor, j: Tensor) -> Callable[[int], str]:
    """Names for the rows of mixed pairs; several nodes may follow each other with the same pairs."""
    return lambda row: f"a mixture of samples {int(i[row % len(i)])} and {int(j[row % len(j)])}"
