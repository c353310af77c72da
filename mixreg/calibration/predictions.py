"""From logits to probabilities, confidences and hits, checked once and computed in cache-sized pieces."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# A softmax over this many numbers stays in a core's cache; on 50,000 × 1,000 logits that is worth a factor of two.
CHUNK_ELEMENTS = 1 << 19


def as_logits(logits: Tensor, labels: Tensor | None, probabilities: bool = False) -> Tensor:
    """n × c logits, whatever was given: checked against the labels, one logit made two, probabilities made logs.

    Args:
        logits: n × c, or n for two classes and one logit (or the probability of class 1).
        labels: n integers in 0..c − 1, or None where no label is needed.
        probabilities: whether `logits` holds probabilities.
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        given = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"logits must be a floating-point tensor, got {given}")
    if logits.ndim not in (1, 2) or (logits.ndim == 2 and logits.shape[1] == 0):
        raise ValueError(f"logits must have shape n × c, or n for two classes, got {tuple(logits.shape)}")
    if logits.shape[0] == 0:
        raise ValueError("there is no sample: logits have shape " + str(tuple(logits.shape)))
    logits = logits.detach()
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if logits.ndim == 1 or logits.shape[1] == 1:
        logits = logits.reshape(-1)
        logits = torch.stack([1 - logits if probabilities else torch.zeros_like(logits), logits], dim=1)
    if probabilities:
        total = logits.sum(1)
        if bool((logits < 0).any()) or not torch.allclose(total, torch.ones_like(total), atol=1e-3):
            raise ValueError("with probabilities=True every row must be non-negative and sum to 1")
        logits = logits.log()
    if labels is not None:
        _validate_labels(logits, labels)
    return logits


def _validate_labels(logits: Tensor, labels: Tensor) -> None:
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        given = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be a tensor of integers, got {given}")
    n, c = logits.shape
    if labels.shape != (n,):
        raise ValueError(f"{n} rows of logits need labels of shape ({n},), got {tuple(labels.shape)}")
    low, high = (int(end) for end in labels.long().aminmax())
    if low < 0 or high >= c:
        raise ValueError(f"labels must lie in 0..{c - 1} for {c} columns of logits, got values from {low} to {high}")


def probability_chunks(logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Softmax of the rows, piece by piece: (rows, probabilities); each piece is overwritten by the next.

    Args:
        logits: n × c, from `as_logits`.
    """
    n, c = logits.shape
    rows = max(1, min(n, CHUNK_ELEMENTS // c))
    buffer = torch.empty((rows, c), dtype=logits.dtype, device=logits.device)
    for start in range(0, n, rows):
        piece = logits[start : start + rows]
        yield slice(start, start + piece.shape[0]), torch.softmax(piece, dim=1, out=buffer[: piece.shape[0]])


def confidences(logits: Tensor) -> Tensor:
    """The largest probability of each row: n, float64; logits: n × c, from `as_logits`."""
    return _checked(torch.cat([p.amax(1) for _, p in probability_chunks(logits)]))


def confidences_and_hits(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The largest probability of each row (n, float64) and whether it is the label's (n, bool).

    An index of the maximum costs as much as the softmax itself; comparing the label's probability with the largest of
    the others costs a sixth of it.

    Args:
        logits: n × c, from `as_logits`.
        labels: n.
    """
    largest, hits = [], []
    for rows, p in probability_chunks(logits):
        label = labels[rows].long().unsqueeze(1)
        own = p.gather(1, label).squeeze(1)
        other = p.scatter_(1, label, -1.0).amax(1)
        hit = own > other
        tie = own == other
        if bool(tie.any()):
            # Equal after rounding: the logits decide, and the first of equal logits wins.
            hit[tie] = logits[rows][tie].argmax(1) == label[tie].squeeze(1)
        largest.append(torch.maximum(own, other))
        hits.append(hit)
    return _checked(torch.cat(largest)), torch.cat(hits)


def _checked(confidence: Tensor) -> Tensor:
    bad = ~torch.isfinite(confidence)
    if bool(bad.any()):
        raise ValueError(f"logits are not finite at sample {int(bad.nonzero()[0])}")
    return confidence.double()
