"""What a run's held-out data says of its predictors: strength and temperature of the rule, and temperatures of all.

Kept with the model, so that it can be evaluated on other data, and used, where its training set is not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._support.tasks import NUMBERS
from mixreg.calibration.temperature import LARGEST, SMALLEST
from mixreg.prediction.family import RuleFamily
from mixreg.prediction.family_fit import FamilyFit
from mixreg.prediction.fitting import best_temperature
from mixreg.prediction.held_out import HeldOut
from mixreg.training.measures import predict
from mixreg.training.targets import Targets

PLAIN, RESCALED, FITTED = RULES = ("plain", "rescaled", "fitted")


@dataclass(frozen=True)
class HeldOutFit:
    """What was fitted.

    Attributes:
        family: strength and temperature of the rule; None where one's own way to predict has no family.
        temperatures: of temperature scaling, by predictor (`RULES`).
    """

    family: FamilyFit | None
    temperatures: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"family": None if self.family is None else self.family.to_json(), "temperatures": self.temperatures}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> HeldOutFit:
        """What `to_json` gave."""
        family = content["family"]
        return cls(None if family is None else FamilyFit.from_json(family), dict(content["temperatures"]))


class Again:
    """Batches that can be gone through again: `batches` opens them anew."""

    def __init__(self, batches: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.batches()


def placed(model: nn.Module, family: FamilyFit) -> nn.Module:
    """`model` at the fitted strength and temperature."""
    if not isinstance(model, RuleFamily):
        raise TypeError(f"{type(model).__name__} has no strength that could be fitted")
    model.place(family)
    return model


def predictors(net: nn.Module, rescaled: Callable[[], nn.Module], family: FamilyFit | None) -> dict[str, nn.Module]:
    """The predictors of a table by name; `rescaled` makes the network with its rule anew."""
    found = {PLAIN: net, RESCALED: rescaled()}
    return found if family is None else found | {FITTED: placed(rescaled(), family)}


def fit_on(
    net: nn.Module,
    rescaled: Callable[[], nn.Module],
    held_out: Iterable[tuple[Tensor, Tensor]],
    targets: Targets,
    device: torch.device | str = "cpu",
) -> HeldOutFit:
    """All that held-out batches say of a network; without a word, as what is said of a fit is kept with it.

    Args:
        net: the plain network.
        rescaled: makes the network with its rule anew.
        held_out: batches of (x, y) that can be gone through again.
        targets: what is predicted.
        device: where to run it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = rescaled().to(device)
        family = model.fit(held_out, loss=targets.loss).fitted if isinstance(model, RuleFamily) else None
        if targets.task == NUMBERS:
            return HeldOutFit(family, {})
        outputs: dict[str, list[Tensor]] = {}
        y: list[Tensor] = []

        def take(name: str, found: Tensor, labels: Tensor) -> None:
            outputs.setdefault(name, []).append(found)
            if name == PLAIN:
                y.append(labels)

        models = {name: model.to(device) for name, model in predictors(net, rescaled, family).items()}
        predict(models, held_out, take, device)
        none = torch.zeros(targets.width)
        temperatures = {
            name: best_temperature(HeldOut(torch.cat(parts), torch.cat(y)), none, targets.loss)[0]
            for name, parts in outputs.items()
        }
    # At an end of what is looked at there is no best one: predictions stay as they are.
    kept = {k: t if SMALLEST < t < LARGEST else 1.0 for k, t in temperatures.items() if isinstance(t, float)}
    return HeldOutFit(family, kept)
