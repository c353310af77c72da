"""What each method makes of a batch, and the loss it puts on it.

A method turns the whole batch into tensors of one row per sample (`prepare`, with all its randomness), and rows of
those into losses (`losses`): a process trains on its own rows of what was prepared alike everywhere. Where a network
must see both partners (Manifold and adaptive Mixup), rows carry a random number by which a process pairs its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mixreg.ablations import PartialMixup, ScaledMixup
from mixreg.adaptive import AdaptiveMixup, WithPolicy
from mixreg.approximate import ApproximateMixup, Perturbed
from mixreg.cutmix import CutMix
from mixreg.dropout import with_dropout
from mixreg.gaussian import GaussianMixup
from mixreg.losses import cross_entropy
from mixreg.manifold import INPUT, find_layer, first_layers, mixed_outputs
from mixreg.mixing import Pairing, mix
from mixreg.mixupe import MixupE
from mixreg.moments import DataMoments
from mixreg.network import Network
from mixreg.numerics import Draw, smaller_part_draw
from mixreg.parseval import Parseval
from mixreg.regmixup import RegMixup
from mixreg.rescaling import shrink
from mixreg.smoothing import smooth_labels, smooth_uniformly
from mixreg.streams import stream_seed
from mixreg.targets import to_values
from mixreg.theta import scalar_forms
from mixreg.training.config import Config

Rows = tuple[Tensor, ...]
Means = Callable[[], tuple[Tensor, Tensor]]


class Method(NamedTuple):
    """`prepare(x, y, generator)` gives rows; `losses(net, rows)` one loss per row and the logits, if at hand."""

    prepare: Callable[[Tensor, Tensor, torch.Generator], Rows]
    losses: Callable[[Network, Rows], tuple[Tensor, Tensor | None]]


def equipped(net: nn.Module, config: Config, num_classes: int) -> nn.Module:
    """The network with what a run adds to it: dropout, and the policy of adaptive Mixup with initial weights."""
    if config.dropout:
        with_dropout(net, config.dropout)
    if config.method == "adaptive":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(config.seed, "policy"))
            return WithPolicy(net, AdaptiveMixup(net, config.weight, num_classes))
    mixed_layers(config, net)
    return net


def keeper(config: Config, net: nn.Module) -> Parseval | None:
    """What keeps the matrices of a run's network near orthonormal, if the run asks for it."""
    return Parseval(net.net if isinstance(net, WithPolicy) else net, config.parseval) if config.parseval else None


def seen_labels(y_mean: Tensor, config: Config) -> Tensor:
    """The mean label of a run as its method sees it: smoothed towards the uniform one."""
    return smooth_uniformly(y_mean.unsqueeze(0), len(y_mean), config.label_smoothing).squeeze(0)


def mixed_layers(config: Config, net: nn.Module) -> list[str]:
    """The layers that Manifold Mixup chooses from."""
    if not config.layers:
        return first_layers(net)
    layers = [INPUT if layer == "input" else layer for layer in config.layers]
    for layer in layers:
        find_layer(net, layer)
    return layers


