"""The kind of run most experiments are made of: a network is trained, measured on the way, and evaluated.

Settings, all JSON, all but the first two optional (and so are `moments` among those of terms, and `predictors` among
those of corruptions):

    config         fields of `mixreg.training.config.Config`; the others have their defaults
    rescale        values of α for which the trained network is also evaluated rescaled (eq. testmodif)
    terms          {samples, epochs, moments}: after these epochs, the terms of Theorem 3 on the first training
                   samples, with the moments of the "training set" or, without `moments`, of these samples alone
    corruptions    {source, images, predictors}: measures under corruption, by severity; source "generated" makes
                   them from the first test images, otherwise it is a folder in CIFAR-C's layout
    fit            true: measured as all of `mixreg.experiments.predictors`, with what the run held out; otherwise as
                   plain and rescaled only
    evaluate_every epochs between evaluations on test data; 1 by default
    keep           a name: the trained model stays as models/NAME.safetensors beside the folder of runs

The result holds `log` (a record per epoch), `test`, `confidence` and `reliability` (by predictor), `corruptions`
(measures by predictor and severity), and where something was fitted `train` (whether the network was trained to the
end), `fits` and `temperatures`.
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixreg import risk
from mixreg._support.files import replacing, write_bytes
from mixreg.data.arrays import Dataset, Split
from mixreg.data.corruptions import corrupted_splits
from mixreg.data.loading import load
from mixreg.data.shifted import ShiftedSet, open_shifted
from mixreg.evaluation.shift import checked_batches
from mixreg.experiments.experiment import Kind, Progress, rounded
from mixreg.experiments.moments import moments_of
from mixreg.experiments.predictors import Predictors, all_predictors, on_test, on_training_set, plain_and_rescaled
from mixreg.experiments.training import train_quietly
from mixreg.theory.moments import DataMoments
from mixreg.training.array_batches import ArrayBatches
from mixreg.training.config import Config
from mixreg.training.loop import Trainer
from mixreg.training.measures import measure
from mixreg.training.open_batches import open_batches
from mixreg.training.run import LOG
from mixreg.training.trained import MODEL, Trained

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
    trained = train_quietly(config, folder, progress, 0.95, measure_terms, settings.get("evaluate_every", 1))
    batches = open_batches(config, like=trained.preparation)
    result: dict[str, Any] = {"log": _log(folder)}
    if settings.get("fit"):
        found = all_predictors(trained, settings["rescale"], batches)
        result["train"] = on_training_set(trained, batches)
        result |= {"fits": found.fits, "temperatures": found.temperatures}
    else:
        found = plain_and_rescaled(trained, settings["rescale"])
    result |= on_test(found, batches)
    if corruptions is not None and shifted is not None:
        progress(0.97)
        shown = found.only(corruptions.get("predictors", found.models))
        result["corruptions"] = by_severity(shown, trained, shifted)
    if "keep" in settings:
        kept = folder.parent.parent / "models" / f"{settings['keep']}.safetensors"
        write_bytes(kept, (folder / MODEL).read_bytes())
    return rounded(result)


KINDS: dict[str, Kind] = {"training": trained_network}


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


def by_severity(found: Predictors, trained: Trained, shifted: ShiftedSet) -> dict[str, Any]:
    """Measures by predictor and severity, averaged over corruptions."""
    pixels = trained.pixels
    if pixels is None:
        raise ValueError("corruptions are of images; this network takes features")
    rows: dict[str, dict[int, list[dict[str, float]]]] = {}
    for part in shifted.parts():
        batches = ((pixels.scaled(x), y) for x, y in checked_batches(part, shifted, trained))
        outputs, y = found.on(batches)
        for name, logits in outputs.items():
            rows.setdefault(name, {}).setdefault(part.severity, []).append(measure(logits, y))
    return {
        name: {
            str(severity): {m: float(np.mean([row[m] for row in parts])) for m in _MEASURES}
            for severity, parts in severities.items()
        }
        for name, severities in rows.items()
    }
