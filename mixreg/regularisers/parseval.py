"""Parseval regularisation (Cissé et al., 2017): layers that do not stretch, by keeping their matrices orthonormal.

A dense layer with W Wᵀ = I (or Wᵀ W = I, if it is tall) has no singular value but 1: its Jacobian is bounded, and so is
the network's. The penalty and its gradient step, which the paper calls retraction, are

    R(W) = ¼ ‖W Wᵀ − I‖²        ∇R = (W Wᵀ − I) W        W ← W − β ∇R = (1 + β) W − β W Wᵀ W.

On singular values it is s ← s + β s (1 − s²), which for β ≤ ½ increases every s in (0, 1) to 1 and decreases those
above, as long as none exceeds √(1 + 1/β), which `retract` sees to; singular vectors stay, so the limit is the polar
factor of W. One step with a small β after each optimiser step is what training uses; β = ½, repeated, converges
quadratically.

A convolution with kernel k × k reads every input in up to k² places: its matrix out × (in · k²) may have the norm
1/k only, if the convolution as a whole is not to stretch. So matrices are kept at W Wᵀ = I / k². Of a grouped
convolution every group is a matrix of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def gram(matrix: Tensor) -> Tensor:
    """W Wᵀ, or Wᵀ W if W is tall: the smaller of both; W: … × a × b."""
    return matrix @ matrix.mT if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT @ matrix


def retract(matrix: Tensor, beta: float = 0.5) -> Tensor:
    """(1 + β) W − β W Wᵀ W, with a smaller β where W is so large that the step would leave its reach; W: … × a × b.

    With r ≥ s² for all singular values s (the largest row sum of |W Wᵀ|), β (r − 1) ≤ ½ keeps at least half of each.
    """
    inner = gram(matrix)
    bound = inner.abs().sum(-1).amax(-1)
    step = (0.5 / (bound - 1).clamp(min=1e-12)).clamp(max=beta).unsqueeze(-1).unsqueeze(-1)
    product = inner @ matrix if matrix.shape[-2] <= matrix.shape[-1] else matrix @ inner
    return (1 + step) * matrix - step * product


def deviation(matrix: Tensor) -> Tensor:
    """The largest entry of W Wᵀ − I, or of Wᵀ W − I if W is tall; W: … × a × b."""
    inner = gram(matrix)
    return (inner - torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)).abs().max()


def orthonormalised(matrix: Tensor, tolerance: float = 1e-6, steps: int = 100) -> Tensor:
    """The polar factor of W by retraction with β = ½, from W scaled into its reach.

    Raises:
        ValueError: W has (nearly) dependent rows, so that it has none.
    """
    result = matrix / torch.linalg.matrix_norm(matrix, 2).clamp(min=torch.finfo(matrix.dtype).tiny)
    for _ in range(steps):
        if float(deviation(result)) <= tolerance:
            return result
        result = retract(result)
    raise ValueError(f"a {tuple(matrix.shape)} matrix with dependent rows or columns cannot be made orthonormal")


class Parseval:
    """Keeps the matrices of a network's dense and convolutional layers near orthonormal.

        parseval = Parseval(net, beta=1e-3)
        …
        optimizer.step()
        parseval.step()

    Args:
        net: whose `nn.Linear` and `nn.Conv*d` weights are kept; the last layer too, if `include_last`.
        beta: of one retraction, in (0, ½].
        include_last: whether the layer that makes the outputs is held as well. The original leaves it free.
    """

    def __init__(self, net: nn.Module, beta: float = 1e-3, include_last: bool = False) -> None:
        if not 0 < beta <= 0.5:
            raise ValueError(f"beta must lie in (0, 0.5], got {beta!r}")
        layers = [m for m in net.modules() if isinstance(m, (nn.Linear, *_CONVOLUTIONS))]
        self.layers = layers if include_last else layers[:-1]
        if not self.layers:
            raise ValueError("the network has no dense or convolutional layers to regularise")
        self.beta = beta

    def matrices(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Each layer's weight, the same as matrices (groups × a × b), and the factor k that makes them orthonormal."""
        for layer in self.layers:
            weight = layer.weight
            groups, kernel = 1, 1
            if isinstance(layer, _CONVOLUTIONS):
                groups, kernel = layer.groups, weight[0, 0].numel()
            yield weight, weight.reshape(groups, weight.shape[0] // groups, -1), float(kernel) ** 0.5

    def penalty(self) -> Tensor:
        """¼ Σ ‖k² W Wᵀ − I‖² over layers: the same as a term of the loss."""
        total = torch.zeros(())
        for _, matrix, factor in self.matrices():
            inner = gram(factor * matrix)
            difference = inner - torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
            total = total.to(inner) + 0.25 * difference.square().sum()
        return total

    @torch.no_grad()
    def step(self) -> None:
        """One retraction of every layer, in place."""
        for weight, matrix, factor in self.matrices():
            weight.copy_((retract(factor * matrix, self.beta) / factor).reshape(weight.shape))

    @torch.no_grad()
    def project(self) -> None:
        """Make every layer orthonormal at once, for instance at initialisation."""
        for weight, matrix, factor in self.matrices():
            groups = [orthonormalised(factor * group) / factor for group in matrix]
            weight.copy_(torch.stack(groups).reshape(weight.shape))

    @torch.no_grad()
    def deviation(self) -> float:
        """The largest deviation of all layers."""
        return max(float(deviation(factor * matrix)) for _, matrix, factor in self.matrices())
