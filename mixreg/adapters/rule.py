"""The prediction rule of eq. (testmodif) put around a module that stays as it is, by hooks on its forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mixreg.rescaling import shrink, stretch
from mixreg.theta import scalar_forms


def always(module: nn.Module) -> bool:
    """The rule applies to every forward pass."""
    return True


class RuleAround:
    """While it lives, what goes into `module` is shrunk and what comes out is stretched.

    Args:
        module: takes its input first, or by the name `input_name`; returns its logits, or a mapping that holds them
            under "logits".
        alpha: the α that it was trained with.
        x_mean: x̄, of one input's shape.
        y_mean: ȳ, of one output's shape.
        input_name: of the keyword argument that is shrunk.
        applies: whether to apply the rule to a forward pass of the module.

    Attributes:
        calls: how often it has been applied.
    """

    def __init__(
        self,
        module: nn.Module,
        alpha: float,
        x_mean: Tensor,
        y_mean: Tensor,
        input_name: str = "x",
        applies: Callable[[nn.Module], bool] = always,
    ) -> None:
        self.theta_mean = scalar_forms(alpha, "the prediction rule").mean
        self.x_mean, self.y_mean, self.input_name, self.applies = x_mean, y_mean, input_name, applies
        self.calls = 0
        self._handles = [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._after),
        ]

    def remove(self) -> None:
        """Leave the module as it was."""
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not self.applies(module):
            return None
        if given:
            return (self._shrunk(given[0]), *given[1:]), named
        if self.input_name not in named:
            raise ValueError(f"the network was called without {self.input_name!r}, got {', '.join(named) or 'nothing'}")
        return given, named | {self.input_name: self._shrunk(named[self.input_name])}

    def _shrunk(self, x: Any) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"the network's input must be one floating-point tensor to be shrunk, got {kind}")
        return shrink(x, self.x_mean.to(x.device), self.theta_mean)

    def _after(self, module: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
        if not self.applies(module):
            return None
        self.calls += 1
        if isinstance(output, Tensor):
            return stretch(output, self.y_mean.to(output.device), self.theta_mean)
        try:
            logits = output["logits"]
        except (KeyError, IndexError, TypeError) as error:
            raise TypeError(
                f"the network must return its logits, or a mapping that holds them, got {type(output).__name__}"
            ) from error
        output["logits"] = stretch(logits, self.y_mean.to(logits.device), self.theta_mean)
        return output


def seeded(seed: int | None) -> torch.Generator | None:
    """A generator of one's own, or PyTorch's global one."""
    return None if seed is None else torch.Generator().manual_seed(seed)
