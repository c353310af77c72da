"""The table of a trained network: plain and rescaled, each before and after temperature scaling.

Temperatures are fitted on data held out of training, separately for the plain and the rescaled network, and never on
test data. Without held-out data there are no tempered rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from mixreg.calibration import fit_temperature
from mixreg.data.arrays import DataError
from mixreg.rescaling import stretch
from mixreg.theta import scalar_forms
from mixreg.training.folders import open_batches
from mixreg.training.measures import measure, predict
from mixreg.training.run import Trained


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
    return Outputs({name: torch.cat(parts) for name, parts in logits.items()}, torch.cat(labels[next(iter(models))]))


def of_run(trained: Trained, data: str | None = None, device: str = "cpu") -> tuple[Outputs, Outputs | None]:
    """The outputs of a trained network on test data, and on what its run held out (None if nothing).

    Args:
        trained: the network.
        data: another dataset with the same classes; by default the run's own.
        device: where to run it.
    """
    models = {"plain": trained.net, "rescaled": trained.rescaled}
    own = open_batches(trained.config)
    test = own if data is None else open_batches(trained.config, data=data, pixels=trained.pixels)
    if test.shape != trained.shape or (test.pixels is None) != (trained.pixels is None):
        kinds = ["features" if p is None else "images" for p in (trained.pixels, test.pixels)]
        raise DataError(
            f"the network takes {kinds[0]} of shape {trained.shape}, the data holds {kinds[1]} of shape {test.shape}"
        )
    if test.num_classes > trained.num_classes:
        raise DataError(f"the network knows {trained.num_classes} classes, the data has {test.num_classes}")
    held = outputs(models, own.held_out_batches(), device) if trained.config.holdout > 0 else None
    return outputs(models, test.test_batches(), device), held


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
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            content = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
        parts = [_saved_part(content, prefix, alpha) for prefix in ("", "holdout_")]
    except (EOFError, KeyError, OSError, TypeError, ValueError, BadZipFile) as error:
        raise DataError(f"{path} is not an .npz with plain arrays logits and labels: {error}") from error
    if parts[0] is None:
        raise DataError(f"{path} has no arrays logits and labels, but {', '.join(content) or 'nothing'}")
    return parts[0], parts[1]


def _saved_part(content: dict[str, Tensor], prefix: str, alpha: float) -> Outputs | None:
    if f"{prefix}logits" not in content or f"{prefix}labels" not in content:
        return None
    logits, labels = content[f"{prefix}logits"].float(), content[f"{prefix}labels"].long()
    y_mean = content.get("y_mean", torch.full((logits.shape[1],), 1 / logits.shape[1])).float()
    shrunk = content.get(f"{prefix}logits_shrunk")
    name, source = ("rescaled", shrunk.float()) if shrunk is not None else ("outputs stretched", logits)
    theta_mean = scalar_forms(alpha, "evaluation").mean
    return Outputs({"plain": logits, name: stretch(source, y_mean, theta_mean)}, labels)
