"""The result of a run: a trained network with all that prediction needs, in one file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor, nn

from mixreg._support.tensor_files import load_tensors, save_tensors
from mixreg.methods import described
from mixreg.methods.method import Method
from mixreg.models import MODELS
from mixreg.theory.moments import DataMoments
from mixreg.training.batches import Batches, Pixels
from mixreg.training.build import build_method, build_network
from mixreg.training.checkpoint import CheckpointError
from mixreg.training.config import Config

CONFIG, MODEL = "config.json", "model.safetensors"


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
        method: how it was trained.
        x_mean, y_mean: of what it was trained on.
        shape, num_classes: of one input, and of its output.
        pixels: how bytes are scaled; None for features.
        classes: their names, where they have names.
        fingerprint: of its data, see `mixreg.data.fingerprints`.
    """

    config: Config
    net: nn.Module
    rescaled: nn.Module
    method: Method
    x_mean: Tensor
    y_mean: Tensor
    shape: tuple[int, ...]
    num_classes: int
    pixels: Pixels | None
    classes: list[str] = field(default_factory=list)
    fingerprint: str = ""


def load_trained(folder: Path, model: str | None = None, method: str | None = None) -> Trained:
    """The result of a finished run.

    Args:
        folder: of the run.
        model: package.module:factory of a network of your own. A file never decides by itself what code is run.
        method: package.module:Class of a method of your own, likewise.
    """
    path = folder / MODEL
    if not path.exists():
        unfinished = " (the run is not finished: start it again to resume)" if (folder / CONFIG).exists() else ""
        raise CheckpointError(f"{path} is not there{unfinished}")
    tensors, record = load_tensors(path)
    try:
        config = _with_own_code(Config.from_json(record["config"]), model, method)
        shape, classes = tuple(tensors["x_mean"].shape), len(tensors["y_mean"])
        moments = DataMoments.from_means(tensors["x_mean"], tensors["y_mean"], classes)
        net = build_network(config, shape, classes)
        used = build_method(replace(config, label_smoothing=0.0), net, classes, lambda: moments)
        trained = used.extended(net)
        trained.load_state_dict({k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")})
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be used: {str(error).splitlines()[-1].strip()}") from error
    return Trained(
        config=config,
        net=net.eval(),
        rescaled=used.compared(net, moments, tensors).eval(),
        method=used,
        x_mean=tensors["x_mean"],
        y_mean=tensors["y_mean"],
        shape=shape,
        num_classes=classes,
        pixels=Pixels(tensors["pixel_mean"], tensors["pixel_std"]) if "pixel_mean" in tensors else None,
        classes=record.get("classes", []),
        fingerprint=record.get("data", ""),
    )


def _with_own_code(config: Config, model: str | None, method: str | None) -> Config:
    """The configuration with the code that the caller named; an error where it is code that nobody named."""
    for what, kind, given, known in (("network", "model", model, MODELS), ("method", "method", method, described())):
        if kind == "method" and given is not None and config.method in known and given != config.method:
            raise ValueError(f"it was trained by {config.method}, not by {given}")
        if given is not None:
            config = replace(config, model=given) if kind == "model" else replace(config, method=given)
        elif getattr(config, kind) not in known:
            named = getattr(config, kind)
            raise ValueError(f"its {what} is code of your own: give it with --{kind} {named}")
    return config
