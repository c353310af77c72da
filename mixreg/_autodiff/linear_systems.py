"""Linear systems and determinants by an LU factorisation.

PyTorch's rules for these hold the saved factors constant when a tangent is differentiated once more, so that its
gradient and a second tangent are wrong without a word. Those of the factorisation A = P L U itself are right:

    A⁻¹ B = U⁻¹ L⁻¹ Pᵀ B,        det A = det P · Π u_kk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mixreg._autodiff.products import prod


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """`torch.linalg.solve`."""
    factors, pivots = torch.linalg.lu_factor(A)
    return _solution(factors, pivots, B, left)


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    """`torch.linalg.solve_ex`."""
    factors, pivots, info = torch.linalg.lu_factor_ex(A, check_errors=check_errors)
    return torch.return_types.linalg_solve_ex((_solution(factors, pivots, B, left), info))  # type: ignore[attr-defined]


def _solution(factors: Tensor, pivots: Tensor, B: Tensor, left: bool) -> Tensor:
    # As PyTorch tells vectors from matrices.
    is_vector = B.ndim == 1 or (B.ndim == factors.ndim - 1 and B.shape == factors.shape[:-1])
    if is_vector:
        return torch.linalg.lu_solve(factors, pivots, B.unsqueeze(-1)).squeeze(-1)
    return torch.linalg.lu_solve(factors, pivots, B, left=left)


def tensorsolve(A: Tensor, B: Tensor, dims: tuple[int, ...] | None = None) -> Tensor:
    """`torch.linalg.tensorsolve`."""
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    shape = A.shape[B.ndim :]
    return solve(A.reshape(B.numel(), -1), B.reshape(-1)).reshape(shape)


def slogdet(A: Tensor) -> Any:
    """`torch.linalg.slogdet`."""
    sign, diagonal = _factored(A)
    parts = sign * prod(torch.sgn(diagonal), -1), diagonal.abs().log().sum(-1)
    return torch.return_types.linalg_slogdet(parts)  # type: ignore[attr-defined]


def logdet(A: Tensor) -> Tensor:
    """`torch.logdet`, which is not a number where the determinant is negative."""
    sign, size = slogdet(A)
    return sign.log() + size


def det(A: Tensor) -> Tensor:
    """`torch.linalg.det`."""
    sign, diagonal = _factored(A)
    return sign * prod(diagonal, -1)


def _factored(A: Tensor) -> tuple[Tensor, Tensor]:
    """det P and the diagonal of U."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(A)
    size = torch.arange(1, A.shape[-1] + 1, device=A.device)
    sign = 1 - 2 * ((pivots != size).sum(-1) % 2)
    return sign.to(A.dtype), factors.diagonal(0, -2, -1)
