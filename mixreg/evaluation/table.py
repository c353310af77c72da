"""The table of a trained network: plain, rescaled and fitted, each before and after temperature scaling.

    plain       the network as it is: κ = 0, T = 1
    rescaled    with the rule of its method: κ = 1, T = t̄
    fitted      with κ and T fitted (`mixreg.prediction.fitting`): what `mixreg predict` uses

and each with its predictions divided by one more number, the best on held-out data (Guo et al., 2017), which leaves
accuracies as they are; after a fit there is next to nothing left for it to do. Strengths and temperatures come from
data held out of training and never from test data: without any, there are no fitted and no tempered rows. Regression
has no temperature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mixreg._support.tasks import CLASSES
from mixreg.calibration import fit_temperature
from mixreg.calibration.selective import area_under_risk_coverage
from mixreg.data.archives import read_npz
from mixreg.data.errors import DataError
from mixreg.prediction.family import RuleFamily
from mixreg.theory.modified import stretch
from mixreg.theory.theta import scalar_forms
from mixreg.training.held_out_fit import PLAIN, RESCALED, HeldOutFit, predictors
from mixreg.training.measures import measure, predict
from mixreg.training.targets import Targets
from mixreg.training.trained import Trained


class Place(NamedTuple):
    """Where a predictor is in the rule's family: κ, None where there is none, and T, one or one for every output."""

    strength: float | None
    temperature: float | tuple[float, ...]


@dataclass(frozen=True)
class Outputs:
    """What predictors make of data, and what they are judged by.

    Attributes:
        predictions: by predictor, n × c.
        y: n class indices, or n × c.
        places: of the predictors.
        temperatures: by predictor, of temperature scaling; by held-out data, if there was any.
        targets: what is predicted.
    """

    predictions: dict[str, Tensor]
    y: Tensor
    places: dict[str, Place]
    temperatures: dict[str, float]
    targets: Targets = field(default_factory=Targets)

    def rows(self) -> Iterator[tuple[str, Place, Tensor]]:
        """Name, place and predictions of each row, in order."""
        for name, predictions in self.predictions.items():
            strength, temperature = self.places[name]
            yield name, self.places[name], predictions
            if name in self.temperatures:
                scale = self.temperatures[name]
                all_of = temperature if isinstance(temperature, tuple) else (temperature,)
                scaled = tuple(scale * t for t in all_of)
                place = Place(strength, scaled if isinstance(temperature, tuple) else scaled[0])
                yield f"{name}, tempered", place, predictions / scale


def outputs_on(
    trained: Trained, batches: Iterable[tuple[Tensor, Tensor]], fit: HeldOutFit | None, device: str = "cpu"
) -> Outputs:
    """What a trained network makes of labelled batches, as every predictor of the table."""
    models = predictors(trained.net, trained.with_table_rule, None if fit is None else fit.family)
    found, y = gathered(models, batches, device)
    places = {name: _place(model) for name, model in models.items()}
    return Outputs(found, y, places, {} if fit is None else fit.temperatures, trained.targets)


def _place(model: nn.Module) -> Place:
    if isinstance(model, RuleFamily):
        temperature = model.current_temperature()
        return Place(
            model.strength,
            tuple(temperature.flatten().tolist()) if isinstance(temperature, Tensor) else temperature,
        )
    return Place(0.0, 1.0)


def gathered(
    models: dict[str, nn.Module], batches: Iterable[tuple[Tensor, Tensor]], device: str = "cpu"
) -> tuple[dict[str, Tensor], Tensor]:
    """The outputs of every model over batches of (x, y), and all y."""
    parts: dict[str, list[Tensor]] = {name: [] for name in models}
    targets: list[Tensor] = []

    def take(name: str, u: Tensor, y: Tensor) -> None:
        parts[name].append(u)
        if name == next(iter(models)):
            targets.append(y)

    predict({name: model.to(device) for name, model in models.items()}, batches, take, device)
    empty = torch.empty(0)
    joined = {name: torch.cat(found) if found else empty for name, found in parts.items()}
    return joined, torch.cat(targets) if targets else empty.long()


