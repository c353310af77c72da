"""Training within a run: quietly, resumed where it was, and telling how far the run is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mixreg.experiments.experiment import Progress
from mixreg.training.config import Config
from mixreg.training.engine import Engine
from mixreg.training.loop import Trainer
from mixreg.training.observer import Observer
from mixreg.training.run import train
from mixreg.training.trained import Trained, load_trained

# What else to measure after an epoch (counted from 1), for its record.
Measure = Callable[[Trainer, int], dict[str, Any]]


def train_quietly(
    config: Config,
    folder: Path,
    progress: Progress,
    share_of_run: float,
    measure: Measure | None = None,
    evaluate_every: int = 1,
) -> Trained:
    """Train in the folder of a run, or resume, without a word; the trained network.

    Args:
        config: what to train.
        folder: of the run.
        progress: is told after every epoch how far the run is.
        share_of_run: how much of it training is; what follows it is the rest.
        measure: what else to measure after an epoch.
        evaluate_every: epochs between evaluations on the test set.
    """

    class Quiet(Observer):
        def measure(self, trainer: Trainer, epoch: int) -> dict[str, Any]:
            progress(share_of_run * epoch / config.epochs)
            return measure(trainer, epoch) if measure is not None else {}

    train(config, folder, Engine(), Quiet(), evaluate_every=evaluate_every)
    # Code of one's own was named by whoever asked for the run.
    return load_trained(folder, config.model, config.method)


def device() -> str:
    """Where trained networks are evaluated."""
    return "cuda" if torch.cuda.is_available() else "cpu"
