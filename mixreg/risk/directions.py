"""Second derivatives of ℓu f along the noise: along a_i, and along the columns of L with Σxx = L Lᵀ.

Where the columns are many, along random combinations L v with E vvᵀ = I, which have the same mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg._autodiff.derivatives import curvature
from mixreg._autodiff.network import Network
from mixreg._autodiff.problem import Problem
from mixreg._support.random import signs
from mixreg.theory.perturbation import Perturbation

# Up to this rank of Σxx every direction is taken; beyond it, this many random ones per sample.
EXACT_DIRECTIONS = 128
PROBES = 8


def samples_at_once(problem: Problem, asked: int | None) -> int:
    """How many Jacobians to hold at once: each is c times the input."""
    if asked is not None:
        return problem.chunk_size(asked)
    return max(1, problem.chunk_size(None) * 4 // problem.classes)


def chunks(n: int, size: int) -> list[slice]:
    return [slice(s, min(s + size, n)) for s in range(0, n, size)]


def quadratic_form(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """tr(leftᵀ M right) for every sample; matrix: m × c × k, left: m × c × q, right: m × k × q."""
    return (left * (matrix @ right)).sum((1, 2))


@dataclass(frozen=True)
class Directions:
    """Second derivatives of ℓu f along a_i and along the columns of L."""

    perturbation: Perturbation
    exact_directions: int
    probes: int
    generator: torch.Generator | None

    def __post_init__(self) -> None:
        if self.probes < 2:
            raise ValueError(f"a standard error needs at least 2 probes, got {self.probes}")

    def curvature(self, net: Network, x: Tensor, slope: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """⟨aaᵀ, ℓu ∇²f⟩, ⟨Σxx, ℓu ∇²f⟩ and the variance of the latter, for every sample: m each.

        Args:
            net: the network.
            x: m × …, where to differentiate.
            slope: ℓu, m × c, held fixed.
            a: m × d.
        """
        factor = self.perturbation.whitening.factor
        curve = curvature(net, x, slope)

        def along(direction: Tensor) -> Tensor:
            return curve(direction).double()

        own = along(a)
        rank = factor.shape[1]
        if rank <= self.exact_directions:
            total = torch.zeros_like(own)
            for column in factor.unbind(1):
                total += along(column.expand(len(x), -1))
            return own, total, torch.zeros_like(own)
        draws: list[Tensor] = []
        for _ in range(self.probes):
            v = signs(len(x) * rank, self.generator, factor.device).reshape(len(x), rank).to(factor)
            draws.append(along(v @ factor.T))
            if not bool(draws[0].any() or own.any()):
                # Exactly 0 along random directions at every sample: a piecewise linear network, without curvature.
                return own, draws[0], torch.zeros_like(own)
        values = torch.stack(draws)
        return own, values.mean(0), values.var(0) / self.probes
