"""The one check that a network, data and a loss fit together, for everything that measures them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg._autodiff.network import (
    Network,
    evaluating,
    explaining_dtypes,
    flat_outputs,
    refuse_non_finite,
    require_tensor,
)
from mixreg._support.structure import validate_batch
from mixreg.losses import Loss, SampleLoss, require_known, resolve
from mixreg.losses.targets import binary_values, is_class_index, require_probabilities, to_values, validate_pairs

# Network evaluations per chunk, and numbers in their inputs: enough to keep cores busy, few enough to stay in cache.
CHUNK_EVALUATIONS = 1 << 14
CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Problem:
    """A network, data and a loss that fit together.

    Attributes:
        net: the network.
        x: n × …, floating point.
        y: n × k, targets as values.
        loss: on n × k targets and n × c outputs.
        classes: c.
    """

    net: Network
    x: Tensor
    y: Tensor
    loss: Loss
    classes: int

    @property
    def count(self) -> int:
        """n."""
        return self.x.shape[0]

    def chunk_size(self, asked: int | None) -> int:
        """How many network evaluations to do at once."""
        if asked is None:
            return max(1, min(CHUNK_EVALUATIONS, CHUNK_ELEMENTS // max(1, self.x[0].numel())))
        if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
            raise ValueError(f"chunk_size must be a positive integer, got {asked!r}")
        return asked


def require_differentiable(net: Network, x: Tensor) -> None:
    """An error where autograd cannot see that the output depends on x (n × …): derivatives would be taken for 0."""
    seen = x[:1].detach().clone().requires_grad_()
    with evaluating(net), torch.enable_grad():
        # A copy, should the network write to its input.
        u = require_tensor(net(seen.clone()))
        (gradient,) = torch.autograd.grad(u.sum(), seen, allow_unused=True) if u.requires_grad else (None,)
        if gradient is not None:
            return
        # A network that is constant has no derivatives either, and rightly so.
        others = [require_tensor(net(other.clone())) for other in (x[-1:].detach(), 1 + 2 * x[:1].detach())]
    if any(not torch.equal(u.detach(), other.detach()) for other in others):
        raise ValueError(
            "autograd does not see that the network's output depends on x (it detaches x, computes without gradients, "
            "or outside of PyTorch): it has no derivatives to take"
        )


def check_problem(net: Network, x: Tensor, y: Tensor, loss: str | SampleLoss) -> Problem:
    """Check that network, data and loss fit together; integer labels become one-hot.

    Args:
        net: maps n × … inputs to n × … outputs.
        x: n × …, floating point.
        y: n integer labels, or n × … targets.
        loss: a name or a callable on one sample.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    n = validate_batch(x)
    if n == 0:
        raise ValueError("there is no sample: x has shape " + str(tuple(x.shape)))
    require_known(loss)
    refuse_non_finite(x, "x", lambda row: f"sample {row}")
    with evaluating(net), torch.no_grad(), explaining_dtypes(net, x):
        u = require_tensor(net(x[:1].clone()))
    if u.ndim == 0 or u.shape[0] != 1:
        flat_outputs(lambda _: u, x[:1])  # says what is wrong
    is_index = isinstance(y, Tensor) and is_class_index(y)
    if is_index and loss == "logistic" and y.ndim == 1 and u.numel() == 1:
        values = binary_values(y, u.shape[1:], u.dtype)
    elif is_index and u.ndim == 2:
        values = to_values(y, u.shape[1], u.dtype)
    else:
        values = to_values(y, None, u.dtype)
    validate_pairs(x, values)
    resolved = resolve(loss, values.shape[1:], u.shape[1:])
    if loss == "cross_entropy":
        require_probabilities(values)
    return Problem(net, x.detach(), values.detach().to(u.dtype).reshape(n, -1), resolved, u[0].numel())
