"""Curves over the epochs of training runs, from the logs that they leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixreg.training.held_out_fit import PLAIN

Curves = tuple[list[int], list[list[float]]]


def over_epochs(found: Sequence[dict[str, Any]], measure: str, predictor: str = PLAIN) -> Curves:
    """Epochs, and repetitions × epochs; measures on test data are known after some epochs only.

    Args:
        found: results of runs, alike but for their seeds.
        measure: "train_loss", or a measure on test data.
        predictor: as which the network was measured on test data.
    """
    logs = [result["log"] for result in found]
    if measure == "train_loss":
        return [record["epoch"] for record in logs[0]], [[record["train_loss"] for record in log] for log in logs]
    looked = [[record for record in log if "test" in record] for log in logs]
    epochs = [record["epoch"] for record in looked[0]]
    return epochs, [[record["test"][predictor][measure] for record in log] for log in looked]
