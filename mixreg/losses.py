"""The losses of the paper (eq. loss and eq. lrloss) with the derivatives that the theory needs, and any other loss.

| loss          | ℓ(y, u)             | ℓu    | ℓuu           | ℓuy | ℓyy |
|---------------|---------------------|-------|---------------|-----|-----|
| cross-entropy | logsumexp(u) − yᵀu  | p − y | diag(p) − ppᵀ | −I  | 0   |
| logistic      | softplus(u) − y u   | s − y | s (1 − s)     | −1  | 0   |
| squared error | ½ ‖y − u‖²          | u − y | I             | −I  | I   |

with p = softmax(u) and s = sigmoid(u). As in the paper the target comes first. Cross-entropy assumes Σ_k y_k = 1, which
holds for one-hot labels and all their mixtures. `cross_entropy`, `logistic` and `squared_error` map n targets and n
outputs to n losses; take `.mean()` to train.

Inverses of ℓuu are pseudo-inverses: diag(p) − ppᵀ has the null vector 1. On the complement of 1 its inverse is
diag(1/p), so with the projection Π = I − 11ᵀ/c its pseudo-inverse is Π diag(1/p) Π.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

SampleLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(y: Tensor, u: Tensor) -> Tensor:
    """logsumexp(u) − yᵀu.

    Args:
        y: n × c × …, class probabilities along dimension 1.
        u: n × c × …, logits.

    Returns:
        n × …
    """
    _require_same_shape(y, u)
    if u.ndim < 2:
        raise ValueError(
            f"cross-entropy needs outputs of shape n × c, got {tuple(u.shape)}; for one logit use logistic"
        )
    # Shifted by the largest logit, which Σ_k y_k = 1 allows: large common offsets cost no digits.
    u = u - u.amax(1, keepdim=True).detach()
    return torch.logsumexp(u, dim=1) - (y * u).sum(1)


def logistic(y: Tensor, u: Tensor) -> Tensor:
    """softplus(u) − y u, summed over all but the batch dimension; y in [0, 1], u: n, or n × c for c labels at once."""
    _require_same_shape(y, u)
    # As y softplus(−u) + (1 − y) softplus(u) nothing cancels for confident outputs; and PyTorch's softplus is cut off
    # at 20, an error of 2e-9 in float64, where its logsigmoid is exact.
    log_sigmoid = torch.nn.functional.logsigmoid
    return _sum_samples(-y * log_sigmoid(u) - (1 - y) * log_sigmoid(-u))


def squared_error(y: Tensor, u: Tensor) -> Tensor:
    """½ ‖y − u‖², summed over all but the batch dimension; y, u: n × …."""
    _require_same_shape(y, u)
    return 0.5 * _sum_samples((y - u).square())


def _sum_samples(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def _require_same_shape(y: Tensor, u: Tensor) -> None:
    if y.shape != u.shape:
        raise ValueError(
            f"targets of shape {tuple(y.shape)} and outputs of shape {tuple(u.shape)} must have the same shape; "
            "integer labels must be one-hot (mixreg.targets.to_values)"
        )


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
        """
        matrix = self.uu(y, u)
        return torch.linalg.pinv(matrix, rtol=torch.finfo(matrix.dtype).eps ** 0.6, hermitian=True)

    @abstractmethod
    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:
        """½ duᵀ ℓuu du + dyᵀ ℓyu du + ½ dyᵀ ℓyy dy: n."""


def _identity(u: Tensor) -> Tensor:
    return torch.eye(u.shape[1], dtype=u.dtype, device=u.device).expand(u.shape[0], -1, -1)


