"""The rule of a model that is being trained: from means that grow, and an embedding that changes.

x̄ of text is that of the embedding of now, whoever changed it: an optimiser, weights that were loaded, an adapter of
PEFT that was switched off. Tensors do not tell (a fused step of an optimiser and `parameter.data` leave a tensor's
version as it was), so vectors are looked at before every prediction: one number of each, v · d for a direction d that
no training knows of, which costs a product of the table with a vector. x̄ itself, a sum over all tokens at all
positions, is computed again only if one of them is another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mixreg.adapters.huggingface_batches import Moments
from mixreg.adapters.token_moments import TokenMoments
from mixreg.methods.method import Method
from mixreg.prediction.rule import Rule

# So many vectors are looked at in one go.
_ROWS = 4096


class _Made(NamedTuple):
    """A rule and what it was made of: of text, its tokens and one number of each of their vectors, else none."""

    rule: Rule
    moments: Moments
    tokens: Tensor
    looks: Tensor


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
        self._made: _Made | None = None

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
        if self._made is None or self._made.moments is not self.moments:
            tokens = self.moments.tokens() if isinstance(self.moments, TokenMoments) else torch.empty(0)
            self._made = self._made_of(self.moments, tokens)
        elif not torch.equal(self._looks(self._made.tokens), self._made.looks):
            self._made = self._made_of(self.moments, self._made.tokens)
        return self._made.rule

    def _made_of(self, moments: Moments, tokens: Tensor) -> _Made:
        return _Made(self._rule_of(moments), moments, tokens, self._looks(tokens))

    def _rule_of(self, moments: Moments) -> Rule:
        if isinstance(moments, TokenMoments):
            rule = moments.rule(self.method, self._embed)
        else:
            rule = self.method.rule(moments)
        if rule is None:
            raise ValueError(f"{type(self.method).__name__} has no prediction rule; set rescale=False")
        return rule.to("cpu", torch.float32)

    def _embedding(self) -> Any:
        return self.model.get_input_embeddings()  # type: ignore[operator]

    def _embed(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self._embedding()(tokens.to(next(self.model.parameters()).device))
        return vectors

    @torch.no_grad()
    def _looks(self, tokens: Tensor) -> Tensor:
        """v · d of the vectors of tokens, or of all where they stand in one table, which is quicker than to look up."""
        if not len(tokens):
            return tokens
        embedding = self._embedding()
        is_table = type(embedding) is nn.Embedding
        parts = embedding.weight.split(_ROWS) if is_table else map(self._embed, tokens.split(_ROWS))
        return torch.cat([part.float() @ _direction(part) for part in parts]).cpu()


def _direction(vectors: Tensor) -> Tensor:
    """d: irregular numbers in [1, 2), none of which hides a change."""
    return 1 + (torch.arange(vectors.shape[1], device=vectors.device) * 0.6180339887).frac()
