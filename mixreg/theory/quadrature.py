"""Gauss rules for the distributions of λ and θ: exact expectations of smooth functions from a few nodes.

**λ ~ Beta(α, α).** On x = 2λ − 1 the orthogonal polynomials are Gegenbauer's, with the three-term recurrence

    x π_k = π_{k+1} + β_k π_{k−1}        β_k = k (k + 2α − 2) / ((2k + 2α − 1)(2k + 2α − 3)),    β_1 = 1 / (2α + 1).

Nodes are the eigenvalues of the symmetric tridiagonal matrix with off-diagonal √β_k, weights the squares of the first
components of its eigenvectors (Golub and Welsch, 1969). Weights sum to one by themselves, so that nothing overflows at
any α. The nodes are symmetric around ½.

**θ, the same truncated to [½, 1].** Its weight (t (1 − t))^{α−1} on half of the interval has no closed recurrence. It
is found by Lanczos' iteration on a fine Gauss–Jacobi rule for the factor (1 − t)^{α−1}, which carries the singularity,
with the smooth factor t^{α−1} in its weights; for larger α, where nothing happens at 1, on a Gauss–Legendre rule.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

# Nodes of the rule on which the distribution of θ is discretised, beside the nodes asked for.
_FINE = 200
# From this α on (1 − t)^{α−1} is smooth enough at 1 for a Gauss–Legendre rule: its error there is below 200^{−2α}.
_SMOOTH_FROM = 10.0


def lambda_nodes(alpha: float, nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes λ_k and weights of the Gauss rule for Beta(α, α): two float64 vectors, symmetric around ½."""
    _validate(nodes)
    if alpha == 0:
        return torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    if math.isinf(alpha):
        return torch.tensor([0.5], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    k = np.arange(1, nodes, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        beta = k * (k + 2 * alpha - 2) / ((2 * k + 2 * alpha - 1) * (2 * k + 2 * alpha - 3))
    beta[:1] = 1 / (2 * alpha + 1)
    x, weights = _golub_welsch(np.zeros(nodes), np.sqrt(beta))
    # Enforce the symmetry that rounding breaks: callers rely on it to save half of their work.
    x, weights = (x - x[::-1]) / 2, (weights + weights[::-1]) / 2
    return torch.from_numpy((1 + x) / 2), torch.from_numpy(weights)


def theta_nodes(alpha: float, nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes θ_k in [½, 1] and weights of the Gauss rule for the distribution of θ: two float64 vectors."""
    _validate(nodes)
    if alpha == 0 or math.isinf(alpha):
        return torch.tensor([1.0 if alpha == 0 else 0.5], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    if alpha < _SMOOTH_FROM:
        x, weights = _golub_welsch(*_jacobi(alpha - 1, nodes + _FINE))
        t = (3 + x) / 4
        weights = weights * t ** (alpha - 1)
    else:
        x, weights = np.polynomial.legendre.leggauss(nodes + _FINE)
        # Twelve standard deviations of 2λ − 1, or all of it.
        t = 0.5 + min(1.0, 12 / math.sqrt(2 * alpha + 1)) * (1 + x) / 4
        weights = weights * (4 * t * (1 - t)) ** (alpha - 1)
    t, weights = _golub_welsch(*_lanczos(t, weights / weights.sum(), nodes))
    return torch.from_numpy(t), torch.from_numpy(weights)


def folded_nodes(alpha: float, nodes: int) -> tuple[Tensor, Tensor]:
    """The rule of `lambda_nodes` folded onto [½, 1] by θ = max(λ, 1 − λ).

    It gives pairs in both orders what `lambda_nodes` gives them, for any function; `theta_nodes` is more accurate.
    """
    lam, weights = lambda_nodes(alpha, nodes)
    half = len(lam) // 2
    theta, folded = lam[half:], 2 * weights[half:]
    if len(lam) % 2:
        folded[0] /= 2  # the node at ½ is its own mirror image
    return theta, folded


def _validate(nodes: int) -> None:
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise ValueError(f"nodes must be a positive integer, got {nodes!r}")


def _golub_welsch(diagonal: np.ndarray, off_diagonal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from scipy.linalg import eigh_tridiagonal

    x, vectors = eigh_tridiagonal(diagonal, off_diagonal)
    return x, vectors[0] ** 2


def _jacobi(a: float, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Recurrence of the Jacobi polynomials for the weight (1 − x)^a on [−1, 1]."""
    k = np.arange(nodes, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        diagonal = -(a * a) / ((2 * k + a) * (2 * k + a + 2))
    diagonal[0] = -a / (a + 2)
    k = k[1:]
    return diagonal, 2 * k * (k + a) / ((2 * k + a) * np.sqrt((2 * k + a + 1) * (2 * k + a - 1)))


def _lanczos(points: np.ndarray, weights: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Recurrence of the polynomials orthogonal on a discrete distribution, with full re-orthogonalisation."""
    basis = [np.sqrt(weights)]
    diagonal, off_diagonal = [], []
    for k in range(nodes):
        diagonal.append(basis[k] @ (points * basis[k]))
        residual = points * basis[k]
        for _ in range(2):
            for vector in basis:
                residual = residual - (vector @ residual) * vector
        off_diagonal.append(np.linalg.norm(residual))
        basis.append(residual / off_diagonal[-1])
    return np.array(diagonal), np.array(off_diagonal[:-1])
