"""A training run as a folder: started, resumed, or found finished.

config.json         what the run is
checkpoint.safetensors  where it is (while it is not finished)
log.jsonl           one line per epoch
model.safetensors   final weights with x̄, ȳ and α
metrics.json        final measures on the test set
tensorboard/        the log for TensorBoard, where that is installed

Files of these names that are not the run's own are somebody's work: a folder that holds any is refused, and stays as it
is. Who trains holds the folder's lock, and looks at what it holds once more when it has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mixreg._support.files import HeldLock, LockedError, locked, remove_leftovers, write_bytes, write_json, writing
from mixreg._support.tensor_files import load_tensors
from mixreg.data.errors import DataError
from mixreg.data.fingerprints import is_unchanged
from mixreg.training.batches import Batches
from mixreg.training.board import open_board
from mixreg.training.build import build_loss, build_method, build_network
from mixreg.training.checkpoint import CheckpointError
from mixreg.training.config import Config
from mixreg.training.engine import Engine
from mixreg.training.loop import Trainer
from mixreg.training.observer import Observer, Observers
from mixreg.training.open_batches import open_batches
from mixreg.training.trained import CONFIG, MODEL, save_model

CHECKPOINT, LOG, METRICS, BOARD = "checkpoint.safetensors", "log.jsonl", "metrics.json", "tensorboard"
Found = TypeVar("Found")


def read_config(folder: Path) -> Config:
    """The configuration of a run's folder."""
    path = folder / CONFIG
    try:
        return Config.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is not the configuration of a run: {error}") from error


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[HeldLock]:
    """No second process works in `folder` meanwhile; the lock dies with its holder."""
    with contextlib.ExitStack() as held:
        try:
            lock = held.enter_context(locked(folder / ".lock", waits=False))
        except LockedError as error:
            raise CheckpointError(f"{folder} is being trained by another process") from error
        yield lock


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
    if is_done(out, config):
        _require_same_data(out, config)
        return False
    fabric = engine.launch(config.precision)
    # Whatever is wrong with data, network and method is found before anything is written.
    batches = open_batches(config, fabric.global_rank, fabric.world_size, workers=engine.workers)
    net = build_network(config, batches.shape, batches.num_classes)
    loss = build_loss(config, batches.targets, batches.y)
    method = build_method(config, net, batches.num_classes, batches.moments, loss)
    trainer = Trainer(config, batches, net, method, fabric, out / CHECKPOINT, engine.prepared)
    is_first = bool(fabric.is_global_zero)
    with contextlib.ExitStack() as held:
        # Another process may have begun or finished a run here while this one was loading.
        if _in_all(fabric, lambda: _takes(out, held, trainer) and is_done(out, config)):
            return False if is_first else None
        _in_all(fabric, lambda: held.enter_context(_begun(out, trainer)))
        if (out / CHECKPOINT).exists():
            trainer.resume(*load_tensors(out / CHECKPOINT))
        watching = observer or Observer()
        shown = Observers(_Log(out, trainer), watching) if is_first else Observer()
        try:
            shown.on_start(config, batches.steps)
            trainer.run(shown if is_first else watching, checkpoint_seconds, evaluate_every)
        finally:
            shown.on_end()
        _finish(out, trainer, batches)
    return True if is_first else None


def _takes(out: Path, held: contextlib.ExitStack, trainer: Trainer) -> bool:
    """Hold the folder, and let the run look whether it still does before it writes anything."""
    trainer.require_place = held.enter_context(only_one(out)).require_in_place
    return True


def _in_all(fabric: Any, find: Callable[[], Found]) -> Found:
    """What the first process finds, in all of them; where it fails, all do."""
    found, failure = None, None
    if fabric.is_global_zero:
        try:
            found = find()
        except Exception as error:
            failure = error
    found, reason = fabric.broadcast((found, None if failure is None else str(failure)))
    if reason is not None:
        raise failure or CheckpointError(reason)
    return found


@contextlib.contextmanager
def _begun(out: Path, trainer: Trainer) -> Iterator[None]:
    """The folder of a run that is under way; one that fails before its first epoch or checkpoint leaves it as it was.

    So the corrected command finds the folder free.
    """
    remove_leftovers(out, (CONFIG, CHECKPOINT, LOG, MODEL, METRICS))
    is_new, had_board = not (out / CONFIG).exists(), (out / BOARD).exists()
    if is_new:
        write_json(out / CONFIG, trainer.config.to_json())
    try:
        yield
    except LockedError:
        raise  # what is there now is not ours to tidy up
    except Exception:
        if is_new and not trainer.state.log and not (out / CHECKPOINT).exists():
            for name in (LOG, CONFIG):
                (out / name).unlink(missing_ok=True)
            if not had_board:
                shutil.rmtree(out / BOARD, ignore_errors=True)
        raise


