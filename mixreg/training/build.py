"""A run's network, method and optimiser, from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from mixreg._support.random import stream_seed
from mixreg._support.references import load_reference
from mixreg.losses import AnyLoss, WeightedCrossEntropy
from mixreg.methods.building import build_named
from mixreg.methods.method import Method, Setting
from mixreg.models import MODELS, build
from mixreg.regularisers.dropout import with_dropout
from mixreg.regularisers.label_smoothing import smooth_uniformly
from mixreg.regularisers.parseval import Parseval
from mixreg.theory.moments import DataMoments
from mixreg.training.config import BALANCED, UNWEIGHTED, Config
from mixreg.training.optimizers import SGD, AdamW
from mixreg.training.targets import Targets


def build_network(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The network of a run with its initial weights; a user's own factory is called with `num_classes=`."""
    seed = stream_seed(config.seed, "weights")
    if config.model in MODELS or ":" not in config.model:
        net = build(config.model, shape, num_classes, seed)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = load_reference(config.model)(num_classes=num_classes)
        if not isinstance(net, nn.Module):
            raise TypeError(f"{config.model} must return an nn.Module, got {type(net).__name__}")
    return with_dropout(net, config.dropout) if config.dropout else net


def build_loss(config: Config, targets: Targets, labels: Tensor) -> AnyLoss:
    """The loss of a run: that of its task, with a weight for each class if the run asks for it; labels: n."""
    if config.class_weights == UNWEIGHTED:
        return targets.loss
    if config.class_weights == BALANCED:
        counts = torch.bincount(labels, minlength=targets.width)
        # A class that never occurs has nothing to weigh.
        weights = len(labels) / (targets.width * counts.clamp(min=1).double())
        weights[counts == 0] = 0
    else:
        weights = torch.tensor([float(word) for word in config.class_weights.split(",")], dtype=torch.float64)
        if len(weights) != targets.width:
            raise ValueError(f"class_weights has {len(weights)} numbers for {targets.width} classes")
    return WeightedCrossEntropy(weights)


def build_method(
    config: Config,
    net: nn.Module,
    num_classes: int,
    moments: Callable[[], DataMoments],
    loss: AnyLoss = "cross_entropy",
) -> Method:
    """The method of a run.

    Args:
        config: of the run.
        net: the network, which a method may look at.
        num_classes: c.
        moments: of the training set, if they are needed; its labels before they are smoothed.
        loss: that compares targets with outputs.
    """

    def seen_moments() -> DataMoments:
        found = moments()
        y_mean = smoothed_mean(found.y_mean, config)
        return DataMoments.from_means(found.x_mean.float(), y_mean.float(), num_classes, found.count)

    setting = Setting(config.alpha, num_classes, net, seen_moments, config.options)
    method = build_named(config.method, setting, config.seed)
    method.loss = loss
    return method


def build_parseval(config: Config, net: nn.Module) -> Parseval | None:
    """What keeps the weights of a run's network near orthonormal, if the run asks for it."""
    return Parseval(net, config.parseval) if config.parseval else None


def build_optimizer(config: Config, net: nn.Module) -> torch.optim.Optimizer:
    """SGD or AdamW."""
    if config.optimizer == "adamw":
        return AdamW(net.parameters(), lr=config.lr, weight_decay=config.weight_decay, foreach=True)
    return SGD(
        net.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
    )


def smoothed_mean(y_mean: Tensor, config: Config) -> Tensor:
    """The mean label of a run as its method sees it: smoothed towards the uniform one."""
    if not config.label_smoothing:
        return y_mean
    return smooth_uniformly(y_mean.unsqueeze(0), len(y_mean), config.label_smoothing).squeeze(0)


# Means that a run's file keeps for partners that are drawn balanced over classes.
_BALANCED_MEANS = ("balanced_x_mean", "balanced_y_mean")


def balanced_means(seen: DataMoments, config: Config) -> dict[str, Tensor]:
    """The means of balanced partners as a run keeps them, of labels as its method sees them."""
    x_mean, y_mean = seen.balanced_means()
    return dict(zip(_BALANCED_MEANS, (x_mean.float(), smoothed_mean(y_mean, config).float()), strict=True))


def kept_moments(means: Mapping[str, Tensor], num_classes: int) -> DataMoments:
    """Moments from the means that a run kept: x̄, ȳ and those of balanced partners, if it has any."""
    balanced = tuple(means[name] for name in _BALANCED_MEANS if name in means)
    return DataMoments.from_means(
        means["x_mean"], means["y_mean"], num_classes, balanced=balanced if len(balanced) == 2 else None
    )