def table(outputs: Outputs) -> list[dict[str, Any]]:
    """A row of measures for every predictor, before and after temperature scaling."""
    rows = []
    for name, (strength, temperature), predictions in outputs.rows():
        row: dict[str, Any] = {"model": name, "strength": strength, "temperature": temperature}
        row |= measure(predictions, outputs.y, outputs.targets)
        if outputs.targets.task == CLASSES:
            row["aurc"] = float(area_under_risk_coverage(predictions, outputs.y))
        rows.append(row)
    return rows


def saved_outputs(path: Path, alpha: float) -> Outputs:
    """Test outputs that somebody saved, with temperatures if the file has held-out ones.

    The .npz holds `logits` (n × c) and `labels` (n). For rescaled rows, `logits_shrunk` are the network's logits on
    shrunk inputs x̄ + θ̄ (x − x̄), and `y_mean` is ȳ (by default 1/c each). The same names with `holdout_` before them
    give held-out outputs, to fit temperatures on. Without `logits_shrunk` only the outputs are stretched.
    """
    scalar_forms(alpha, "evaluation")
    arrays = read_npz(path, ("logits", "labels"))
    try:
        content = {key: _real(key, arrays[key]) for key in _SAVED if key in arrays}
        raw, labels = _saved_part(content, "")
        held, held_labels = raw, labels
        has_held = any(key.startswith("holdout_") for key in content)
        if has_held:
            held, held_labels = _saved_part(content, "holdout_")
        y_mean = _saved_mean(content, raw[PLAIN].shape[1])
        if held[PLAIN].shape[1] != raw[PLAIN].shape[1]:
            raise ValueError(f"holdout_logits has {held[PLAIN].shape[1]} columns, logits {raw[PLAIN].shape[1]}")
    except (KeyError, ValueError) as error:
        missing = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise DataError(f"{path}: {missing}") from error
    if held.keys() != raw.keys():
        raise DataError(f"{path}: give both logits_shrunk and holdout_logits_shrunk, or neither")
    places, predictions, temperatures = {}, {}, {}
    for name, logits in raw.items():
        share = 1.0 if name == PLAIN else scalar_forms(alpha, "evaluation").mean
        places[name] = Place(1.0 if name == RESCALED else 0.0, share)
        predictions[name] = stretch(logits, y_mean, share)
        if has_held:
            temperatures[name] = fit_temperature(stretch(held[name], y_mean, share), held_labels)
    return Outputs(predictions, labels, places, temperatures, Targets(CLASSES, len(y_mean)))


_SAVED = [prefix + name for prefix in ("", "holdout_") for name in ("logits", "labels", "logits_shrunk")] + ["y_mean"]


def _real(name: str, array: np.ndarray) -> Tensor:
    """An array of real numbers in this machine's order of bytes."""
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))


def _saved_part(content: dict[str, Tensor], prefix: str) -> tuple[dict[str, Tensor], Tensor]:
    logits, labels = content[f"{prefix}logits"], content.get(f"{prefix}labels", torch.empty(0))
    if logits.ndim != 2 or not logits.is_floating_point() or logits.shape[1] < 2 or not len(logits):
        given = f"{logits.dtype} of shape {tuple(logits.shape)}"
        raise ValueError(f"{prefix}logits must be n × c numbers for c classes, at least 2, got {given}")
    if labels.shape != logits.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        given = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise ValueError(f"{prefix}labels must be {len(logits)} class indices, got {given}")
    shrunk = content.get(f"{prefix}logits_shrunk")
    if shrunk is not None and shrunk.shape != logits.shape:
        raise ValueError(f"{prefix}logits_shrunk must have the shape of {prefix}logits, got {tuple(shrunk.shape)}")
    name, source = (RESCALED, shrunk) if shrunk is not None else ("outputs stretched", logits)
    return {PLAIN: logits.float(), name: source.float()}, labels.long()


def _saved_mean(content: dict[str, Tensor], classes: int) -> Tensor:
    y_mean = content.get("y_mean", torch.full((classes,), 1 / classes)).float()
    if y_mean.shape != (classes,) or not bool((y_mean >= 0).all()) or abs(float(y_mean.sum()) - 1) > 1e-3:
        raise ValueError(f"y_mean must be {classes} probabilities that sum to 1")
    return y_mean
