"""What Hugging Face's `Trainer` is asked that Mixup cannot do: refused before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from mixreg.adapters.embeddings import logits_of, require_encoder
from mixreg.adapters.huggingface_batches import Entries, Moments
from mixreg.adapters.token_moments import TokenMoments


def require_possible(args: Any, model: nn.Module, entries: Entries, moments: Moments | None) -> None:
    """Settings and a model that batches can be mixed for.

    Args:
        args: of the trainer.
        model: to be trained.
        entries: of its batches.
        moments: that were given, if they were.
    """
    if args.label_smoothing_factor:
        raise ValueError(
            f"label_smoothing_factor={args.label_smoothing_factor} has no effect on mixed labels: leave it out and "
            "smooth the labels of the training data instead (n × c floating labels are mixed as they are)"
        )
    if moments is not None and isinstance(moments, TokenMoments) != entries.are_text:
        kind = "TokenMoments" if entries.are_text else "DataMoments"
        raise TypeError(f"moments of {entries.input_name} are {kind}, got {type(moments).__name__}")
    if entries.are_text:
        require_encoder(model)
        if args.n_gpu > 1:
            raise ValueError("text is mixed in one process for each GPU: start with accelerate launch or torchrun")


def outputs_required(entries: Entries) -> Callable[[nn.Module, Any, Any], None]:
    """A hook after calls of a model: in training it must give as many outputs as there are classes."""

    def required(module: nn.Module, given: Any, output: Any) -> None:
        if not module.training:
            return
        shape = logits_of(output).shape
        # Of several dimensions only those of text are known: n × T × c.
        are_classes = len(shape) == 2 or (entries.are_text and len(shape) == 3)
        if are_classes and shape[-1] != entries.num_classes:
            raise ValueError(
                f"num_classes={entries.num_classes} of MixupCallback must be the model's num_labels, which gives "
                f"{shape[-1]} outputs"
            )

    return required
