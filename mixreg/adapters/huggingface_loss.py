"""Cross-entropy of mixed labels, as Hugging Face's `Trainer` calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mixreg.adapters.embeddings import PARTNER_LABELS, SHARE
from mixreg.losses.mixed_loss import mixed_loss
from mixreg.losses.mixed_targets import MixedTargets
from mixreg.losses.pair_cross_entropy import IGNORED
from mixreg.losses.targets import require_probabilities


def mixup_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Cross-entropy as `Trainer(compute_loss_func=…)` calls it: of classes, of mixed labels, or of labels of tokens.

    A step's loss is divided by its number of labels: of samples, or of tokens whose own label is not −100 (of which the
    shares of all labels are the mean), however many batches the step accumulates.

    Args:
        outputs: of the model, with logits n × c or n × T × c; those of mixed texts know their partners' labels.
        labels: class indices n, mixed labels n × c, or class indices n × T, −100 where there is none.
        num_items_in_batch: entries of labels in all batches of a step; by default those of this one.
    """
    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    if labels.is_floating_point():
        _require_soft_labels(labels)
        if logits.shape != labels.shape:
            raise ValueError(
                f"mixed labels have shape {tuple(labels.shape)} and logits {tuple(logits.shape)}: num_classes of "
                "MixupCallback must be the model's num_labels"
            )
    if labels.ndim == 2 and not labels.is_floating_point():
        return _of_tokens(logits.transpose(1, 2), labels, outputs, num_items_in_batch)
    if num_items_in_batch is None:
        return cross_entropy(logits, labels)
    # Trainer counts the entries of labels: c of them for every mixed sample.
    entries = labels.shape[1] if labels.is_floating_point() else 1
    return cross_entropy(logits, labels, reduction="sum") * entries / num_items_in_batch


def _of_tokens(logits: Tensor, labels: Tensor, outputs: Any, count: Tensor | int | None) -> Tensor:
    """logits: n × c × T."""
    if isinstance(outputs, Mapping) and PARTNER_LABELS in outputs:
        mixed = MixedTargets(labels, outputs[PARTNER_LABELS], outputs[SHARE])
        total: Tensor = mixed_loss(nn.CrossEntropyLoss(reduction="sum"))(logits, mixed)
    else:
        total = cross_entropy(logits, labels, reduction="sum")
    return total / ((labels != IGNORED).sum() if count is None else count)


def _require_soft_labels(labels: Tensor) -> None:
    try:
        if labels.ndim < 2:
            raise ValueError(f"labels of shape {tuple(labels.shape)}")
        require_probabilities(labels)
    except ValueError as error:
        raise ValueError(
            "mixup_loss is the cross-entropy of class indices, or of labels that sum to 1; for a regression or several "
            "labels at once leave compute_loss_func and num_classes out: the model's own loss takes mixed targets"
        ) from error
