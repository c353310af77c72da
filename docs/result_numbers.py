"""Numbers for pages of the site, by name, from `results/`: a page writes `{{flipped_gain}}` and types none in.

The words of `docs/results.md` and of the pages of figures were written for the verdicts in `WRITTEN_FOR`: where a
verdict is another one now, an error says so, and the words are to be written anew.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from figure_pages import stacked
from stored import stored

from mixreg import Theta
from mixreg.experiments.over_training import MOONS, end_after_best, error_curves
from mixreg.experiments.regulariser_runs import Measured
from mixreg.experiments.verdict_table import read_verdicts, scale_table, verdict_table
from mixreg.experiments.verdicts import CONTRADICTED, SUPPORTED, UNDECIDED
from mixreg.report.intervals import interval
from mixreg.training.held_out_fit import RESCALED

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"

WRITTEN_FOR = {
    "CIFAR-10: rescaling improves Mixup": UNDECIDED,
    "CIFAR-100: rescaling improves Mixup": CONTRADICTED,
    "CIFAR-10: rescaling with refreshed statistics improves Mixup": SUPPORTED,
    "CIFAR-100: rescaling with refreshed statistics improves Mixup": SUPPORTED,
    "CIFAR-10: the fitted rule beats temperature scaling": SUPPORTED,
    "CIFAR-100: the fitted rule beats temperature scaling": SUPPORTED,
    "CIFAR-10: Mixup is harder to calibrate than ERM": UNDECIDED,
    "CIFAR-100: Mixup is harder to calibrate than ERM": UNDECIDED,
    "CIFAR-10, corrupted: rescaling worsens Mixup": CONTRADICTED,
    "CIFAR-100, corrupted: rescaling worsens Mixup": UNDECIDED,
    "CIFAR-10 with crops and flips: rescaling improves Mixup": UNDECIDED,
    "Mixup calibrates": SUPPORTED,
    "Mixup keeps the Jacobian small": SUPPORTED,
    "Mixup withstands label noise": SUPPORTED,
    "Mixup normalises inputs": UNDECIDED,
    "Mixup is more than its parts": UNDECIDED,
    "Gaussian noise will do": SUPPORTED,
    "approximate Mixup follows Mixup": UNDECIDED,
    "batch normalisation: approximate Mixup follows Mixup": UNDECIDED,
    "Mixup and label smoothing lower confidence": CONTRADICTED,
    "two moons: approximate Mixup follows Mixup": CONTRADICTED,
    "two moons, noisy labels: Mixup over-trains": SUPPORTED,
    "two moons, noisy labels: switching Mixup off late helps": CONTRADICTED,
    "CIFAR-10, noisy labels: Mixup over-trains": SUPPORTED,
    "CIFAR-10, noisy labels: switching Mixup off late helps": UNDECIDED,
}

# Claims by name, as claims.json has them.
Claims = Mapping[str, Mapping[str, Any]]


@lru_cache(maxsize=1)
def known() -> dict[str, str]:
    """Every number and table that a page may name."""
    found = read_verdicts(RESULTS)
    claims = {claim["name"]: claim for claim in found["claims"]}
    check_words(claims)
    tables = {
        "scale_table": scale_table(found["experiments"]),
        "verdict_table": verdict_table(found["claims"]),
        "verdict_parts": verdict_table(found["claims"], with_parts=True),
    }
    return {name: stacked(table) for name, table in tables.items()} | counts(claims) | from_claims(claims) | from_runs()


def with_numbers(page: str) -> str:
    """A page of the site with its `{{names}}` filled in."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: known()[match[1]], page)


def check_words(claims: Claims) -> None:
    """An error where the words were written for another verdict."""
    for name, verdict in WRITTEN_FOR.items():
        found = claims[name]["verdict"]
        if found != verdict:
            raise ValueError(
                f"docs/results.md was written for {name!r} being {verdict}, and it is {found}: write it anew"
            )


def counts(claims: Claims) -> dict[str, str]:
    """How many claims are which, and how many of Table 1's ticks are supported."""
    of_all = Counter("corrected" if "corrected_by" in claim else claim["verdict"] for claim in claims.values())
    ticks = [claim["verdict"] for claim in claims.values() if claim["source"] == "Table 1"]
    found = {name: of_all[name] for name in (SUPPORTED, CONTRADICTED, UNDECIDED, "corrected")}
    found |= {"claims": len(claims), "ticks": len(ticks), "ticks_supported": ticks.count(SUPPORTED)}
    return {name: str(count) for name, count in found.items()}


