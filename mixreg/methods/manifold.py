"""Manifold Mixup (Verma et al., 2018): mixing hidden representations.

Write the network as f = g ∘ h, h up to a layer. Manifold Mixup mixes h(x_i) and labels,

    g(θ h_i + (1 − θ) h_j)  against  θ y_i + (1 − θ) y_j,

which is Mixup of the data (h_i, y_i) for g, at a layer that is picked at random for each batch. What that means for
prediction: `mixreg.prediction.hidden`.

A layer is a submodule; what is mixed is what goes into it, the first time in a forward pass that it is used. The name
"" is the network itself, so that its input is mixed. (Mixing what comes out of a first layer that is linear would be
the same as mixing its input.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._autodiff.layers import INPUT, changing_input, find_layer, first_layers
from mixreg._autodiff.network import uncompiled, uncompiled_calls, unwrapped
from mixreg._support.processes import world_size
from mixreg._support.random import integers, stream, uniform
from mixreg._support.structure import require_plain
from mixreg.losses.mixed_targets import MixedTargets
from mixreg.losses.targets import is_class_index, require_equally_many, to_values, validate_num_classes
from mixreg.methods.call_forms import drawn_rows, pair_of
from mixreg.methods.method import Comparing, Method, Rows, Setting
from mixreg.methods.pairing import Pairing, is_chosen, mix, paired
from mixreg.methods.partners import Partners, UniformPartners, draw_partners
from mixreg.methods.recipe import Recipe
from mixreg.prediction.hidden import RescaledManifold, hidden_means
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments
from mixreg.theory.numerics import draw_smaller_part

_HIDDEN = "hidden."
# x, y, layer, key, share
_ROWS = 5


class ManifoldMixup(Recipe, Comparing):
    """Mixes at a random layer: `logits, targets = ManifoldMixup(["", "layer1"], alpha=2.0, num_classes=10)(net, x, y)`.

    Args:
        layers: names with commas, one a batch, "input" for the network's own; by default it and the first two blocks.
        alpha: in [0, ∞].
        num_classes: needed when targets are integer labels, which become soft labels.
        generator: random number generator; by default PyTorch's global one.
        probability: that a sample is mixed, in [0, 1].
        partners: "uniform", "balanced" over classes, or a callable (y, generator) that gives the partner of each.
    """

    name = "manifold"
    about = "Mixup of hidden layers (Verma et al., 2018)"
    options = ("layers", "probability")
    num_classes: int | None

    def __init__(
        self,
        layers: Sequence[str] | None = None,
        alpha: float = 2.0,
        num_classes: int | None = None,
        generator: torch.Generator | None = None,
        probability: float = 1.0,
        partners: Partners = "uniform",
    ) -> None:
        if isinstance(layers, str):
            layers = [layer.strip() for layer in layers.split(",")]
        if layers is not None and not layers:
            raise ValueError("give at least one layer to mix at; '' is the input")
        self.layers = None if layers is None else list(layers)
        self.alpha, self.num_classes, self.generator = alpha, validate_num_classes(num_classes), generator
        self.probability, self.partners = probability, partners

    @classmethod
    def build(cls, setting: Setting) -> Method:
        """By default the input and the first two blocks."""
        method = cls(alpha=setting.alpha, num_classes=setting.num_classes, **setting.options)
        method.choose_layers(setting.net)
        return method

    def choose_layers(self, net: nn.Module) -> list[str]:
        """Where it mixes: what it was told, or the input and the first two blocks of `net`."""
        net = unwrapped(net)
        if self.layers is None:
            self.layers = first_layers(net)
        known = dict(net.named_modules())
        self.layers = [INPUT if layer == "input" and layer not in known else layer for layer in self.layers]
        for layer in self.layers:
            find_layer(net, layer)
        return self.layers

    def __call__(self, net: nn.Module, x: Any, y: Any = None, *, parts: bool = False) -> tuple[Tensor, Any]:
        """What the network makes of x with one layer mixed, and the targets it is to be compared with.

        Args:
            net: the network.
            x: n × …, one pair (x, y), or what `collate_fn` gave.
            y: n integer labels or n × … targets.
            parts: give `MixedTargets` (y, y_partner and the partner's share) in place of mixed targets.
        """
        if not isinstance(net, nn.Module):
            raise TypeError(f"ManifoldMixup mixes at the layers of a torch.nn.Module, got {type(net).__name__}")
        self.choose_layers(net)
        name = type(self).__name__
        rows: Rows = drawn_rows(name, x, y, _ROWS) or self.own_rows(*pair_of(name, x, y), parts)
        logits, mixed = self._mixed(net, rows)
        return logits, mixed if parts else self._soft(mixed)

    def own_rows(self, x: Any, y: Any, parts: bool = False) -> Rows:
        """Rows with labels as they were given, where they can stay: what draws partners is to see them."""
        stays = isinstance(y, Tensor) and is_class_index(y) and not self.label_smoothing
        return self._drawn(x, y, self._current_generator(), parts or stays)

    def _soft(self, mixed: MixedTargets) -> Tensor:
        return mixed.soft(self.num_classes) if is_class_index(mixed.y) else mixed.values()

    @contextmanager
    def mixing(self, net: nn.Module, x: Any, y: Any = None) -> Iterator[Tensor]:
        """Inside, the network mixes at a layer where it is called with x; gives the targets to compare with.

        So somebody's own training step, which calls the network and puts a loss on it, trains with Manifold Mixup.
        In place of x and y it takes what `own_rows` gave for them.
        """
        self.choose_layers(net)
        rows: Rows = drawn_rows(type(self).__name__, x, y, _ROWS) or self.own_rows(x, y)
        pairing = self._pairing(rows)
        with mixing_layer(net, self._layer_of(rows), pairing):
            yield self._soft(paired(rows[1], pairing))

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        """x, y, the layer, a number by which rows are paired, and the partner's share."""
        return self._drawn(x, y, generator, parts=False)

    def _drawn(self, x: Tensor, y: Tensor, generator: torch.Generator | None, parts: bool) -> Rows:
        if self.layers is None:
            raise ValueError("ManifoldMixup has no layers to choose from yet: call choose_layers(net)")
        if not isinstance(x, Tensor):
            raise TypeError(f"ManifoldMixup takes inputs of one tensor, got {type(x).__name__}")
        require_plain(x, "x")
        kind = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        is_kept = parts and y.dtype != torch.bool
        values = y if is_kept else self._smoothed(to_values(y, None if parts else self.num_classes, kind))
        n, device = require_equally_many(len(x), values), x.device
        layer = integers(len(self.layers), (), generator, device).expand(n)
        share = draw_smaller_part(self.alpha, (n,), generator, values.dtype if values.is_floating_point() else kind)
        key = uniform((n,), generator, device=device)
        if self.probability < 1:
            share = share * is_chosen(n, self.probability, generator)
        return x, values, layer, key, share.to(device)

    def _pairing(self, rows: Rows) -> Pairing:
        _, y, _, key, share = rows
        if isinstance(self.partners, UniformPartners):
            return Pairing(key.argsort(), share)
        # Rows carry what their partners are drawn by: a process pairs its own.
        partner = draw_partners(self.partners, y, stream("partners", str(float(key[0]))))
        return Pairing(partner.to(share.device), share)

    def _mixed(self, net: Any, rows: Rows) -> tuple[Tensor, MixedTargets]:
        x, y, *_ = rows
        pairing = self._pairing(rows)
        return mixed_outputs(net, self._layer_of(rows), x, pairing), paired(y, pairing)

    def _layer_of(self, rows: Rows) -> str:
        return (self.layers or [INPUT])[int(rows[2][0])]

    def logits_and_targets(self, net: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        logits, mixed = self._mixed(net, rows)
        return logits, mixed.values()

    def shown(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """With the input as the layer: the mixed batch."""
        x, y, *_ = rows
        pairing = self._pairing(rows)
        return mix(x, pairing), mix(y, pairing)

    def full_rule(self, moments: DataMoments) -> Rule | None:
        """Mixup's, where it mixes the input; at hidden layers there is none on inputs (see `predictor`)."""
        return Rule.of_mixup(self.alpha, moments.x_mean, moments.y_mean) if self.layers == [INPUT] else None

    def further_means(self, net: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> dict[str, Tensor]:
        """h̄ of every layer."""
        found = hidden_means(net, self.choose_layers(net), batches, across_processes=world_size() > 1)
        return {_HIDDEN + layer: mean for layer, mean in found.items()}

    def predictor(self, net: nn.Module, moments: DataMoments, further: Mapping[str, Tensor] | None = None) -> nn.Module:
        """The network with Mixup's rule at each of its layers, averaged; as it is with partners of another choice."""
        if not isinstance(self.partners, UniformPartners):
            return super().predictor(net, moments, further)
        hidden = {k.removeprefix(_HIDDEN): mean for k, mean in (further or {}).items() if k.startswith(_HIDDEN)}
        return RescaledManifold(net, self.alpha, hidden, moments.y_mean, self.probability)


def mixed_outputs(net: nn.Module, layer: str, x: Tensor, pairing: Pairing) -> Tensor:
    """What the network makes of x when what goes into `layer` is mixed.

    Args:
        net: the network, also in a distributed wrapper. A compiled one runs uncompiled: it does not see hooks.
        layer: the layer's name; "" is the network itself.
        x: n × ….
        pairing: of n samples.
    """
    with mixing_layer(net, layer, pairing):
        outputs: Tensor = uncompiled(net)(x)
    return outputs


@contextmanager
def mixing_layer(net: nn.Module, layer: str, pairing: Pairing) -> Iterator[None]:
    """Inside, what goes into `layer` in each forward pass is mixed; where none was, an error says so at the end."""
    is_mixed = False

    def mixed(hidden: Tensor) -> Tensor:
        nonlocal is_mixed
        is_mixed = True
        if len(hidden) != len(pairing.partner):
            raise ValueError(f"layer {layer!r} takes {len(hidden)} rows for {len(pairing.partner)} samples")
        return mix(hidden, pairing)

    with uncompiled_calls(unwrapped(net)), changing_input(unwrapped(net), layer, mixed):
        yield
    if not is_mixed:
        raise ValueError(f"layer {layer!r} took no part in the network's computation")
