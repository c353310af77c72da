"""The runs behind Table 1: a network is trained with one method and evaluated; and all methods' steps are timed.

Settings of a "regularised" run:

    config       fields of `mixreg.training.config.Config`; the others have their defaults
    look         what else to measure, or nothing:
        shifts   constants that are added to every (normalised) input at test time
        scales   factors that every (normalised) input is multiplied by at test time
        images   how many test images are moved so
        points   at how many test points and training points derivatives are measured
        moments  of what the training points are a part: the "training set", or nothing but themselves without it

The result holds `test` (measures by predictor: plain and rescaled, each also tempered) and, where asked for, `moved`
(accuracy by predictor: as they are, "", and by shift or scale), `jacobian` (mean Frobenius norm of ∇f at test points)
and `r1` and `r1_r3` (R1, None where it does not exist, and R1 + R3, of Theorem 3 for α = 1, over training points).
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixreg import risk
from mixreg._autodiff.derivatives import jacobians
from mixreg._autodiff.network import evaluating
from mixreg._support.random import permutation, stream
from mixreg.data.loading import load
from mixreg.evaluation.runs import evaluated
from mixreg.evaluation.table import gathered, table
from mixreg.experiments.experiment import Kind, Progress, rounded
from mixreg.experiments.moments import moments_of
from mixreg.experiments.training import device, train_quietly
from mixreg.training.array_batches import ArrayBatches
from mixreg.training.build import build_method, build_network, build_optimizer, build_parseval
from mixreg.training.config import Config
from mixreg.training.measures import measure
from mixreg.training.open_batches import open_batches
from mixreg.training.step import Step, draw_rows
from mixreg.training.trained import Trained

# Jacobians at once: points × classes × inputs numbers.
_POINTS_AT_ONCE = 50
# R1 is measured as Theorem 3 has it for this α, whatever a network was trained with.
_ALPHA_OF_R1 = 1.0
_STEPS_PER_ROUND = 5


def measure_network(settings: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """Carry out such a run, or resume it."""
    config = Config(**settings["config"])
    trained = train_quietly(config, folder, progress, 0.9, evaluate_every=config.epochs)
    test, _ = evaluated(trained, device=device())
    result: dict[str, Any] = {"test": {row.pop("model"): row for row in table(test)}}
    if settings["look"]:
        result |= _measure_further(settings["look"], trained)
    return rounded(result)


def _measure_further(asked: dict[str, Any], trained: Trained) -> dict[str, Any]:
    """Accuracy on moved inputs, and derivatives."""
    batches = ArrayBatches(load(trained.config.data), trained.config, like=trained.preparation)
    images, labels = _random_part(batches.test, max(asked["images"], asked["points"]))
    x, moved = batches.scaled(images), asked["images"]
    accuracy = _accuracy_when_moved(trained, x[:moved], labels[:moved], asked)
    return {"moved": accuracy, **_derivatives(trained, batches, x[: asked["points"]], asked)}


def _random_part(test: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    """Test samples from all over the set, whatever its order; the same for every run."""
    if count > len(test[1]):
        raise ValueError(f"{count} test samples are asked for, of {len(test[1])} there are")
    chosen = permutation(len(test[1]), stream(0, "points"))[:count]
    return test[0][chosen], test[1][chosen]


def _accuracy_when_moved(
    trained: Trained, x: Tensor, labels: Tensor, asked: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """Accuracy by predictor, of images as they are and under x + shift and scale · x."""
    models = {"plain": trained.net, "rescaled": trained.rescaled}
    changes = [("", 1.0, 0.0)]
    changes += [(f"+{shift:g}", 1.0, shift) for shift in asked["shifts"]]
    changes += [(f"×{scale:g}", scale, 0.0) for scale in asked["scales"]]
    found: dict[str, dict[str, float]] = {name: {} for name in models}
    for title, scale, shift in changes:
        moved, _ = gathered(models, [(scale * x + shift, labels)], device())
        for name, logits in moved.items():
            found[name][title] = measure(logits, labels)["accuracy"]
    return found


def _derivatives(
    trained: Trained, batches: ArrayBatches, test_points: Tensor, asked: dict[str, Any]
) -> dict[str, float | None]:
    net, points = trained.net.cpu(), len(test_points)
    if points > len(batches.y):
        raise ValueError(f"{points} training samples are asked for, of {len(batches.y)} there are")
    with evaluating(net):
        norms = [jacobians(net, x)[1].detach().flatten(1).norm(dim=1) for x in test_points.split(_POINTS_AT_ONCE)]
    x, y = batches.scaled(batches.x[:points]), batches.y[:points]
    with warnings.catch_warnings():
        # None says it too.
        warnings.filterwarnings("ignore", "R1 and R3 do not exist apart")
        moments = moments_of(asked, batches, points)
        terms = risk.quadratic(net, x, y, _ALPHA_OF_R1, moments=moments, generator=stream(0, "terms"))
    r1 = float(terms.r1)
    # Not r1 + r3: both grow like 1/p where the network is confident, and cancel.
    found = {"jacobian": float(torch.cat(norms).mean()), "r1_r3": float(terms.joint)}
    return found | {"r1": r1 if math.isfinite(r1) else None}


def measure_steps(settings: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """How long a training step of each method takes, in steps of ERM.

    Settings:
        configs: fields of `Config` by method's name; one of them is called "erm".
        rounds: how often all methods take turns.

    The result holds `ratios`, rounds of them by name: medians of a few steps, over the median of ERM's in that round.
    """
    steps = {name: _steps(Config(**config)) for name, config in settings["configs"].items()}
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        next(step)
    for round_ in range(settings["rounds"]):
        seconds = {name: statistics.median(next(step) for _ in range(_STEPS_PER_ROUND)) for name, step in steps.items()}
        for name, value in seconds.items():
            ratios[name].append(value / seconds["erm"])
        progress((round_ + 1) / settings["rounds"])
    return rounded({"ratios": ratios})


def _steps(config: Config) -> Iterator[float]:
    """Training steps of a run without end, and the seconds each took; reading data is not part of it."""
    batches = open_batches(config)
    net = build_network(config, batches.shape, batches.num_classes)
    method = build_method(config, net, batches.num_classes, batches.moments)
    trained = method.extended(net)
    step = Step(method, trained, build_optimizer(config, trained), build_parseval(config, net))
    generator = stream(config.seed, "steps")
    epoch = 0
    while True:
        for batch in batches.epoch(epoch, 0):
            begun = time.perf_counter()
            rows = draw_rows(method, batch, batches.num_classes, config.label_smoothing, generator)
            step(rows, 1 / batch.total)
            yield time.perf_counter() - begun
        epoch += 1


KINDS: dict[str, Kind] = {"regularised": measure_network, "steps": measure_steps}
