"""The table of a trained network: plain and rescaled, each before and after temperature scaling.

Temperatures are fitted on data held out of training, separately for the plain and the rescaled network, and never on
test data. Without held-out data there are no tempered rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixreg.calibration import fit_temperature
from mixreg.data.arrays import DataError, read_npz
from mixreg.data.fingerprints import is_unchanged
from mixreg.theory.modified import stretch
from mixreg.theory.theta import scalar_forms
from mixreg.training.measures import measure, predict
from mixreg.training.open_batches import open_batches
from mixreg.training.trained import Trained


@dataclass(frozen=True)
class Outputs:
    """Logits by model (n × c) and the labels they are judged by (n)."""

    logits: dict[str, Tensor]
    labels: Tensor


def outputs(models: dict[str, nn.Module], batches: Iterable[tuple[Tensor, Tensor]], device: str = "cpu") -> Outputs:
    """The logits of every model over batches of (x, y)."""
    logits: dict[str, list[Tensor]] = {name: [] for name in models}
    labels: dict[str, list[Tensor]] = {name: [] for name in models}

    def take(name: str, u: Tensor, y: Tensor) -> None:
        logits[name].append(u)
        labels[name].append(y)

    predict({name: model.to(device) for name, model in models.items()}, batches, take, device)
    joined = {name: torch.cat(parts) if parts else torch.empty(0) for name, parts in logits.items()}
    first = labels[next(iter(models))]
    return Outputs(joined, torch.cat(first) if first else torch.empty(0, dtype=torch.long))


def of_run(trained: Trained, data: str | None = None, device: str = "cpu") -> tuple[Outputs, Outputs | None]:
    """The outputs of a trained network on test data, and on what its run held out (None if nothing).

    Args:
        trained: the network.
        data: another dataset with the same classes; by default the run's own.
        device: where to run it.
    """
    models = {"plain": trained.net, "rescaled": trained.rescaled}
    # With its scaling given, nothing is computed from the training set.
    own = open_batches(trained.config, pixels=trained.pixels, classes=trained.classes)
    if not is_unchanged(trained.fingerprint, own.fingerprint):
        raise DataError(f"{trained.config.data} has changed since the network was trained on it")
    test = own
    if data is not None:
        test = open_batches(trained.config, data=data, pixels=trained.pixels, classes=trained.classes)
    if test.shape != trained.shape or (test.pixels is None) != (trained.pixels is None):
        kinds = ["features" if p is None else "images" for p in (trained.pixels, test.pixels)]
        raise DataError(
            f"the network takes {kinds[0]} of shape {trained.shape}, the data holds {kinds[1]} of shape {test.shape}"
        )
    if test.num_classes > trained.num_classes:
        raise DataError(f"the network knows {trained.num_classes} classes, the data has {test.num_classes}")
    held = outputs(models, own.held_out_batches(), device)
    return outputs(models, test.test_batches(), device), held if len(held.labels) else None


def temperatures(held: Outputs | None) -> dict[str, float]:
    """The temperature of each model, from held-out outputs."""
    if held is None:
        return {}
    return {name: fit_temperature(logits, held.labels) for name, logits in held.logits.items()}


def table(test: Outputs, fitted: dict[str, float]) -> list[dict[str, Any]]:
    """A row of measures per model, and one per model with its temperature."""
    rows: list[dict[str, Any]] = []
    for name, logits in test.logits.items():
        rows.append({"model": name, "temperature": 1.0, **measure(logits, test.labels)})
        if name in fitted:
            tempered = measure(logits / fitted[name], test.labels)
            rows.append({"model": f"{name}, tempered", "temperature": fitted[name], **tempered})
    return rows


def saved_outputs(path: Path, alpha: float) -> tuple[Outputs, Outputs | None]:
    """Outputs that somebody saved: test outputs, and held-out ones if the file has them.

    The .npz holds `logits` (n × c) and `labels` (n). For rescaled rows, `logits_shrunk` are the network's logits on
    shrunk inputs x̄ + θ̄ (x − x̄), and `y_mean` is ȳ (by default 1/c each). The same names with `holdout_` before them
    give held-out outputs, to fit temperatures on. Without `logits_shrunk` only the outputs are stretched.
    """
    scalar_forms(alpha, "evaluation")
    content = {key: torch.from_numpy(value) for key, value in read_npz(path, ("logits", "labels")).items()}
    try:
        test = _saved_part(content, "", alpha)
        held = _saved_part(content, "holdout_", alpha) if "holdout_logits" in content else None
    except (KeyError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    if held is not None and held.logits.keys() != test.logits.keys():
        raise DataError(f"{path}: give both logits_shrunk and holdout_logits_shrunk, or neither")
    return test, held


def _saved_part(content: dict[str, Tensor], prefix: str, alpha: float) -> Outputs:
    logits, labels = content[f"{prefix}logits"], content.get(f"{prefix}labels", torch.empty(0))
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ValueError(f"{prefix}logits must be n × c numbers, got {logits.dtype} of shape {tuple(logits.shape)}")
    if labels.shape != logits.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        given = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise ValueError(f"{prefix}labels must be {len(logits)} class indices, got {given}")
    y_mean = content.get("y_mean", torch.full((logits.shape[1],), 1 / logits.shape[1])).float()
    if y_mean.shape != logits.shape[1:] or not bool((y_mean >= 0).all()) or abs(float(y_mean.sum()) - 1) > 1e-3:
        raise ValueError(f"y_mean must be {logits.shape[1]} probabilities that sum to 1")
    shrunk = content.get(f"{prefix}logits_shrunk")
    if shrunk is not None and shrunk.shape != logits.shape:
        raise ValueError(f"{prefix}logits_shrunk must have the shape of {prefix}logits, got {tuple(shrunk.shape)}")
    name, source = ("rescaled", shrunk) if shrunk is not None else ("outputs stretched", logits)
    theta_mean = scalar_forms(alpha, "evaluation").mean
    return Outputs({"plain": logits.float(), name: stretch(source.float(), y_mean, theta_mean)}, labels.long())
