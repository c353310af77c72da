"""The kind of run most experiments are made of: a network is trained, measured on the way, and evaluated.

Settings, all JSON, the last two optional (and `moments` among those of terms):

    config         fields of `mixreg.training.config.Config`; the others have their defaults
    rescale        values of α for which the trained network is also evaluated rescaled (eq. testmodif)
    terms          {samples, epochs, moments}: after these epochs, the terms of Theorem 3 on the first training
                   samples, with the moments of the "training set" or, without `moments`, of these samples alone
    corruptions    {source, images}: measures under corruption, by severity; source "generated" makes them
                   from the first test images, otherwise it is a folder in CIFAR-C's layout

The result holds `log` (a record per epoch), `test` (measures by predictor: plain, and every α of `rescale`),
`confidence` (its histogram and mean by predictor) and `corruptions` (measures by predictor and severity).
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mixreg import risk
from mixreg._support.files import replacing
from mixreg.calibration import confidence_histogram
from mixreg.data.arrays import Dataset, Split
from mixreg.data.corruptions import corrupted_splits
from mixreg.data.loading import load
from mixreg.data.shifted import ShiftedSet, open_shifted
from mixreg.evaluation.shift import checked_batches
from mixreg.evaluation.table import gathered
from mixreg.experiments.experiment import Kind, Progress, rounded
from mixreg.experiments.moments import moments_of
from mixreg.experiments.training import device, train_quietly
from mixreg.prediction.rescaled import Rescaled
from mixreg.theory.moments import DataMoments
from mixreg.training.array_batches import ArrayBatches
from mixreg.training.batches import Batches
from mixreg.training.config import Config
from mixreg.training.loop import Trainer
from mixreg.training.measures import measure, measure_models
from mixreg.training.open_batches import open_batches
from mixreg.training.run import LOG
from mixreg.training.trained import Trained

CONFIDENCE_BINS = 20
_MEASURES = ("accuracy", "cross_entropy", "ece")


def trained_network(settings: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """Carry out such a run, or resume it."""
    config = Config(**settings["config"])
    terms = settings.get("terms")
    moments: DataMoments | None = None

    def measure_terms(trainer: Trainer, epoch: int) -> dict[str, Any]:
        nonlocal moments
        if terms is None or epoch not in terms["epochs"]:
            return {}
        batches = _checked(trainer, terms["samples"])
        # Of a run's data, which do not change: computed once.
        moments = moments or moments_of(terms, batches, terms["samples"])
        return {"terms": term_values(trainer, batches, terms["samples"], moments)}

    # Whatever is wrong with them is found before anything is trained.
    corruptions = settings.get("corruptions")
    shifted = corrupted(corruptions, load(config.data), folder.parent / "corruptions") if corruptions else None
    trained = train_quietly(config, folder, progress, 0.95, measure_terms)
    batches = open_batches(config, like=trained.preparation)
    models = predictors(trained, settings["rescale"])
    result = {"log": _log(folder)} | _on_test(models, batches)
    if shifted is not None:
        result["corruptions"] = by_severity(models, trained, shifted)
    return rounded(result)


KINDS: dict[str, Kind] = {"training": trained_network}


def predictors(trained: Trained, alphas: list[float]) -> dict[str, nn.Module]:
    """The plain network, and the rescaled one for each α, which it is named by."""
    models: dict[str, nn.Module] = {"plain": trained.net}
    for alpha in alphas:
        models[f"{alpha:g}"] = Rescaled(trained.net, alpha, trained.moments.x_mean, trained.moments.y_mean)
    return models


def _checked(trainer: Trainer, samples: int) -> ArrayBatches:
    """The data of a run, if it has these samples."""
    batches = trainer.batches
    if not isinstance(batches, ArrayBatches):
        raise ValueError("the terms of Theorem 3 are measured on datasets in memory")
    if samples > len(batches.y):
        raise ValueError(f"terms are asked for on {samples} samples, of {len(batches.y)} there are")
    return batches


def term_values(trainer: Trainer, batches: ArrayBatches, samples: int, moments: DataMoments) -> dict[str, float | None]:
    """R1 … R4 and the loss on modified data, over the first training samples; None where a term does not exist.

    Args:
        trainer: whose network is measured.
        batches: its data.
        samples: how many.
        moments: of what the samples are a part of.
    """
    place = next(trainer.net.parameters()).device
    x, y = batches.scaled(batches.x[:samples]).to(place), batches.y[:samples].to(place)
    generator = torch.Generator().manual_seed(trainer.config.seed)
    with warnings.catch_warnings():
        # None says it too.
        warnings.filterwarnings("ignore", "R1 and R3 do not exist apart")
        found = risk.quadratic(trainer.net, x, y, trainer.config.alpha, moments=moments, generator=generator)
    values = {name: float(getattr(found, name)) for name in ("base", "r1", "r2", "r3", "r4", "total")}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _log(folder: Path) -> list[dict[str, Any]]:
    """The records of all epochs, but for how long they took: results are a function of settings."""
    records = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def _on_test(models: dict[str, nn.Module], batches: Batches) -> dict[str, Any]:
    found, labels = gathered(models, batches.test_batches(), device())
    confidence = {
        name: {
            "mean": float(logits.softmax(1).amax(1).mean()),
            "counts": confidence_histogram(logits, CONFIDENCE_BINS).tolist(),
        }
        for name, logits in found.items()
    }
    return {
        "test": {name: measure(logits, labels) for name, logits in found.items()},
        "confidence": confidence,
    }


def corrupted(settings: dict[str, Any], dataset: Dataset, folder: Path) -> ShiftedSet:
    """The corrupted test images of a dataset: a published folder, or made once and kept in `folder`."""
    if settings["source"] != "generated":
        return open_shifted("cifar-c", Path(settings["source"]))
    if not dataset.is_images:
        raise ValueError(f"corruptions are made of images, and {dataset.name} holds features")
    if settings["images"] > len(dataset.test.y):
        raise ValueError(
            f"corruptions are asked for of {settings['images']} images, of {len(dataset.test.y)} there are"
        )
    place = folder / f"{dataset.name}-{settings['images']}"
    if not (place / "labels.npy").exists():
        images = Split(*(part[: settings["images"]] for part in dataset.test))
        blocks: dict[str, list[np.ndarray]] = {}
        for name, _, split in corrupted_splits(images):
            blocks.setdefault(name, []).append(split.x)
            if len(blocks[name]) == 5:
                _save_array(place / f"{name}.npy", np.concatenate(blocks[name]))
        # Written last: with labels the folder is whole.
        _save_array(place / "labels.npy", np.tile(images.y, 5))
    return open_shifted("cifar-c", place)


def _save_array(path: Path, values: np.ndarray) -> None:
    with replacing(path) as file:
        np.save(file, values, allow_pickle=False)


def by_severity(models: dict[str, nn.Module], trained: Trained, shifted: ShiftedSet) -> dict[str, Any]:
    """Measures by predictor and severity, averaged over corruptions."""
    pixels = trained.pixels
    if pixels is None:
        raise ValueError("corruptions are of images; this network takes features")
    rows: dict[str, dict[int, list[dict[str, float]]]] = {name: {} for name in models}
    for part in shifted.parts():
        batches = ((pixels.scaled(x), y) for x, y in checked_batches(part, shifted, trained))
        for name, measured in measure_models(models, batches, device()).items():
            rows[name].setdefault(part.severity, []).append(measured)
    return {
        name: {
            str(severity): {m: float(np.mean([row[m] for row in found])) for m in _MEASURES}
            for severity, found in severities.items()
        }
        for name, severities in rows.items()
    }