class CrossEntropy(Loss):
    """ℓ = logsumexp(u) − yᵀu."""

    def value(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return cross_entropy(y, u)

    def u(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return torch.softmax(u, 1) - y

    def uu(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        p = torch.softmax(u, 1)
        return torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)

    def uy(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return -_identity(u)

    def yy(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return torch.zeros_like(u).unsqueeze(1) * u.unsqueeze(2)

    def uu_inverse(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        # 1/p, short of overflow.
        largest = 0.8 * math.log(torch.finfo(u.dtype).max)
        odds = torch.diag_embed((-torch.log_softmax(u, 1)).clamp(max=largest).exp())
        odds = odds - odds.mean(1, keepdim=True)
        return odds - odds.mean(2, keepdim=True)

    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:  # noqa: D102
        p = torch.softmax(u, 1)
        centred = du - (p * du).sum(1, keepdim=True)
        return 0.5 * (p * centred.square()).sum(1) - (dy * du).sum(1)


class Logistic(Loss):
    """ℓ = softplus(u) − y u, for every label."""

    def value(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return logistic(y, u)

    def u(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return torch.sigmoid(u) - y

    def uu(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return torch.diag_embed(torch.sigmoid(u) * torch.sigmoid(-u))

    def uy(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return -_identity(u)

    def yy(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return torch.zeros_like(u).unsqueeze(1) * u.unsqueeze(2)

    def uu_inverse(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        # 1 / (s (1 − s)) = 2 + e^u + e^−u
        size = u.abs().clamp(max=0.8 * math.log(torch.finfo(u.dtype).max))
        return torch.diag_embed(2 + size.exp() + (-size).exp())

    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:  # noqa: D102
        return (0.5 * torch.sigmoid(u) * torch.sigmoid(-u) * du.square() - dy * du).sum(1)


class SquaredError(Loss):
    """ℓ = ½ ‖y − u‖²."""

    def value(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return squared_error(y, u)

    def u(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return u - y

    def uu(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return _identity(u)

    def uy(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return -_identity(u)

    def yy(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return _identity(u)

    def uu_inverse(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return _identity(u)

    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:  # noqa: D102
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

    def value(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return torch.vmap(self._one)(y, u)

    def u(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return torch.vmap(torch.func.grad(self._one, 1))(y, u)

    def uu(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return self._second(1, 1, y, u)

    def uy(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return self._second(1, 0, y, u)

    def yy(self, y: Tensor, u: Tensor) -> Tensor:  # noqa: D102
        return self._second(0, 0, y, u)

    def _second(self, first: int, second: int, y: Tensor, u: Tensor) -> Tensor:
        gradient = torch.func.grad(self._one, first)
        return torch.vmap(torch.func.jacrev(gradient, second))(y, u)

    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:  # noqa: D102
        def slope(y: Tensor, u: Tensor) -> Tensor:
            gradient_y, gradient_u = torch.func.grad(self._one, (0, 1))(y, u)
            return torch.cat([gradient_y, gradient_u])

        def one(y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:
            # Reverse over reverse: more functions have a second reverse derivative than a forward one.
            direction = torch.cat([dy, du])
            change = torch.func.grad(lambda y, u: slope(y, u) @ direction, (0, 1))(y, u)
            return 0.5 * torch.cat(change) @ direction

        return torch.vmap(one)(y, u, dy, du)


BUILT_IN: dict[str, Loss] = {
    "cross_entropy": CrossEntropy(),
    "logistic": Logistic(),
    "squared_error": SquaredError(),
}


def require_known(loss: str | SampleLoss) -> None:
    """A loss is one of the built-in names or a callable."""
    if not callable(loss) and not (isinstance(loss, str) and loss in BUILT_IN):
        raise ValueError(f"unknown loss {loss!r}; known are {', '.join(BUILT_IN)}, or a callable loss(y, u)")


def require_curvature(loss: Loss, y: Tensor, u: Tensor) -> None:
    """A loss whose second derivatives are all 0 at all of these samples is piecewise linear, and refused."""
    second = (loss.uu(y, u), loss.uy(y, u), loss.yy(y, u))
    if bool((loss.u(y, u) != 0).any()) and not any(bool((part != 0).any()) for part in second):
        raise ValueError(
            "this loss has no second derivatives (it is piecewise linear), so that it has no quadratic risk; "
            "use a twice differentiable one"
        )


def resolve(loss: str | SampleLoss, y_shape: torch.Size, u_shape: torch.Size) -> Loss:
    """The loss of a name, or of a callable on one sample, for targets and outputs of these shapes."""
    require_known(loss)
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


def require_weight(weight: float) -> float:
    """The weight of a part of a loss, which must be at least 0."""
    if not weight >= 0:
        raise ValueError(f"weight must be at least 0, got {weight!r}")
    return weight


def sample_losses(loss: str | SampleLoss, y: Tensor, u: Tensor) -> Tensor:
    """The loss of each sample, n; y: n × … targets as values, u: n × … outputs."""
    n = u.shape[0]
    return resolve(loss, y.shape[1:], u.shape[1:]).value(y.reshape(n, -1), u.reshape(n, -1))
