"""The prediction rule on hidden representations, for Manifold Mixup (Verma et al., 2018).

Write the network as f = g ∘ h, h up to a layer. Manifold Mixup is Mixup of the data (h_i, y_i) for g, so that Theorem 1
holds for them as for any data: with the mean h̄ of the hidden representations, g has learnt a map from
h̄ + θ̄ (h − h̄) to ȳ + θ̄ (y − ȳ), and is to be used as one:

    pred(x) = ȳ + (g(h̄ + θ̄ (h(x) − h̄)) − ȳ) / θ̄.

With the input as the layer this is eq. (testmodif). Where a layer was picked at random for each batch, every g has been
trained in part on shrunk and in part on unshrunk representations; predictions of the layers are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._autodiff.layers import changing_input, first_layers
from mixreg._autodiff.network import evaluating, uncompiled, uncompiled_calls, unwrapped
from mixreg.prediction.rescaled import Rescaled
from mixreg.prediction.rule import Rule, require_output
from mixreg.theory.modified import shrink
from mixreg.theory.moments import DataMoments


@torch.no_grad()
def hidden_means(
    net: nn.Module, layers: Sequence[str], loader: Iterable[Any], across_processes: bool = False
) -> dict[str, Tensor]:
    """h̄ of what goes into each layer, over batches of training data, in evaluation mode.

    Args:
        net: the network.
        layers: their names; "" is the network itself.
        loader: of (x, y) or (x, y, weights), n weights of samples.
        across_processes: whether every process calls this with its own share of the data.
    """
    found = {layer: DataMoments() for layer in layers}
    net = unwrapped(net)
    weights: Tensor | None = None

    def taking(layer: str) -> Callable[[Tensor], Tensor]:
        def take(hidden: Tensor) -> Tensor:
            found[layer].update(hidden, hidden.new_zeros(len(hidden), 1), weights)
            return hidden

        return take

    with evaluating(net), ExitStack() as stack:
        for layer in found:
            stack.enter_context(changing_input(net, layer, taking(layer)))
        for x, _, *given in loader:
            (weights,) = given or [None]
            net(x)
    if across_processes:
        for moments in found.values():
            moments.all_reduce()
    return {layer: moments.x_mean for layer, moments in found.items()}


class RescaledManifold(Rescaled):
    """A Manifold-Mixup-trained network with the prediction rule that belongs to it.

    Args:
        net: returns one tensor.
        alpha: the α that it was trained with; setting `model.alpha` changes the rule.
        means: h̄ by layer, from `hidden_means`; with several layers their predictions are averaged.
        y_mean: ȳ, of one output's shape.
        probability: that a sample was mixed in training; below 1, α cannot be set later.
    """

    def __init__(
        self, net: nn.Module, alpha: float, means: dict[str, Tensor], y_mean: Tensor, probability: float = 1.0
    ) -> None:
        if not means:
            raise ValueError("give the hidden mean of at least one layer")
        if probability == 1:
            super().__init__(uncompiled(net), alpha, means, y_mean)
        else:
            super().__init__(uncompiled(net), rule=Rule.of_mixup(alpha, means, y_mean).applied(probability))
        self.layers = list(means)

    @classmethod
    def from_loader(
        cls,
        net: nn.Module,
        loader: Iterable[Any],
        alpha: float,
        num_classes: int | None = None,
        layers: Sequence[str] | None = None,
    ) -> RescaledManifold:
        """Wrap `net` with means of its training loader, gone through twice; by default at Manifold Mixup's layers."""
        means = hidden_means(net, layers or first_layers(unwrapped(net)), loader)
        return cls(net, alpha, means, DataMoments.from_loader(loader, num_classes).y_mean)

    def forward(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """pred(x) of the module's head, averaged over layers."""
        # Compilers do not see that hooks come and go between the layers' passes. (As a decorator this would import the
        # compiler with the package.)
        run = torch.compiler.disable(super().forward) if torch.compiler.is_compiling() else super().forward
        return run(x, *args, **kwargs)

    def outputs_on_shrunk(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """f with the input of one layer shrunk, averaged over layers."""
        means, outputs, share = self._means(), [], self.x_share
        for layer in self.layers:
            shrinking = partial(shrink, mean=means[f"x[{layer!r}]"], share=share)
            with uncompiled_calls(self.net), changing_input(self.net, layer, shrinking):
                outputs.append(require_output(self.net(x, *args, **kwargs)))
        return torch.stack(outputs).mean(0)
