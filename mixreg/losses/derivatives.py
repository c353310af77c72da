"""Losses with the derivatives that the theory needs, and any other loss.

| loss          | ℓ(y, u)             | ℓu    | ℓuu           | ℓuy | ℓyy |
|---------------|---------------------|-------|---------------|-----|-----|
| cross-entropy | logsumexp(u) − yᵀu  | p − y | diag(p) − ppᵀ | −I  | 0   |
| logistic      | softplus(u) − y u   | s − y | s (1 − s)     | −1  | 0   |
| squared error | ½ ‖y − u‖²          | u − y | I             | −I  | I   |

with p = softmax(u) and s = sigmoid(u). Inverses of ℓuu are pseudo-inverses: diag(p) − ppᵀ has the null vector 1. On the
complement of 1 its inverse is diag(1/p), so with the projection Π = I − 11ᵀ/c its pseudo-inverse is Π diag(1/p) Π.

**Confident predictions.** As p − p² the diagonal of diag(p) − ppᵀ cancels where p is near 1; as p_k Σ_{j≠k} p_j it
keeps all its digits, and every row still sums to 0. Where ℓuu⁺ is only applied to vectors in the range of ℓuu, any
symmetric G with ℓuu G ℓuu = ℓuu does: diag(1/p) itself, which the projection would fill with the largest 1/p.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from mixreg._support.near_misses import unknown
from mixreg.losses.functions import cross_entropy, logistic, squared_error
from mixreg.losses.outputs_first import refuse_outputs_first

SampleLoss = Callable[[Tensor, Tensor], Tensor]


class Loss(ABC):
    """A loss on a batch and its second-order behaviour; y: n × k and u: n × c stand for vectors of any shape."""

    @abstractmethod
    def value(self, y: Tensor, u: Tensor) -> Tensor:
        """ℓ: n."""

    @abstractmethod
    def u(self, y: Tensor, u: Tensor) -> Tensor:
        """ℓu: n × c."""

    @abstractmethod
    def uu(self, y: Tensor, u: Tensor) -> Tensor:
        """ℓuu: n × c × c."""

    @abstractmethod
    def uy(self, y: Tensor, u: Tensor) -> Tensor:
        """ℓuy: n × c × k."""

    @abstractmethod
    def yy(self, y: Tensor, u: Tensor) -> Tensor:
        """ℓyy: n × k × k."""

    def uu_inverse(self, y: Tensor, u: Tensor) -> Tensor:
        """The pseudo-inverse of ℓuu: n × c × c.

        Second derivatives carry rounding of the size of the loss's own numbers: eigenvalues below are taken for 0.
        Where ℓuu is diagonal (a sum of losses, one for each output) every entry has digits of its own.
        """
        matrix = self.uu(y, u)
        diagonal = matrix.diagonal(dim1=1, dim2=2)
        entries = torch.diag_embed(torch.where(diagonal == 0, 0.0, 1 / diagonal))
        is_diagonal = (matrix == torch.diag_embed(diagonal)).all(2).all(1).reshape(-1, 1, 1)
        if bool(is_diagonal.all()):
            return entries
        inverse = torch.linalg.pinv(matrix, rtol=torch.finfo(matrix.dtype).eps ** 0.6, hermitian=True)
        return torch.where(is_diagonal, entries, inverse)

    def generalised_inverse(self, y: Tensor, u: Tensor) -> Tensor:
        """A symmetric G with ℓuu G ℓuu = ℓuu: n × c × c, infinite where ℓuu is too small to be inverted."""
        return self.uu_inverse(y, u)

    @abstractmethod
    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:
        """½ duᵀ ℓuu du + dyᵀ ℓyu du + ½ dyᵀ ℓyy dy: n."""


def _identity(u: Tensor) -> Tensor:
    return torch.eye(u.shape[1], dtype=u.dtype, device=u.device).expand(u.shape[0], -1, -1)


class CrossEntropy(Loss):
    """ℓ = logsumexp(u) − yᵀu."""

    def value(self, y: Tensor, u: Tensor) -> Tensor:
        return cross_entropy(y, u)

    def u(self, y: Tensor, u: Tensor) -> Tensor:
        return torch.softmax(u, 1) - y

    def uu(self, y: Tensor, u: Tensor) -> Tensor:
        p = torch.softmax(u, 1)
        others = (1 - _identity(u)) * p.unsqueeze(2) * p.unsqueeze(1)
        return torch.diag_embed(others.sum(2)) - others

    def uy(self, y: Tensor, u: Tensor) -> Tensor:
        return -_identity(u)

    def yy(self, y: Tensor, u: Tensor) -> Tensor:
        return torch.zeros_like(u).unsqueeze(1) * u.unsqueeze(2)

    def uu_inverse(self, y: Tensor, u: Tensor) -> Tensor:
        # 1/p, short of overflow.
        largest = 0.8 * math.log(torch.finfo(u.dtype).max)
        odds = torch.diag_embed((-torch.log_softmax(u, 1)).clamp(max=largest).exp())
        odds = odds - odds.mean(1, keepdim=True)
        return odds - odds.mean(2, keepdim=True)

    def generalised_inverse(self, y: Tensor, u: Tensor) -> Tensor:
        return torch.diag_embed((-torch.log_softmax(u, 1)).exp())

    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:
        p = torch.softmax(u, 1)
        centred = du - (p * du).sum(1, keepdim=True)
        return 0.5 * (p * centred.square()).sum(1) - (dy * du).sum(1)


class Logistic(Loss):
    """ℓ = softplus(u) − y u, for every label."""

    def value(self, y: Tensor, u: Tensor) -> Tensor:
        return logistic(y, u)

    def u(self, y: Tensor, u: Tensor) -> Tensor:
        return torch.sigmoid(u) - y

    def uu(self, y: Tensor, u: Tensor) -> Tensor:
        return torch.diag_embed(torch.sigmoid(u) * torch.sigmoid(-u))

    def uy(self, y: Tensor, u: Tensor) -> Tensor:
        return -_identity(u)

    def yy(self, y: Tensor, u: Tensor) -> Tensor:
        return torch.zeros_like(u).unsqueeze(1) * u.unsqueeze(2)

    def uu_inverse(self, y: Tensor, u: Tensor) -> Tensor:
        # 1 / (s (1 − s)) = 2 + e^u + e^−u
        size = u.abs().clamp(max=0.8 * math.log(torch.finfo(u.dtype).max))
        return torch.diag_embed(2 + size.exp() + (-size).exp())

    def generalised_inverse(self, y: Tensor, u: Tensor) -> Tensor:
        return torch.diag_embed(2 + u.exp() + (-u).exp())

    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:
        return (0.5 * torch.sigmoid(u) * torch.sigmoid(-u) * du.square() - dy * du).sum(1)


class SquaredError(Loss):
    """ℓ = ½ ‖y − u‖²."""

    def value(self, y: Tensor, u: Tensor) -> Tensor:
        return squared_error(y, u)

    def u(self, y: Tensor, u: Tensor) -> Tensor:
        return u - y

    def uu(self, y: Tensor, u: Tensor) -> Tensor:
        return _identity(u)

    def uy(self, y: Tensor, u: Tensor) -> Tensor:
        return -_identity(u)

    def yy(self, y: Tensor, u: Tensor) -> Tensor:
        return _identity(u)

    def uu_inverse(self, y: Tensor, u: Tensor) -> Tensor:
        return _identity(u)

    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:
        return 0.5 * (du - dy).square().sum(1)


class CustomLoss(Loss):
    """Any twice differentiable ℓ(y, u) of one sample, through automatic differentiation.

    Args:
        function: maps one target and one output, in the shapes below, to a number.
        y_shape: of one target.
        u_shape: of one output.
    """

    def __init__(self, function: SampleLoss, y_shape: torch.Size, u_shape: torch.Size) -> None:
        self.function, self.y_shape, self.u_shape = function, y_shape, u_shape

    def _one(self, y: Tensor, u: Tensor) -> Tensor:
        value = self.function(y.reshape(self.y_shape), u.reshape(self.u_shape))
        if not isinstance(value, Tensor) or value.numel() != 1:
            given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"a loss(y, u) of one sample must return one number as a tensor, got {given}")
        return value.reshape(())

    def _each(self, one: Callable[..., Tensor], *given: Tensor) -> Tensor:
        """What is computed of one sample, of every sample at once."""
        try:
            return torch.vmap(one)(*given)
        except RuntimeError as error:
            if "vmap" not in str(error) or ".item()" not in str(error):
                raise
            name = getattr(self.function, "__name__", type(self.function).__name__)
            raise TypeError(
                f"the loss {name} looks at the numbers in a tensor (an `if`, .item(), float() …), which cannot be done "
                "for all samples at once: use torch.where, and tensors throughout"
            ) from error

    def value(self, y: Tensor, u: Tensor) -> Tensor:
        return self._each(self._one, y, u)

    def u(self, y: Tensor, u: Tensor) -> Tensor:
        return self._each(torch.func.grad(self._one, 1), y, u)

    def uu(self, y: Tensor, u: Tensor) -> Tensor:
        return self._second(1, 1, y, u)

    def uy(self, y: Tensor, u: Tensor) -> Tensor:
        return self._second(1, 0, y, u)

    def yy(self, y: Tensor, u: Tensor) -> Tensor:
        return self._second(0, 0, y, u)

    def _second(self, first: int, second: int, y: Tensor, u: Tensor) -> Tensor:
        gradient = torch.func.grad(self._one, first)
        return self._each(torch.func.jacrev(gradient, second), y, u)

    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:
        def slope(y: Tensor, u: Tensor) -> Tensor:
            gradient_y, gradient_u = torch.func.grad(self._one, (0, 1))(y, u)
            return torch.cat([gradient_y, gradient_u])

        def one(y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:
            # Reverse over reverse: more functions have a second reverse derivative than a forward one.
            direction = torch.cat([dy, du])
            change = torch.func.grad(lambda y, u: slope(y, u) @ direction, (0, 1))(y, u)
            return 0.5 * torch.cat(change) @ direction

        return self._each(one, y, u, dy, du)


AnyLoss = str | SampleLoss | Loss

BUILT_IN: dict[str, Loss] = {
    "cross_entropy": CrossEntropy(),
    "logistic": Logistic(),
    "squared_error": SquaredError(),
}


def require_known(loss: AnyLoss) -> None:
    """A loss is one of the built-in names, a callable, or a `Loss`; not one of PyTorch's, which take outputs first."""
    refuse_outputs_first(loss)
    if not callable(loss) and not isinstance(loss, Loss) and not (isinstance(loss, str) and loss in BUILT_IN):
        raise ValueError(unknown("loss", loss, BUILT_IN, "or a callable loss(y, u)"))


