"""A network, a method and a prediction rule for a table: from its samples.

**The rule.** "plain" predicts with the network as it is, "rescaled" with the rule of its method (eq. testmodif),
"fitted" with the strength κ and the temperature T that make held-out samples most likely (`Rescaled.fit`).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._support.random import stream, stream_seed
from mixreg.adapters.tables.columns import Columns
from mixreg.adapters.tables.network import perceptron
from mixreg.adapters.tables.optimizers import make_optimizer
from mixreg.adapters.tables.samples import Table, held_out_split
from mixreg.adapters.tables.settings import DTYPES, Settings
from mixreg.adapters.tables.training import (
    Data,
    History,
    descend,
    make_step,
    mean_loss,
)
from mixreg.adapters.tables.weights import shown_rows
from mixreg.losses import Loss
from mixreg.methods import load_method
from mixreg.methods.method import Method, Setting
from mixreg.methods.partners import UniformPartners
from mixreg.prediction.family import RuleFamily
from mixreg.prediction.rescaled import Rescaled
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments


@dataclass
class Fitted:
    """What training leaves.

    Attributes:
        net: the network.
        columns: with their scales.
        moments: x̄ and ȳ of what it was trained on.
        method: it was trained with.
        predictor: the network with its rule.
        history: what training saw.
        state: the seed and the state of the optimiser and of the random number generator, to continue from.
    """

    net: nn.Module
    columns: Columns
    moments: DataMoments
    method: Method = field(init=False)
    predictor: RuleFamily = field(init=False)
    history: History = field(default_factory=History)
    state: dict[str, Any] = field(default_factory=dict)


def build_network(settings: Settings, columns: Columns, outputs: int, seed: int) -> nn.Module:
    """The network with its initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(settings.module, nn.Module):
            net = copy.deepcopy(settings.module)
        elif settings.module is not None:
            net = settings.module(columns.features, outputs)
            if not isinstance(net, nn.Module):
                raise TypeError(f"module must return a torch.nn.Module, got {type(net).__name__}")
        else:
            net = perceptron(len(columns.numeric), columns.sizes, settings.widths, outputs)
    net = net.to(settings.device, DTYPES[settings.dtype])
    row = torch.zeros(1, columns.features, dtype=DTYPES[settings.dtype], device=settings.device)
    try:
        with torch.no_grad():
            shape = tuple(net.eval()(row).shape)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the module cannot take rows of {columns.features} numbers: {reason}") from error
    if shape != (1, outputs):
        raise ValueError(f"the module gives outputs of shape {shape[1:]}, the targets need ({outputs},)")
    return net


def build_method(settings: Settings, alpha: float | None, table: Table, net: nn.Module, moments: DataMoments) -> Method:
    """The method by its name, or a copy of the one that was given, for this table's loss."""
    if isinstance(settings.method, Method):
        method = copy.deepcopy(settings.method)
        if alpha is not None:
            method.alpha = alpha  # type: ignore[attr-defined]
    else:
        options = dict(settings.method_options or {})
        chosen = float(settings.alpha) if alpha is None else alpha
        setting = Setting(chosen, table.values.shape[1], net, lambda: moments, options)
        method = load_method(settings.method).build(setting)
    method.loss = table.loss_name or table.loss
    partners = getattr(method, "partners", None)
    if table.in_units is not None and partners is not None and not isinstance(partners, UniformPartners):
        method.partners = table.in_units(partners)  # type: ignore[attr-defined]
    return method


def new_moments(settings: Settings, table: Table) -> DataMoments:
    """Of no samples yet; with the means of classes where partners are drawn by them."""
    by_name = (settings.method_options or {}).get("partners") == "balanced"
    is_balanced = by_name or getattr(settings.method, "needs_class_means", False)
    is_of_classes = is_balanced and table.loss_name == "cross_entropy"
    return DataMoments(table.values.shape[1], by_class=True) if is_of_classes else DataMoments()


def predictor_of(settings: Settings, method: Method, net: nn.Module, data: Data, moments: DataMoments) -> RuleFamily:
    """The network with the rule that belongs to it, or with none if predictions are to be plain."""
    if settings.rule == "plain":
        return Rescaled(net, rule=Rule(1.0, 1.0, moments.x_mean, moments.y_mean)).eval()
    further = method.further_means(net, _weighted_batches(data))
    predictor = method.predictor(net, moments, further).eval()
    if not isinstance(predictor, RuleFamily):
        raise TypeError(f"{type(method).__name__} predicts without a rule: give rule='plain'")
    return predictor


def moments_of(data: Data, moments: DataMoments) -> DataMoments:
    """Weighted x̄ and ȳ, joined to those of earlier data."""
    for batch in _weighted_batches(data):
        moments.update(*batch)
    return moments


