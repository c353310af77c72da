"""A training run as a folder: started, resumed, or found finished.

config.json         what the run is
checkpoint.safetensors  where it is (while it is not finished)
log.jsonl           one line per epoch
model.safetensors   final weights with x̄, ȳ and α
metrics.json        final measures on the test set
tensorboard/        the log for TensorBoard, where that is installed
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mixreg._support.files import LockedError, locked, remove_leftovers, write_bytes, write_json, writing
from mixreg._support.tensor_files import load_tensors
from mixreg.training.batches import Batches
from mixreg.training.board import open_board
from mixreg.training.build import build_method, build_network
from mixreg.training.checkpoint import CheckpointError
from mixreg.training.config import Config
from mixreg.training.engine import Engine
from mixreg.training.loop import Trainer
from mixreg.training.observer import Observer, Observers
from mixreg.training.open_batches import open_batches
from mixreg.training.trained import CONFIG, MODEL, save_model

CHECKPOINT, LOG, METRICS = "checkpoint.safetensors", "log.jsonl", "metrics.json"


def read_config(folder: Path) -> Config:
    """The configuration of a run's folder."""
    path = folder / CONFIG
    try:
        return Config.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is not the configuration of a run: {error}") from error


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """No second process works in `folder` meanwhile; the lock dies with its holder."""
    try:
        with locked(folder / ".lock", waits=False):
            yield
    except LockedError as error:
        raise CheckpointError(f"{folder} is being trained by another process") from error


def train(
    config: Config,
    out: Path,
    engine: Engine,
    observer: Observer | None = None,
    checkpoint_seconds: float = 30.0,
    evaluate_every: int = 1,
) -> bool | None:
    """Train, or resume training, in the folder `out`.

    True when it is done, False if it had been done before; None on all processes but the first.

    Args:
        config: the run.
        out: its folder.
        engine: devices and processes.
        observer: is told how it goes.
        checkpoint_seconds: how often to save.
        evaluate_every: epochs between evaluations on the test set.
    """
    if (out / CONFIG).exists():
        before = read_config(out)
        if before != config:
            raise ValueError(f"{out} holds another run: {before.differences(config)}; choose another folder")
    if is_done(out):
        return False
    fabric = engine.launch()
    # Whatever is wrong with data, network and method is found before anything is written.
    batches = open_batches(config, fabric.global_rank, fabric.world_size, workers=engine.workers)
    net = build_network(config, batches.shape, batches.num_classes)
    method = build_method(config, net, batches.num_classes, batches.moments)
    trainer = Trainer(config, batches, net, method, fabric, out / CHECKPOINT)
    is_first = bool(fabric.is_global_zero)
    with only_one(out) if is_first else contextlib.nullcontext():
        # Another process may have finished the run while this one was loading.
        if fabric.broadcast(is_done(out)):
            return False if is_first else None
        if is_first:
            remove_leftovers(out)
            write_json(out / CONFIG, config.to_json())
        if (out / CHECKPOINT).exists():
            trainer.resume(*load_tensors(out / CHECKPOINT))
        watching = observer or Observer()
        shown = Observers(_Log(out, trainer.state.log), watching) if is_first else Observer()
        try:
            shown.on_start(config, batches.steps)
            trainer.run(shown if is_first else watching, checkpoint_seconds, evaluate_every)
        finally:
            shown.on_end()
        _finish(out, trainer, batches)
    return True if is_first else None


def _finish(out: Path, trainer: Trainer, batches: Batches) -> None:
    """Write what a finished run leaves; every process must call it."""
    means = trainer.means()
    if trainer.fabric.is_global_zero:
        save_model(out / MODEL, trainer.trained, trainer.config, means, batches)
        last = trainer.state.log[-1]
        write_json(out / METRICS, {"epochs": trainer.config.epochs, "train_loss": last["train_loss"], **last["test"]})
        (out / CHECKPOINT).unlink(missing_ok=True)
    trainer.fabric.barrier()


def is_done(folder: Path) -> bool:
    """Whether a run is finished: its model and its measures are there."""
    return (folder / METRICS).exists() and (folder / MODEL).exists()


class _Log(Observer):
    """log.jsonl, which always agrees with the checkpoint a run resumes from; and TensorBoard's.

    Args:
        folder: of the run.
        records: of the epochs so far.
    """

    def __init__(self, folder: Path, records: list[dict[str, Any]]) -> None:
        self.path = folder / LOG
        write_bytes(self.path, "".join(json.dumps(record) + "\n" for record in records).encode())
        self.board = open_board(folder / "tensorboard")

    def on_epoch(self, record: dict[str, Any]) -> None:
        with writing(self.path), self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.board.add(record["epoch"], record)

    def on_end(self) -> None:
        self.board.close()
