"""Optimisers by name, or of one's own.

PyTorch's Adam asks at every step which weights there are, of which kind and on which device, and writes a record for
its profiler: for the small networks of tables that is most of its time. The arithmetic here is PyTorch's, in one call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mixreg.training.optimizers import SGD, AdamW, _Uncompiled


class Adam(_Uncompiled, torch.optim.Adam):
    """`torch.optim.Adam` with its fused step, one call for all weights of a group."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            states = [self._state_of(weight) for weight in weights]
            torch._foreach_add_([state["step"] for state in states], 1)
            beta1, beta2 = group["betas"]
            torch._fused_adam_(
                weights,
                [weight.grad for weight in weights],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )

    def _state_of(self, weight: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        return state


# PyTorch puts a record for its profiler around every step that does not say that it has one.
Adam.step.hooked = True  # type: ignore[attr-defined]

OPTIMIZERS: dict[str, Any] = {"adam": Adam, "adamw": AdamW, "sgd": SGD}


def make_optimizer(
    asked: Any, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float, options: Mapping[str, Any] | None
) -> torch.optim.Optimizer:
    """An optimiser by its name, or by a callable of parameters, lr, weight_decay and options that makes one."""
    given = dict(options or {})
    if asked == "adam" and not given.keys() <= {"betas", "eps"}:
        asked = torch.optim.Adam
    make = OPTIMIZERS[asked] if isinstance(asked, str) else asked
    made = make(parameters, lr=lr, weight_decay=weight_decay, **given)
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"optimizer must make a torch.optim.Optimizer, got {type(made).__name__}")
    return made
