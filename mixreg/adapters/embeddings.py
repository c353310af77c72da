"""Mixup of text in Hugging Face's encoders: after the embedding, by `inputs_embeds`.

Tokens cannot be mixed, their embeddings can. A batch carries beside every text its partner's tokens and share, so that
rows do not refer to each other; before the model is called both are embedded, padded places as zero vectors, and mixed.
Masks are joined: the mixture has a token where either of both has one. All else of a batch (types of tokens, say) stays
the text's own. Labels of tokens are compared twice, own and partner's, at each position.

Models must read `inputs_embeds` as they read `input_ids`, which encoders do whose padding stands at the end; some texts
of the first batch show it before anything is trained, as they are and with padding after them. Decoders that classify
by the last token do not: they find it by the tokens, and take padding for it where there are none.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._autodiff.network import evaluating
from mixreg.losses.mixed_targets import MixedTargets
from mixreg.methods.choice import Choice
from mixreg.methods.method import Method
from mixreg.methods.mixup import Mixup
from mixreg.methods.partners import UniformPartners

TOKENS, MASK, EMBEDDED = "input_ids", "attention_mask", "inputs_embeds"
# What a batch carries of the partners.
PARTNER_TOKENS, PARTNER_MASK, PARTNER_LABELS, SHARE = (f"mixup_{name}" for name in (TOKENS, MASK, "labels", "share"))
# How many texts of the first batch are read both ways.
_READ = 4


def base_of(model: nn.Module) -> nn.Module:
    """The model itself, out of the adapters of PEFT."""
    inner = getattr(model, "get_base_model", None)
    return model if inner is None else inner()


def by_name(model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call of the model by their names."""
    names = list(inspect.signature(base_of(model).forward).parameters)
    return dict(zip(names, given, strict=False)) | named


def main_input(model: nn.Module) -> str:
    """What the model calls its input; PreTrainedModel's own default says little of models that have no such input."""
    base = base_of(model)
    name = getattr(base, "main_input_name", None)
    return name if isinstance(name, str) and name in inspect.signature(base.forward).parameters else "pixel_values"


def mask_of(ids: Tensor, mask: Tensor | None) -> Tensor:
    """n × T, 1 where there is a token."""
    return torch.ones_like(ids) if mask is None else mask


def embedded(model: nn.Module, ids: Tensor, mask: Tensor | None) -> Tensor:
    """The embedding of tokens, n × T × d, zero where there is none."""
    vectors: Tensor = model.get_input_embeddings()(ids)  # type: ignore[operator]
    return vectors if mask is None else vectors * mask.unsqueeze(2).to(vectors.dtype)


def logits_of(output: Any) -> Tensor:
    """The logits of what a model returned."""
    if not isinstance(output, Mapping) or "logits" not in output:
        raise TypeError(
            f"the model must return a mapping with its logits (return_dict=True), got {type(output).__name__}"
        )
    logits: Tensor = output["logits"]
    return logits


def require_encoder(model: nn.Module) -> None:
    """A model that reads a whole text, or an error that says why it cannot be mixed."""
    base = base_of(model)
    kind, config = type(base).__name__, getattr(base, "config", None)
    generates = getattr(base, "can_generate", lambda: False)()
    if getattr(config, "is_encoder_decoder", False) or generates:
        raise ValueError(
            f"{kind} predicts the next token, whose label is its input: there is nothing to mix it with; Mixup is for "
            "encoders that classify texts or tokens, or regress"
        )
    if EMBEDDED not in inspect.signature(base.forward).parameters:
        raise ValueError(f"{kind} does not take {EMBEDDED}, and text is mixed after the embedding")


def require_pairing(kind: type[Method]) -> None:
    """A kind of method that mixes pairs of texts, or an error that says that it does not."""
    if not issubclass(kind, (Mixup, Choice)):
        raise TypeError(f"text is mixed after the embedding, by Mixup or a Choice of such, not by {kind.__name__}")


