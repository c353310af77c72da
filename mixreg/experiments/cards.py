"""Cards of the networks that runs keep, from their stored results: data, recipe, measures, and how they were made.

A run with a setting `keep` leaves models/NAME.safetensors. Its card, NAME.json beside it, is what `mixreg zoo` shows
and what `mixreg.load("zoo:NAME")` holds the file against. Measures are those of the test set, under the names that
`mixreg.load(…, rule=…)` takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mixreg._support.files import digest, write_json
from mixreg._support.tensor_files import TensorFileError, load_tensors
from mixreg.experiments.predictors import rescaled_name
from mixreg.training.config import Config
from mixreg.training.held_out_fit import FITTED, PLAIN, RESCALED
from mixreg.training.zoo import CARD, NAME, SUFFIX

_MADE_WITH = ("mixreg", "commit", "torch", "threads", "machine", "seconds")


def write_cards(folder: Path, records: Iterable[dict[str, Any]]) -> list[Path]:
    """Write the card of every kept network in `folder` whose run is among stored records; their files."""
    written = []
    for record in records:
        name = record["settings"].get("keep", "")
        model = folder / f"{name}{SUFFIX}"
        # Another run may have been kept under this name since.
        if isinstance(name, str) and NAME.fullmatch(name) and model.is_file() and _is_of(model, record):
            path = folder / f"{name}{CARD}"
            write_json(path, card(name, model, record))
            written.append(path)
    return written


def _is_of(model: Path, record: dict[str, Any]) -> bool:
    """Whether a file holds the network of a run; a broken one, which nobody can load, holds none."""
    try:
        _, about = load_tensors(model)
    except TensorFileError:
        return False
    return bool(about.get("config") == Config(**record["settings"]["config"]).to_json())


def card(name: str, model: Path, record: dict[str, Any]) -> dict[str, Any]:
    """What is known of a kept network.

    Args:
        name: of the network.
        model: its file.
        record: of its run, as a store gives it.
    """
    config, result = Config(**record["settings"]["config"]), record["result"]
    shown = {PLAIN: PLAIN, FITTED: FITTED}
    if config.method != "erm":
        shown[RESCALED] = rescaled_name(config.alpha)
    fit = result.get("fits", {}).get(FITTED)
    found: dict[str, Any] = {
        "name": name,
        "bytes": model.stat().st_size,
        "sha256": digest(model),
        "data": config.data,
        "recipe": config.to_json(),
        "test": {rule: result["test"][key] for rule, key in shown.items() if key in result["test"]},
        "made": {key: record["provenance"][key] for key in _MADE_WITH if key in record["provenance"]},
        "run": record["key"],
    }
    if fit is not None:
        found["fit"] = {key: fit[key] for key in ("strength", "temperature", "samples")}
    return found | ({"train": result["train"]} if "train" in result else {})
