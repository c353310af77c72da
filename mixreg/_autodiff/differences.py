"""First derivatives of a network along a line from values on both sides, in one ordinary forward pass.

With a small step h the rows x + hδ and x − hδ give

    f(x) ≈ ½ (f(x + hδ) + f(x − hδ)),        d/dt f(x + tδ) ≈ (f(x + hδ) − f(x − hδ)) / 2h,

both off by terms of order h² (of f″ and f‴). Rounding adds ε |x| / (h |δ|) to the direction and ε |f| / h to the
quotient; h = (ε max |x| / rms δ)^(1/3) keeps the first as small as h². For standardised data that is 10⁻⁴ in float32
and 10⁻¹⁰ in float64, far below what one random direction differs from the next; inputs that leave too few digits are
refused.

A sample costs one more row, and no more: whatever layers a network has, compiled, checkpointed or without a forward
rule, it sees a batch. Both sides of a sample lie beside each other, so that normalisations of the batch, or of pieces
of it, see both and hold their statistics fixed along the line to the same order, as `mixreg._autodiff.normalisation`
does exactly; they count a sample with a direction twice.

What draws random numbers of its own, dropout above all, would draw others for the second side, whose difference divided
by 2h is nothing but noise. It is refused: dropout by its layers, others because random numbers have moved, or because
of a few rows that each stand twice in a batch of their own, the first time, one has two outputs.

**Kinks.** Where a kink of a rectifier or a pool lies between both sides, the quotient has the mean of its slopes, and
its gradient in the parameters what moves the kink, of size 1 / 2h. Such rows are few, in proportion to h. On average
they are what the expected term changes by as its jumps move with the parameters, which forward mode leaves out; the
gradient of one batch has a variance that grows as 1 / h for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from mixreg._autodiff.network import (
    Network,
    explaining_dtypes,
    keeping_buffers,
    refuse_non_finite,
    require_tensor,
    restoring_buffers,
    unwrapped,
    within_forward,
)
from mixreg._autodiff.precision import require_full_precision
from mixreg._autodiff.reachable import modules_of
from mixreg._support.structure import rows_of

# Ways to take derivatives along a line.
FORWARD, DIFFERENCES = DERIVATIVES = ("forward", "differences")
# On CUDA convolutions round their inputs to ten bits unless they are told otherwise.
_TF32_EPS = 2.0**-10
# No step is longer than a tenth of the direction, and none is taken of which rounding, h³ / h, makes more than h = 0.1.
_LONGEST = 0.1
# Two outputs of one row differ by less than this part of what outputs of two rows do; so many rows are looked at.
_ALIKE, _FEW = 0.05, 16


def differences(
    net: Network,
    x: Tensor,
    delta: Tensor,
    sorting: Tensor | None = None,
    validate: bool = True,
    looks_inside: bool = False,
) -> tuple[Tensor, Tensor]:
    """f of x (n × …), and d/dt f(x + tδ) of the first m samples; differentiable in the network's parameters.

    Args:
        net: the network; one that draws random numbers is refused.
        x: n × …
        delta: the directions, m × ….
        sorting: the order in which samples are taken and given back, n; by default as they are.
        validate: look at values: outputs that are not finite are refused, after which normalisations have learnt
            nothing.
        looks_inside: whether to look into the network, by a pass of a few rows: half precision is refused, wherever it
            is, and random numbers that are not PyTorch's.
    """
    # What looks at values and at random numbers is not for a compiler.
    run = torch.compiler.disable(_differences) if torch.compiler.is_compiling() else _differences
    return run(net, x, delta, sorting, validate, looks_inside)


def _differences(
    net: Network, x: Tensor, delta: Tensor, sorting: Tensor | None, validate: bool, looks_inside: bool
) -> tuple[Tensor, Tensor]:
    n, m = len(x), len(delta)
    step = step_of(x, delta, validate)
    layers = [named for root in modules_of(unwrapped(net)) for named in root.named_modules()]
    order = _order(n, m, sorting)
    rows = _both_sides(x, delta, step, order.to(x.device))

    def run(f: Network, module: Network, rows: Tensor) -> Any:
        _refuse_layers(layers, n)
        with (
            restoring_buffers(module, validate),
            explaining_dtypes(module, x),
            require_full_precision(module, looks_inside),
            _drawing_nothing(rows),
        ):
            if looks_inside:
                _refuse_drawing(f, module, rows)
            u = require_tensor(f(rows))
            if u.ndim == 0 or len(u) != len(rows):
                raise ValueError(f"the network must return one output for each input, got {tuple(u.shape)}")
            if u.dtype not in (torch.float32, torch.float64):
                raise TypeError(f'differences need outputs of float32 or float64, got {u.dtype}; use "forward"')
            if validate:
                refuse_non_finite(u.detach(), "the network's output", lambda row: f"sample {_culprit(x, order, row)}")
        return u

    u = within_forward(net, run, rows)
    above, below = _sides(u, m)
    return torch.cat([torch.lerp(below, above, 0.5), u.narrow(0, 2 * m, n - m)]), (above - below) / (2 * step)


def step_of(x: Tensor, delta: Tensor, validate: bool = True) -> Tensor:
    """h of the module's head, a number on the device of x; for inputs in full precision."""
    if x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(x.device.type):
        given = "autocast is on" if x.dtype in (torch.float32, torch.float64) else f"x is {x.dtype}"
        raise TypeError(f'differences need float32 or float64, and {given}; use derivatives="forward"')
    eps = float(torch.finfo(x.dtype).eps)
    eps = max(eps, _TF32_EPS) if x.device.type == "cuda" and x.dtype == torch.float32 else eps
    x, delta = x.detach(), delta.detach()
    # Lowest and highest in one pass: PyTorch's norm of largest numbers is many times slower.
    lowest, highest = x.aminmax()
    # Never 0, so that no noise at all is infinitely little beside it.
    largest, norm = (
        torch.maximum(-lowest, highest).clamp_(min=torch.finfo(x.dtype).tiny),
        torch.linalg.vector_norm(delta),
    )
    cubed = (largest / norm).mul_(eps * delta.numel() ** 0.5).clamp_(min=eps)
    if validate and _LONGEST**3 < float(cubed) < float("inf"):
        raise ValueError(
            f"inputs as large as {float(largest):.3g} beside noise of size {float(norm) / delta.numel() ** 0.5:.3g} "
            'leave differences too few digits; centre and scale the inputs, or use derivatives="forward"'
        )
    return cubed.pow_(1 / 3).clamp_(max=_LONGEST)


