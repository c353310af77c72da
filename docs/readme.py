"""README.md's sections with numbers, written by `python docs/readme.py`: no number in them is typed in.

They stand between marks, `<!-- hero -->` … `<!-- end of hero -->` and so on, and come from stored runs (`results/`),
the verdicts on them (`results/claims.json`) and the last runs of benchmarks (`docs/measured/`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stored import stored

from mixreg.experiments.verdicts import CONTRADICTED, SUPPORTED, UNDECIDED
from mixreg.report.intervals import interval

ROOT = Path(__file__).parent.parent
README, RESULTS, MEASURED = ROOT / "README.md", ROOT / "results", ROOT / "docs" / "measured"
EXAMPLE = RESULTS / "cifar10"
_PLAIN = {"data": "cifar10", "model": "resnet9", "augment": "none"}
# Pages with numbers are filled in there; README.md links to them, not to their templates.
SITE = "https://mixreg.github.io/mixreg/"
_SIGNS = {SUPPORTED: "✓", CONTRADICTED: "✗", UNDECIDED: "?"}
# The claims that matter most, by name, in words of their own.
FIVE = {
    "CIFAR-10: rescaling improves Mixup": "the rule improves Mixup's networks: CIFAR-10 (Figure 4)",
    "CIFAR-100: rescaling improves Mixup": "the same: CIFAR-100 (Figure 4)",
    "CIFAR-100: rescaling with refreshed statistics improves Mixup": "the same, batch normalisation refreshed",
    "CIFAR-100: the fitted rule beats temperature scaling": "the fitted rule beats a temperature: CIFAR-100",
    "approximate Mixup follows Mixup": "training on the second-order expansion follows Mixup (Figure 2)",
}


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _claims() -> dict[str, Mapping[str, Any]]:
    return {claim["name"]: claim for claim in _json(RESULTS / "claims.json")["claims"]}


def _part(claim: str, about: str) -> Mapping[str, Any]:
    (found,) = (part for part in _claims()[claim]["parts"] if part["about"].startswith(about))
    return found


def _signed(values: Sequence[float], digits: int, factor: float = 1) -> str:
    """Mean ± 95 % interval of differences."""
    found = interval([factor * value for value in values])
    return _difference(found.mean, found.half_width, digits)


def _of_part(part: Mapping[str, Any], digits: int, factor: float = 1) -> str:
    return _difference(factor * part["difference"], abs(factor) * part["half_width"], digits)


def _difference(mean: float, half_width: float, digits: int) -> str:
    """With a sign; a single run has no interval."""
    width = " (one run)" if np.isnan(half_width) else f" ± {half_width:.{digits}f}"
    return f"{mean:+.{digits}f}{width}".replace("-", "−")


def example(folder: Path = EXAMPLE) -> str:
    """The picture and the table that `examples/cifar10.py` left in a folder; nothing where it was not carried out."""
    if not (folder / "summary.json").exists():
        return ""
    found = _json(folder / "summary.json")
    about = (
        f"A ResNet-9, {found['epochs']} epochs, no augmentation: "
        f"`python examples/cifar10.py --seeds {found['seeds']}`. *Rescaled* needs nothing but the\n"
        "means of the training data; *tempered* and *fitted* use held-out images. "
        "Mean ± 95 % interval over seeds."
    )
    picture = "![Reliability on CIFAR-10: ERM, Mixup, rescaled, fitted](results/cifar10/reliability.png)"
    return f"{picture}\n\n{about}\n\n{(folder / 'table.md').read_text(encoding='utf-8')}"


def for_site(text: str) -> str:
    """A section of README.md as a page of the site has it, which lies in `docs/`."""
    return text.replace("](docs/", "](").replace("](results/", "](../results/")


def _trainings(**config: Any) -> list[dict[str, Any]]:
    """Results of stored networks with such a configuration, by seed."""
    folders = (RESULTS, RESULTS / "evidence", EXAMPLE)
    # By key: a run that is still collected with others may be shown already.
    records = {r["key"]: r for folder in folders for r in _json(folder / "results.json") if r["kind"] == "training"}
    found = [r for r in records.values() if config.items() <= r["settings"]["config"].items()]
    found.sort(key=lambda record: record["settings"]["config"]["seed"])
    if not found:
        raise ValueError(f"no stored training run has {config}")
    return [record["result"] for record in found]


def _rescaled_under_corruption() -> dict[str, str]:
    """What the rule for α = 1 changes at the strongest corruptions, run by run."""
    runs = _trainings(data="cifar10", model="resnet9", method="mixup", alpha=1.0)
    by_rule = [run["corruptions"] for run in runs if "corruptions" in run]
    changes = {
        measure: [found["1"]["5"][measure] - found["plain"]["5"][measure] for found in by_rule]
        for measure in ("accuracy", "cross_entropy")
    }
    return {"accuracy": _signed(changes["accuracy"], 1, 100), "loss": _signed(changes["cross_entropy"], 2)}


def _erm_rescaled() -> str:
    runs = _trainings(data="cifar10", model="resnet9", method="erm", samples=10_000)
    return _signed([run["test"]["1"]["cross_entropy"] - run["test"]["plain"]["cross_entropy"] for run in runs], 2)


def _above_erm(mixup: Sequence[Mapping[str, Any]], erm: Sequence[Mapping[str, Any]]) -> str:
    """What fitted Mixup has in accuracy over ERM, in points, repetition by repetition."""
    of_both = ([run["test"]["fitted"]["accuracy"] for run in runs] for runs in (mixup, erm))
    return _signed([a - b for a, b in zip(*of_both, strict=True)], 1, 100)


def _on_whole_sets(alpha: float) -> str:
    found = stored("rescaling")
    assert found is not None, "results/ holds no runs of Figure 4"
    of = found.results.select
    ten, hundred = (
        _above_erm(of(data=data, method="mixup", alpha=alpha), of(data=data, method="erm"))
        for data in ("cifar10", "cifar100")
    )
    return f"{ten} on all of CIFAR-10, {hundred} on CIFAR-100"


def _with_crops_and_flips() -> list[tuple[str, str]]:
    """The same where training images are cropped and flipped; nothing where it was not measured."""
    found = stored("crops-and-flips")
    if found is None:
        return []
    mixup, erm = (found.results.select(method=method) for method in ("mixup", "erm"))
    learnt = 100 * float(np.mean([run["train"]["accuracy"] for run in erm]))
    epochs = found.sizes["epochs"]
    return [
        (
            f"crops and flips, in {epochs} epochs",
            f"**hurts**: {_above_erm(mixup, erm)} points; ERM has learnt {learnt:.0f} % of its training images by then",
        )
    ]


def _above() -> str:
    """The same of the example that README.md shows."""
    shown = {"data": "cifar10", "model": "resnet9", "samples": 10_000}
    return _above_erm(_trainings(method="mixup", **shown), _trainings(method="erm", **shown))


def _strengths_of_erm() -> str:
    """From the least to the largest that was found, of all networks."""
    runs = [
        run for folder in ({"samples": 10_000}, {"epochs": 12}) for run in _trainings(method="erm", **_PLAIN, **folder)
    ]
    found = [run["fits"]["fitted"]["strength"] for run in runs]
    return f"{min(found):.2f} to {max(found):.2f}"


def _tables(measure: str) -> str:
    """What Mixup with α = 1 and its rule add to a measure of the same network without Mixup, in points, over tables."""
    changes = [
        np.mean([split["alpha 1"][measure] - split["alpha 0"][measure] for split in splits.values()])
        for splits in _json(MEASURED / "tables.json")["runs"].values()
    ]
    return _signed([float(change) for change in changes], 1, 100)


def when() -> str:
    """Where Mixup and its rule help, and where they do not: a table."""
    flipped = _part("Mixup withstands label noise", "accuracy, 40% flipped")
    corrupted, tables = _rescaled_under_corruption(), len(_json(MEASURED / "tables.json")["runs"])
    short = "CIFAR-10: Mixup does not help a network that underfits"
    lost = _part(short, "what Mixup loses in accuracy")
    refreshed = _of_part(
        _part("CIFAR-100: rescaling with refreshed statistics improves Mixup", "gain in accuracy"), 1, 100
    )
    epochs = re.findall(r"(\d+) epochs", lost["about"])[0]
    rows = [
        (
            "a network that learns its training set by heart (α = 1, fitted)",
            f"{_above()} points of accuracy over ERM in the table above, {_on_whole_sets(1.0)}; "
            f"with α = 4 it **hurts**: {_on_whole_sets(4.0)}",
        ),
        *_with_crops_and_flips(),
        (
            "the rule and batch normalisation",
            f"`model.refresh_statistics(loader)`: {refreshed} points of accuracy over plain, mean over α (CIFAR-100)",
        ),
        ("noisy labels", f"helps: {_of_part(flipped, 1, 100)} points of accuracy with 40 % flipped (LeNet)"),
        (
            f"a network that underfits (LeNet, {epochs} epochs)",
            f"**hurts**: {_of_part(lost, 1, -100)} points of accuracy; train longer first",
        ),
        (
            "strong corruption (severity 5, α = 1)",
            f"the rule **hurts**: {corrupted['accuracy']} points of accuracy, cross-entropy {corrupted['loss']}",
        ),
        (
            f"clean tables ({tables} datasets, α = 1)",
            f"nothing beyond chance: {_tables('accuracy')} points of accuracy, {_tables('ece')} of ECE",
        ),
        (
            "centred data, balanced classes, no biases",
            "the rule changes nothing: f(θ̄x) / θ̄ = f(x) for a network of rectifiers",
        ),
        (
            "networks trained without Mixup",
            f"the rule **hurts**: cross-entropy {_erm_rescaled()}; `fit` finds κ of {_strengths_of_erm()}",
        ),
        ("Mixup switched off late, C-Mixup", "there is no rule: predict plainly, or `fit`"),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in (("where", "what came out"), ("---", "---"), *rows)).replace(
        "| --- | --- |", "|---|---|"
    )


def results() -> str:
    """How many claims are which, and the five that matter."""
    claims = _claims()
    count = Counter("corrected" if "corrected_by" in claim else claim["verdict"] for claim in claims.values())
    head = (
        f"`mixreg reproduce` makes every figure and table, with verdicts. Of {len(claims)} claims **{count[SUPPORTED]} "
        f"are supported, {count['corrected']} corrected,\n{count[CONTRADICTED]} contradicted and {count[UNDECIDED]} "
        f"undecided** ([all of them]({SITE}results.html), [errata](docs/errata.md)); the report, "
        "`results/report.html`,\nhas every figure and number, and `mixreg verify` checks every theorem, lemma and "
        "corollary as a number.\n\n"
    )
    rows = [("claim", "verdict", "measured"), ("---", "---", "---")]
    for name, words in FIVE.items():
        claim = claims[name]
        shown = "; ".join(_measured(part) for part in claim["parts"])
        rows.append((words, f"{_SIGNS[claim['verdict']]} {claim['words']}", shown))
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("| --- | --- | --- |", "|---|---|---|")


def _measured(part: Mapping[str, Any]) -> str:
    """A part of a claim with its difference, to two digits of its interval, and the margin of what is to be equal."""
    digits = max(1, 1 - int(np.floor(np.log10(part["half_width"]))))
    about = part["about"].replace(", at the end", "")
    margin = "" if part["margin"] is None else f" (within {part['margin']:.2g})"
    return f"{about}: {_of_part(part, min(digits, 4))}{margin}"


def speed() -> str:
    """In one line."""
    step, terms = (_json(MEASURED / f"{name}.json")["found"] for name in ("risk", "terms"))
    return (
        f"A step of approximate Mixup costs {step['LeNet: ApproximateMixup step']:.1f} steps of Mixup on a LeNet, the "
        f"terms of a ResNet-50 {terms['ResNet-50, tangents']:.0f} forward passes\n"
        f"([all measured as ratios]({SITE}benchmarks.html)).\n"
    )


SECTIONS: dict[str, Callable[[], str]] = {"hero": example, "when": when, "results": results, "speed": speed}


def written(text: str) -> str:
    """README.md with these sections as they follow from what is stored."""
    for name, section in SECTIONS.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, _, rest = text.partition(start)
        text = f"{head}{start}{section()}{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
