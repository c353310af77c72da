"""The runs behind Table 1: a network is trained with one method and measured; and all methods' steps are timed.

Settings of a "regularised" run:

    config       fields of `mixreg.training.config.Config`; the others have their defaults
    look         what else to measure, or nothing:
        shifts   constants that are added to every (normalised) input at test time
        scales   factors that every (normalised) input is multiplied by at test time
        images   how many test images are moved so
        points   at how many test points and training points derivatives are measured

The result holds `test` (measures by predictor: plain and rescaled, each also tempered) and, where asked for, `moved`
(accuracy by predictor: as they are, "", and by shift or scale), `jacobian` (mean Frobenius norm of ∇f at test points)
and `r1` and `r1_r3` (R1, and R1 + R3, of Theorem 3 for α = 1, over training points).
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixreg import risk
from mixreg.evaluation.table import outputs, table, temperatures
from mixreg.experiments.experiment import Progress, rounded
from mixreg.network import evaluating, jacobians
from mixreg.streams import stream
from mixreg.training.batches import ArrayBatches
from mixreg.training.config import Config
from mixreg.training.engine import Engine
from mixreg.training.folders import open_batches
from mixreg.training.loop import Trainer, Unwatched
from mixreg.training.measures import measure
from mixreg.training.methods import keeper, make_method
from mixreg.training.run import Trained, build_network, load_trained, train

# Jacobians at once: points × classes × inputs numbers.
_POINTS_AT_ONCE = 50
# R1 is measured as Theorem 3 has it for this α, whatever a network was trained with.
_ALPHA_OF_R1 = 1.0
_STEPS_PER_ROUND = 5


def measure_network(settings: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """Carry out such a run, or go on with it."""
    config = Config(**settings["config"])

    def look(trainer: Trainer, epoch: int) -> dict[str, Any]:
        progress(0.9 * epoch / config.epochs)
        return {}

    quiet = lambda *_: contextlib.nullcontext(Unwatched())  # noqa: E731
    train(config, folder, Engine(), quiet, evaluate_every=config.epochs, look=look)
    trained = load_trained(folder)
    batches = open_batches(config, pixels=trained.pixels, classes=trained.classes)
    assert isinstance(batches, ArrayBatches)
    models = {"plain": trained.net, "rescaled": trained.rescaled}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = table(outputs(models, batches.test_batches(), device), temperatures(_held_out(models, batches, device)))
    result: dict[str, Any] = {"test": {row.pop("model"): row for row in rows}}
    if settings["look"]:
        asked = settings["look"]
        images = _some(batches.test, max(asked["images"], asked["points"]))
        result["moved"] = _moved(models, _prepared(batches, images, asked["images"]), asked, device)
        result |= _derivatives(trained, batches, next(_prepared(batches, images, asked["points"]))[0])
    return rounded(result)


def _some(test: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    """Test samples from all over the set, whatever its order; the same for every run."""
    if count > len(test[1]):
        raise ValueError(f"{count} test samples are asked for, of {len(test[1])} there are")
    chosen = torch.randperm(len(test[1]), generator=stream(0, "points"))[:count]
    return test[0][chosen], test[1][chosen]


def _prepared(batches: ArrayBatches, images: tuple[Tensor, Tensor], count: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield batches.numbers(images[0][:count]), images[1][:count]


def _held_out(models: dict[str, nn.Module], batches: ArrayBatches, device: str) -> Any:
    held = outputs(models, batches.held_out_batches(), device)
    return held if len(held.labels) else None


def _moved(
    models: dict[str, nn.Module],
    batches: Iterator[tuple[Tensor, Tensor]],
    asked: dict[str, Any],
    device: str,
) -> dict[str, dict[str, float]]:
    """Accuracy by predictor, of images as they are and under x + shift and scale · x."""
    changes = [("", 1.0, 0.0)]
    changes += [(f"+{shift:g}", 1.0, shift) for shift in asked["shifts"]]
    changes += [(f"×{scale:g}", scale, 0.0) for scale in asked["scales"]]
    shown = list(batches)
    found: dict[str, dict[str, float]] = {name: {} for name in models}
    for title, scale, shift in changes:
        seen = outputs(models, ((scale * x + shift, y) for x, y in shown), device)
        for name, logits in seen.logits.items():
            found[name][title] = measure(logits, seen.labels)["accuracy"]
    return found


def _derivatives(trained: Trained, batches: ArrayBatches, test_points: Tensor) -> dict[str, float]:
    net, points = trained.net.cpu(), len(test_points)
    if points > len(batches.y):
        raise ValueError(f"{points} training samples are asked for, of {len(batches.y)} there are")
    with evaluating(net):
        norms = [jacobians(net, x)[1].detach().flatten(1).norm(dim=1) for x in test_points.split(_POINTS_AT_ONCE)]
    x, y = batches.numbers(batches.x[:points]), batches.y[:points]
    terms = risk.quadratic(net, x, y, _ALPHA_OF_R1, generator=stream(0, "terms"))
    assert isinstance(terms, risk.Quadratic)
    # Not r1 + r3: both grow like 1/p where the network is sure, and cancel; the total knows their sum.
    together = float(terms.total - terms.base - terms.r2 - terms.r4)
    return {"jacobian": float(torch.cat(norms).mean()), "r1": float(terms.r1), "r1_r3": together}


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
    method = make_method(config, batches.num_classes, batches.means, net)
    parseval = keeper(config, net)
    optimizer = torch.optim.SGD(net.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay)
    generator = stream(config.seed, "steps")
    epoch = 0
    while True:
        for batch in batches.epoch(epoch, 0):
            begun = time.perf_counter()
            losses, _ = method.losses(net, method.prepare(batch.x, batch.y, generator))
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            if parseval is not None:
                parseval.step()
            yield time.perf_counter() - begun
        epoch += 1
