"""A finished run on test data: its own, or any other that is labelled alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from mixreg.data.arrays import DataError
from mixreg.data.fingerprints import is_unchanged
from mixreg.evaluation.labelled import labelled_batches
from mixreg.evaluation.table import Outputs, outputs_on
from mixreg.training.batches import Batches
from mixreg.training.finished import FinishedRun
from mixreg.training.held_out_fit import Again, HeldOutFit, fit_on
from mixreg.training.open_batches import open_batches
from mixreg.training.trained import Trained, load_trained


def evaluated(
    trained: Trained, data: str | None = None, held_out: str | None = None, device: str = "cpu"
) -> tuple[Outputs, HeldOutFit | None]:
    """What a trained network makes of test data, and how its rule was fitted (None if nothing was held out).

    Args:
        trained: the network.
        data: labelled data; by default the test part of the run's own.
        held_out: labelled data to fit on; by default what the run held out.
        device: where to run it.
    """
    fit = fitted(trained, held_out, device)
    batches: Iterable[tuple[Tensor, Tensor]]
    batches = own_batches(trained).test_batches() if data is None else labelled_batches(trained, data)
    return outputs_on(trained, batches, fit, device), fit


def fitted(trained: Trained, held_out: str | None = None, device: str = "cpu") -> HeldOutFit | None:
    """What labelled data says of a network's predictors, or what its run held out, as it was kept or found again."""
    if held_out is not None:
        batches = labelled_batches(trained, held_out)
    elif trained.fit is not None or trained.config.holdout == 0:
        return trained.fit
    else:
        # A run from before fits were kept.
        try:
            batches = Again(own_batches(trained).held_out_batches)
        except DataError:
            return None
        if next(iter(batches), None) is None:
            return None
    return fit_on(trained.net, trained.with_table_rule, batches, trained.targets, device)


def open_run(
    run: Path,
    rule: str | None = None,
    held_out: str | None = None,
    model: str | None = None,
    method: str | None = None,
    device: str = "cpu",
) -> FinishedRun:
    """A finished run to predict with, its rule fitted on labelled data if some is given.

    Args:
        run: its folder.
        rule: plain, rescaled or fitted; by default the best there is.
        held_out: labelled data.
        model, method: code of one's own.
        device: where to run it.
    """
    trained = load_trained(run, model, method)
    if held_out is not None:
        trained = replace(trained, fit=fitted(trained, held_out, device))
    return FinishedRun(trained, rule, device)


def own_batches(trained: Trained) -> Batches:
    """The data that a run was trained on, if it is still what it was."""
    # With its scaling given, nothing is computed from the training set.
    own = open_batches(trained.config, like=trained.preparation)
    if not is_unchanged(trained.fingerprint, own.fingerprint):
        raise DataError(f"{trained.config.data} has changed since the network was trained on it")
    return own
