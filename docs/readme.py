"""Words on results with their numbers from `results/`: README.md's sections (`python docs/readme.py`) and the site's.

`readme_results.txt` is the section with names where numbers and tables belong. Its words were written for the verdicts
in `WRITTEN_FOR`: where a verdict is another one now, an error says so, and the words are to be written anew. The table
and the picture of `examples/cifar10.py` come from `results/cifar10`, where its runs are stored, if they are.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mixreg import Theta
from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.regulariser_runs import Measured
from mixreg.experiments.results import Results
from mixreg.experiments.store import Run
from mixreg.experiments.verdict_table import read_verdicts, scale_table, verdict_table
from mixreg.experiments.verdicts import CONTRADICTED, SUPPORTED, UNDECIDED

ROOT = Path(__file__).parent.parent
README, RESULTS, WORDS = ROOT / "README.md", ROOT / "results", ROOT / "docs" / "readme_results.txt"
START, END = "<!-- results -->\n", "<!-- end of results -->"
EXAMPLE = RESULTS / "cifar10"
EXAMPLE_START, EXAMPLE_END = "<!-- cifar10 -->\n", "<!-- end of cifar10 -->"
_WIDTH = 120

WRITTEN_FOR = {
    "Mixup calibrates": SUPPORTED,
    "Mixup keeps the Jacobian small": SUPPORTED,
    "Mixup withstands label noise": SUPPORTED,
    "Mixup normalises inputs": UNDECIDED,
    "Mixup is more than its parts": UNDECIDED,
    "Gaussian noise will do": SUPPORTED,
    "approximate Mixup follows Mixup": UNDECIDED,
    "Mixup and label smoothing lower confidence": CONTRADICTED,
    "two moons: approximate Mixup follows Mixup": CONTRADICTED,
}

# Claims by name, as claims.json has them.
Claims = Mapping[str, Mapping[str, Any]]


def section() -> str:
    """All between the two marks of README.md."""
    paragraphs, found = WORDS.read_text(encoding="utf-8").rstrip().split("\n\n"), known()
    return "\n\n".join(_filled(paragraph.format(**found)) for paragraph in paragraphs) + "\n"


@lru_cache(maxsize=1)
def known() -> dict[str, str]:
    """Every number and table that words may name: `{name}` in README.md's, `{{name}}` in a page's of the site."""
    found = read_verdicts(RESULTS)
    claims = {claim["name"]: claim for claim in found["claims"]}
    check_words(claims)
    tables = {"scale_table": scale_table(found["experiments"]), "verdict_table": verdict_table(found["claims"])}
    tables["verdict_parts"] = verdict_table(found["claims"], with_parts=True)
    return tables | counts(claims) | from_claims(claims) | from_runs()


def with_numbers(page: str) -> str:
    """A page of the site with its `{{names}}` filled in."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: known()[match[1]], page)


def _filled(paragraph: str) -> str:
    """Text in lines of equal width; tables, pictures and headings as they are."""
    if paragraph.startswith(("|", "!", "#")):
        return paragraph
    return textwrap.fill(paragraph, _WIDTH, break_long_words=False, break_on_hyphens=False)


def check_words(claims: Claims) -> None:
    """An error where the words were written for another verdict."""
    for name, verdict in WRITTEN_FOR.items():
        found = claims[name]["verdict"]
        if found != verdict:
            raise ValueError(f"{WORDS.name} was written for {name!r} being {verdict}, and it is {found}: write it anew")


def counts(claims: Claims) -> dict[str, str]:
    """How many claims are which, and how many of Table 1's ticks are supported."""
    of_all = Counter(claim["verdict"] for claim in claims.values())
    ticks = [claim["verdict"] for claim in claims.values() if claim["source"] == "Table 1"]
    found = {verdict: of_all[verdict] for verdict in (SUPPORTED, CONTRADICTED, UNDECIDED)}
    found |= {"claims": len(claims), "ticks": len(ticks), "ticks_supported": ticks.count(SUPPORTED)}
    return {name: str(count) for name, count in found.items()}


