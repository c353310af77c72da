"""What a training run is: one flat record, from which the options of `mixreg train`, their help and defaults are made.

Two runs with the same record on the same machine end with the same weights. How a run is carried out (devices,
progress, how often it is saved) is not part of it. Nothing here needs PyTorch: the command line
must answer before it is loaded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from mixreg._support.near_misses import unknown
from mixreg._support.numbers import require_alpha
from mixreg._support.tasks import LOSS_OF
from mixreg.methods import described, require_known
from mixreg.methods.description import require_options
from mixreg.training.schedule import SCHEDULES, learning_rate

Check = Callable[[str, Any], None]
AUGMENTATIONS = ("standard", "none")
OPTIMIZERS = ("sgd", "adamw")
UNWEIGHTED, BALANCED = "none", "balanced"


def _at_least(least: float) -> Check:
    def check(name: str, value: Any) -> None:
        if not (math.isfinite(value) and value >= least):
            raise ValueError(f"{name} must be a number of at least {least:g}, got {value}")

    return check


def _between(low: float, high: float, includes_high: bool) -> Check:
    def check(name: str, value: Any) -> None:
        if not (low <= value < high or (includes_high and value == high)):
            raise ValueError(f"{name} must lie in [{low:g}, {high:g}{']' if includes_high else ')'}, got {value}")

    return check


def _one_of(known: tuple[str, ...]) -> Check:
    def check(name: str, value: Any) -> None:
        if value not in known:
            raise ValueError(unknown(name, value, known))

    return check


def _is_alpha(name: str, value: Any) -> None:
    require_alpha(value)


def _is_method(name: str, value: Any) -> None:
    require_known(value)


def _is_task(name: str, value: Any) -> None:
    if value and value not in LOSS_OF:
        raise ValueError(unknown(name, value, LOSS_OF))


def _fractions(name: str, values: Any) -> None:
    if any(not 0 < value < 1 for value in values):
        raise ValueError(f"{name} must be fractions of the epochs between 0 and 1, got {values}")


def _class_weights(name: str, value: Any) -> None:
    if value in (UNWEIGHTED, BALANCED):
        return
    try:
        weights = [float(word) for word in value.split(",")]
    except (AttributeError, ValueError):
        weights = []
    if not weights or not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        expected = "none, balanced or numbers of at least 0 with commas (of the command, also a file that is there)"
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def _setting(default: Any, about: str, check: Check = lambda name, value: None) -> Any:
    return field(default=default, metadata={"about": about, "check": check})


def _choice(default: str, about: str, known: tuple[str, ...]) -> Any:
    """A setting that is one of a few words."""
    return field(default=default, metadata={"about": about, "check": _one_of(known), "choices": known})


@dataclass(frozen=True)
class Config:
    """A training run; the metadata of each field say what it is and what it may be."""

    data: str = _setting(
        "digits",
        "A dataset's name (see `mixreg data list`), an .npz, .csv or .parquet file, or a folder of class folders.",
    )
    target: str = _setting("", "Of a table: the column to predict, or several with commas.")
    task: str = _setting("", "What targets are: classes, labels (several at once) or numbers.", _is_task)
    model: str = _setting("mlp", "A network's name, or package.module:factory, called with num_classes=.")
    method: str = _setting("mixup", "How to train: one of the methods above, or package.module:Class.", _is_method)
    alpha: float = _setting(1.0, "α of Mixup, from 0 (no mixing) to inf.", _is_alpha)
    options: Mapping[str, Any] = field(default_factory=dict)
    label_smoothing: float = _setting(
        0.0, "Smoothing towards the uniform label, before any mixing; with any method.", _between(0, 1, False)
    )
    dropout: float = _setting(
        0.0, "Probability of dropping features of the last layer, with any method.", _between(0, 1, False)
    )
    parseval: float = _setting(
        0.0,
        "β of Parseval's retraction of all weights but the last after each step; any method.",
        _between(0, 0.5, True),
    )
    class_weights: str = _setting(
        UNWEIGHTED,
        "Weights of classes in the loss: none, balanced (one over a class's frequency), a file with a number for each "
        "class, or these numbers with commas.",
        _class_weights,
    )
    epochs: int = _setting(30, "Passes over the data; schedules keep their shape.", _at_least(1))
    until: int = _setting(
        0, "The method is switched off after so many epochs, and the data shown as it is; 0 for never.", _at_least(0)
    )
    patience: int = _setting(
        0,
        "Stop after so many epochs without a lower loss on what is held out, and keep the best weights; 0 for never.",
        _at_least(0),
    )
    batch_size: int = _setting(128, "Samples per step, of all processes together.", _at_least(1))
    optimizer: str = _choice("sgd", "How steps are taken.", OPTIMIZERS)
    lr: float = _setting(0.1, "Learning rate (of adamw usually 0.001).", _at_least(0))
    momentum: float = _setting(0.9, "Momentum of sgd.", _at_least(0))
    nesterov: bool = _setting(False, "Nesterov's momentum.")
    weight_decay: float = _setting(5e-4, "Weight decay (of adamw usually 0.01 to 0.1).", _at_least(0))
    schedule: str = _choice(
        "step",
        "Of the learning rate: step (see --drops), cosine, or one-cycle (linearly up over a fifth of the run and down "
        "again).",
        SCHEDULES,
    )
    drops: tuple[float, ...] = _setting(
        (0.5, 0.75),
        "With step, the learning rate is divided by 10 after these fractions of the epochs, with commas.",
        _fractions,
    )
    warm_up: float = _setting(0.0, "Epochs during which the learning rate rises linearly from 0.", _at_least(0))
    clip: float = _setting(0.0, "Largest norm of a step's gradient; 0 for no limit.", _at_least(0))
    ema: float = _setting(
        0.0,
        "Decay of an exponential moving average of the weights, which then is the result; 0 for none.",
        _between(0, 1, False),
    )
    precision: str = _setting("32-true", "Lightning Fabric's: 32-true, bf16-mixed, 64-true, …")
    augment: str = _choice(
        "standard",
        "standard (crops with 4 pixels of padding and flips; for folders resized crops and flips) or none.",
        AUGMENTATIONS,
    )
    label_noise: float = _setting(0.0, "Fraction of training labels replaced by another class.", _between(0, 1, False))
    samples: int = _setting(0, "Training samples to use; 0 for all that are not held out.", _at_least(0))
    holdout: float = _setting(
        0.1,
        "Fraction of the training set kept out, to fit the rule's strength and temperature on.",
        _between(0, 1, False),
    )
    image_size: int = _setting(224, "Side of images read from folders.", _at_least(1))
    seed: int = _setting(0, "Of initial weights, split, order, augmentation, noise and mixing.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "drops", tuple(self.drops))
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.type == "int" and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(f"{setting.name} must be an integer, got {value!r}")
            if "check" in setting.metadata:
                setting.metadata["check"](setting.name, value)
        object.__setattr__(self, "options", _own_options(self.method, self.options))
        self._require_consistency()

    def _require_consistency(self) -> None:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        if self.warm_up >= self.epochs:
            raise ValueError(f"warm_up must be shorter than the {self.epochs} epochs, got {self.warm_up:g}")
        if self.patience and self.holdout == 0:
            raise ValueError("patience needs data that is held out: holdout must be above 0")

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))

    def lr_at(self, epoch: int, part: float = 0.5) -> float:
        """The learning rate of an epoch, counted from 0, when `part` of it is done."""
        return learning_rate(self.schedule, self.lr, self.epochs, self.drops, self.warm_up, epoch, part)

    def is_off(self, epoch: int) -> bool:
        """Whether the method is switched off in an epoch, counted from 0."""
        return 0 < self.until <= epoch

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; α = ∞ is the string "inf"."""
        plain = json.loads(json.dumps(asdict(self)))
        return plain | {"alpha": "inf"} if math.isinf(self.alpha) else plain

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Config:
        """The record that `to_json` wrote, now or before some of the fields were known."""
        known = {setting.name for setting in fields(cls)}
        if isinstance(content, dict) and "options" not in content:
            # Options of single methods once were fields of every run.
            own = described()[content["method"]].options if content.get("method") in described() else {}
            options = {name: content[name] for name in ("weight", "layers") if content.get(name) and name in own}
            content = {k: v for k, v in content.items() if k not in ("weight", "layers")} | {"options": options}
        if not isinstance(content, dict) or not {"data", "model", "method", "alpha"} <= set(content) <= known:
            raise ValueError(f"a run's configuration has the fields {', '.join(sorted(known))}")
        return cls(**content | {"alpha": float(content["alpha"])})

    def differences(self, other: Config) -> str:
        """The fields in which two runs differ, for an error message."""
        mine, theirs = self.to_json(), other.to_json()
        return ", ".join(
            f"{key} = {json.dumps(mine[key])} there and {json.dumps(theirs[key])} here"
            for key in mine
            if mine[key] != theirs[key]
        )


