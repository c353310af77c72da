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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixreg.files import remove_leftovers, write_bytes, write_json
from mixreg.models import MODELS, build
from mixreg.models.factory import load_factory
from mixreg.rescaling import Rescaled
from mixreg.streams import stream_seed
from mixreg.training.batches import Pixels
from mixreg.training.checkpoint import CheckpointError, load_tensors, save_tensors
from mixreg.training.config import Config
from mixreg.training.folders import open_batches
from mixreg.training.loop import Trainer, Watcher, evaluate_on

CHECKPOINT, MODEL, CONFIG, LOG, METRICS = (
    "checkpoint.safetensors",
    "model.safetensors",
    "config.json",
    "log.jsonl",
    "metrics.json",
)


@dataclass(frozen=True)
class Engine:
    """How a run is carried out: what Lightning Fabric is told, and how many processes read images from folders."""

    accelerator: str = "auto"
    devices: int | str = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    workers: int = 2

    def launch(self) -> Any:
        """A launched Fabric."""
        try:
            from lightning_fabric import Fabric
        except ImportError as error:
            raise ImportError("training needs Lightning Fabric: pip install 'mixreg[train]'") from error
        fabric = Fabric(
            accelerator=self.accelerator,
            devices=self.devices,
            num_nodes=self.nodes,
            strategy=self.strategy,
            precision=self.precision,  # type: ignore[arg-type]
        )
        fabric.launch()
        return fabric


def build_network(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The network of a run with its initial weights; a user's own factory is called with `num_classes=`."""
    seed = stream_seed(config.seed, "weights")
    if config.model in MODELS or ":" not in config.model:
        return build(config.model, shape, num_classes, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = load_factory(config.model)(num_classes=num_classes)
    if not isinstance(net, nn.Module):
        raise TypeError(f"{config.model} must return an nn.Module, got {type(net).__name__}")
    return net


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

    with (folder / ".lock").open("w") as lock:
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
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(error.errno, f"cannot write {out}: {error.strerror}") from error
    if (out / CONFIG).exists():
        before = read_config(out)
        if before != config:
            raise ValueError(f"{out} holds another run: {before.differences(config)}; choose another folder")
        if (out / METRICS).exists():
            return False
    fabric = engine.launch()
    with only_one(out) if fabric.global_rank == 0 else contextlib.nullcontext():
        batches = open_batches(config, fabric.global_rank, fabric.world_size, workers=engine.workers)
        net = build_network(config, batches.shape, batches.num_classes)
        trainer = Trainer(config, batches, net, fabric, out / CHECKPOINT)
        if fabric.global_rank == 0:
            remove_leftovers(out)
            write_json(out / CONFIG, config.to_json())
        if (out / CHECKPOINT).exists():
            tensors, record = load_tensors(out / CHECKPOINT)
            if record.get("config") != config.to_json():
                raise CheckpointError(f"{out / CHECKPOINT} belongs to another run")
            trainer.resume(tensors, record)
        log = _Log(out / LOG, trainer.state.log, fabric.global_rank == 0)

        def evaluate(epoch: int) -> dict[str, Any]:
            if (epoch + 1) % evaluate_every and epoch + 1 < config.epochs:
                return {}
            return {"test": evaluate_on(trainer, batches.test_batches())}

        with watch(config, batches.steps) as watcher:
            trainer.run(watcher, evaluate, log.append, checkpoint_seconds)
        log.close()
        x_mean, y_mean = trainer.state.means(batches.is_whole)
        if fabric.global_rank == 0:
            save_model(out / MODEL, trainer.bare, config, x_mean, y_mean, batches.pixels)
            last = trainer.state.log[-1]
            write_json(out / METRICS, {"epochs": config.epochs, "train_loss": last["train_loss"], **last["test"]})
            (out / CHECKPOINT).unlink(missing_ok=True)
        fabric.barrier()
    return fabric.is_global_zero or None


class _Log:
    """log.jsonl, which always agrees with the checkpoint a run goes on from; and TensorBoard's, if it is installed."""

    def __init__(self, path: Path, records: list[dict[str, Any]], is_writer: bool) -> None:
        self.path, self.is_writer = path, is_writer
        if is_writer:
            write_bytes(path, "".join(json.dumps(record) + "\n" for record in records).encode())
        self.board = _board(path.parent / "tensorboard", len(records)) if is_writer else None

    def append(self, record: dict[str, Any]) -> None:
        if not self.is_writer:
            return
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if self.board is not None:
            for name, value in _scalars(record):
                self.board.add_scalar(name, value, record["epoch"])
            self.board.flush()

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def _board(folder: Path, finished: int) -> Any:
    """TensorBoard's writer, going on after `finished` epochs; None where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=finished + 1)


def _scalars(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a nested record, under names with slashes."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _scalars(value, f"{prefix}{name}/")
        elif value is not None and name != "epoch":
            yield prefix + name, value


def save_model(
    path: Path, net: nn.Module, config: Config, x_mean: Tensor, y_mean: Tensor, pixels: Pixels | None
) -> None:
    """Write final weights with all that prediction needs."""
    tensors = {f"network.{key}": value for key, value in net.state_dict().items()}
    tensors |= {"x_mean": x_mean.float(), "y_mean": y_mean.float()}
    if pixels is not None:
        tensors |= {"pixel_mean": pixels.mean, "pixel_std": pixels.std}
    save_tensors(path, tensors, {"config": config.to_json()})


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        config: of its run.
        net, rescaled: the plain network and its rescaled form.
        shape, num_classes: of one input, and of its output.
        pixels: how bytes are scaled; None for features.
    """

    config: Config
    net: nn.Module
    rescaled: Rescaled
    shape: tuple[int, ...]
    num_classes: int
    pixels: Pixels | None


def load_trained(folder: Path) -> Trained:
    """The result of a finished run."""
    path = folder / MODEL
    if not path.exists():
        going_on = " (the run is not finished: start it again to go on)" if (folder / CONFIG).exists() else ""
        raise CheckpointError(f"{path} is not there{going_on}")
    tensors, record = load_tensors(path)
    try:
        config = Config.from_json(record["config"])
        net = build_network(config, tuple(tensors["x_mean"].shape), len(tensors["y_mean"]))
        net.load_state_dict({k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")})
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not hold the network it names: {str(error).splitlines()[-1]}") from error
    pixels = Pixels(tensors["pixel_mean"], tensors["pixel_std"]) if "pixel_mean" in tensors else None
    rescaled = Rescaled(net, config.alpha, tensors["x_mean"], tensors["y_mean"])
    shape, classes = tuple(tensors["x_mean"].shape), len(tensors["y_mean"])
    return Trained(config, net.eval(), rescaled.eval(), shape, classes, pixels)
