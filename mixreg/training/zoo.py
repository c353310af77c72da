"""Trained networks by name: `mixreg.load("zoo:cifar10-resnet9-mixup1")`.

A zoo is a folder of files NAME.safetensors, as `mixreg.load` reads them, each with a card NAME.json beside it: data,
recipe, measures, and the size and checksum of its file, which are looked at before it is opened. Folders are looked
through in order, and the first that has a name has it:

    MIXREG_ZOO                      a folder of your own, where that is set
    zoo/ in the data folder         see `mixreg data list`
    results/evidence/models         of the repository, where mixreg is run from a checkout

Cards are written from stored results by `mixreg.experiments.cards`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any

from mixreg._support.files import digest
from mixreg.data.arrays import cache_folder

PREFIX, SUFFIX, CARD = "zoo:", ".safetensors", ".json"
RELEASED = Path(__file__).parents[2] / "results" / "evidence" / "models"
# Lower-case words: no name leads out of its folder, on any file system.
NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")


class ZooError(ValueError):
    """A network that is not in the zoo, or not what its card says; one sentence that names it."""


def is_in_zoo(run: object) -> bool:
    """Whether a run is asked for by its name in the zoo."""
    return isinstance(run, str) and run.startswith(PREFIX)


def folders() -> list[Path]:
    """Where networks are looked for, first to last."""
    own = os.environ.get("MIXREG_ZOO")
    return [*([Path(own).expanduser()] if own else []), cache_folder() / "zoo", RELEASED]


def networks() -> dict[str, Path]:
    """All names that are at hand, with their files."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            if NAME.fullmatch(path.name.removesuffix(SUFFIX)) and path.is_file():
                found.setdefault(path.name.removesuffix(SUFFIX), path)
    return found


def find(name: str) -> Path:
    """The file of a network, checked against its card if it has one.

    Args:
        name: with or without "zoo:" before it.
    """
    name = name.removeprefix(PREFIX)
    if not NAME.fullmatch(name):
        raise ZooError(f"a name in the zoo is lower-case words with hyphens and dots, got {name!r}")
    known = networks()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}" if near else f"known are {', '.join(known) or 'none'}"
        places = ", ".join(str(folder) for folder in folders())
        raise ZooError(f"{PREFIX}{name} is not in the zoo ({hint}); looked in {places}")
    path = known[name]
    if path.resolve().parent != path.parent.resolve():
        raise ZooError(f"{path} is a link to another folder, expected a file")
    card = read_card(path)
    if card is not None:
        size = path.stat().st_size
        if size != card["bytes"]:
            raise ZooError(f"{path} has {size:,} bytes, and its card says {card['bytes']:,}")
        if digest(path) != card["sha256"]:
            raise ZooError(f"{path} is not the file that its card was written for: their checksums differ")
    return path


def read_card(path: Path) -> dict[str, Any] | None:
    """The card of a network's file; None if it has none."""
    place = path.with_name(path.name.removesuffix(SUFFIX) + CARD)
    if not place.exists() and not place.is_symlink():
        return None
    try:
        card = json.loads(place.read_text(encoding="utf-8"))
        parts = {"name": str, "bytes": int, "sha256": str, "recipe": dict, "test": dict}
        wrong = [key for key, kind in parts.items() if not isinstance(card[key], kind)]
        for rule, measured in card["test"].items():
            is_whole = all(isinstance(measured[key], (int, float)) for key in ("accuracy", "cross_entropy", "ece"))
            if rule not in ("plain", "rescaled", "fitted") or not is_whole:
                wrong.append(f"the test of {rule!r}")
        if wrong or card["name"] != path.name.removesuffix(SUFFIX):
            raise ValueError(f"{(wrong or ['name'])[0]} is not what it must be")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ZooError(f"{place} is not the card of a network: {error}") from error
    found: dict[str, Any] = card
    return found