def from_claims(claims: Claims) -> dict[str, str]:
    """Differences with their intervals, and what would decide."""

    def part(name: str, about: str) -> Mapping[str, Any]:
        (found,) = (part for part in claims[name]["parts"] if part["about"].startswith(about))
        return found

    def percent(found: Mapping[str, Any], sign: int = 1) -> str:
        return f"{100 * sign * found['difference']:.1f} ± {100 * found['half_width']:.1f}".replace("-", "−")

    def decided_by(found: Mapping[str, Any]) -> str:
        return str(found["words"].partition("(")[2].removesuffix(")"))

    noise, approximation = claims["Mixup withstands label noise"], claims["approximate Mixup follows Mixup"]
    highest = max(noise["sizes"]["noises"], key=float)
    gaussian = part("Gaussian noise will do", "accuracy")
    confidence = part("Mixup and label smoothing lower confidence", "mean confidence, label smoothing − Mixup")
    moons = part("two moons: approximate Mixup follows Mixup", "test accuracy, approximate − Mixup, plain")
    return {
        "approximation": decided_by(approximation),
        "approximation_repetitions": str(approximation["sizes"]["repetitions"]),
        "epsilon": f"{1 - float(Theta(approximation['sizes']['alpha']).mean):g}",
        "flipped": f"{100 * float(highest):g}",
        "flipped_gain": percent(part("Mixup withstands label noise", f"accuracy, {float(highest):.0%} flipped")),
        "gaussian": percent(gaussian),
        "gaussian_margin": f"{100 * gaussian['margin']:.1f}",
        "human_gain": percent(part("Mixup withstands label noise", "accuracy, human noise")),
        "independent": decided_by(part("Mixup is more than its parts", "cross-entropy, Mixup, independent")),
        "less_confident": f"{-confidence['difference']:.2f} ± {confidence['half_width']:.2f}",
        "moons_plain": percent(moons, -1),
        "samples": f"{noise['sizes']['samples']:,}",
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
    return {name: f"{mean:.2g}" for name, mean in means.items()}


def _table_1() -> Measured:
    experiment, plan = EXPERIMENTS["regularizers"], json.loads((RESULTS / "experiments.json").read_text("utf-8"))
    sizes = {**experiment.earlier, **plan["regularizers"]["sizes"]}
    wanted = {run.key for run in experiment.runs(sizes)}
    records = json.loads((RESULTS / "results.json").read_text(encoding="utf-8"))
    runs = [(Run(r["kind"], r["settings"]), r["result"]) for r in records if r["key"] in wanted]
    return Measured(Results(runs), sizes)


def example(folder: Path = EXAMPLE) -> str:
    """The picture and the table that `examples/cifar10.py` left in a folder; nothing where it was not carried out."""
    if not (folder / "summary.json").exists():
        return ""
    found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    about = (
        f"What the picture shows (`python examples/cifar10.py --seeds {found['seeds']}`, {found['minutes']:.0f} "
        f"minutes a run on one core): a ResNet-9 on {found['images']:,} images of CIFAR-10, {found['epochs']} epochs, "
        "no augmentation. Strengths and temperatures are fitted on held-out images; mean ± 95 % interval over seeds."
    )
    picture = "![Reliability on CIFAR-10: ERM, Mixup, rescaled, fitted](results/cifar10/reliability.png)"
    table = (folder / "table.md").read_text(encoding="utf-8")
    return f"{picture}\n\n{_filled(about)}\n\n{table}"


def for_site(text: str) -> str:
    """A section of README.md as a page of the site has it, which lies in `docs/`."""
    return text.replace("](docs/", "](").replace("](results/", "](../results/")


def written(text: str) -> str:
    """README.md with its sections on results as they follow from them."""
    for start, content, end in ((EXAMPLE_START, example(), EXAMPLE_END), (START, section(), END)):
        head, _, rest = text.partition(start)
        text = f"{head}{start}{content}{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
