"""The method of an adapter: Mixup with the settings given, one that brings its own, or one by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from mixreg._support.numbers import require_alpha
from mixreg._support.random import seeded
from mixreg.losses import AnyLoss, require_known
from mixreg.methods import load_method
from mixreg.methods.building import build_named, checked_options, usual_alpha
from mixreg.methods.manifold import ManifoldMixup
from mixreg.methods.method import Augmentation, Method, Setting
from mixreg.methods.mixup import Mixup
from mixreg.theory.moments import DataMoments


def chosen_method(
    method: Augmentation | None, alpha: float | None, num_classes: int | None, per_sample: bool, seed: int | None
) -> Augmentation:
    """The method to train with; settings beside a method of one's own are refused, as nobody would use them."""
    if method is None:
        return Mixup(1.0 if alpha is None else alpha, num_classes, per_sample, seeded(seed))
    if not isinstance(method, Augmentation):
        raise TypeError(
            f"method must be an augmentation, which changes a batch (Mixup, CutMix, …), got {type(method).__name__}; a "
            "loss of the network, or what mixes inside of it, needs a training step of your own"
        )
    beside = {"alpha": alpha, "num_classes": num_classes, "seed": seed, "per_sample": None if per_sample else False}
    _refuse_beside(method, beside)
    return method


def _refuse_beside(method: Method, beside: Mapping[str, Any]) -> None:
    given = ", ".join(name for name, value in beside.items() if value is not None)
    if given:
        raise TypeError(f"{given} beside a method would not be used: give them to {type(method).__name__}")


@dataclass(frozen=True)
class NamedMethod:
    """A method by its name, to be made when the network and the means of the data are there.

    Attributes:
        name: as `mixreg train --method` has it.
        alpha: its α.
        num_classes: c; None where targets are no labels.
        seed: of its random number generator; by default PyTorch's global one.
        options: its own.
        loss: that it puts on outputs, if it needs one.
    """

    name: str
    alpha: float
    num_classes: int | None
    seed: int | None
    options: Mapping[str, Any]
    loss: AnyLoss | None

    @property
    def needs_class_means(self) -> bool:
        """As of the method that it will be."""
        return self.options.get("partners") == "balanced"

    def made(self, net: nn.Module, moments: Callable[[], DataMoments]) -> Method:
        """The method; moments: of the training data, if they are needed."""
        method = build_named(self.name, Setting(self.alpha, self.num_classes, net, moments, self.options), self.seed)
        method.generator = seeded(self.seed)
        if self.loss is not None:
            method.loss = self.loss
        return method


def is_own_loss(kind: type[Method]) -> bool:
    """Whether a method is a loss of the network, and so takes the place of a training step.

    Others change what the step sees: the batch, or what goes into a layer of the network.
    """
    return not issubclass(kind, (Augmentation, ManifoldMixup))


def any_method(
    method: Method | str | None,
    alpha: float | None,
    num_classes: int | None,
    per_sample: bool,
    seed: int | None,
    loss: AnyLoss | None,
    options: Mapping[str, Any],
) -> Method | NamedMethod:
    """The method to train with, of every kind; what is wrong with it is said now, before anything is trained.

    Args:
        method: one that is made, a name, or None for Mixup.
        alpha, num_classes, per_sample, seed: of a name.
        loss: of a name that is a loss of the network.
        options: of a name.
    """
    if method is None and options:
        method = Mixup.name
    if not isinstance(method, (str, Method)):
        return chosen_method(method, alpha, num_classes, per_sample, seed)
    if isinstance(method, Method):
        _refuse_beside(
            method,
            {"alpha": alpha, "num_classes": num_classes, "seed": seed, "per_sample": None if per_sample else False}
            | dict(options)
            | ({"loss": loss} if is_own_loss(type(method)) else {}),
        )
        return method
    own = dict(options) if per_sample else {**options, "per_sample": False}
    checked, kind = checked_options(method, own), load_method(method)
    chosen = require_alpha(usual_alpha(method) if alpha is None else alpha)
    if not is_own_loss(kind):
        return NamedMethod(method, chosen, num_classes, seed, checked, None)
    if loss is None:
        raise ValueError(
            f"method {method} is a loss of the network and takes the place of the training step: say what it puts on "
            'outputs with loss=, such as loss="cross_entropy"'
        )
    require_known(loss)
    return NamedMethod(method, chosen, num_classes, seed, checked, loss)
