"""Results of finished runs, found by the settings of their runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any

from mixreg.experiments.store import Run
from mixreg.training.config import Config

# What a configuration does not name has its default, and can be asked for.
_DEFAULTS = {field.name: field.default for field in fields(Config) if field.default is not MISSING}


class Results:
    """Runs and their results.

    Args:
        finished: runs with their results; the same run may occur more than once.
    """

    def __init__(self, finished: Iterable[tuple[Run, dict[str, Any]]]) -> None:
        unique = {run.key: (_flat(run), result) for run, result in finished}
        self._found = sorted(unique.values(), key=lambda pair: pair[0].get("seed", 0))

    def select(self, **settings: Any) -> list[dict[str, Any]]:
        """The results of the runs with these settings, in order of their seeds: one for every seed from 0 on.

        A setting is a run's `kind`, one of its settings, or a field of its configuration (`config`); those that are not
        given are not compared.
        """
        matching = [pair for pair in self._found if _matches(pair[0], settings)]
        asked = _described(settings)
        if not matching:
            raise LookupError(f"no run has {asked}")
        repetitions = Counter(flat.get("seed", 0) for flat, _ in matching)
        seed, count = repetitions.most_common(1)[0]
        if count > 1:
            raise LookupError(f"{count} runs with seed {seed} have {asked}: name more settings")
        absent = set(range(len(repetitions))) - set(repetitions)
        if absent:
            raise LookupError(f"of the runs with {asked} there is none with seed {min(absent)}")
        return [result for _, result in matching]

    def one(self, **settings: Any) -> dict[str, Any]:
        """The result of the one run with these settings."""
        found = self.select(**settings)
        if len(found) > 1:
            raise LookupError(f"{len(found)} runs have {_described(settings)}, where one was expected")
        return found[0]


def _flat(run: Run) -> dict[str, Any]:
    """All settings of a run side by side, with those of its configuration."""
    config = _DEFAULTS | run.settings["config"] if "config" in run.settings else {}
    return {"kind": run.kind, **config, **run.settings}


def _described(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items()) or "whatever settings"


def _matches(flat: dict[str, Any], settings: dict[str, Any]) -> bool:
    return all(name in flat and _plain(flat[name]) == _plain(value) for name, value in settings.items())


def _plain(value: Any) -> Any:
    """Tuples as the lists that JSON makes of them."""
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value
