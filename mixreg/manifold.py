"""Manifold Mixup (Verma et al., 2018): mixing hidden representations, and the prediction rule that follows.

Write the network as f = g ∘ h, h up to a layer. Manifold Mixup mixes h(x_i) and labels,

    g(θ h_i + (1 − θ) h_j)  against  θ y_i + (1 − θ) y_j,

which is Mixup of the data (h_i, y_i) for g. Theorem 1 holds for them as for any data: with the mean h̄ of the hidden
representations, g has learnt a map from h̄ + θ̄ (h − h̄) to ȳ + θ̄ (y − ȳ), and is to be used as one:

    pred(x) = ȳ + (g(h̄ + θ̄ (h(x) − h̄)) − ȳ) / θ̄.

With the input as the layer this is eq. (testmodif). The original picks a layer at random for each batch; then every g
has been trained in part on shrunk and in part on unshrunk representations, and `RescaledManifold` averages the
predictions of the layers it is given.

A layer is a submodule; what is mixed is its output. The name "" stands for the network's input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mixreg.mixing import Pairing, draw_pairing, mix
from mixreg.moments import DataMoments
from mixreg.network import Network, evaluating
from mixreg.rescaling import shrink, stretch
from mixreg.targets import to_values, validate_num_classes
from mixreg.theta import Theta, scalar_forms

INPUT = ""


@contextmanager
def changing(net: nn.Module, layer: str, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, what `layer` puts out (or, for "", what the network takes in) is replaced by `change` of it."""

    def hidden(value: Any) -> Tensor:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"layer {layer!r} must give one floating-point tensor to be mixed, got {kind}")
        return change(value)

    if layer == INPUT:
        handle = net.register_forward_pre_hook(lambda _, given: (hidden(given[0]), *given[1:]))
    else:
        handle = find_layer(net, layer).register_forward_hook(lambda _, given, result: hidden(result))
    try:
        yield
    finally:
        handle.remove()


def find_layer(net: nn.Module, layer: str) -> nn.Module:
    """A submodule by its name, as `net.named_modules()` has it."""
    modules = dict(net.named_modules())
    if layer not in modules:
        raise ValueError(f"the network has no layer {layer!r}; it has {', '.join(name for name in modules if name)}")
    return modules[layer]


class ManifoldMixup:
    """Mixes at a random layer: `logits, targets = ManifoldMixup(["", "layer1"], alpha=2.0, num_classes=10)(net, x, y)`.

    Args:
        layers: names of the layers to choose from, each time one; "" is the input.
        alpha: in [0, ∞].
        num_classes: needed when targets are integer labels, which become soft labels.
        generator: the source of chance; by default PyTorch's global one.
    """

    def __init__(
        self,
        layers: Sequence[str],
        alpha: float = 2.0,
        num_classes: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if not layers:
            raise ValueError("give at least one layer to mix at; '' is the input")
        self.layers, self.theta = list(layers), Theta(scalar_forms(alpha, "ManifoldMixup").alpha)
        self.num_classes, self.generator = validate_num_classes(num_classes), generator

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """What the network makes of x with one layer mixed, and the targets it is to be compared with.

        x: n × …, y: n integer labels or n × … targets.
        """
        values = to_values(y, self.num_classes, x.dtype if x.is_floating_point() else None)
        device = self.generator.device if self.generator is not None else torch.device("cpu")
        chosen = int(torch.randint(len(self.layers), (), generator=self.generator, device=device))
        pairing = draw_pairing(len(values), self.theta, generator=self.generator, dtype=values.dtype)
        return mixed_outputs(net, net, self.layers[chosen], x, pairing), mix(values, pairing)


def mixed_outputs(net: Network, module: nn.Module, layer: str, x: Tensor, pairing: Pairing) -> Tensor:
    """What the network makes of x when `layer` is mixed.

    Args:
        net: what to call: the module, or a wrapper around it.
        module: where the layer is.
        layer: its name; "" is the input.
        x: n × ….
        pairing: of n samples.
    """
    # A layer that the network uses twice is mixed the first time.
    is_mixed = False

    def mix_once(hidden: Tensor) -> Tensor:
        nonlocal is_mixed
        if is_mixed:
            return hidden
        if len(hidden) != len(pairing.partner):
            raise ValueError(f"layer {layer!r} gives {len(hidden)} rows for {len(pairing.partner)} samples")
        is_mixed = True
        return mix(hidden, pairing)

    with changing(module, layer, mix_once):
        outputs = net(x)
    if not is_mixed:
        raise ValueError(f"layer {layer!r} took no part in the network's computation")
    return outputs


def first_layers(net: nn.Module, count: int = 2) -> list[str]:
    """The input and the first `count` blocks of a network, but never the last one: where to mix if nobody says."""
    blocks = [name for name, child in net.named_children() if any(True for _ in child.parameters())]
    return [INPUT, *blocks[:-1][:count]]


@torch.no_grad()
def hidden_means(
    net: nn.Module, layers: Sequence[str], loader: Iterable[Any], across_processes: bool = False
) -> dict[str, Tensor]:
    """h̄ of each layer over batches (x, y) of training data, in evaluation mode.

    Args:
        net: the network.
        layers: their names; "" is the input.
        loader: of (x, y).
        across_processes: whether every process calls this with its own share of the data.
    """
    found = {layer: DataMoments() for layer in layers}

    def taking(layer: str) -> Callable[[Tensor], Tensor]:
        def take(hidden: Tensor) -> Tensor:
            found[layer].update(hidden, hidden.new_zeros(len(hidden), 1))
            return hidden

        return take

    with evaluating(net), ExitStack() as stack:
        for layer in found:
            stack.enter_context(changing(net, layer, taking(layer)))
        for x, _ in loader:
            net(x)
    if across_processes:
        for moments in found.values():
            moments.all_reduce()
    return {layer: moments.x_mean for layer, moments in found.items()}


class RescaledManifold(nn.Module):
    """A Manifold-Mixup-trained network with the prediction rule that belongs to it.

    Args:
        net: returns one tensor.
        alpha: the α that it was trained with.
        means: h̄ by layer, from `hidden_means`; with several layers their predictions are averaged.
        y_mean: ȳ, of one output's shape.
    """

    y_mean: Tensor

    def __init__(self, net: nn.Module, alpha: float, means: dict[str, Tensor], y_mean: Tensor) -> None:
        super().__init__()
        if not means:
            raise ValueError("give the hidden mean of at least one layer")
        self.net, self.layers = net, list(means)
        self.theta_mean = scalar_forms(alpha, "RescaledManifold").mean
        like = next((p for p in net.parameters() if p.is_floating_point()), y_mean)
        for index, mean in enumerate(means.values()):
            self.register_buffer(f"mean_{index}", mean.detach().to(like.device, like.dtype))
        self.register_buffer("y_mean", y_mean.detach().to(like.device, like.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """pred(x) of the module's head, averaged over layers."""
        predictions = []
        for index, layer in enumerate(self.layers):
            mean = getattr(self, f"mean_{index}")
            with changing(self.net, layer, lambda hidden, mean=mean: shrink(hidden, mean, self.theta_mean)):  # type: ignore[misc]
                predictions.append(stretch(self.net(x), self.y_mean, self.theta_mean))
        return torch.stack(predictions).mean(0)