def make_method(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    """The method of a run.

    Args:
        config: of the run.
        classes: c.
        means: gives x̄ and ȳ of the training set as the network sees it, if they are needed.
        net: the network that is trained, without any wrapper.
    """

    def seen_means() -> tuple[Tensor, Tensor]:
        x_mean, y_mean = means()
        return x_mean.float(), seen_labels(y_mean, config).float()

    method = _MAKERS[config.method](config, classes, seen_means, net)

    def prepare(x: Tensor, y: Tensor, generator: torch.Generator) -> Rows:
        values = to_values(y, classes, x.dtype)
        if config.label_smoothing:
            values = smooth_uniformly(values, classes, config.label_smoothing)
        return method.prepare(x, values, generator)

    return Method(prepare, method.losses)


def _plain_losses(net: Network, rows: Rows) -> tuple[Tensor, Tensor]:
    x, y = rows
    logits = net(x)
    return cross_entropy(y, logits), logits.detach()


def _augmentation(augment: Any) -> Method:
    """Of something that changes (x, y) and draws from its `generator`."""

    def prepare(x: Tensor, y: Tensor, generator: torch.Generator) -> Rows:
        augment.generator = generator
        return augment(x, y)

    return Method(prepare, _plain_losses)


def _erm(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    return Method(lambda x, y, _: (x, y), _plain_losses)


def _mixing_of(parts: str) -> Callable[[Config, int, Means, nn.Module], Method]:
    return lambda config, classes, means, net: _augmentation(PartialMixup(parts, config.alpha))


def _moments(means: Means, classes: int) -> DataMoments:
    return DataMoments.from_means(*means(), classes)


def _approximate(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    criterion = ApproximateMixup(config.alpha, _moments(means, classes))

    def perturb(x: Tensor, y: Tensor, generator: torch.Generator) -> Rows:
        criterion.generator = generator
        return criterion.perturb(x, y)

    return Method(perturb, lambda net, rows: (criterion.values(net, Perturbed(*rows)), None))


def _modified(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    keep, (x_mean, y_mean) = scalar_forms(config.alpha, "a training run").mean, means()

    def modify(x: Tensor, y: Tensor, _: torch.Generator) -> Rows:
        return shrink(x, x_mean.to(x.device), keep), shrink(y, y_mean.to(x.device), keep)

    return Method(modify, _plain_losses)


def _smoothing(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    _, y_mean = means()
    return Method(lambda x, y, _: (x, smooth_labels(y, y_mean.to(x.device), alpha=config.alpha)), _plain_losses)


def _scaled(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    return _augmentation(ScaledMixup(config.alpha, means()[0]))


def _gaussian(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    return _augmentation(GaussianMixup(config.alpha, _moments(means, classes)))


def _cutmix(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    return _augmentation(CutMix(config.alpha))


def _manifold(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    layers = mixed_layers(config, net)

    def prepare(x: Tensor, y: Tensor, generator: torch.Generator) -> Rows:
        n = len(x)
        layer = torch.randint(len(layers), (), generator=generator).expand(n)
        share = smaller_part_draw(config.alpha, Draw((n,), generator, torch.device("cpu"), x.dtype))
        return x, y, layer, torch.rand(n, generator=generator), share

    def losses(wrapped: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        x, y, layer, key, share = rows
        pairing = Pairing(key.argsort(), share)
        logits = mixed_outputs(wrapped, layers[int(layer[0])], x, pairing)
        return cross_entropy(mix(y, pairing), logits), logits.detach()

    return Method(prepare, losses)


def _adaptive(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    assert isinstance(net, WithPolicy)
    criterion = net.policy

    def prepare(x: Tensor, y: Tensor, generator: torch.Generator) -> Rows:
        return x, y, *torch.rand(2, len(x), generator=generator).to(x.dtype)

    def losses(wrapped: Network, rows: Rows) -> tuple[Tensor, None]:
        x, y, key, place = rows
        return criterion.values(wrapped, x, y, key.argsort(), place), None

    return Method(prepare, losses)


def _loss_of_both(criterion: RegMixup | MixupE) -> Method:
    """Of a loss on data and on what Mixup makes of it."""

    def prepare(x: Tensor, y: Tensor, generator: torch.Generator) -> Rows:
        criterion.generator = generator
        return criterion.mixed(x, y)

    return Method(prepare, lambda net, rows: (criterion.values(net, *rows), None))


def _regmixup(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    return _loss_of_both(RegMixup(config.alpha, config.weight))


def _mixupe(config: Config, classes: int, means: Means, net: nn.Module) -> Method:
    return _loss_of_both(MixupE(config.alpha, means()[0], config.weight))


_MAKERS: dict[str, Callable[[Config, int, Means, nn.Module], Method]] = {
    "erm": _erm,
    "mixup": _mixing_of("both"),
    "approximate": _approximate,
    "modified": _modified,
    "smoothing": _smoothing,
    "inputs": _mixing_of("inputs"),
    "outputs": _mixing_of("outputs"),
    "independent": _mixing_of("independent"),
    "scaled": _scaled,
    "gaussian": _gaussian,
    "manifold": _manifold,
    "cutmix": _cutmix,
    "adaptive": _adaptive,
    "regmixup": _regmixup,
    "mixupe": _mixupe,
}
