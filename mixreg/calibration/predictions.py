"""Predicted probabilities, checked once and gone through in cache-sized pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# A softmax over this many numbers stays in a core's cache; on 50,000 × 1,000 logits that is worth a factor of two.
CHUNK_ELEMENTS = 1 << 19


class Predictions(NamedTuple):
    """n × c logits, or probabilities if the caller said so; at least float32."""

    values: Tensor
    are_probabilities: bool


def predictions(logits: Tensor, labels: Tensor | None, probabilities: bool = False) -> Predictions:
    """Logits (or probabilities) of every class, checked against the labels.

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
    values = logits.detach()
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    if values.ndim == 1 or values.shape[1] == 1:
        values = values.reshape(-1)
        values = torch.stack([1 - values if probabilities else torch.zeros_like(values), values], dim=1)
    if probabilities and not on_simplex(values):
        raise ValueError("with probabilities=True every row must be non-negative and sum to 1")
    if labels is not None:
        _validate_labels(values, labels)
    return Predictions(values, probabilities)


def on_simplex(values: Tensor) -> bool:
    """Whether every row of n × c values is non-negative and sums to 1."""
    total = values.sum(1)
    return bool((values >= 0).all()) and torch.allclose(total, torch.ones_like(total), atol=1e-3)


def _validate_labels(values: Tensor, labels: Tensor) -> None:
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        given = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be a tensor of integers, got {given}")
    n, c = values.shape
    if labels.shape != (n,):
        raise ValueError(f"{n} rows of logits need labels of shape ({n},), got {tuple(labels.shape)}")
    low, high = (int(end) for end in labels.long().aminmax())
    if low < 0 or high >= c:
        raise ValueError(f"labels must lie in 0..{c - 1} for {c} columns of logits, got values from {low} to {high}")


def probability_chunks(given: Predictions) -> Iterator[tuple[slice, Tensor]]:
    """The probabilities piece by piece: (rows, m × c). A piece may be written to; the next one overwrites it."""
    values, are_probabilities = given
    n, c = values.shape
    rows = max(1, min(n, CHUNK_ELEMENTS // c))
    buffer = torch.empty((rows, c), dtype=values.dtype, device=values.device)
    for start in range(0, n, rows):
        piece = values[start : start + rows]
        p = buffer[: piece.shape[0]]
        if are_probabilities:
            p.copy_(piece)
        else:
            torch.softmax(piece, dim=1, out=p)
        yield slice(start, start + piece.shape[0]), p


def confidences(given: Predictions) -> Tensor:
    """The largest probability of each row: n, float64."""
    return refuse_nan(given, torch.cat([p.amax(1) for _, p in probability_chunks(given)])).double()


def confidences_and_hits(given: Predictions, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The largest probability of each row (n, float64) and whether it is the label's (n, bool).

    An index of the maximum costs as much as the softmax itself; comparing the label's probability with the largest of
    the others costs a sixth of it.
    """
    largest, hits = [], []
    for rows, p in probability_chunks(given):
        label = labels[rows].long().unsqueeze(1)
        own = p.gather(1, label).squeeze(1)
        other = p.scatter_(1, label, -1.0).amax(1)
        hit = own > other
        tie = own == other
        if bool(tie.any()):
            # Equal after rounding: what was given decides, and the first of equal ones wins.
            hit[tie] = given.values[rows][tie].argmax(1) == label[tie].squeeze(1)
        largest.append(torch.maximum(own, other))
        hits.append(hit)
    return refuse_nan(given, torch.cat(largest)).double(), torch.cat(hits)


def refuse_nan(given: Predictions, result: Tensor) -> Tensor:
    """`result` itself, unless it holds a NaN: then an error that names the sample it came from."""
    if bool(torch.isnan(result).any()):
        bad = torch.isnan(torch.softmax(given.values, dim=1)).any(1)
        raise ValueError(f"logits are not finite at sample {int(bad.nonzero()[0])}")
    return result
