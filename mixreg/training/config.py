"""What a training run is: one flat record, and the paper's settings as presets.

Two runs with the same record on the same machine end with the same weights. How a run is carried out (devices,
progress, how often it is saved) is not part of it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from mixreg.theta import scalar_forms

METHODS = (
    "erm",
    "mixup",
    "approximate",
    "modified",
    "smoothing",
    "inputs",
    "outputs",
    "independent",
    "scaled",
    "gaussian",
    "manifold",
    "cutmix",
    "adaptive",
    "regmixup",
    "mixupe",
)
AUGMENTATIONS = ("standard", "none")


@dataclass(frozen=True)
class Config:
    """A training run.

    Attributes:
        data: a dataset's name, an .npz file, or a folder of class folders.
        model: a network's name, or package.module:factory, called with `num_classes=`.
        method: one of `METHODS`.
        alpha: of Mixup; its θ̄ sets modified and smoothing too.
        weight: of the second part of the loss of regmixup, mixupe (their η) and adaptive (of the intrusion loss).
        layers: that manifold chooses from, "input" among them; by default the input and the first two blocks.
        label_smoothing: ε of smoothing towards the uniform label, before any mixing; with every method.
        dropout: probability of dropping features of the last layer; with every method.
        parseval: β of a retraction of all weight matrices but the last after each step; with every method.
        epochs, batch_size, lr, momentum, nesterov, weight_decay: of SGD; the batch is that of all processes together.
        drops: the learning rate is divided by 10 after these fractions of the epochs.
        augment: "standard" (random crops with 4 pixels of padding and flips; for folders random resized crops and
            flips) or "none". Features that are not images are never augmented.
        label_noise: fraction of training labels replaced by another class.
        samples: how many of the training samples to use; 0 for all that are not held out.
        holdout: fraction of the training set kept out, to fit temperatures on.
        image_size: side of the images read from folders.
        seed: of initial weights, split, order, augmentation, noise and mixing.
    """

    data: str = "digits"
    model: str = "mlp"
    method: str = "mixup"
    alpha: float = 1.0
    weight: float = 1.0
    layers: tuple[str, ...] = ()
    label_smoothing: float = 0.0
    dropout: float = 0.0
    parseval: float = 0.0
    epochs: int = 30
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    drops: tuple[float, ...] = (0.5, 0.75)
    augment: str = "standard"
    label_noise: float = 0.0
    samples: int = 0
    holdout: float = 0.1
    image_size: int = 224
    seed: int = 0

    def __post_init__(self) -> None:
        scalar_forms(self.alpha, "a training run")
        for name in ("drops", "layers"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, known in (("method", METHODS), ("augment", AUGMENTATIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}; known are {', '.join(known)}")
        for name in ("epochs", "batch_size", "image_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "momentum", "weight_decay", "weight"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} must be a number of at least 0, got {value}")
        for name in ("label_noise", "holdout", "label_smoothing", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        if not 0 <= self.parseval <= 0.5:
            raise ValueError(f"parseval must lie in [0, 0.5], got {self.parseval}")
        if self.samples < 0:
            raise ValueError(f"samples must be at least 0, got {self.samples}")
        if self.method == "scaled" and not (self.alpha == 0 or self.alpha > 1):
            raise ValueError(f"method scaled needs alpha above 1, where its noise has a variance, got {self.alpha}")
        if self.layers and self.method != "manifold":
            raise ValueError(f"layers are for method manifold, got them with {self.method}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        if any(not 0 < drop < 1 for drop in self.drops):
            raise ValueError(f"drops must be fractions of the epochs between 0 and 1, got {self.drops}")

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        # Rounded as the paper's epochs are: 0.33 of 200 is 66.
        return self.lr * 0.1 ** sum(epoch >= max(1, round(drop * self.epochs)) for drop in self.drops)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; α = ∞ is the string "inf"."""
        plain = asdict(self) | {"drops": list(self.drops), "layers": list(self.layers)}
        return plain | {"alpha": "inf"} if math.isinf(self.alpha) else plain

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Config:
        """The record that `to_json` wrote, now or before some of the fields were known."""
        known = {field.name for field in fields(cls)}
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


# Appendix "Experiments" of the paper. The schedules are fractions, so that a shorter run keeps its shape.
PRESETS: dict[str, dict[str, Any]] = {
    "cifar-resnet34": {
        "data": "cifar10",
        "model": "resnet34",
        "epochs": 200,
        "lr": 0.1,
        "drops": (60 / 200, 120 / 200, 160 / 200),
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
    # 1,002 steps, three each epoch. The paper's logistic regression on one output with step 5 is the
    # same as cross-entropy on two outputs with half the step: their difference moves twice.
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
    """The paper's settings by name, with `changes`."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; known are {', '.join(PRESETS)}")
    return replace(Config(**PRESETS[name]), **changes)
