"""The prediction rule of eq. (testmodif) put around a module that stays as it is."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mixreg.rescaling import shrink, stretch
from mixreg.theta import scalar_forms


class Rule:
    """Shrinks what goes into a network and stretches what comes out.

    Args:
        alpha: the α that the network was trained with.
        x_mean: x̄, of one input's shape.
        y_mean: ȳ, of one output's shape.
    """

    def __init__(self, alpha: float, x_mean: Tensor, y_mean: Tensor) -> None:
        self.theta_mean = scalar_forms(alpha, "the prediction rule").mean
        self.x_mean, self.y_mean = x_mean, y_mean

    def shrunk(self, x: Any) -> Tensor:
        """The input, which must be one floating-point tensor."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"the network's input must be one floating-point tensor to be shrunk, got {kind}")
        return shrink(x, self.x_mean.to(x.device), self.theta_mean)

    def stretched(self, logits: Any) -> Tensor:
        """The output, which must be one tensor."""
        if not isinstance(logits, Tensor):
            raise TypeError(f"the network must return one tensor to be stretched, got {type(logits).__name__}")
        return stretch(logits, self.y_mean.to(logits.device), self.theta_mean)


class Ruled:
    """While it is on, `module.forward` obeys a rule; calls of the module by other names do not.

    Args:
        module: takes its input first and returns its logits.
        rule: to be obeyed.

    Attributes:
        calls: how often it was.
    """

    def __init__(self, module: nn.Module, rule: Rule) -> None:
        self.module, self.rule, self.calls = module, rule, 0
        self._own = module.__dict__.get("forward")
        self._forward = module.forward
        module.__dict__["forward"] = self._ruled

    def _ruled(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        self.calls += 1
        return self.rule.stretched(self._forward(self.rule.shrunk(x), *args, **kwargs))

    def remove(self) -> None:
        """Leave the module as it was."""
        del self.module.__dict__["forward"]
        if self._own is not None:
            self.module.__dict__["forward"] = self._own