def _own_options(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method that are not its defaults; those of one's own class are checked when it is loaded."""
    if method not in described():
        return {name: _frozen(value) for name, value in given.items()}
    known = described()[method].options
    require_options(method, given, known)
    checked = {name: known[name].checked(value) for name, value in given.items()}
    return {name: value for name, value in checked.items() if value != known[name].default}


def _frozen(value: Any) -> Any:
    """Lists as tuples: what JSON gives back is what was given."""
    return tuple(_frozen(part) for part in value) if isinstance(value, (list, tuple)) else value


# Appendix "Experiments" of the paper, but for one. The schedules are fractions, so that a shorter run keeps its shape.
PRESETS: dict[str, dict[str, Any]] = {
    "cifar-resnet34": {
        "data": "cifar10",
        "model": "resnet34",
        "epochs": 200,
        "lr": 0.1,
        "drops": (60 / 200, 120 / 200, 160 / 200),
    },
    # Not the paper's: trained to the end (ERM: above 99.5 % of its training images) within minutes on one core.
    "cifar-resnet9": {
        "data": "cifar10",
        "model": "resnet9",
        "epochs": 12,
        "lr": 0.2,
        "nesterov": True,
        "schedule": "one-cycle",
        "augment": "none",
    },
    "cifar-lenet": {"data": "cifar10", "model": "lenet", "epochs": 200, "lr": 0.01, "drops": (100 / 200,)},
    "imagenet-resnet50": {
        "model": "resnet50",
        "epochs": 200,
        "batch_size": 4096,
        "lr": 1.6,
        "nesterov": True,
        "weight_decay": 5e-5,
        "drops": (66 / 200, 133 / 200, 177 / 200),
    },
    # 1,002 steps, three each epoch. The paper's logistic regression on one output with learning rate 5
    # is the same as cross-entropy on two outputs with half of it: their difference moves twice.
    "two-moons": {
        "data": "two-moons",
        "model": "random-features",
        "epochs": 334,
        "batch_size": 50,
        "lr": 2.5,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "drops": (),
        "label_noise": 0.2,
        "holdout": 0.0,
    },
}


def preset(name: str, **changes: Any) -> Config:
    """Settings by name, with `changes`."""
    if name not in PRESETS:
        raise ValueError(unknown("preset", name, PRESETS))
    return replace(Config(**PRESETS[name]), **changes)