def _weighted_batches(data: Data) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All samples, in batches of inputs, targets and weights."""
    for part in torch.arange(len(data.inputs)).split(4096):
        weights = torch.from_numpy(data.weights[part.numpy()]).to(data.targets.device)
        yield data.inputs.take(part), data.targets[part], weights


def fit_table(
    settings: Settings, table: Table, seed: int, alpha: float | None = None, earlier: Fitted | None = None
) -> Fitted:
    """Train a network on a table.

    Args:
        settings: of the estimator.
        table: its samples.
        seed: of initial weights, order, mixing and the choice of held-out samples.
        alpha: that was chosen; by default that of the settings, or of the method that was given.
        earlier: the network to begin with, with its scales.
    """
    held = None
    if settings.rule == "fitted" and table.loss_name is None:
        raise ValueError("rule='fitted' is for one class, several labels or numbers, not for several classes at once")
    if settings.needs_held_out:
        kept, out = held_out_split(table, float(settings.validation_fraction), seed)
        table, held_table = table.part(kept), table.part(out)
    table = table.learn_scales() if earlier is None else replace(table, columns=earlier.columns)
    if settings.needs_held_out:
        held = replace(held_table, columns=table.columns).data(settings)
    data = table.data(settings)
    moments = moments_of(data, new_moments(settings, table))
    if earlier is None:
        net = build_network(settings, table.columns, table.values.shape[1], seed)
    else:
        net = copy.deepcopy(earlier.net)
    fitted = Fitted(net, table.columns, moments)
    with torch.random.fork_rng(devices=[]):
        # What a method learns beside the network begins with random weights too.
        torch.manual_seed(stream_seed(seed, "method") % 2**63)
        fitted.method = build_method(settings, alpha, table, net, moments)
    train_further(settings, fitted, table.loss, data, held, stream(seed, "batches"), seed)
    if settings.rule == "fitted" and held is not None and table.loss_name is not None:
        fit_rule(fitted.predictor, held, table.loss_name, seed)
    return fitted


def train_further(
    settings: Settings,
    fitted: Fitted,
    loss: Loss,
    data: Data,
    held: Data | None,
    generator: torch.Generator,
    seed: int,
    epochs: int | None = None,
) -> None:
    """Train `fitted.net` for some epochs, by default those of the settings, and give it its predictor."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "layers", len(fitted.history.losses)) % 2**63)
        # What a method learns beside the network begins with random weights too.
        trained = fitted.method.extended(fitted.net).to(settings.device, DTYPES[settings.dtype])
        options = dict(settings.optimizer_options or {})
        optimizer = make_optimizer(
            settings.optimizer, trained.parameters(), settings.lr, settings.weight_decay, options
        )
        if "optimizer" in fitted.state:
            if fitted.state["kind"] != settings.optimizer:
                raise ValueError(
                    f"training began with optimizer={fitted.state['kind']!r} and cannot go on with "
                    f"{settings.optimizer!r}: fit anew"
                )
            # What it has gathered, with the settings of now.
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict(fitted.state["optimizer"] | {"param_groups": groups})
        step = make_step(fitted.net, trained, fitted.method, loss, optimizer)

        def held_out_loss() -> float:
            assert held is not None
            return mean_loss(predictor_of(settings, fitted.method, fitted.net, data, fitted.moments), held, loss)

        plan = settings.plan if epochs is None else replace(settings.plan, epochs=epochs)
        watch = None if held is None else held_out_loss
        found = descend(step, fitted.method, optimizer, data, plan, generator, trained, watch)
    fitted.history.losses += found.losses
    fitted.history.held_out += found.held_out
    for parameter in trained.parameters():
        parameter.grad = None
    generator_state = generator.get_state().numpy()
    fitted.state = {
        "seed": seed,
        "kind": settings.optimizer,
        "optimizer": optimizer.state_dict(),
        "generator": generator_state,
    }
    fitted.predictor = _in_float64(settings, predictor_of(settings, fitted.method, fitted.net, data, fitted.moments))


def _in_float64(settings: Settings, predictor: RuleFamily) -> RuleFamily:
    """The default network predicts in float64, so that a prediction does not depend on which others it is made with.

    (Networks of one's own stay in the precision that they were trained with: they may be made for it.)
    """
    if settings.module is not None or settings.dtype == "float64" or torch.device(settings.device).type == "mps":
        return predictor
    return copy.deepcopy(predictor).double()


def fit_rule(predictor: RuleFamily, held: Data, loss_name: str, seed: int) -> None:
    """Strength and temperature of held-out samples, each as often as it weighs."""
    if loss_name == "cross_entropy" and held.targets.shape[1] < 2:
        return  # nothing to be learnt of a single class
    rows = shown_rows(held.weights, stream(seed, "held out"))
    with warnings.catch_warnings():
        # Held-out samples of small tables often cannot tell strengths apart: `predictor.fitted.note` says so.
        warnings.simplefilter("ignore", UserWarning)
        predictor.fit(held.inputs.take(rows), held.targets[rows], loss=loss_name)
