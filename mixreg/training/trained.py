"""The result of a run: a trained network with all that prediction needs, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from mixreg._support.tasks import CLASSES
from mixreg._support.tensor_files import load_tensors, save_tensors
from mixreg.methods import described
from mixreg.methods.method import Method
from mixreg.models import MODELS
from mixreg.theory.moments import DataMoments
from mixreg.training.batches import Batches, Pixels, Preparation
from mixreg.training.build import build_method, build_network, kept_moments
from mixreg.training.checkpoint import CheckpointError
from mixreg.training.config import Config
from mixreg.training.held_out_fit import FITTED, PLAIN, RESCALED, RULES, HeldOutFit, placed
from mixreg.training.targets import Scaling, Targets

CONFIG, MODEL = "config.json", "model.safetensors"


def save_model(
    path: Path,
    net: nn.Module,
    config: Config,
    means: dict[str, Tensor],
    batches: Batches,
    fit: HeldOutFit | None,
    last_epoch: int,
) -> None:
    """Write final weights, those after `last_epoch` (counted from 1), with all that prediction needs."""
    tensors = {f"network.{key}": value for key, value in net.state_dict().items()}
    how = batches.preparation
    scalings = {"pixel": how.pixels, "column": how.columns, "target": how.outputs}
    for name, scaling in scalings.items():
        if scaling is not None:
            tensors |= {f"{name}_mean": scaling.mean, f"{name}_std": scaling.std}
    record = {
        "config": config.to_json(),
        "classes": list(how.classes),
        "features": list(how.features),
        "task": batches.targets.task,
        "data": batches.fingerprint,
        "fit": None if fit is None else fit.to_json(),
        "last_epoch": last_epoch,
    }
    save_tensors(path, tensors | means, record)


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        config: of its run.
        net: the plain network.
        method: how it was trained.
        moments: x̄ and ȳ of what it was trained on.
        further: means that its method's rule needs besides.
        targets: what it predicts.
        preparation: how its inputs are prepared.
        path: the run's folder, or an exported file.
        fingerprint: of its data, see `mixreg.data.fingerprints`.
        fit: what the run's held-out data said of its predictors, if there was any.
        rule: what an exported file is to be used with.
        last_epoch: after which its weights were kept; 0 for the run's last.
    """

    config: Config
    net: nn.Module
    method: Method
    moments: DataMoments
    further: Mapping[str, Tensor]
    targets: Targets
    preparation: Preparation
    path: Path
    fingerprint: str = ""
    fit: HeldOutFit | None = None
    rule: str = ""
    last_epoch: int = 0

    def with_table_rule(self) -> nn.Module:
        """The network with the rule that tables show, that of its method or a control; made anew."""
        return self.method.compared(self.net, self.moments, self.further).eval()

    @property
    def rescaled(self) -> nn.Module:
        """What tables call so."""
        return self.with_table_rule()

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of one input, as the network takes it."""
        return tuple(self.moments.x_mean.shape)

    @property
    def num_classes(self) -> int:
        """How many numbers the network gives for one input."""
        return self.targets.width

    @property
    def pixels(self) -> Pixels | None:
        """How bytes are scaled; None for features."""
        return self.preparation.pixels

    def with_rule(self, rule: str, fit: HeldOutFit | None = None) -> nn.Module:
        """The network as it is to be used: plain, rescaled, or fitted (by `fit`, or by what its run held out)."""
        if rule not in RULES:
            raise ValueError(f"a rule is one of {', '.join(RULES)}, got {rule!r}")
        if rule == PLAIN:
            return self.net
        if rule == RESCALED:
            if self.is_switched_off:
                raise ValueError(
                    f"its method was switched off after {self.config.until} of {self.config.epochs} epochs: there is "
                    "no rule for it but a fitted one, or the plain network"
                )
            return self.method.predictor(self.net, self.moments, self.further).eval()
        fit = fit or self.fit
        if fit is None or fit.family is None:
            raise ValueError("nothing was held out to fit a rule on: give --held-out DATA, or train with --holdout")
        return placed(self.with_table_rule(), fit.family)

    @property
    def is_switched_off(self) -> bool:
        """Whether the last epochs showed the data as it is."""
        return self.config.is_off((self.last_epoch or self.config.epochs) - 1)

    @property
    def best_rule(self) -> str:
        """What to predict with: as exported; else fitted where that can be, else rescaled where there is a rule."""
        if self.rule:
            return self.rule
        if self.fit is not None and self.fit.family is not None:
            return FITTED
        return PLAIN if self.is_switched_off else RESCALED


def load_trained(folder: Path, model: str | None = None, method: str | None = None) -> Trained:
    """The result of a finished run.

    Args:
        folder: of the run, or a file that was exported from one.
        model: package.module:factory of a network of your own. A file never decides by itself what code is run.
        method: package.module:Class of a method of your own, likewise.
    """
    path = folder if folder.is_file() else folder / MODEL
    if not path.exists():
        unfinished = " (the run is not finished: start it again to resume)" if (folder / CONFIG).exists() else ""
        raise CheckpointError(f"{path} is not there{unfinished}")
    tensors, record = load_tensors(path)
    try:
        config = _with_own_code(Config.from_json(record["config"]), model, method)
        width = len(tensors["y_mean"])
        moments = kept_moments(tensors, width)
        net = build_network(config, tuple(tensors["x_mean"].shape), width)
        targets = Targets(record.get("task", CLASSES), width, _scaling(tensors, "target"))
        used = build_method(replace(config, label_smoothing=0.0), net, width, lambda: moments, targets.loss)
        trained = used.extended(net)
        trained.load_state_dict({k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")})
        fit = None if record.get("fit") is None else HeldOutFit.from_json(record["fit"])
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be used: {str(error).splitlines()[-1].strip()}") from error
    pixels = Pixels(tensors["pixel_mean"], tensors["pixel_std"]) if "pixel_mean" in tensors else None
    if pixels is not None:
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    names = (tuple(record.get(key, ())) for key in ("classes", "features"))
    return Trained(
        config=config,
        net=net.eval(),
        method=used,
        moments=moments,
        further=tensors,
        targets=targets,
        preparation=Preparation(pixels, _scaling(tensors, "column"), targets.scaling, *names),
        path=folder,
        fingerprint=record.get("data", ""),
        rule=record.get("rule", ""),
        last_epoch=record.get("last_epoch", 0),
        fit=fit,
    )


def _scaling(tensors: Mapping[str, Tensor], name: str) -> Scaling | None:
    return Scaling(tensors[f"{name}_mean"], tensors[f"{name}_std"]) if f"{name}_mean" in tensors else None


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
