"""The paper's experiments by name, one's own by reference, and the kinds of runs they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mixreg._support.near_misses import unknown
from mixreg._support.references import load_reference
from mixreg.experiments import (
    approximation,
    batch_norm,
    calibratable,
    confidence,
    crops_and_flips,
    expansions,
    imagenet_ood,
    label_smoothing,
    least_squares,
    ood,
    over_training,
    overview,
    regularizers,
    rescaling,
    terms,
    two_moons,
    underfitting,
)
from mixreg.experiments.experiment import Experiment, Kind

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        overview,
        regularizers,
        approximation,
        terms,
        rescaling,
        ood,
        imagenet_ood,
        confidence,
        two_moons,
        least_squares,
        label_smoothing,
        expansions,
        batch_norm,
        calibratable,
        crops_and_flips,
        over_training,
        underfitting,
    )
}


def is_own(reference: str) -> bool:
    """Whether an experiment is asked for as `package.module:NAME`."""
    return ":" in reference


def find_experiments(references: Sequence[str]) -> dict[str, Experiment]:
    """Experiments by what they are asked for as: a name, or `package.module:NAME`."""
    found = {reference: _load(reference) for reference in references}
    names = [experiment.name for experiment in found.values()]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two of the experiments are called {name!r}; call one of them something else")
    return found


def _load(reference: str) -> Experiment:
    if not is_own(reference):
        if reference not in EXPERIMENTS:
            raise ValueError(unknown("experiment", reference, EXPERIMENTS))
        return EXPERIMENTS[reference]
    experiment = load_reference(reference)
    if not isinstance(experiment, Experiment):
        raise TypeError(f"{reference} must be an Experiment, got {type(experiment).__name__}")
    if experiment.name in EXPERIMENTS:
        raise ValueError(f"{reference} is called {experiment.name!r}, as one of the paper's is; call it something else")
    return experiment


def kinds_of(experiments: Iterable[Experiment]) -> dict[str, Kind]:
    """The functions that carry out the runs of these experiments, by kind."""
    found: dict[str, Kind] = {}
    for experiment in experiments:
        for name, function in experiment.kinds.items():
            if found.setdefault(name, function) is not function:
                raise ValueError(
                    f"{experiment.name} has runs of a kind {name!r}, which is another experiment's already"
                )
    return found


KINDS = kinds_of(EXPERIMENTS.values())
