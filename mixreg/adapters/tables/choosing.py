"""α by validation.

`alpha="auto"` trains on two thirds of the samples and judges the mean loss of the last third, three times over, for
every α of a list; the α with the lowest mean loss is used on all of the data. Every sample is judged once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mixreg.adapters.tables.fitting import fit_table
from mixreg.adapters.tables.samples import Table, folds
from mixreg.adapters.tables.settings import Settings
from mixreg.adapters.tables.training import mean_loss

ALPHAS = (0.0, 0.2, 1.0)
FOLDS = 3


def choose_alpha(settings: Settings, table: Table, seed: int, alphas: Sequence[float] = ALPHAS) -> dict[float, float]:
    """The mean validation loss of every α."""
    one = replace(settings, verbose=False)
    losses: dict[float, float] = {}
    for alpha in alphas:
        total = 0.0
        for train, test in folds(table, FOLDS, seed):
            fitted = fit_table(one, table.part(train), seed, alpha)
            judged = replace(table.part(test), columns=fitted.columns).data(settings)
            total += mean_loss(fitted.predictor, judged, table.loss) * judged.weights.sum()
        losses[alpha] = total / float(table.weights.sum())
        if settings.verbose:
            print(f"alpha {alpha:g}: validation loss {losses[alpha]:.6f}")
    return losses
