"""The rule of a model that is being trained: from means that grow, and an embedding that changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mixreg.adapters.huggingface_batches import Moments
from mixreg.adapters.token_moments import TokenMoments
from mixreg.methods.method import Method
from mixreg.prediction.rule import Rule


class CurrentRule:
    """Called, it gives the rule of now; None for as long as there are no means.

    Args:
        method: that the model is trained with.
        model: whose embedding text is shrunk after.
        moments: if they are known.
        gathered: otherwise those of no batch yet, to which this process adds what it is trained on.

    Attributes:
        moments: of all processes, when they were last joined.
    """

    def __init__(self, method: Method, model: nn.Module, moments: Moments | None, gathered: Moments) -> None:
        self.method, self.model, self.moments = method, model, moments
        self._gathered = gathered if moments is None else None
        self._is_checked = False
        # What a rule was made of, and the rule.
        self._made: tuple[Any, Rule] | None = None

    def take(self, moments: Moments | None) -> None:
        """Of a batch that was trained on."""
        if self._gathered is not None and moments is not None:
            self._gathered.merge(moments)  # type: ignore[arg-type]

    def join(self) -> None:
        """The means of all processes, which must call it together."""
        if self._gathered is not None:
            joined = self._gathered.joined()
            self.moments = joined if joined.count else None

    def require(self, moments: Moments | None = None) -> None:
        """That the method has a rule; asked once, of the first moments that there are."""
        moments = moments or self.moments
        if moments is not None and not self._is_checked:
            self._rule_of(moments)
            self._is_checked = True

    def __call__(self) -> Rule | None:
        if self.moments is None:
            return None
        made_of = self.moments, *_versions(self._embedding() if isinstance(self.moments, TokenMoments) else None)
        if self._made is None or self._made[0] != made_of:
            self._made = made_of, self._rule_of(self.moments)
        return self._made[1]

    def _rule_of(self, moments: Moments) -> Rule:
        if isinstance(moments, TokenMoments):
            rule = moments.rule(self.method, self._embed)
        else:
            rule = self.method.rule(moments)
        if rule is None:
            raise ValueError(f"{type(self.method).__name__} has no prediction rule; set rescale=False")
        return rule.to("cpu", torch.float32)

    def _embedding(self) -> nn.Module:
        return self.model.get_input_embeddings()  # type: ignore[operator]

    def _embed(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self._embedding()(tokens.to(next(self.model.parameters()).device))
        return vectors


def _versions(module: nn.Module | None) -> list[Any]:
    """Which weights a module has, as far as one sees without a look at all of them."""
    return [] if module is None else [(p.data_ptr(), p._version) for p in module.parameters()]
