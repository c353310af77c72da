"""A finished run, to predict with: `run = mixreg.load("runs/digits"); run.predict_proba(x)`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixreg._support.tasks import CLASSES, LABELS, NUMBERS
from mixreg.data.errors import DataError
from mixreg.theory.moments import DataMoments
from mixreg.training.config import Config
from mixreg.training.trained import Trained, load_trained
from mixreg.training.zoo import find, is_in_zoo

# Numbers of inputs at once: enough to keep cores busy, few enough for pictures and caches.
_ELEMENTS = 1 << 19
# Rows of a few features at once: what a hidden layer of a hundred makes of more than so many is beyond a core's cache,
# and taken from the system and given back with every batch.
_ROWS = 2048


def batch_size(shape: tuple[int, ...]) -> int:
    """How many samples of a shape to predict at once."""
    return max(64, min(_ROWS, _ELEMENTS // math.prod(shape)))


class FinishedRun:
    """A trained network with its rule and the preparation of its inputs.

    Args:
        trained: what the run left.
        rule: "plain", "rescaled" or "fitted"; by default fitted if the run held data out, else rescaled.
        device: where to run it.

    Attributes:
        model: the network with its rule; takes prepared inputs and gives logits (or standardised numbers).
        rule: which one it is.
    """

    def __init__(self, trained: Trained, rule: str | None = None, device: str | torch.device = "cpu") -> None:
        self.trained = trained
        self.rule = trained.best_rule if rule is None else rule
        self.device = torch.device(device)
        self.model: nn.Module = trained.with_rule(self.rule).to(self.device).eval()

    @property
    def config(self) -> Config:
        """What the run was."""
        return self.trained.config

    @property
    def moments(self) -> DataMoments:
        """x̄ and ȳ of what the network was trained on, as it saw it."""
        return self.trained.moments

    @property
    def classes(self) -> list[str]:
        """The names of the classes or targets: their numbers, where they have no names."""
        return list(self.trained.preparation.classes) or [str(k) for k in range(self.trained.num_classes)]

    def with_rule(self, rule: str) -> FinishedRun:
        """The same run with another rule."""
        return FinishedRun(self.trained, rule, self.device)

    def prepare(self, x: Any) -> Tensor:
        """Inputs as the network takes them.

        Args:
            x: an array or a tensor; uint8 images n × height × width (× channels), features n × … as the training data
                had them, or floating-point images n × channels × height × width that are prepared already.
        """
        if not isinstance(x, (np.ndarray, Tensor, list, tuple)):
            raise DataError(f"inputs are an array or a tensor, got {type(x).__name__}")
        array = x if isinstance(x, Tensor) else np.asarray(x)
        if isinstance(array, np.ndarray):
            if array.dtype.kind not in "fu":
                raise DataError(f"inputs must be bytes or floating point, got {array.dtype}")
            array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
            values = torch.from_numpy(array if array.flags.writeable else array.copy())
        else:
            values = array
        shape, pixels = self.trained.shape, self.trained.pixels
        if values.dtype == torch.uint8:
            if pixels is None:
                raise DataError(f"the network takes features of shape {shape}, got images of bytes")
            values = values.unsqueeze(-1) if values.ndim == 3 else values
            values = values.permute(0, 3, 1, 2) if values.ndim == 4 else values
        elif not values.is_floating_point() or values.is_complex():
            raise DataError(f"inputs must be bytes or floating point, got {values.dtype}")
        if tuple(values.shape[1:]) != shape:
            kind = "images (channels × height × width)" if pixels is not None else "features"
            raise DataError(
                f"the network takes {kind} of shape {shape}, got samples of shape {tuple(values.shape[1:])}"
            )
        if values.dtype == torch.uint8:
            return self.trained.preparation.prepared(values)
        values = values.float()
        # A sum is one quick pass; only where it overflows or shows something are all looked at.
        if not math.isfinite(float(values.sum())) and not bool(torch.isfinite(values).all()):
            raise DataError("inputs hold values that are not finite")
        return values if pixels is not None else self.trained.preparation.prepared(values)

    def outputs(self, x: Any) -> Tensor:
        """Logits, or numbers in the units of the targets: n × c; x as of `prepare`."""
        return self._by_batches(x, lambda outputs: outputs)

    @torch.no_grad()
    def _by_batches(self, x: Any, finish: Callable[[Tensor], Tensor]) -> Tensor:
        """What `finish` makes of outputs, n × c, of one batch after another, each while it is in the cache."""
        prepared, size = self.prepare(x), batch_size(self.trained.shape)
        found = finish(torch.empty(0, self.trained.num_classes))
        for start in range(0, len(prepared), size):
            outputs = self.model(prepared[start : start + size].to(self.device)).float().cpu()
            _require_finite(outputs, start)
            finished = finish(self.trained.targets.restored(outputs))
            if start == 0:
                found = finished.new_empty(len(prepared), *finished.shape[1:])
            found[start : start + size] = finished
        return found

    def predict_proba(self, x: Any) -> Tensor:
        """Probabilities of classes, or of each label: n × c; x as of `prepare`."""
        return self._by_batches(x, self.probabilities)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Of logits, n × c."""
        task = self.trained.targets.task
        if task == NUMBERS:
            raise ValueError("a network for regression gives numbers, not probabilities: use predict")
        if task == LABELS:
            return outputs.sigmoid()
        # PyTorch's softmax takes six times as long for ten classes on a CPU.
        odds = (outputs - outputs.amax(1, keepdim=True)).exp_()
        return odds.div_(odds.sum(1, keepdim=True))

    def predict(self, x: Any) -> Tensor:
        """Class indices (n), zeros and ones (n × c) of several labels, or numbers (n × c); x as of `prepare`."""
        return self._by_batches(x, self.decisions)

    def decisions(self, outputs: Tensor) -> Tensor:
        """Of logits or numbers, n × c."""
        task = self.trained.targets.task
        if task == CLASSES:
            return outputs.argmax(1)
        return (outputs > 0).long() if task == LABELS else outputs

    @staticmethod
    def decided_classes(outputs: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Of logits, n × c, the class that is decided for and its probability, each n: exp(0) / Σ exp(u − max u)."""
        # With few classes NumPy takes half of PyTorch's time, and a product with ones a third of a sum's.
        logits = outputs.numpy()
        decided = logits.argmax(1)
        odds = logits - np.take_along_axis(logits, decided[:, None], 1)
        np.exp(odds, out=odds)
        return decided, 1 / (odds @ np.ones(odds.shape[1], odds.dtype))

    def __repr__(self) -> str:
        config = self.config
        return f"FinishedRun({config.model} by {config.method} on {config.data}, {self.rule})"


def _require_finite(outputs: Tensor, start: int) -> None:
    """Of rows from number `start`: one that is not finite is an error."""
    if not math.isfinite(float(outputs.sum())):
        bad = (~outputs.isfinite()).reshape(len(outputs), -1).any(1)
        if bool(bad.any()):
            row = start + int(bad.nonzero()[0])
            raise DataError(f"what the network makes of row {row} is not finite: is it too large?")


def load(
    run: str | Path,
    rule: str | None = None,
    *,
    model: str | None = None,
    method: str | None = None,
    device: str | torch.device = "cpu",
) -> FinishedRun:
    """A finished run of `mixreg train`, or a network of the zoo.

    Args:
        run: its folder, a file that was exported from one, or "zoo:NAME" (see `mixreg zoo list`).
        rule: "plain", "rescaled" or "fitted"; by default fitted if the run held data out, else rescaled.
        model: package.module:factory of a network of your own. A file never decides by itself what code is run.
        method: package.module:Class of a method of your own, likewise.
        device: where to run it.
    """
    path = find(run) if isinstance(run, str) and is_in_zoo(run) else Path(run)
    return FinishedRun(load_trained(path, model, method), rule, device)
