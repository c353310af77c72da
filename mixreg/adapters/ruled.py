"""A prediction rule put around a module that stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from mixreg._autodiff.network import rules_apply
from mixreg.adapters.batches import Key, Keys, replaced, several, stretched
from mixreg.prediction.calls import first_parameter, input_among
from mixreg.prediction.family import tempered
from mixreg.prediction.rule import Rule, Share


class Ruled:
    """While it is on, `module.forward` obeys a rule, but for those who ask for the plain network.

    Inputs are found as they are given: first, by name, or in a batch that is given as a whole.

    Args:
        module: takes its inputs and returns its outputs.
        rule: to be obeyed; of several inputs, its x_mean is a dict by key.
        inputs: what a batch calls its inputs.
        y_means: of several targets, in their structure; by default the rule's one.
        strength, temperature: where in the rule's family, see `mixreg.prediction.family`.
        is_after: whether the temperature is one after the rule (`mixreg.prediction.tempering`).

    Attributes:
        calls: how often the module was called.
    """

    def __init__(
        self,
        module: nn.Module,
        rule: Rule,
        inputs: Keys = 0,
        y_means: Any = None,
        strength: float = 1.0,
        temperature: Share | None = None,
        is_after: bool = False,
    ) -> None:
        own = rule.y_share
        if strength != 1:
            own = 1 - strength * (1 - rule.y_share)
            rule = replace(rule, x_share=1 - strength * (1 - rule.x_share))
        self.temperature = own if temperature is None or is_after else temperature
        self.after = temperature if is_after else None
        self.module, self.rule, self.inputs, self.calls = module, rule, inputs, 0
        self.y_means = rule.y_mean if y_means is None else y_means
        self._is_inside = False
        self._own = module.__dict__.get("forward")
        self._forward = module.forward
        self._first = first_parameter(module.forward)
        module.__dict__["forward"] = self._ruled

    def _ruled(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self._is_inside or not rules_apply():
            # A network that calls itself obeys once.
            return self._forward(*args, **kwargs)
        self._is_inside = True
        try:
            args, kwargs = self._shrunk(args, kwargs)
            found = stretched(self._forward(*args, **kwargs), self.y_means, self.temperature)
            # Of several targets nothing is fitted.
            return found if self.after is None else tempered(found, self.after)
        finally:
            self._is_inside = False

    def _shrunk(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, with inputs shrunk."""
        keys = several(self.inputs)
        if args and self._is_batch(args[0]):
            return (self._shrunk_batch(args[0]), *args[1:]), kwargs
        if not keys:
            if args:
                return (self.rule.shrink(args[0]), *args[1:]), kwargs
            name = str(self.inputs) if self.inputs in kwargs else input_among(kwargs, self._first)
            if self._is_batch(kwargs[name]):
                return args, kwargs | {name: self._shrunk_batch(kwargs[name])}
            return args, kwargs | {name: self.rule.shrink(kwargs[name])}
        # Several: those given first in the order of their keys, the others by name.
        rest = keys[len(args) :]
        if any(key not in kwargs for key in rest):
            known = ", ".join(map(repr, keys))
            raise TypeError(f"the network must be called with its inputs {known} in this order, or by these names")
        x: dict[Key, Any] = dict(zip(keys, args, strict=False)) | {key: kwargs[str(key)] for key in rest}
        shrunk = self.rule.shrink(x)
        shrunk_args = [shrunk[key] for key in keys[: len(args)]]
        return (*shrunk_args, *args[len(keys) :]), kwargs | {str(key): shrunk[key] for key in rest}

    def _is_batch(self, value: Any) -> bool:
        """Whether it is a whole batch, which holds the inputs, rather than one of them."""
        keys = several(self.inputs) or (self.inputs,)
        if isinstance(value, Mapping):
            if not several(self.inputs) and isinstance(self.rule.x_mean, Mapping):
                return False
            return all(key in value for key in keys)
        if not isinstance(value, (tuple, list)) or isinstance(self.rule.x_mean, (tuple, list)):
            return False
        return all(isinstance(key, int) and -len(value) <= key < len(value) for key in keys)

    def _shrunk_batch(self, batch: Any) -> Any:
        keys = several(self.inputs)
        if not keys:
            return replaced(batch, {self.inputs: self.rule.shrink(batch[self.inputs])})
        return replaced(batch, self.rule.shrink({key: batch[key] for key in keys}))

    def remove(self) -> None:
        """Leave the module as it was."""
        del self.module.__dict__["forward"]
        if self._own is not None:
            self.module.__dict__["forward"] = self._own
