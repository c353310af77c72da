"""The training of a table's network: epochs of batches, a method, an optimiser, and when to stop.

A stop is judged by the mean loss of held-out samples as they will be predicted, with the rule that belongs to the
method; the weights of the best epoch are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mixreg.adapters.tables.columns import Inputs
from mixreg.adapters.tables.network import backpropagate, dense_layers
from mixreg.adapters.tables.weights import epoch_order
from mixreg.losses import Loss
from mixreg.methods.method import Augmentation, Method, Rows
from mixreg.methods.partners import UniformPartners
from mixreg.training import step as training_step
from mixreg.training.schedule import learning_rate

SCHEDULES = ("constant", "cosine", "one-cycle")
# Bytes of an epoch's inputs that are put into their order at once.
_AT_ONCE = 1 << 26
# Rows that are looked at together in prediction.
_ROWS = 4096


class Data(NamedTuple):
    """Samples of a table: inputs (n × D), targets as values (n × outputs) and weights (n)."""

    inputs: Inputs
    targets: Tensor
    weights: np.ndarray


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train; the names are those of the estimators."""

    epochs: int
    batch_size: int
    lr: float
    schedule: str
    tol: float
    n_iter_no_change: int
    early_stopping: bool
    verbose: bool


@dataclass
class History:
    """What training saw: the mean training loss of each epoch, and the held-out one where there is any."""

    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)


class Step(Protocol):
    """A step on rows that a method drew."""

    def __call__(self, rows: Rows) -> None:
        """Change the weights."""

    def mean_loss(self) -> float:
        """Of all rows since the last call."""


class AutomaticStep:
    """A step of any network and method, with automatic differentiation.

    Args:
        trained: the network with what the method learns beside it.
        method: puts losses on rows.
        optimizer: of what is trained.
    """

    def __init__(self, trained: nn.Module, method: Method, optimizer: torch.optim.Optimizer) -> None:
        self.step = training_step.Step(method, trained, optimizer)
        self.losses: list[Tensor] = []

    def __call__(self, rows: Rows) -> None:
        self.losses.append(self.step(rows, 1 / len(rows[0]))[0])

    def mean_loss(self) -> float:
        mean = float(torch.cat(self.losses).double().mean())
        self.losses = []
        return mean


class WrittenOutStep:
    """A step of dense layers on inputs and targets; what is only reported is computed once for an epoch.

    Args:
        layers: with relu between them.
        loss: of targets and outputs.
        optimizer: of the layers.
    """

    def __init__(self, layers: list[nn.Linear], loss: Loss, optimizer: torch.optim.Optimizer) -> None:
        self.layers, self.loss, self.optimizer = layers, loss, optimizer
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __call__(self, rows: Rows) -> None:
        x, y = rows
        self.seen.append((y, backpropagate(self.layers, x, y, self.loss)))
        self.optimizer.step()

    def mean_loss(self) -> float:
        targets, outputs = (torch.cat(part) for part in zip(*self.seen, strict=True))
        self.seen = []
        return float(self.loss.value(targets, outputs).double().mean())


def make_step(net: nn.Module, trained: nn.Module, method: Method, loss: Loss, optimizer: torch.optim.Optimizer) -> Step:
    """The quickest step that is right; arguments as of the two classes, `net` the network itself."""
    layers = dense_layers(net)
    # Most methods show an input and a target and leave the loss as it is: then gradients can be written out.
    is_plain = isinstance(method, Augmentation) and all(
        getattr(type(method), name) is getattr(Augmentation, name) for name in ("losses", "logits_and_targets")
    )
    if layers is None or not is_plain or trained is not net:
        return AutomaticStep(trained, method, optimizer)
    return WrittenOutStep(layers, loss, optimizer)


