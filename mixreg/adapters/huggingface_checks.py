"""What Hugging Face's `Trainer` is asked that Mixup cannot do: refused before anything is trained."""

from __future__ import annotations

from typing import Any

from torch import nn

from mixreg.adapters.embeddings import require_encoder
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
