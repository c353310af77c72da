"""What a way to train is: one class, in one file of this room.

A method has a `name` and one sentence `about` it. It

* draws all its randomness for a whole batch: `draw(x, y, generator)` → rows, tensors with one row per sample;
* puts a loss on rows: `losses(net, rows)` → n. A process of several trains on its own rows of what was drawn alike
  everywhere, so that rows must not refer to each other. (Where a network must see both partners, rows carry a random
  number by which a process pairs its own.)
* gives the prediction rule that belongs to it: `rule(moments)`, or None where there is no one map to undo.

The same object is called in a user's loop, named in `mixreg train --method`, handed to an adapter, listed in Table 1.
`options` names those arguments of its constructor that are its own; their types, defaults and descriptions stand there.
`mixreg.methods` finds the classes of this room by itself; one of your own is `--method package.module:Class`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Generator, Tensor, nn
from torch.utils.data import default_collate

from mixreg._autodiff.network import Network
from mixreg._support.fields import Keys, placed, replaced, taken
from mixreg._support.random import Random
from mixreg.losses import AnyLoss, WeightedCrossEntropy
from mixreg.losses.dense import dense_losses
from mixreg.losses.mixed_targets import MixedTargets
from mixreg.losses.pair_cross_entropy import label_cross_entropy, pair_cross_entropy
from mixreg.losses.targets import is_class_index
from mixreg.methods.call_forms import drawn_rows, pair_of
from mixreg.prediction.rescaled import Rescaled
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments
from mixreg.theory.theta import ScalarForms, scalar_forms

Rows = tuple[Tensor, ...]


@dataclass(frozen=True)
class Setting:
    """What a training run knows when it makes its method.

    Attributes:
        alpha: of the run.
        num_classes: c; None where targets are no labels.
        net: the network that will be trained, without any wrapper.
        moments: gives x̄ and ȳ of the training set as the network sees it; for images in folders that is a pass over it.
        options: the method's own, as far as they were given.
    """

    alpha: float
    num_classes: int | None
    net: nn.Module
    moments: Callable[[], DataMoments]
    options: Mapping[str, Any]


class Method(Random):
    """A way to train; see the module's head.

    Attributes:
        name: what `--method` calls it.
        about: one sentence.
        options: arguments of its constructor that are its own.
        generator: random number generator; by default PyTorch's global one.
        loss: what compares targets with outputs: a name, a callable on one sample, or a `Loss`.
    """

    name: ClassVar[str] = ""
    about: ClassVar[str] = ""
    options: ClassVar[tuple[str, ...]] = ()

    generator: Generator | None = None
    loss: AnyLoss = "cross_entropy"

    @classmethod
    def build(cls, setting: Setting) -> Method:
        """The method of a training run; override it where the constructor takes more than α, classes and options."""
        return cls(alpha=setting.alpha, num_classes=setting.num_classes, **setting.options)  # type: ignore[call-arg]

    def draw(self, x: Tensor, y: Tensor, generator: Generator | None = None) -> Rows:
        """All that is random, for a whole batch; x: n × … floating point, y: n integer labels or n × … targets."""
        raise NotImplementedError(f"{type(self).__name__} draws nothing")

    def losses(self, net: Network, rows: Rows) -> Tensor:
        """The loss of each row, n."""
        raise NotImplementedError(f"{type(self).__name__} puts no loss on its rows")

    def losses_and_logits(self, net: Network, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """The same, with what the network made of each row where that is at hand: for the training accuracy."""
        return self.losses(net, rows), None

    def shown(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The inputs and targets that the loss compares: what the network learns from."""
        return rows[0], rows[1]

    def collate_fn(self, samples: list[Any]) -> Any:
        """Collate (x, y) samples and draw all that is random, for a call with the network and what this gives."""
        return self.draw(*pair_of(type(self).__name__, default_collate(samples), None), self._current_generator())

    def rule(self, moments: DataMoments) -> Rule | None:
        """The prediction rule: what `shown` keeps of a sample on average; None where it is not one map."""
        return None

    @property
    def needs_class_means(self) -> bool:
        """Whether its rule asks for `moments.balanced_means()`."""
        return False

    def extended(self, net: nn.Module) -> nn.Module:
        """What is trained: the network, with what the method learns beside it."""
        return net

    def further_means(self, net: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> dict[str, Tensor]:
        """Means that its predictor needs besides x̄ and ȳ, over this process's share of training batches.

        Args:
            net: the trained network.
            batches: of (x, y) or (x, y, weights), n weights of samples.
        """
        return {}

    def predictor(self, net: nn.Module, moments: DataMoments, further: Mapping[str, Tensor] | None = None) -> nn.Module:
        """The network with the prediction rule; as it is where there is none.

        Args:
            net: the trained network.
            moments: x̄ and ȳ of what it was trained on.
            further: from `further_means`.
        """
        rule = self.rule(moments) or Rule(1.0, 1.0, moments.x_mean, moments.y_mean)
        return Rescaled(net, rule=rule)

    def compared(self, net: nn.Module, moments: DataMoments, further: Mapping[str, Tensor] | None = None) -> nn.Module:
        """What tables call "rescaled": the predictor, or a control where a method has one; arguments as there."""
        return self.predictor(net, moments, further)


class Criterion(Method):
    """A method that is a loss of the network: `method(net, x, y).backward()`."""

    row_count: ClassVar[int | None] = None  # how many rows it draws, if it says so

    def __call__(self, net: Network, x: Any, y: Any = None) -> Tensor:
        """The mean loss of a batch.

        Args:
            net: the network.
            x: n × … floating point, one pair (x, y), or what `collate_fn` gave.
            y: n integer labels or n × … targets.
        """
        name = type(self).__name__
        rows = drawn_rows(name, x, y, self.row_count) or self.draw(*pair_of(name, x, y), self._current_generator())
        return self.losses(net, rows).mean()


class WithAlpha(Method):
    """A method with Mixup's α, which can be set at any time."""

    forms: ScalarForms  # α and the moments of its θ

    @property
    def alpha(self) -> float:
        """α, in [0, ∞]."""
        return self.forms.alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        self.forms = self._checked_forms(alpha)

    def _checked_forms(self, alpha: float) -> ScalarForms:
        return scalar_forms(alpha, type(self).__name__)


class WithMixupRule(WithAlpha):
    """A method that on average shows what Mixup shows: x̃ and ỹ."""

    def rule(self, moments: DataMoments) -> Rule | None:
        return Rule.of_mixup(self.alpha, moments.x_mean, moments.y_mean)


class WithMixupControl(WithAlpha):
    """A method that tables show rescaled by Mixup's rule, which is not its own: the paper's control."""

    def compared(self, net: nn.Module, moments: DataMoments, further: Mapping[str, Tensor] | None = None) -> nn.Module:
        return Rescaled(net, self.alpha, moments.x_mean, moments.y_mean)


class Comparing(WithAlpha):
    """A method that compares what the network makes of its rows with targets, by its `loss`."""

    def logits_and_targets(self, net: Any, rows: Rows) -> tuple[Tensor, Any]:
        """What the network makes of rows, and what it is compared with."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it compares")

    def losses(self, net: Any, rows: Rows) -> Tensor:
        logits, targets = self.logits_and_targets(net, rows)
        return self._compared(targets, logits)

    def _compared(self, targets: Any, logits: Tensor) -> Tensor:
        weight = self.loss.weights if isinstance(self.loss, WeightedCrossEntropy) else None
        if isinstance(targets, MixedTargets):
            return pair_cross_entropy(logits, targets, weight)
        if is_class_index(targets) and (weight is not None or self.loss == "cross_entropy"):
            return label_cross_entropy(logits, targets, weight)
        return dense_losses(self.loss, targets, logits)

    def losses_and_logits(self, net: Any, rows: Rows) -> tuple[Tensor, Tensor | None]:
        if type(self).losses is not Comparing.losses:
            return self.losses(net, rows), None
        logits, targets = self.logits_and_targets(net, rows)
        return self._compared(targets, logits), logits.detach()


class Augmentation(Comparing):
    """A method that changes (x, y), and compares what the network makes of the one with the other.

    Attributes:
        inputs: where a batch that is not a pair holds x: keys of a dict or places of a tuple, one or several.
        targets: the same of y; all else is passed on.
    """

    inputs: Keys | None = None
    targets: Keys | None = None

    def __call__(self, x: Any, y: Any = None, *, parts: bool = False) -> Any:
        """Change one batch, given as `x, y`, as one pair, or as one batch that `inputs` and `targets` say how to read.

        Args:
            x: n × … floating point, or what the method takes.
            y: n × … targets.
            parts: give `MixedTargets` (y, y_partner and the partner's share) in place of mixed targets.
        """
        return self._called(x, y, lambda x, y: self._changed(x, y, self._current_generator(), parts))

    def _changed(self, x: Any, y: Any, generator: Generator | None, parts: bool) -> tuple[Any, Any]:
        x, y = self.draw_parts(x, y, generator) if parts else self.draw(x, y, generator)
        return x, y

    def draw_parts(self, x: Any, y: Any, generator: Generator | None = None) -> tuple[Any, Any]:
        """What `draw` draws, with `MixedTargets` for each target."""
        raise TypeError(f"what {type(self).__name__} makes of targets are no pairs: it has no parts")

    def draw_labelled(self, x: Any, y: Any, generator: Generator | None = None) -> Rows:
        """Rows for a batch with class indices: of these and shares, of which no soft labels have to be made."""
        x, mixed = self.draw_parts(x, y, generator)
        return x, *mixed

    def _called(self, x: Any, y: Any, change: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
        if y is not None or (self.inputs is None and self.targets is None):
            return change(*pair_of(type(self).__name__, x, y, is_told_where=True))
        inputs, targets = (0 if self.inputs is None else self.inputs), (1 if self.targets is None else self.targets)
        changed = change(taken(x, inputs), taken(x, targets))
        return replaced(x, placed(inputs, targets, *changed))

    def collate_fn(self, samples: list[Any]) -> Any:
        """Collate samples and change them: `DataLoader(..., collate_fn=method.collate_fn)`."""
        return self(self._collated(samples))

    def _collated(self, samples: list[Any]) -> Any:
        is_pair = self.inputs is None and self.targets is None
        if is_pair and not all(isinstance(sample, (tuple, list)) and len(sample) == 2 for sample in samples):
            name = type(self).__name__
            raise TypeError(
                f"{name}.collate_fn expects samples that are (x, y) pairs; say where others hold them with inputs= and "
                f"targets=, or call {name} in a collate function of your own"
            )
        return default_collate(samples)

    def logits_and_targets(self, net: Any, rows: Rows) -> tuple[Tensor, Any]:
        x, *targets = rows
        return net(x), targets[0] if len(targets) == 1 else MixedTargets(*targets)


class WithMoments(Augmentation):
    """An augmentation that refers to the mean of the data.

    Args:
        alpha: in [0, ∞]; 0 changes nothing.
        moments: x̄ and ȳ of the training data (and how many classes integer labels have).
        generator: random number generator; by default PyTorch's global one.
    """

    def __init__(self, alpha: float, moments: DataMoments, generator: Generator | None = None) -> None:
        if not isinstance(moments, DataMoments):
            raise TypeError(f"moments must be DataMoments, got {type(moments).__name__}")
        self.alpha, self.moments, self.generator = alpha, moments, generator

    @property
    def num_classes(self) -> int | None:
        """c, if targets are integer labels."""
        return self.moments.num_classes

    @classmethod
    def build(cls, setting: Setting) -> Method:
        return cls(setting.alpha, setting.moments(), **setting.options)
