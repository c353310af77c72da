"""The terms of Theorem 3 from tangents: whatever the number of classes and coordinates (MATH: terms without Jacobians).

With q_i(δ, ε) = ½ (Jδ)ᵀ ℓuu (Jδ) + εᵀ ℓyu Jδ the terms of sample i are means over a partner j,

    R1 + R3 = σ² q_i(a_i, b_i) + γ² E_j q_i(a_j, b_j)        R2 = ½ σ² ℓu f″[a_i, a_i] + ½ γ² E_j ℓu f″[a_j, a_j],

and likewise R4 with ½ εᵀ ℓyy ε. The own direction is taken exactly, the mean over j from K partners: 1 + K tangents per
sample. R3 needs no derivative of the network, only least squares of y on x (`mixreg.theory.perturbation`), and
R1 = (R1 + R3) − R3 where that can be had.

**Standard errors.** Draws of partners are independent: Σ_i w_i² γ⁴ s_i² / K / (Σ w)², with s_i² the variance of sample
i's K values. Where partners come from a pool of M, all samples share its luck: with β_m the mean over samples of what
partner m adds to them, Var(β) / M comes to it. β is read off residuals, q_i(m) less the mean of sample i's K values, of
which a K-th part is its own; what is noise in it is taken out.

**Derivatives** are tangents in forward mode, or central differences with a step h along δ,

    Jδ ≈ (f(x̃ + hδ) − f(x̃ − hδ)) / 2h        f″[δ, δ] ≈ (f(x̃ + hδ) − 2 f(x̃) + f(x̃ − hδ)) / h²,

whose error of order h² is measured by doubling the step. Differences need nothing of the network but its values; a kink
between x̃ ± hδ counts as curvature, which in forward mode it does not. Networks whose second derivatives are exactly 0
at the first samples are piecewise linear: they are not asked for others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mixreg._autodiff.differences import FORWARD
from mixreg._autodiff.network import Network, evaluating, flat_outputs, refuse_non_finite
from mixreg._autodiff.problem import Problem
from mixreg._autodiff.tangents import tangents
from mixreg.risk.apart import third_term
from mixreg.risk.directions import chunks
from mixreg.risk.partners import Partners
from mixreg.theory.modified import shrink
from mixreg.theory.perturbation import Explained
from mixreg.theory.theta import scalar_forms

# What partners give, and all that there is of a sample.
TERMS = ("joint", "square", "r2", "r4", "sum")
VALUES = ("base", "r3", *TERMS)
_MATRIX_ELEMENTS = 1 << 22
# Samples that tell how far differences are off.
_PROBED = 2

# f(x), Jδ and f″[δ, δ], m × c each, at x along δ, with f(x) if it is known.
Along = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor]]


def step_of(dtype: torch.dtype) -> float:
    """h: the errors of truncation, h², and of rounding in the second difference, ε / h², are alike."""
    return float(torch.finfo(dtype).eps ** 0.25)


def by_tangents(net: Network) -> Along:
    """Derivatives in forward mode."""

    def along(x: Tensor, delta: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        u, first, second = tangents(net, x, delta, True)
        assert second is not None
        u, first, second = (part.reshape(len(x), -1).double() for part in (u, first, second))
        return u, first, second

    return along


def by_differences(net: Network, step: float) -> Along:
    """Derivatives from values at x, x + hδ and x − hδ."""

    def along(x: Tensor, delta: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        u = flat_outputs(net, x.clone()).double() if known is None else known
        above, below = (flat_outputs(net, x + h * delta).double() for h in (step, -step))
        return u, (above - below) / (2 * step), (above - 2 * u + below) / step**2

    return along


@dataclass
class Sums:
    """Weighted sums over samples, to be joined over processes.

    Attributes:
        weight: Σ w.
        value: Σ w × (base and the terms), by name.
        variance: Σ w² × (variances of what partners give), by term.
        groups: by term, for each place of the pool Σ w, Σ w r, Σ w², Σ w² r and Σ w² r² of residuals r: 5 × M.
    """

    weight: Tensor
    value: dict[str, Tensor]
    variance: dict[str, Tensor]
    groups: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def none(cls, device: torch.device, pool: int) -> Sums:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        values = {name: zeros() for name in VALUES}
        groups = {name: zeros(5, pool) for name in TERMS} if pool else {}
        return cls(zeros(), values, {name: zeros() for name in TERMS}, groups)

    def joined(self, total: Callable[[Tensor], Tensor]) -> Sums:
        """All sums passed through `total`."""
        parts = (
            {name: total(value) for name, value in part.items()} for part in (self.value, self.variance, self.groups)
        )
        return Sums(total(self.weight), *parts)

    def means(self) -> dict[str, Tensor]:
        """Base and terms."""
        return {name: value / self.weight for name, value in self.value.items()}

    def errors(self, tangents: int) -> dict[str, Tensor]:
        """Standard errors of the terms."""
        drawn = {name: value / self.weight**2 for name, value in self.variance.items()}
        for name, sums in self.groups.items():
            drawn[name] = drawn[name] + _pool_variance(sums, tangents)
        # What is left of the pool's luck without its noise may be below 0 by chance: only the sum is not.
        return {name: value.clamp(min=0).sqrt() for name, value in drawn.items()}


def _pool_variance(sums: Tensor, tangents: int) -> Tensor:
    """Var(β) / M from the sums of residuals by place: 5 × M."""
    weight, first, weight2, first2, second2 = sums[:, sums[0] > 0]
    if len(weight) < 2:
        return torch.zeros_like(weight.sum())
    mean = first / weight
    # Of each mean: Σ w² (r − r̄)² / (Σ w)².
    noise = (second2 - 2 * mean * first2 + mean.square() * weight2) / weight.square()
    beta = (mean.var() - noise.mean()) * (tangents / (tangents - 1)) ** 2
    return beta / len(weight)


class Estimator:
    """Estimates the terms, some samples at a time.

    Args:
        net: the network.
        alpha: in [0, ∞].
        means: x̄ and ȳ of the data.
        partners: where they come from.
        tangents: K, at least 2.
        derivatives: "forward" or "differences".
        generator: random number generator for partners.
    """

    def __init__(
        self,
        net: Network,
        alpha: float,
        means: tuple[Tensor, Tensor],
        partners: Partners,
        tangents: int,
        derivatives: str,
        generator: torch.Generator | None,
    ) -> None:
        forms = scalar_forms(alpha, "the quadratic risk")
        self.theta_mean, self.var, self.gamma2 = forms.mean, forms.var, forms.gamma2
        self.net, self.partners, self.tangents, self.generator = net, partners, tangents, generator
        self.x_mean, self.y_mean = means
        self.derivatives = derivatives
        self._along: Along | None = None
        # Of differences: how far joint and R2 of the first samples are off, by doubling the step.
        self.difference_error: dict[str, float] = {"joint": 0.0, "r2": 0.0}

    def add(
        self, sums: Sums, problem: Problem, weight: Tensor, chunk_size: int | None, known: Explained | None
    ) -> dict[str, Tensor]:
        """Take in samples, and return their terms, n each; R3 is NaN where nothing is known of least squares."""
        found: dict[str, list[Tensor]] = {name: [] for name in VALUES}
        size = problem.chunk_size(chunk_size)
        if known is not None:
            # R3 has matrices of c × c for each sample.
            size = max(1, min(size, _MATRIX_ELEMENTS // problem.classes**2))
        with evaluating(self.net), torch.no_grad():
            for rows in chunks(problem.count, size):
                of_rows = None if known is None else known.rows(rows)
                for name, value in self._chunk(sums, problem, rows, weight[rows], of_rows).items():
                    found[name].append(value)
        return {name: torch.cat(parts) for name, parts in found.items()}

    def _chunk(
        self, sums: Sums, problem: Problem, rows: slice, weight: Tensor, known: Explained | None
    ) -> dict[str, Tensor]:
        x, y = problem.x[rows], problem.y[rows]
        a, b = x - self.x_mean.to(x.dtype), (y - self.y_mean.to(y.dtype).reshape(-1)).double()
        x = shrink(x, self.x_mean, self.theta_mean)
        y = shrink(y, self.y_mean.reshape(-1), self.theta_mean).double()
        drawn = [self.partners.draw(len(x), self.generator) for _ in range(self.tangents)]
        if self._along is None:
            self._along = self._chosen(problem, x, y, (a, b), drawn[0])
        u, own = self._terms(problem, x, y, a, b, None)
        refuse_non_finite(u, "the network's output", lambda row: f"sample {rows.start + row}")
        others = [self._terms(problem, x, y, delta, epsilon.double(), u)[1] for delta, epsilon, _ in drawn]
        sums.weight += weight.sum()
        found = {"base": problem.loss.value(y, u), "r3": torch.full_like(weight, math.nan)}
        if known is not None:
            second = problem.loss.uu(y, u), problem.loss.uy(y, u)
            found["r3"] = third_term(problem.loss, (y, u), second, (self.var, self.gamma2), known)
        for name in TERMS:
            values = self.gamma2 * torch.stack([other[name] for other in others])
            found[name] = self.var * own[name] + values.mean(0)
            sums.variance[name] += weight.square() @ values.var(0) / self.tangents
            if sums.groups:
                places = torch.cat([place for _, _, place in drawn])
                _add_residuals(
                    sums.groups[name], (values - values.mean(0)).flatten(), places, weight.repeat(self.tangents)
                )
        for name, value in found.items():
            sums.value[name] += weight @ value
        return found

    def _terms(
        self, problem: Problem, x: Tensor, y: Tensor, delta: Tensor, epsilon: Tensor, known: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """f(x), and what a direction gives to the terms, m each."""
        assert self._along is not None
        return _of_direction(problem, y, epsilon, *self._along(x, delta, known))

    def _chosen(
        self,
        problem: Problem,
        x: Tensor,
        y: Tensor,
        own: tuple[Tensor, Tensor],
        drawn: tuple[Tensor, Tensor, Tensor],
    ) -> Along:
        """How to take derivatives; of differences, a look at the first samples says how far they are off."""
        if self.derivatives == FORWARD:
            # Where a network is piecewise linear the second derivative costs next to nothing.
            return by_tangents(self.net)
        some = slice(0, _PROBED)
        looks = [(own[0][some], own[1][some]), (drawn[0][some], drawn[1][some].double())]
        step = step_of(x.dtype)
        chosen, doubled = by_differences(self.net, step), by_differences(self.net, 2 * step)
        for (delta, epsilon), scale in zip(looks, (self.var, self.gamma2), strict=True):
            near, far = (
                _of_direction(problem, y[some], epsilon, *along(x[some], delta, None))[1] for along in (chosen, doubled)
            )
            for name in self.difference_error:
                # An error of order h² is a third of what doubling h changes.
                self.difference_error[name] += scale * float((near[name] - far[name]).abs().mean()) / 3
        return chosen


def _of_direction(
    problem: Problem, y: Tensor, epsilon: Tensor, u: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    loss = problem.loss
    r4 = loss.along(y, u, epsilon, torch.zeros_like(u))
    joint = loss.along(y, u, epsilon, first) - r4
    r2 = 0.5 * (loss.u(y, u) * second).sum(1)
    square = loss.along(y, u, torch.zeros_like(epsilon), first)
    return u, {"joint": joint, "square": square, "r2": r2, "r4": r4, "sum": joint + r2 + r4}


def _add_residuals(groups: Tensor, residual: Tensor, place: Tensor, weight: Tensor) -> None:
    for row, value in zip(
        groups,
        (weight, weight * residual, weight.square(), weight.square() * residual, (weight * residual).square()),
        strict=True,
    ):
        row.index_add_(0, place, value)
