"""Results of finished runs in one SQLite file, each under the checksum of what it was asked to do.

A run is its kind and its settings and nothing else, so that experiments that need the same run share it, and a run that
is in the file is never carried out again. Several sweeps may write to one file at the same time.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mixreg._support.files import write_bytes

_TABLE = """
CREATE TABLE IF NOT EXISTS runs (
    key TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    settings TEXT NOT NULL,
    result TEXT NOT NULL,
    provenance TEXT NOT NULL,
    finished REAL NOT NULL
)
"""
# How long a writer waits for another one.
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Run:
    """Something to carry out: a kind, which names the function that does it, and its settings, all JSON."""

    kind: str
    settings: dict[str, Any]

    @cached_property
    def key(self) -> str:
        """A checksum of kind and settings, which names the run everywhere."""
        content = json.dumps([self.kind, self.settings], sort_keys=True, allow_nan=False)
        return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


class StoreError(ValueError):
    """A results file that cannot be used; one sentence that names it."""


class Store:
    """The results file at `path`, made if it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._connect()) as connection, connection:
                connection.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{path} cannot be used as a results file: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        # A connection for every use: it may be shared by threads and survives forks.
        return sqlite3.connect(self.path, timeout=_TIMEOUT_SECONDS)

    def put(self, run: Run, result: dict[str, Any], provenance: dict[str, Any]) -> None:
        """Keep a result; the first one for a run stays."""
        row = (run.key, run.kind, *(json.dumps(part, allow_nan=False) for part in (run.settings, result, provenance)))
        with closing(self._connect()) as connection, connection:
            connection.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?)", (*row, time.time()))

    def get(self, runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
        """The results at hand, by key."""
        wanted = {run.key for run in runs}
        with closing(self._connect()) as connection:
            rows = connection.execute("SELECT key, result FROM runs").fetchall()
        return {key: json.loads(result) for key, result in rows if key in wanted}

    def records(self, runs: Iterable[Run] | None = None) -> list[dict[str, Any]]:
        """All that is known of finished runs: of these in their order, or of all by kind and time."""
        with closing(self._connect()) as connection:
            rows = connection.execute("SELECT * FROM runs ORDER BY kind, finished").fetchall()
        found = {
            key: {
                "key": key,
                "kind": kind,
                "settings": json.loads(settings),
                "result": json.loads(result),
                "provenance": json.loads(provenance),
                "finished": finished,
            }
            for key, kind, settings, result, provenance, finished in rows
        }
        wanted = found if runs is None else dict.fromkeys(run.key for run in runs)
        return [found[key] for key in wanted if key in found]

    def write_json(self, path: Path) -> None:
        """All finished runs as JSON, one line each: to be kept under version control."""
        lines = [json.dumps(record, allow_nan=False, separators=(",", ":")) for record in self.records()]
        write_bytes(path, ("[\n" + ",\n".join(lines) + "\n]\n").encode())

    def read_json(self, path: Path) -> None:
        """Take in what `write_json` wrote; results that are at hand stay as they are."""
        try:
            records = json.loads(path.read_text(encoding="utf-8"))
            rows = []
            for record in records:
                run = Run(record["kind"], record["settings"])
                if run.key != record["key"]:
                    raise ValueError(f"the key of {run.kind} {run.settings} is {run.key}, not {record['key']}")
                parts = (json.dumps(record[part], allow_nan=False) for part in ("settings", "result", "provenance"))
                rows.append((run.key, run.kind, *parts, float(record["finished"])))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StoreError(f"{path} does not hold results: {error}") from error
        with closing(self._connect()) as connection, connection:
            connection.executemany("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?)", rows)