def require_curvature(loss: Loss, y: Tensor, u: Tensor) -> None:
    """A loss whose second derivatives are all 0, at these samples and near their targets, is piecewise linear: refused.

    (Huber's loss is linear far from the target, where a whole batch may lie at first.)
    """
    places = [u, y + 1e-3] if y.shape == u.shape else [u]
    has_curvature = any(
        bool((part != 0).any()) for at in places for part in (loss.uu(y, at), loss.uy(y, at), loss.yy(y, at))
    )
    if bool((loss.u(y, u) != 0).any()) and not has_curvature:
        raise ValueError(
            "this loss has no second derivatives (it is piecewise linear), so that it has no quadratic risk; "
            "use a twice differentiable one"
        )


def resolve(loss: AnyLoss, y_shape: torch.Size, u_shape: torch.Size) -> Loss:
    """The loss of a name, or of a callable on one sample, for targets and outputs of these shapes."""
    require_known(loss)
    if isinstance(loss, Loss):
        return loss
    if callable(loss):
        return CustomLoss(loss, y_shape, u_shape)
    if y_shape != u_shape:
        raise ValueError(
            f"{loss} needs targets and outputs of one shape, got targets {tuple(y_shape)} and outputs {tuple(u_shape)}"
        )
    if loss == "cross_entropy" and len(u_shape) != 1:
        raise ValueError(
            f"cross_entropy needs outputs of shape n × c, got n × {tuple(u_shape)}; for one logit: logistic"
        )
    return BUILT_IN[loss]


def sample_losses(loss: AnyLoss, y: Tensor, u: Tensor) -> Tensor:
    """The loss of each sample, n; y: n × … targets as values, u: n × … outputs."""
    n = u.shape[0]
    return resolve(loss, y.shape[1:], u.shape[1:]).value(y.reshape(n, -1), u.reshape(n, -1))
