"""The predictors that one trained network is measured as, by name.

    plain                   the network as it is
    0.5                     rescaled for α = 0.5 (eq. testmodif)
    0.5, refreshed          the same, with running statistics of batch normalisation estimated on shrunk inputs
    fitted                  strength and temperature by the likelihood of what the run held out
    fitted, refreshed       the same, from the refreshed statistics of the run's own rule

and each of the first three with ", tempered" behind its name: divided by the best temperature on held-out data.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mixreg.calibration import confidence_histogram, fit_temperature, reliability
from mixreg.calibration.selective import area_under_risk_coverage
from mixreg.evaluation.table import gathered
from mixreg.experiments.training import device
from mixreg.prediction.rescaled import Rescaled
from mixreg.training.batches import Batches
from mixreg.training.held_out_fit import FITTED, PLAIN, Again
from mixreg.training.measures import measure
from mixreg.training.trained import Trained

CONFIDENCE_BINS = 20
REFRESHED, TEMPERED = "refreshed", "tempered"
# Enough for means and variances of thousands of positions each, and to see whether a network was trained to the end.
_TO_REFRESH, _TO_JUDGE_TRAINING = 10_000, 50_000


def rescaled_name(alpha: float) -> str:
    """What the network that is rescaled for α is called."""
    return f"{alpha:g}"


def tempered(name: str) -> str:
    """What a predictor is called after temperature scaling."""
    return f"{name}, {TEMPERED}"


def refreshed(name: str) -> str:
    """What a predictor is called with refreshed statistics."""
    return f"{name}, {REFRESHED}"


@dataclass
class Predictors:
    """Models by name, and what was fitted for them.

    Attributes:
        models: by name.
        temperatures: of temperature scaling, by name.
        fits: strengths and temperatures of the rule, by name, as JSON.
    """

    models: dict[str, nn.Module]
    temperatures: dict[str, float] = field(default_factory=dict)
    fits: dict[str, Any] = field(default_factory=dict)

    def only(self, names: Iterable[str]) -> Predictors:
        """These of them."""
        kept = {name: self.models[name] for name in names}
        return Predictors(kept, {name: t for name, t in self.temperatures.items() if name in kept})

    def on(self, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
        """What all of them make of batches of (x, y), each tempered too where that was fitted; and all y."""
        found, y = gathered(self.models, batches, device())
        return found | {tempered(name): found[name] / scale for name, scale in self.temperatures.items()}, y


def plain_and_rescaled(trained: Trained, alphas: list[float]) -> Predictors:
    """The plain network, and the rescaled one for each α."""
    means = trained.moments.x_mean, trained.moments.y_mean
    models: dict[str, nn.Module] = {PLAIN: trained.net}
    return Predictors(models | {rescaled_name(alpha): Rescaled(trained.net, alpha, *means) for alpha in alphas})


def all_predictors(trained: Trained, alphas: list[float], batches: Batches) -> Predictors:
    """All of them; statistics are refreshed and the rule is fitted for the α of the run (1 for ERM).

    Args:
        trained: the network, whose run held data out.
        alphas: to rescale for.
        batches: the run's data.
    """
    found, own = plain_and_rescaled(trained, alphas), rescaled_name(trained.config.alpha)
    held_out = Again(batches.held_out_batches)
    some = Again(lambda: _shown(batches, _TO_REFRESH))
    with_rule = trained.with_table_rule()
    assert isinstance(with_rule, Rescaled)
    to_fit = {FITTED: with_rule}
    if any(isinstance(module, _BatchNorm) for module in trained.net.modules()):
        found.models[refreshed(own)] = copy.deepcopy(with_rule).refresh_statistics(some)
        to_fit[refreshed(FITTED)] = copy.deepcopy(with_rule).refresh_statistics(some)
    scaled, y = gathered(found.models, held_out, device())
    with warnings.catch_warnings():
        # What is said of a fit is kept with it; a temperature at an end of what is looked at is seen to be there.
        warnings.simplefilter("ignore", UserWarning)
        found.temperatures = {name: fit_temperature(logits, y) for name, logits in scaled.items()}
        for name, model in to_fit.items():
            found.models[name] = model.fit(held_out)
            assert model.fitted is not None
            found.fits[name] = model.fitted.to_json()
    return found


def _shown(batches: Batches, samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Training data as an epoch shows it, until there are so many samples."""
    seen = 0
    for batch in batches.epoch(0, 0):
        yield batch.x, batch.y
        seen += len(batch.y)
        if seen >= samples:
            return


def measured(logits: Tensor, y: Tensor) -> dict[str, float]:
    """All measures of one predictor."""
    return measure(logits, y) | {"aurc": float(area_under_risk_coverage(logits, y))}


def on_test(found: Predictors, batches: Batches) -> dict[str, Any]:
    """Measures, confidences and reliability on the test set, by predictor."""
    outputs, y = found.on(batches.test_batches())
    return {
        "test": {name: measured(logits, y) for name, logits in outputs.items()},
        "confidence": {name: _confidence(logits) for name, logits in outputs.items()},
        "reliability": {name: _reliability(logits, y) for name, logits in outputs.items()},
    }


def _confidence(logits: Tensor) -> dict[str, Any]:
    counts = confidence_histogram(logits, CONFIDENCE_BINS).tolist()
    return {"mean": float(logits.softmax(1).amax(1).mean()), "counts": counts}


def _reliability(logits: Tensor, y: Tensor) -> dict[str, list[float]]:
    """Counts, mean confidence and accuracy by bin (0 where a bin is empty)."""
    found = reliability(logits, y)
    parts = {"counts": found.count, "confidence": found.confidence, "accuracy": found.accuracy}
    return {name: torch.nan_to_num(values.double()).tolist() for name, values in parts.items()}


def on_training_set(trained: Trained, batches: Batches) -> dict[str, float]:
    """Accuracy and cross-entropy of the plain network on unmixed training data: whether it was trained to the end."""
    logits, y = gathered({PLAIN: trained.net}, _shown(batches, _TO_JUDGE_TRAINING), device())
    return {name: value for name, value in measure(logits[PLAIN], y).items() if name in ("accuracy", "cross_entropy")}