def require_pairs(method: Method, rescale: bool) -> None:
    """A method that mixes pairs of texts, with a rule if that is asked."""
    require_pairing(type(method))
    if isinstance(method, Choice):
        for each in method.methods:
            require_pairs(each, rescale)
    elif smoothing := getattr(method, "label_smoothing", 0.0):
        raise ValueError(
            f"{type(method).__name__}(label_smoothing={smoothing}) is not for text: leave it out and smooth the labels "
            "of the training data instead (n × c floating labels are mixed as they are)"
        )
    elif isinstance(method, Mixup) and rescale and not isinstance(method.partners, UniformPartners):
        raise ValueError(
            f"for partners={method.partners!r} there is no prediction rule on embeddings; set rescale=False"
        )


class EmbeddingMixing:
    """While it is on, a model in training mode reads the mixtures that its batches tell of.

    Args:
        model: of Hugging Face.
        label_name: what its labels are called.
    """

    def __init__(self, model: nn.Module, label_name: str = "labels") -> None:
        self.label_name = label_name
        self._is_checked = False
        self._partner: dict[str, Tensor] = {}
        before = model.register_forward_pre_hook(self._before, with_kwargs=True)
        self._handles = [before, model.register_forward_hook(self._after)]

    def remove(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()

    def _before(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if SHARE not in named:
            return None
        share, partner = named.pop(SHARE), named.pop(PARTNER_TOKENS)
        partner_mask, partner_labels = named.pop(PARTNER_MASK), named.pop(PARTNER_LABELS, None)
        if partner_labels is not None and self.label_name in named:
            raise ValueError("mixed labels of tokens need a loss that knows of both: compute_loss_func=mixup_loss")
        ids, mask = named.pop(TOKENS), mask_of(partner, named.get(MASK))
        if not self._is_checked:
            _require_same_reading(model, {TOKENS: ids, MASK: mask} | named, self.label_name)
            # A place for padding is needed beside a token.
            self._is_checked = ids.shape[1] > 1
        # After other calls of the model, which end with what they began with.
        self._partner = {} if partner_labels is None else {PARTNER_LABELS: partner_labels, SHARE: share}
        mixed = MixedTargets(embedded(model, ids, mask), embedded(model, partner, partner_mask), share).values()
        joined = torch.maximum(mask, partner_mask * (share > 0).unsqueeze(1))
        return given, named | {EMBEDDED: mixed, MASK: joined}

    def _after(self, model: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
        partner, self._partner = self._partner, {}
        if not partner:
            return None
        for name, value in partner.items():
            output[name] = value
        return output


def _require_same_reading(model: nn.Module, named: dict[str, Any], label_name: str) -> None:
    """The logits of some texts, read as tokens and as embeddings."""
    some = _some_padded(model, {name: value for name, value in named.items() if name != label_name})
    ids, mask = some.pop(TOKENS), some[MASK]
    with evaluating(model), torch.no_grad():
        first = logits_of(model(**some, **{TOKENS: ids}))
        second = logits_of(model(**some, **{EMBEDDED: embedded(model, ids, mask)}))
    if first.shape[:2] == ids.shape:
        first, second = (logits[mask.bool()] for logits in (first, second))
    # As far as the logits' precision tells them.
    tolerance = max(1e-3, 32 * torch.finfo(first.dtype).eps)
    if not bool((first - second).abs().max() <= tolerance * first.abs().max()):
        raise ValueError(
            f"{type(base_of(model)).__name__} does not read {EMBEDDED} as it reads {TOKENS}; text is mixed after the "
            "embedding of encoders, whose padding stands at the end"
        )


def _some_padded(model: nn.Module, named: dict[str, Any]) -> dict[str, Any]:
    """A batch of the first texts, followed by the same with padding in place of the last token."""
    n, length = named[TOKENS].shape
    some = {
        name: torch.cat([value[:_READ]] * 2) if isinstance(value, Tensor) and value.shape[:1] == (n,) else value
        for name, value in named.items()
    }
    if length > 1:
        # Some configurations have none, or say −1.
        padding = max(getattr(getattr(base_of(model), "config", None), "pad_token_id", None) or 0, 0)
        again = slice(min(n, _READ), None)
        some[TOKENS][again, -1], some[MASK][again, -1] = padding, 0
    return some
