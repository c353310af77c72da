"""A prediction rule put around a module that stays as it is."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mixreg.prediction.rule import Rule


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
        return self.rule.stretch(self._forward(self.rule.shrink(x), *args, **kwargs))

    def remove(self) -> None:
        """Leave the module as it was."""
        del self.module.__dict__["forward"]
        if self._own is not None:
            self.module.__dict__["forward"] = self._own
