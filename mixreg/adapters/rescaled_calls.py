"""A prediction rule on the calls of a model of Hugging Face: for hooks, and as a network of its own.

Images and other numbers are shrunk as they are. Text is shrunk after the embedding, at each position, and the model
looks at the text's own tokens only; means are cut, or continued by zeros, to the length of a batch. Where labels are
those of tokens, outputs have a mean and a share for every position (`mixreg.adapters.token_moments`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mixreg._autodiff.network import without_rules
from mixreg.adapters.embeddings import EMBEDDED, MASK, TOKENS, by_name, embedded, logits_of
from mixreg.adapters.token_moments import at_length
from mixreg.prediction.family import tempered
from mixreg.prediction.rescaled import Rescaled
from mixreg.prediction.rule import Rule, Share
from mixreg.theory.modified import shrink, stretch


def shrunk_text(model: nn.Module, named: Mapping[str, Any], mean: Tensor, share: float) -> dict[str, Any]:
    """The arguments of a call with the embedding of its tokens in place of them, shrunk; mean: x̄, T × d."""
    rest = dict(named)
    ids, mask = rest.pop(TOKENS, None), rest.get(MASK)
    if ids is None and rest.get(EMBEDDED) is None:
        raise ValueError(f"the model was called without {TOKENS!r}, got {', '.join(rest) or 'nothing'}")
    x = rest[EMBEDDED] if ids is None else embedded(model, ids, mask)
    shrunk = shrink(x, at_length(mean, x.shape[1]).to(x.device), share)
    return rest | {EMBEDDED: shrunk if mask is None else shrunk * mask.unsqueeze(2).to(shrunk.dtype)}


def stretched_outputs(u: Tensor, mean: Tensor, share: Share) -> Tensor:
    """ȳ + (u − ȳ) / t of outputs n × c; or n × T × c, with a mean (T × c) and a share (T × 1) for every position."""
    mean = mean.to(u.device)
    share = share.to(u.device) if isinstance(share, Tensor) else share
    if u.ndim == 3 and mean.ndim == 2:
        mean = at_length(mean, u.shape[1])
        share = at_length(share, u.shape[1], beyond=1.0) if isinstance(share, Tensor) else share
    return stretch(u, mean, share)


@dataclass(frozen=True)
class PlacedRule:
    """A rule at a point of its family (`mixreg.prediction.family`): κ, T, and whether T comes after."""

    rule: Rule
    strength: float = 1.0
    temperature: float | Tensor | None = None
    is_after: bool = False

    def shrunk(self, model: nn.Module, input_name: str, named: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by their names, with its input shrunk."""
        rule = self.rule
        share = 1 - self.strength * (1 - rule.x_share)
        if input_name == TOKENS:
            if isinstance(share, Tensor):
                raise TypeError("the rule of text has one share of inputs, got a map")
            return shrunk_text(model, named, rule.x_mean, share)
        if input_name not in named:
            raise ValueError(f"the model was called without {input_name!r}, got {', '.join(named) or 'nothing'}")
        x = named[input_name]
        if not isinstance(x, Tensor):
            kind = type(x).__name__
            raise TypeError(f"the network's input must be one floating-point tensor to be shrunk, got {kind}")
        return {**named, input_name: Rule(share, 1.0, rule.x_mean, rule.y_mean).to(x.device).shrink(x)}

    def stretched(self, logits: Tensor) -> Tensor:
        """Predicted logits, of those of shrunk inputs."""
        own = 1 - self.strength * (1 - self.rule.y_share)
        if self.temperature is None or self.is_after:
            found = stretched_outputs(logits, self.rule.y_mean, own)
            return found if self.temperature is None else tempered(found, self.temperature)
        return stretched_outputs(logits, self.rule.y_mean, self.temperature)


class _Logits(nn.Module):
    """A model as a function of one input to its logits, without what adapters put on it."""

    def __init__(self, model: nn.Module, input_name: str) -> None:
        super().__init__()
        self.model, self.input_name = model, input_name

    def forward(self, x: Any = None, **further: Any) -> Tensor:
        """Logits; x: the input, which may also be given by its name."""
        with without_rules():
            output = self.model(**({} if x is None else {self.input_name: x}), **further)
        return logits_of(output)


class RescaledText(Rescaled):
    """A model that reads text, with the prediction rule on its embedding: called with tokens, it gives logits.

    Args:
        model: of Hugging Face, an encoder.
        rule: with means for every position, T × d.
        strength, temperature: as of `Rescaled`.
    """

    def __init__(
        self, model: nn.Module, rule: Rule, strength: float = 1.0, temperature: float | Tensor | None = None
    ) -> None:
        super().__init__(_Logits(model, EMBEDDED), rule=rule, strength=strength, temperature=temperature)

    def forward(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """pred; x: input_ids n × T, or a batch of the model's arguments; the mask and others by name."""
        return self.stretched(self.outputs_on_shrunk(x, *args, **kwargs))

    def stretched_by(self, u: Tensor, temperature: Share) -> Tensor:
        """Outputs stretched from m_y, of texts of any length."""
        return stretched_outputs(u, self.y_mean, temperature)

    def outputs_on_shrunk(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """f on shrunk embeddings; arguments as of a call."""
        model: nn.Module = self.net.model  # type: ignore[assignment]
        named = {**x, **kwargs} if isinstance(x, Mapping) else by_name(model, () if x is None else (x, *args), kwargs)
        share = self.x_share
        assert not isinstance(share, Tensor)
        logits: Tensor = self.net(**shrunk_text(model, named, self._means()["x"], share))
        return logits


def rescaled_network(model: nn.Module, input_name: str, placed: PlacedRule) -> Rescaled:
    """The model with its rule as a network of its own, which returns logits."""
    rule, strength, temperature = placed.rule, placed.strength, placed.temperature
    network: Rescaled
    if input_name == TOKENS:
        network = RescaledText(model, rule, strength, temperature)
    else:
        network = Rescaled(_Logits(model, input_name), rule=rule, strength=strength, temperature=temperature)
    network.tempers_after = placed.is_after
    return network


class Pairs:
    """A loader of a model's batches as one of (x, y), which can be gone through again.

    Args:
        loader: of dicts.
        input_name: of the input; of text all that the model is called with is kept beside it.
        label_name: of y.
    """

    def __init__(self, loader: Iterable[Mapping[str, Any]], input_name: str, label_name: str) -> None:
        self.loader, self.input_name, self.label_name = loader, input_name, label_name

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for batch in self.loader:
            if not isinstance(batch, Mapping) or self.label_name not in batch or self.input_name not in batch:
                held = ", ".join(batch) if isinstance(batch, Mapping) else type(batch).__name__
                raise ValueError(
                    f"held-out batches are dicts with {self.input_name!r} and {self.label_name!r}, got {held}"
                )
            named = {name: value for name, value in batch.items() if name != self.label_name}
            yield named if self.input_name == TOKENS else batch[self.input_name], batch[self.label_name]