def drawn(data: Data, method: Method, size: int, generator: torch.Generator) -> Iterator[Rows]:
    """An epoch's batches as a method draws them; a single sample at the end, which batch normalisation could not use,
    joins the batch before.

    A method that draws for every sample on its own draws for the whole epoch, where that fits: partners then come from
    all of the data, and a step has less to do. Others (one layer, one choice for a batch, partners that are compared
    with each other) draw batch by batch.
    """
    order = epoch_order(data.weights, generator)
    sizes = [len(part) for part in order.split(size)]
    if len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [sizes[-2] + 1]
    targets = data.targets.index_select(0, order.to(data.targets.device))
    whole = data.inputs.whole
    if whole is None or whole[:1].nbytes * len(order) > _AT_ONCE:
        parts: Any = zip((data.inputs.take(part) for part in order.split(sizes)), targets.split(sizes), strict=True)
        return (method.draw(x, y, generator) for x, y in parts)
    x = data.inputs.take(order)
    if getattr(method, "per_sample", False) and isinstance(getattr(method, "partners", None), UniformPartners | None):
        return zip(*(row.split(sizes) for row in method.draw(x, targets, generator)), strict=True)
    return (method.draw(*part, generator) for part in zip(x.split(sizes), targets.split(sizes), strict=True))


def descend(
    step: Step,
    method: Method,
    optimizer: torch.optim.Optimizer,
    data: Data,
    plan: Plan,
    generator: torch.Generator,
    trained: nn.Module,
    held_out_loss: Callable[[], float] | None = None,
) -> History:
    """Train for `plan.epochs`, or until held-out samples say that it is enough.

    Args:
        step: on a method's rows.
        method: draws them.
        optimizer: whose rate follows the plan.
        data: to train on.
        plan: how long and how fast.
        generator: of order and mixing.
        trained: what is trained; ends with the weights of its best epoch if the plan has early stopping.
        held_out_loss: of the network as it is.
    """
    history, best, kept, waited = History(), np.inf, None, 0
    steps = max(1, round(float(data.weights.sum()) / plan.batch_size))
    for epoch in range(plan.epochs):
        trained.train()
        for index, rows in enumerate(drawn(data, method, plan.batch_size, generator)):
            if plan.schedule != "constant":
                part = min((index + 0.5) / steps, 1.0)
                _set_rate(optimizer, learning_rate(plan.schedule, plan.lr, plan.epochs, (), 0.0, epoch, part))
            step(rows)
        history.losses.append(step.mean_loss())
        _require_finite(history.losses[-1], epoch)
        if held_out_loss is not None:
            trained.eval()
            history.held_out.append(held_out_loss())
        if plan.verbose:
            shown = f", held-out loss {history.held_out[-1]:.6f}" if history.held_out else ""
            print(f"epoch {epoch + 1}: training loss {history.losses[-1]:.6f}{shown}")
        if not plan.early_stopping:
            continue
        waited = 0 if history.held_out[-1] < best - plan.tol else waited + 1
        if history.held_out[-1] < best:
            best, kept = history.held_out[-1], copy.deepcopy(trained.state_dict())
        if waited >= plan.n_iter_no_change:
            break
    if kept is not None:
        trained.load_state_dict(kept)
    trained.eval()
    return history


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _require_finite(loss: float, epoch: int) -> None:
    if not np.isfinite(loss):
        raise ValueError(f"the training loss is {loss} after epoch {epoch + 1}: a smaller lr may help")


@torch.no_grad()
def outputs_of(predictor: nn.Module, inputs: Inputs) -> Tensor:
    """What a network makes of inputs, n × outputs, in its own precision."""
    like = next(predictor.parameters(), torch.empty(0, dtype=inputs.dtype))
    return torch.cat([predictor(inputs.take(part).to(like.dtype)) for part in torch.arange(len(inputs)).split(_ROWS)])


def mean_loss(predictor: nn.Module, data: Data, loss: Loss) -> float:
    """The weighted mean loss of samples."""
    losses = loss.value(data.targets.double(), outputs_of(predictor, data.inputs).double()).cpu().numpy()
    return float(losses @ data.weights / data.weights.sum())
