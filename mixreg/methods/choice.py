"""One of several augmentations, drawn anew for every batch: Mixup or CutMix, as many recipes have it.

What is shown of a sample is, on average, the mixture of what the methods show of it:

    S̄ = Σ_k q_k S̄_k        t̄ = Σ_k q_k t̄_k

with the probabilities q, so that the recipe has a rule if each of its methods has one (`Rule.mixture`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from mixreg._support.fields import Keys
from mixreg._support.random import uniform
from mixreg.losses.target_trees import Classes
from mixreg.methods import load_method
from mixreg.methods.method import Augmentation, Method, Rows, Setting
from mixreg.methods.pairing import unmixed_parts
from mixreg.methods.recipe import Recipe
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments


def _alike(methods: Sequence[Augmentation], name: str, usual: Any, what: str) -> Any:
    """What all methods were told, or an error: they have one rule, and share what they leave as it is."""
    found = {getattr(method, name, usual) for method in methods}
    if len(found) > 1:
        given = ", ".join(sorted(map(str, found)))
        raise ValueError(f"the methods of a choice {what}, or there is no one rule for them, got {given}")
    return found.pop()


class Choice(Recipe, Augmentation):
    """Draws a method for each batch: `x, y = Choice([Mixup(0.2, 10), CutMix(1.0, 10)])(x, y)`.

    Args:
        methods: augmentations (required; on the command line names with commas, by default mixup,cutmix, each with its
            α, as in mixup:0.2, or the run's). They must smooth labels alike, and so does what a batch that is not
            changed has for labels.
        probabilities: of the methods, with commas; by default equal.
        probability: that a batch is changed at all.
        generator: random number generator; by default PyTorch's global one.
        inputs: where a batch that is no pair holds x; y is at `targets`.
        targets: the same of y.
    """

    name = "choice"
    about = "one of several augmentations for each batch, such as Mixup or CutMix"
    options = ("methods", "probabilities", "probability")
    takes_trees = True  # if the chosen one does

    def __init__(
        self,
        methods: Sequence[Augmentation],
        probabilities: Sequence[float] | None = None,
        probability: float = 1.0,
        generator: torch.Generator | None = None,
        inputs: Keys | None = None,
        targets: Keys | None = None,
    ) -> None:
        if not methods:
            raise ValueError("Choice needs at least one method to choose")
        for method in methods:
            if not isinstance(method, Augmentation):
                raise TypeError(f"Choice is between augmentations, which change (x, y), got {type(method).__name__}")
        self.methods = list(methods)
        self._label_smoothing = _alike(methods, "label_smoothing", 0.0, "smooth labels alike")
        self.ignore_index = _alike(methods, "ignore_index", None, "ignore the same label")
        if any(method.generator is not None for method in methods):
            raise ValueError("the methods of a choice draw from its generator: give generator= to Choice alone")
        q = [1 / len(methods)] * len(methods) if probabilities is None else [float(p) for p in probabilities]
        if len(q) != len(methods) or min(q) < 0 or abs(sum(q) - 1) > 1e-6:
            raise ValueError(f"probabilities must be {len(methods)} numbers of at least 0 that sum to 1, got {list(q)}")
        self.probabilities = [p / sum(q) for p in q]
        self.probability, self.generator = probability, generator
        self.inputs, self.targets = inputs, targets

    @classmethod
    def build(cls, setting: Setting) -> Method:
        """From names such as mixup:0.2; without an α, the run's."""
        given = dict(setting.options)
        names = given.pop("methods", ("mixup", "cutmix"))
        built = []
        for text in names:
            name, _, alpha = text.partition(":")
            try:
                chosen = float(alpha) if alpha else setting.alpha
            except ValueError:
                raise ValueError(f"a method of choice is NAME or NAME:ALPHA, got {text!r}") from None
            own = Setting(chosen, setting.num_classes, setting.net, setting.moments, {})
            built.append(load_method(name).build(own))
        return cls(built, **given)  # type: ignore[arg-type]

    @property
    def num_classes(self) -> Classes:
        """That of the first method."""
        found: Classes = getattr(self.methods[0], "num_classes", None)
        return found

    @property
    def needs_class_means(self) -> bool:
        """Whether one of its methods does."""
        return any(method.needs_class_means for method in self.methods)

    @property
    def alpha(self) -> float:
        """That of the first method; each has its own."""
        return self.methods[0].alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        raise AttributeError("a choice has no alpha of its own: set that of one of its methods")

    def draw(self, x: Any, y: Any, generator: torch.Generator | None = None) -> Rows:
        chosen = self._chosen(generator)
        return (x, self._targets(x, y)) if chosen is None else chosen.draw(x, y, generator)

    def draw_parts(self, x: Any, y: Any, generator: torch.Generator | None = None) -> tuple[Any, Any]:
        chosen = self._chosen(generator)
        return unmixed_parts(x, self._parts(x, y)) if chosen is None else chosen.draw_parts(x, y, generator)

    def _chosen(self, generator: torch.Generator | None) -> Augmentation | None:
        """The method of a batch; None for one that stays as it is."""
        place = float(uniform((), generator, torch.float64))
        if place >= self.probability:
            return None
        place = place / self.probability
        ends = list(accumulate(self.probabilities))
        return self.methods[next((k for k, end in enumerate(ends) if place < end), len(ends) - 1)]

    def rule(self, moments: DataMoments) -> Rule | None:
        """The mixture of the methods' rules; None where one has none."""
        rules = [method.rule(moments) for method in self.methods]
        known = [rule for rule in rules if rule is not None]
        if len(known) < len(rules):
            return None
        return Rule.mixture(known, self.probabilities).applied(self.probability)

    def __repr__(self) -> str:
        return f"Choice({self.methods}, probabilities={self.probabilities}, probability={self.probability})"
