"""A method with the means of what it was shown: the rule of both, and all of it in a checkpoint.

Means are gathered while a network is trained, so that no pass over the data is needed for the rule; a method by its
name that refers to them in training (`NamedMethod`) is made when they are there. Held-out data places the rule in its
family (`mixreg.prediction.family`); what it says is kept, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._autodiff.layers import INPUT, first_layers
from mixreg._support.processes import gather_objects, rank, world_size
from mixreg._support.random import integers, seeded
from mixreg._support.structure import rebuild, shapes_of, tree_of_shapes
from mixreg.adapters.batches import Classes, Keys, joined_targets, require_joinable, split_targets
from mixreg.adapters.chosen import NamedMethod, is_own_loss
from mixreg.adapters.learned import weights_of
from mixreg.adapters.resume import moments_in, require_same_settings, settings_of
from mixreg.adapters.ruled import Ruled
from mixreg.methods import load_method
from mixreg.methods.manifold import ManifoldMixup
from mixreg.methods.method import Method
from mixreg.prediction.family import RuleFamily
from mixreg.prediction.family_fit import FamilyFit, as_temperature
from mixreg.prediction.rescaled import Rescaled
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments
from mixreg.training.held_out_fit import placed

Moments = Callable[[], DataMoments]


class KeptMethod:
    """See the module's head.

    Args:
        chosen: a method, or what one is to be made of.
        num_classes: of one target, or of each of several in their structure.
        moments: of the training data, where they are known and a method by its name refers to them.

    Attributes:
        moments: of what was shown so far, in this process.
        fitted: what held-out data said of the rule, if it was asked.
        is_off: whether mixing has ended, and predictions are plain.
    """

    def __init__(self, chosen: Method | NamedMethod, num_classes: Classes, moments: DataMoments | None = None) -> None:
        self._chosen, self._classes, self._given = chosen, num_classes, moments
        self.begin()

    def begin(self) -> None:
        """Anew: what was seen is forgotten, and a method by its name is to be made again."""
        self._method = self._chosen if isinstance(self._chosen, Method) else None
        # Of which a method by its name was made; and a checkpoint whose method is not made yet.
        self._made_of, self._restored = self._given, dict[str, Any]()
        self.is_off = False
        self._forget()

    def _forget(self) -> None:
        known = getattr(self._chosen, "num_classes", None)
        is_balanced = self._chosen.needs_class_means and known is not None
        self.moments = DataMoments(known, by_class=True if is_balanced else None)
        # What one of each of several targets looks like.
        self._targets: Any = None
        self.fitted: FamilyFit | None = None

    @property
    def is_named(self) -> bool:
        """Whether the method was given by its name."""
        return isinstance(self._chosen, NamedMethod)

    @property
    def kind(self) -> type[Method]:
        """The method's class, also while it is not made yet."""
        return load_method(self._chosen.name) if isinstance(self._chosen, NamedMethod) else type(self._chosen)

    @property
    def method(self) -> Method:
        """What is trained with."""
        if self._method is None:
            raise ValueError(f"method {self._chosen.name} is made when training begins, of what it finds there")
        return self._method

    def made(self, net: nn.Module, moments: Moments, seed: int | None = None) -> Method:
        """The method, made now if it was a name; net: the network, moments: of the training data, if needed.

        Where a checkpoint was restored before, it is made of the same means as that one's, and continues with the state
        of its random number generator.
        """

        def needed() -> DataMoments:
            self._made_of = self._made_of or moments()
            return self._made_of

        if self._method is None and isinstance(self._chosen, NamedMethod):
            self._method = self._chosen.made(net, needed)
            if seed is not None:
                self._method.generator = seeded(seed)
            self._continue(self._method)
        return self.method

    def require_layers(self, net: nn.Module) -> None:
        """Where Manifold Mixup is not told layers, the network must have some."""
        if not issubclass(self.kind, ManifoldMixup):
            return
        told = self._chosen.options if isinstance(self._chosen, NamedMethod) else vars(self._chosen)
        if told.get("layers") is None and first_layers(net) == [INPUT]:
            raise ValueError(
                f"Manifold Mixup finds no layers in {type(net).__name__} but its input: name the network inside of it "
                "with network=, or the layers with layers="
            )
        if isinstance(self._chosen, ManifoldMixup):
            self._chosen.choose_layers(net)

    def seen(self, x: Any, y: Any) -> tuple[Tensor, Any]:
        """Targets as the method takes them, and what one of each of several looks like; all of it taken into account.

        x: inputs as the method takes them, y: n … targets, or a tree of such.
        """
        targets, like = self._as_one(x, y)
        if like is not None:
            require_joinable(self.method)
        is_first = self.moments.count == 0
        self.moments.update(x, targets)
        self._targets = like
        if is_first and not self.is_off:
            self._first(targets)
        return targets, like

    def _as_one(self, x: Any, y: Any) -> tuple[Tensor, Any]:
        if isinstance(y, Tensor):
            return y, None
        given, name = f"the targets are several, a {type(y).__name__} of them", self.kind.__name__
        if is_own_loss(self.kind):
            raise TypeError(f"{given}, with a loss each, and {name} is one loss of the network")
        if self.moments.num_classes is not None:
            raise TypeError(
                f"{given}: give MixupCallback num_classes for each, in the same structure (None for those that are no "
                "labels), and none to method"
            )
        return joined_targets(x, y, self._classes)

    def as_targets(self, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Tensor]]:
        """Batches with targets as the method takes them; nothing is taken note of."""
        return ((x, self._as_one(x, y)[0]) for x, y in pairs)

    def _first(self, targets: Tensor) -> None:
        """Called with the targets of the first batch as the method takes them, before anything is trained on it."""

    def rule(self) -> Rule:
        """That of the method with the means of all processes, each of which must call this."""
        moments = self.moments.joined()
        if moments.count == 0:
            raise ValueError("no training data was seen, so that there is no rule for predictions")
        return _unchanging(moments) if self.is_off else self._rule_of(moments)

    def _rule_of(self, moments: DataMoments) -> Rule:
        rule = self.method.rule(moments)
        if rule is None:
            raise ValueError(f"{type(self.method).__name__} has no prediction rule on inputs{self._hint()}")
        return rule

    def _hint(self) -> str:
        at = ", and ask for rescaled_model(training_loader=…) later" if issubclass(self.kind, ManifoldMixup) else ""
        return f"; set rescale=False{at}"

    def put_on(self, module: nn.Module, inputs: Keys, fitted: FamilyFit | None = None) -> Ruled:
        """The rule put around a module.

        Args:
            module: that makes the outputs.
            inputs: what a batch calls its inputs.
            fitted: where held-out data placed the rule.
        """
        rule, weight = self.rule(), next(module.parameters())
        rule = rule.to(weight.device, weight.dtype)
        targets = next((each for each in gather_objects(self._targets) if each is not None), None)
        if targets is not None:
            targets = split_targets(rule.y_mean, rebuild(targets, lambda part: part.to(weight.dtype)))
        if fitted is None:
            return Ruled(module, rule, inputs, targets)
        temperature = None if fitted.loss == "squared_error" else as_temperature(fitted.temperature)
        if isinstance(temperature, Tensor):
            temperature = temperature.to(weight)
        return Ruled(module, rule, inputs, targets, fitted.strength, temperature, fitted.is_after)

    def network_with_rule(self, net: nn.Module, training: Iterable[tuple[Any, Any]] | None = None) -> RuleFamily:
        """The network with the rule, as held-out data placed it, to be used by itself.

        Args:
            net: trained.
            training: batches of training data, where the rule has means of hidden layers.
        """
        method, moments = self.made(net, self.moments.joined), self.moments.joined()
        if moments.count == 0:
            raise ValueError("no training data was seen: train first, or restore a checkpoint")
        if self._targets is not None or several_means(moments):
            raise TypeError("several inputs or targets have no one Rescaled network; predict with the trainer")
        if not self.is_off and training is None and method.rule(moments) is None:
            name = type(method).__name__
            raise ValueError(f"{name} has no rule on inputs, or one on hidden layers: give batches of training data")
        if self.is_off:
            model: nn.Module = Rescaled(net, rule=_unchanging(moments))
        else:
            further = method.further_means(net, training) if training is not None else {}
            model = method.predictor(net, moments, further)
        if not isinstance(model, RuleFamily):
            raise TypeError(f"{type(method).__name__} predicts in a way of its own, without a rule")
        if self.fitted is not None:
            placed(model, self.fitted)
        return model

    def state(self) -> dict[str, Any]:
        """What checkpoints keep, to be called by all processes.

        The method with its α, the means so far and the rule of both, what was fitted, what the method has learnt, and
        the state of each process's generator.
        """
        if self._method is None:
            return dict(self._restored)
        method, moments = self.method, self.moments.joined()
        tensors, record = moments.to_tensors()
        state: dict[str, Any] = {"settings": settings_of(method), "moments": record, "is_off": self.is_off}
        state |= {name: tensor.cpu() for name, tensor in tensors.items()}
        rule = method.rule(moments) if moments.count else None
        if rule is not None and isinstance(rule.x_mean, Tensor):
            state["rule"] = rule.to_tensors()
        if self._made_of is not None:
            state["made_of"] = self._made_of.to_tensors()
        if self._targets is not None:
            state["targets"] = shapes_of(self._targets)
        if self.fitted is not None:
            state["fitted"] = self.fitted.to_json()
        if weights_of(method):
            state["learned"] = weights_of(method)
        if hasattr(method, "mixup_enabled"):
            state["mixup_enabled"] = method.mixup_enabled
        if method.generator is not None:
            state["generators"] = gather_objects(method.generator.get_state())
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint: the first process carries the means on, and each has a generator of its own."""
        self._forget()
        self.is_off = state.get("is_off", False)
        if rank() == 0:
            self.moments = moments_in(state, self.moments.num_classes)
        if "targets" in state:
            self._targets = tree_of_shapes(state["targets"])
        self.fitted = FamilyFit.from_json(state["fitted"]) if "fitted" in state else None
        if "made_of" in state:
            self._made_of = DataMoments.from_tensors(*state["made_of"])
        self._restored = dict(state)
        if self._method is not None:
            self._continue(self._method)

    def restored_aside(self, state: Mapping[str, Any]) -> KeptMethod:
        """Another one with the content of a checkpoint; what this one has stays as it is."""
        other = KeptMethod(copy.deepcopy(self._chosen), self._classes, self._given)
        other.restore(state)
        return other

    def _continue(self, method: Method) -> None:
        """What the method needs of the checkpoint that was restored, if one was."""
        state, self._restored = self._restored, {}
        if not state:
            return
        require_same_settings(method, state.get("settings"))
        if "mixup_enabled" in state:
            method.mixup_enabled = state["mixup_enabled"]  # type: ignore[attr-defined]
        if isinstance(method, nn.Module) and "learned" in state:
            method.load_state_dict(state["learned"])
        states = state.get("generators") or [state[key] for key in ("generator",) if key in state]
        if method.generator is None or not states:
            return
        is_own = len(states) == world_size()
        own = states[rank() if is_own else 0]
        method.generator.set_state(torch.as_tensor(own, dtype=torch.uint8).cpu())
        if rank() > 0 and not is_own:
            method.generator = seeded(int(integers(2**62, (), method.generator)) + rank())


def several_means(moments: DataMoments) -> bool:
    """Whether inputs are several tensors."""
    return not isinstance(moments.x_mean, Tensor)


def _unchanging(moments: DataMoments) -> Rule:
    """The rule of a network that last saw data as it is."""
    return Rule(1.0, 1.0, moments.x_mean, moments.y_mean)
