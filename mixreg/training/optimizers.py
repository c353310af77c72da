"""PyTorch's SGD and AdamW as a run uses them: the same arithmetic, all weights at once, and no compiler.

PyTorch's own look at every call whether they are being compiled, and import the compiler for it: on one core that takes
as long as a short run. Their step visits one weight after another; here each of

    g ← g + λ w        b ← μ b + g        w ← w − η b        (with Nesterov's momentum, w ← w − η (g + μ b))

is one call for all of them, with the same bits in half of the time.
"""

from __future__ import annotations

import inspect

import torch
from torch.optim.optimizer import Optimizer


class _Uncompiled(Optimizer):
    """An optimiser whose methods do not import PyTorch's compiler."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad = None


class SGD(_Uncompiled, torch.optim.SGD):
    """`torch.optim.SGD` with momentum, Nesterov's momentum and weight decay."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            steps = [weight.grad for weight in weights]
            if group["weight_decay"]:
                torch._foreach_add_(steps, weights, alpha=group["weight_decay"])
            if group["momentum"]:
                buffers = [self._buffer(weight) for weight in weights]
                torch._foreach_mul_(buffers, group["momentum"])
                torch._foreach_add_(buffers, steps)
                if group["nesterov"]:
                    torch._foreach_add_(steps, buffers, alpha=group["momentum"])
                else:
                    steps = buffers
            torch._foreach_add_(weights, steps, alpha=-group["lr"])

    def _buffer(self, weight: torch.Tensor) -> torch.Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        buffer: torch.Tensor = state["momentum_buffer"]
        return buffer


class AdamW(_Uncompiled, torch.optim.AdamW):
    """`torch.optim.AdamW`."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
