"""First derivatives of a network along a line from values on both sides, in one ordinary forward pass.

With a small step h the rows x + hδ and x − hδ give

    f(x) ≈ ½ (f(x + hδ) + f(x − hδ)),        d/dt f(x + tδ) ≈ (f(x + hδ) − f(x − hδ)) / 2h,

both off by terms of order h² (of f″ and f‴), and the quotient by rounding, of order ε |f| / h: with h = ε^(1/3) both
are of order h² (2·10⁻⁵ in float32, 4·10⁻¹¹ in float64), far below what one random direction differs from the next. A
sample costs one more row, and no more: whatever layers a network has, compiled, checkpointed or without a forward
rule, it sees a batch. Normalisations of the batch see both sides together, which hold the statistics of the batch
fixed along the line as `mixreg._autodiff.normalisation` does, up to the same order.

A kink between both sides counts as the mean of its slopes. What draws random numbers of its own, dropout above all,
would draw others for the second side, whose difference divided by 2h is nothing but noise: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from mixreg._autodiff.network import Network, refuse_non_finite, require_tensor, restoring_buffers, within_forward
from mixreg._autodiff.reachable import modules_of

# Ways to take derivatives along a line.
FORWARD, DIFFERENCES = DERIVATIVES = ("forward", "differences")
# On CUDA convolutions round their inputs to ten bits unless they are told otherwise.
_TF32_EPS = 2.0**-10


def step_of(x: Tensor) -> float:
    """h, for inputs of at least float32 in full precision."""
    if x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(x.device.type):
        given = "autocast is on" if x.dtype in (torch.float32, torch.float64) else f"x is {x.dtype}"
        raise TypeError(f'differences need float32 or float64, and {given}; use derivatives="forward"')
    eps = float(torch.finfo(x.dtype).eps)
    return (max(eps, _TF32_EPS) if x.device.type == "cuda" and x.dtype == torch.float32 else eps) ** (1 / 3)


def differences(net: Network, x: Tensor, delta: Tensor, where: Callable[[int], str] | None) -> tuple[Tensor, Tensor]:
    """f of x (n × …), and d/dt f(x + tδ) of its first m rows; differentiable in the network's parameters.

    Args:
        net: the network; one that draws random numbers is refused.
        x: n × …
        delta: the directions, m × ….
        where: names a row in the error that refuses outputs which are not finite, after which normalisations have
            learnt nothing; None to look at no value.
    """
    step, m = step_of(x), len(delta)
    rows = torch.cat([x.narrow(0, 0, m), x])
    rows.narrow(0, 0, m).add_(delta, alpha=step)
    rows.narrow(0, m, m).sub_(delta, alpha=step)

    def run(f: Network, module: Network, rows: Tensor) -> Any:
        _refuse_dropout(module)
        with restoring_buffers(module, where is not None), _drawing_nothing(rows.device):
            u = require_tensor(f(rows))
            if u.ndim == 0 or len(u) != len(rows):
                raise ValueError(f"the network must return one output for each input, got {tuple(u.shape)}")
            if u.dtype not in (torch.float32, torch.float64):
                raise TypeError(f'differences need outputs of float32 or float64, got {u.dtype}; use "forward"')
            if where is not None:
                refuse_non_finite(u.detach(), "the network's output", lambda row: where(_culprit(x, row, m)))
        return u

    above, below, rest = within_forward(net, run, rows).split([m, m, len(x) - m])
    return torch.cat([(above + below) / 2, rest]), (above - below) / (2 * step)


def _culprit(x: Tensor, row: int, m: int) -> int:
    """The sample at fault where the output of a row is not finite: one that is not finite itself, or else its own.

    A sample that is not finite spoils the direction of whoever has it for a partner, too.
    """
    bad = (~torch.isfinite(x.reshape(len(x), -1))).any(1).nonzero()
    return int(bad[0]) if len(bad) else row if row < m else row - m


def _refuse_dropout(net: Network) -> None:
    for name, layer in (named for root in modules_of(net) for named in root.named_modules()):
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            raise ValueError(
                f"layer {name!r} ({type(layer).__name__}) would draw another mask for each side of a difference; use "
                'derivatives="forward"'
            )


@contextmanager
def _drawing_nothing(device: torch.device) -> Iterator[None]:
    """An error if PyTorch's random numbers on the CPU or that device have moved, once all is done."""
    if torch.compiler.is_compiling():
        yield
        return
    before = _states(device)
    yield
    if not all(map(torch.equal, before, _states(device))):
        raise ValueError(
            "the network draws random numbers, others for each side of a difference; use "
            'derivatives="forward", which draws them once'
        )


def _states(device: torch.device) -> list[Tensor]:
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" and torch.cuda.is_available() else []
    return [torch.get_rng_state(), *on_gpu]