def _finish(out: Path, trainer: Trainer, batches: Batches) -> None:
    """Write what a finished run leaves; every process must call it."""
    trainer.take_final_weights()
    means, log = trainer.means(), trainer.state.log
    test = trainer.evaluate() if trainer.best is not None else log[-1]["test"]
    if trainer.fabric.is_global_zero:
        trainer.require_place()
        fit = trainer.fit_on_held_out(means)
        last = len(log) if trainer.best is None else trainer.best.best_epoch(log)
        save_model(out / MODEL, trainer.trained, trainer.config, means, batches, fit, last)
        measured: dict[str, Any] = {"epochs": trainer.config.epochs, "train_loss": log[-1]["train_loss"], **test}
        if trainer.best is not None:
            measured |= {"stopped_after": len(log), "best_epoch": trainer.best.best_epoch(log)}
        if batches.cut_off:
            measured["cut_off_for_testing"] = batches.cut_off
        write_json(out / METRICS, measured)
        (out / CHECKPOINT).unlink(missing_ok=True)
    trainer.fabric.barrier()


def is_done(out: Path, config: Config) -> bool:
    """Whether this run is finished in its folder.

    Raises:
        CheckpointError: the folder holds files of a run's names that are broken, or not this run's.
        ValueError: it is the folder of another run.
    """
    there = [name for name in (CHECKPOINT, LOG, MODEL, METRICS) if os.path.lexists(out / name)]
    if not os.path.lexists(out / CONFIG):
        if there:
            names = ", ".join(there)
            raise CheckpointError(
                f"{out} holds {names} without {CONFIG}: it belongs to another run or to somebody else; "
                "choose another folder"
            )
        return False
    before = read_config(out)
    if before != config:
        hint = "choose another folder"
        if replace(before, epochs=config.epochs, until=config.until) == config:
            # Schedules are made for their number of epochs: a short run is not the beginning of a long one.
            hint = f"a run of {config.epochs} epochs has a schedule of its own and begins anew in another folder"
        raise ValueError(f"{out} holds another run: {before.differences(config)}; {hint}")
    if LOG in there:
        _require_log(out / LOG)
    if MODEL in there:
        _require_model(out / MODEL, config)
    if METRICS in there:
        _require_metrics(out / METRICS, config)
    is_finished = MODEL in there and METRICS in there
    if is_finished:
        # Of a run that was killed when all but this was done.
        (out / CHECKPOINT).unlink(missing_ok=True)
    return is_finished


def _require_same_data(out: Path, config: Config) -> None:
    """The data of a finished run must be what it was; where it is no longer there, nothing can be said of it."""
    _, record = load_tensors(out / MODEL)
    try:
        fingerprint = open_batches(config).fingerprint
    except (DataError, ValueError):
        return
    if not is_unchanged(record.get("data", ""), fingerprint):
        raise CheckpointError(f"{config.data} has changed since {out} was trained on it; choose another folder")


def _require_log(path: Path) -> None:
    # A killed process can leave half of a line behind.
    first, newline, _ = path.read_text(encoding="utf-8", errors="replace").partition("\n")
    try:
        is_log = not newline or "epoch" in dict(json.loads(first))
    except (ValueError, TypeError):
        is_log = False
    if not is_log:
        raise CheckpointError(f"{path} is not the log of a run: its first line is no record of an epoch")


def _require_model(path: Path, config: Config) -> None:
    tensors, record = load_tensors(path)
    try:
        is_own = "x_mean" in tensors and "step" not in record and Config.from_json(record["config"]) == config
    except (KeyError, ValueError, TypeError):
        is_own = False
    if not is_own:
        raise CheckpointError(f"{path} is not the model of the run that {CONFIG} describes")


def _require_metrics(path: Path, config: Config) -> None:
    try:
        is_own = json.loads(path.read_text(encoding="utf-8"))["epochs"] == config.epochs
    except (ValueError, TypeError, KeyError):
        is_own = False
    if not is_own:
        raise CheckpointError(f"{path} does not hold the measures of the run that {CONFIG} describes")


class _Log(Observer):
    """log.jsonl, which always agrees with the checkpoint a run resumes from; and TensorBoard's.

    Args:
        folder: of the run.
        trainer: whose log it is.
    """

    def __init__(self, folder: Path, trainer: Trainer) -> None:
        self.path, self.trainer = folder / LOG, trainer
        write_bytes(self.path, "".join(json.dumps(record) + "\n" for record in trainer.state.log).encode())
        self.board = open_board(folder / BOARD)

    def on_epoch(self, record: dict[str, Any]) -> None:
        self.trainer.require_place()
        with writing(self.path), self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.board.add(record["epoch"], record)

    def on_end(self) -> None:
        self.board.close()
