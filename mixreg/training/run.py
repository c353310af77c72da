"""A training run as a folder: started, gone on with, or found finished.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixreg.files import remove_leftovers, write_bytes, write_json, writing
from mixreg.models import MODELS, build
from mixreg.models.factory import load_factory
from mixreg.streams import stream_seed
from mixreg.training.batches import Batches, Pixels
from mixreg.training.board import Board
from mixreg.training.checkpoint import CheckpointError, load_tensors, save_tensors
from mixreg.training.config import Config
from mixreg.training.engine import Engine
from mixreg.training.folders import open_batches
from mixreg.training.loop import Trainer, Unwatched, Watcher, evaluate_on
from mixreg.training.methods import equipped
from mixreg.training.prediction import rescaled_network

CHECKPOINT, MODEL, CONFIG, LOG, METRICS = (
    "checkpoint.safetensors",
    "model.safetensors",
    "config.json",
    "log.jsonl",
    "metrics.json",
)


def build_network(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The network of a run with its initial weights; a user's own factory is called with `num_classes=`."""
    seed = stream_seed(config.seed, "weights")
    if config.model in MODELS or ":" not in config.model:
        net = build(config.model, shape, num_classes, seed)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = load_factory(config.model)(num_classes=num_classes)
        if not isinstance(net, nn.Module):
            raise TypeError(f"{config.model} must return an nn.Module, got {type(net).__name__}")
    return equipped(net, config, num_classes)


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
    import fcntl

    with writing(folder / ".lock"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(f"{folder} is being trained by another process") from error
        yield


def train(
    config: Config,
    out: Path,
    engine: Engine,
    watch: Callable[[Config, int], contextlib.AbstractContextManager[Watcher]],
    checkpoint_seconds: float = 30.0,
    evaluate_every: int = 1,
    look: Callable[[Trainer, int], dict[str, Any]] = lambda trainer, epoch: {},
) -> bool | None:
    """Train, or go on training, in the folder `out`.

    True when it is done, False if it had been done before; None on all processes but the first.

    Args:
        config: the run.
        out: its folder.
        engine: devices and processes.
        watch: opens a progress display for the run and the steps of an epoch.
        checkpoint_seconds: how often to save.
        evaluate_every: epochs between looks at the test set.
        look: measures more after an epoch (counted from 1) and names it, for the log.
    """
    if (out / CONFIG).exists():
        before = read_config(out)
        if before != config:
            raise ValueError(f"{out} holds another run: {before.differences(config)}; choose another folder")
    if is_done(out):
        return False
    fabric = engine.launch()
    # Whatever is wrong with data and network is found before anything is written.
    batches = open_batches(config, fabric.global_rank, fabric.world_size, workers=engine.workers)
    net = build_network(config, batches.shape, batches.num_classes)
    trainer = Trainer(config, batches, net, fabric, out / CHECKPOINT)
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
        log = _Log(out / LOG, trainer.state.log) if is_first else None

        def evaluate(epoch: int) -> dict[str, Any]:
            looked = look(trainer, epoch + 1)
            if (epoch + 1) % evaluate_every and epoch + 1 < config.epochs:
                return looked
            return {"test": evaluate_on(trainer, batches.test_batches())} | looked

        with contextlib.ExitStack() as stack:
            watcher: Watcher = Unwatched()
            finished: Callable[[dict[str, Any]], None] = lambda record: None  # noqa: E731
            if log is not None:
                watcher = stack.enter_context(watch(config, batches.steps))
                finished = stack.enter_context(contextlib.closing(log)).append
            trainer.run(watcher, evaluate, finished, checkpoint_seconds)
        means = trainer.means()
        if log is not None:
            save_model(out / MODEL, net, config, means, batches)
            last = trainer.state.log[-1]
            write_json(out / METRICS, {"epochs": config.epochs, "train_loss": last["train_loss"], **last["test"]})
            (out / CHECKPOINT).unlink(missing_ok=True)
        fabric.barrier()
    return True if is_first else None


def is_done(folder: Path) -> bool:
    """Whether a run is finished: its model and its measures are there."""
    return (folder / METRICS).exists() and (folder / MODEL).exists()


class _Log:
    """log.jsonl, which always agrees with the checkpoint a run goes on from; and TensorBoard's, if it is installed."""

    def __init__(self, path: Path, records: list[dict[str, Any]]) -> None:
        self.path = path
        write_bytes(path, "".join(json.dumps(record) + "\n" for record in records).encode())
        self.board = Board(path.parent / "tensorboard")

    def append(self, record: dict[str, Any]) -> None:
        with writing(self.path), self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.board.add(record["epoch"], record)

    def close(self) -> None:
        self.board.close()


def save_model(path: Path, net: nn.Module, config: Config, means: dict[str, Tensor], batches: Batches) -> None:
    """Write final weights with all that prediction needs."""
    tensors = {f"network.{key}": value for key, value in net.state_dict().items()}
    tensors |= means
    if batches.pixels is not None:
        tensors |= {"pixel_mean": batches.pixels.mean, "pixel_std": batches.pixels.std}
    record = {"config": config.to_json(), "classes": batches.classes, "data": batches.fingerprint}
    save_tensors(path, tensors, record)


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        config: of its run.
        net, rescaled: the plain network, and the same with the prediction rule that belongs to its method.
        x_mean, y_mean: of what it was trained on.
        shape, num_classes: of one input, and of its output.
        pixels: how bytes are scaled; None for features.
        classes: their names, where they have names.
        fingerprint: a checksum of the training data.
    """

    config: Config
    net: nn.Module
    rescaled: nn.Module
    x_mean: Tensor
    y_mean: Tensor
    shape: tuple[int, ...]
    num_classes: int
    pixels: Pixels | None
    classes: list[str] = field(default_factory=list)
    fingerprint: str = ""


def load_trained(folder: Path, model: str | None = None) -> Trained:
    """The result of a finished run.

    Args:
        folder: of the run.
        model: package.module:factory of a network of your own. A file never decides by itself what code is run.
    """
    path = folder / MODEL
    if not path.exists():
        going_on = " (the run is not finished: start it again to go on)" if (folder / CONFIG).exists() else ""
        raise CheckpointError(f"{path} is not there{going_on}")
    tensors, record = load_tensors(path)
    try:
        config = Config.from_json(record["config"])
        if model is not None:
            config = replace(config, model=model)
        elif config.model not in MODELS:
            raise ValueError(f"its network is code of your own: give it with --model {config.model}")
        shape, classes = tuple(tensors["x_mean"].shape), len(tensors["y_mean"])
        net = build_network(config, shape, classes)
        net.load_state_dict({k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")})
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be used: {str(error).splitlines()[-1].strip()}") from error
    pixels = Pixels(tensors["pixel_mean"], tensors["pixel_std"]) if "pixel_mean" in tensors else None
    rescaled = rescaled_network(config, net, tensors)
    names, data = record.get("classes", []), record.get("data", "")
    means = tensors["x_mean"], tensors["y_mean"]
    return Trained(config, net.eval(), rescaled.eval(), *means, shape, classes, pixels, names, data)
