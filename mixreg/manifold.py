"""Manifold Mixup (Verma et al., 2018): mixing hidden representations, and the prediction rule that follows.

Write the network as f = g ∘ h, h up to a layer. Manifold Mixup mixes h(x_i) and labels,

    g(θ h_i + (1 − θ) h_j)  against  θ y_i + (1 − θ) y_j,

which is Mixup of the data (h_i, y_i) for g. Theorem 1 holds for them as for any data: with the mean h̄ of the hidden
representations, g has learnt a map from h̄ + θ̄ (h − h̄) to ȳ + θ̄ (y − ȳ), and is to be used as one:

    pred(x) = ȳ + (g(h̄ + θ̄ (h(x) − h̄)) − ȳ) / θ̄.

With the input as the layer this is eq. (testmodif). The original picks a layer at random for each batch; then every g
has been trained in part on shrunk and in part on unshrunk representations, and `RescaledManifold` averages the
predictions of the layers it is given.

A layer is a submodule; what is mixed is what goes into it, the first time in a forward pass that it is used. The name
"" is the network itself, so that its input is mixed. (Mixing what comes out of a first layer that is linear would be
the same as mixing its input.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mixreg.mixing import Pairing, draw_pairing, mix
from mixreg.moments import DataMoments
from mixreg.network import bare, evaluating, uncompiled
from mixreg.normalisation import NORMALISATIONS
from mixreg.rescaling import shrink, stretch
from mixreg.targets import to_values, validate_num_classes
from mixreg.theta import Theta, scalar_forms

INPUT = ""


@contextmanager
def changing(net: nn.Module, layer: str, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, what goes into `layer` first in each forward pass of `net` is replaced by `change` of it."""
    is_first = True

    def begin(*_: Any) -> None:
        nonlocal is_first
        is_first = True

    def replace(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal is_first
        if not is_first:
            return None
        is_first = False
        if not given or not isinstance(given[0], Tensor) or not given[0].is_floating_point():
            value = given[0] if given else None
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"layer {layer!r} must take one floating-point tensor to be mixed, got {kind}")
        return (change(given[0]), *given[1:])

    handles = [net.register_forward_pre_hook(begin), find_layer(net, layer).register_forward_pre_hook(replace)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def find_layer(net: nn.Module, layer: str) -> nn.Module:
    """A submodule by its name, as `net.named_modules()` has it; "" is the network itself."""
    modules = dict(net.named_modules())
    if layer not in modules:
        raise ValueError(f"the network has no layer {layer!r}; it has {', '.join(name for name in modules if name)}")
    return modules[layer]


class ManifoldMixup:
    """Mixes at a random layer: `logits, targets = ManifoldMixup(["", "layer1"], alpha=2.0, num_classes=10)(net, x, y)`.

    Args:
        layers: names of the layers to choose from, each time one, whose input is mixed; "" is the network.
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
        return mixed_outputs(net, self.layers[chosen], x, pairing), mix(values, pairing)


def mixed_outputs(net: nn.Module, layer: str, x: Tensor, pairing: Pairing) -> Tensor:
    """What the network makes of x when what goes into `layer` is mixed.

    Args:
        net: the network, also in a distributed wrapper. A compiled one runs uncompiled: it does not see hooks.
        layer: the layer's name; "" is the network itself.
        x: n × ….
        pairing: of n samples.
    """
    is_mixed = False

    def mixed(hidden: Tensor) -> Tensor:
        nonlocal is_mixed
        is_mixed = True
        if len(hidden) != len(pairing.partner):
            raise ValueError(f"layer {layer!r} takes {len(hidden)} rows for {len(pairing.partner)} samples")
        return mix(hidden, pairing)

    with changing(bare(net), layer, mixed):
        outputs = uncompiled(net)(x)
    if not is_mixed:
        raise ValueError(f"layer {layer!r} took no part in the network's computation")
    return outputs


def first_layers(net: nn.Module, count: int = 2) -> list[str]:
    """Where to mix if nobody says: the input, and what goes into the `count` blocks after the first."""
    blocks = [
        name
        for name, child in net.named_children()
        if any(True for _ in child.parameters()) and not isinstance(child, NORMALISATIONS)
    ]
    return [INPUT, *blocks[1:][:count]]


@torch.no_grad()
def hidden_means(
    net: nn.Module, layers: Sequence[str], loader: Iterable[Any], across_processes: bool = False
) -> dict[str, Tensor]:
    """h̄ of what goes into each layer, over batches (x, y) of training data, in evaluation mode.

    Args:
        net: the network.
        layers: their names; "" is the network itself.
        loader: of (x, y).
        across_processes: whether every process calls this with its own share of the data.
    """
    found = {layer: DataMoments() for layer in layers}
    net = bare(net)

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
        self.net, self.layers = uncompiled(net), list(means)
        self._set_alpha(alpha)
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

    def _set_alpha(self, alpha: float) -> None:
        self.alpha, self.theta_mean = scalar_forms(alpha, "RescaledManifold")[:2]

    def get_extra_state(self) -> Tensor:
        """α, as a tensor so that formats which hold only tensors can save it."""
        return torch.tensor(self.alpha, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take α from a `state_dict`."""
        self._set_alpha(state.item())