def _order(n: int, m: int, sorting: Tensor | None) -> Tensor:
    """Which sample each row is: the first m twice, the others once."""
    samples = torch.arange(n) if sorting is None else sorting
    twice = samples.narrow(0, 0, m).unsqueeze(1).expand(-1, 2).flatten()
    return torch.cat([twice, samples.narrow(0, m, n - m)])


def _sides(rows: Tensor, m: int) -> tuple[Tensor, ...]:
    """Of the first 2m rows every other one, from the first and from the second on; views."""
    return rows.narrow(0, 0, 2 * m).unflatten(0, (m, 2)).unbind(1)


def _both_sides(x: Tensor, delta: Tensor, step: Tensor, order: Tensor) -> Tensor:
    """x₁ + hδ₁, x₁ − hδ₁, x₂ + hδ₂, …, then x without directions."""
    rows, m = rows_of(x, order), len(delta)
    pairs = rows.narrow(0, 0, 2 * m).unflatten(0, (m, 2))
    for place, sign in ((0, 1), (1, -1)):
        pairs.select(1, place).addcmul_(delta, step, value=sign)
    return rows


def _refuse_drawing(f: Network, module: Network, rows: Tensor) -> None:
    """An error if a row has two outputs, further apart than rounding; normalisations learn nothing of it."""
    few = torch.arange(min(_FEW, len(rows)), device=rows.device).repeat_interleave(2)
    with torch.no_grad(), keeping_buffers(module):
        u = require_tensor(f(rows_of(rows, few)))
    # What is not finite, or no output for each row, is told of the whole batch.
    if u.ndim == 0 or len(u) != len(few) or not bool(torch.isfinite(u).all()):
        return
    apart, spread, largest = (t.abs().amax() for t in (u[::2] - u[1::2], u[2:] - u[:-2], u))
    if not bool(apart <= _ALIKE * spread + 1e3 * torch.finfo(u.dtype).eps * largest):
        raise ValueError(
            "the network gives two outputs to one input, so that differences say nothing: does it draw random numbers? "
            'Use derivatives="forward"'
        )


def _culprit(x: Tensor, order: Tensor, row: int) -> int:
    """The sample at fault where the output of a row is not finite: one that is not finite itself, or else its own.

    A sample that is not finite spoils the direction of whoever has it for a partner, too.
    """
    bad = (~torch.isfinite(x.reshape(len(x), -1))).any(1).nonzero()
    return int(bad[0]) if len(bad) else int(order[row])


def _refuse_layers(layers: Sequence[tuple[str, nn.Module]], samples: int) -> None:
    """Dropout, layers that wait for their first input, and batch normalisation of one sample."""
    for name, layer in layers:
        where = f"layer {name!r} ({type(layer).__name__})"
        if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
            raise TypeError(f"{where} does not know its size yet; call the network once before training")
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            raise ValueError(
                f'{where} would draw another mask for each side of a difference; use derivatives="forward"'
            )
        if samples == 1 and isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training:
            raise ValueError(f"{where} needs more than one sample to train, got 1")


@contextmanager
def _drawing_nothing(rows: Tensor) -> Iterator[None]:
    """An error if PyTorch's random numbers on the CPU or the device of these have moved, once all is done."""
    # Tensors that are only imagined compare nothing.
    before = _states(rows.device) if type(rows) is Tensor else []
    yield
    if before and not all(map(torch.equal, before, _states(rows.device))):
        raise ValueError(
            "the network draws random numbers, others for each side of a difference; use "
            'derivatives="forward", which draws them once'
        )


def _states(device: torch.device) -> list[Tensor]:
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" and torch.cuda.is_available() else []
    return [torch.get_rng_state(), *on_gpu]