def from_claims(claims: Claims) -> dict[str, str]:
    """Differences with their intervals, and what would decide."""

    def part(name: str, about: str) -> Mapping[str, Any]:
        (found,) = (part for part in claims[name]["parts"] if part["about"].startswith(about))
        return found

    def percent(found: Mapping[str, Any], sign: int = 1) -> str:
        # Digits enough that no interval is nothing.
        digits = max(1, -math.floor(math.log10(100 * found["half_width"])))
        mean, half = (f"{100 * value:.{digits}f}" for value in (sign * found["difference"], found["half_width"]))
        return f"{mean} ± {half}".replace("-", "−")

    def plain(found: Mapping[str, Any]) -> str:
        return f"{found['difference']:.3f} ± {found['half_width']:.3f}"

    def decided_by(found: Mapping[str, Any]) -> str:
        return str(found["words"].partition("(")[2].removesuffix(")"))

    noise, approximation = claims["Mixup withstands label noise"], claims["approximate Mixup follows Mixup"]
    accuracy = part("CIFAR-10: rescaling improves Mixup", "gain in accuracy")
    highest = max(noise["sizes"]["noises"], key=float)
    gaussian = part("Gaussian noise will do", "accuracy")
    confidence = part("Mixup and label smoothing lower confidence", "mean confidence, label smoothing − Mixup")
    switched = part("CIFAR-10, noisy labels: once Mixup is off, its rule hurts", "cross-entropy")
    moons = part("two moons: approximate Mixup follows Mixup", "test accuracy, approximate − Mixup, plain")
    of_rule: dict[str, str] = {}
    for data, suffix in (("CIFAR-10", ""), ("CIFAR-100", "_100")):
        rescaled, refreshed = f"{data}: rescaling improves Mixup", f"{data}: rescaling with refreshed statistics"
        fitted = part(f"{data}: the fitted rule beats temperature scaling", "cross-entropy, Mixup, tempered")
        of_rule |= {
            f"rescaled_accuracy{suffix}": percent(part(rescaled, "gain in accuracy")),
            f"rescaled_ece{suffix}": percent(part(rescaled, "gain in ECE")),
            f"rescaled_loss{suffix}": plain(part(rescaled, "gain in cross-entropy")),
            f"refreshed_accuracy{suffix}": percent(part(f"{refreshed} improves Mixup", "gain in accuracy")),
            f"fitted_gain{suffix}": plain(fitted),
        }
    cropped = "CIFAR-10 with crops and flips: rescaling improves Mixup"
    normalised = claims["batch normalisation: approximate Mixup follows Mixup"]
    return of_rule | {
        "approximation": decided_by(approximation),
        "approximation_repetitions": str(approximation["sizes"]["repetitions"]),
        "batch_norm": decided_by(normalised),
        "batch_norm_repetitions": str(normalised["sizes"]["approximate"]),
        "crops_alpha": f"{claims[cropped]['sizes']['alpha']:g}",
        "crops_ece": percent(part(cropped, "gain in ECE")),
        "crops_epochs": str(claims[cropped]["sizes"]["epochs"]),
        "crops_loss": plain(part(cropped, "gain in cross-entropy")),
        "epsilon": f"{1 - float(Theta(approximation['sizes']['alpha']).mean):g}",
        "flipped": f"{100 * float(highest):g}",
        "flipped_gain": percent(part("Mixup withstands label noise", f"accuracy, {float(highest):.0%} flipped")),
        "gaussian": percent(gaussian),
        "gaussian_margin": f"{100 * gaussian['margin']:.1f}",
        "human_gain": percent(part("Mixup withstands label noise", "accuracy, human noise")),
        "independent": decided_by(part("Mixup is more than its parts", "cross-entropy, Mixup, independent")),
        "less_confident": f"{-confidence['difference']:.2f} ± {confidence['half_width']:.2f}",
        "moons_overtrained": percent(part("two moons, noisy labels: Mixup over-trains", "")),
        "moons_plain": percent(moons, -1),
        "moons_switched": percent(part("two moons, noisy labels: switching Mixup off late helps", ""), -1),
        "pictures_overtrained": percent(part("CIFAR-10, noisy labels: Mixup over-trains", "")),
        "rescaled_decided": decided_by(accuracy),
        "rescaled_repetitions": str(accuracy["repetitions"]),
        "samples": f"{noise['sizes']['samples']:,}",
        "switched_rule": plain(switched),
        "steadier": decided_by(claims["Mixup normalises inputs"]),
    }


def from_runs() -> dict[str, str]:
    """Means over repetitions that are no differences."""
    measured = _table_1()
    means = {
        "ece_erm": 100 * np.mean(measured.test("erm", "plain", "ece")),
        "ece_mixup": 100 * np.mean(measured.test("mixup", "rescaled", "ece")),
        "jacobian_erm": np.mean(measured.derivative("erm", "jacobian")),
        "jacobian_mixup": np.mean(measured.derivative("mixup", "jacobian")),
    }
    found = {name: f"{mean:.2g}" for name, mean in means.items()} | {"moons_ruled": _overtrained_by_the_rule()}
    return found | _with_crops_and_flips()


def _with_crops_and_flips() -> dict[str, str]:
    """How much of its training images ERM has learnt, and how far Mixup is below it, both fitted: in percent."""
    found = stored("crops-and-flips")
    assert found is not None, "results/ holds no runs with crops and flips"
    erm, mixup = (found.results.select(method=method) for method in ("erm", "mixup"))
    learnt = 100 * float(np.mean([run["train"]["accuracy"] for run in erm]))
    pairs = (tuple(100 * run["test"]["fitted"]["accuracy"] for run in runs) for runs in zip(erm, mixup, strict=True))
    return {"crops_learnt": f"{learnt:.0f}", "crops_below": f"{interval([a - b for a, b in pairs]):.1f}"}


def _overtrained_by_the_rule() -> str:
    """What Mixup's test error on two moons rises by after its best time, predicted by the rule, in points."""
    found = stored("over-training")
    assert found is not None, "results/ holds no runs of over-training"
    _, errors = error_curves(found.results, found.sizes, MOONS, "Mixup", RESCALED)
    rises = [100 * (end - best) for end, best in zip(*end_after_best(errors), strict=True)]
    return f"{interval(rises):.1f}".replace("-", "−")


def _table_1() -> Measured:
    found = stored("regularizers")
    assert found is not None, "results/ holds no runs of Table 1"
    return Measured(found.results, found.sizes)
