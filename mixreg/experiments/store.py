"""Results of finished runs in one SQLite file, each under the checksum of what it was asked to do.

A run is its kind and its settings and nothing else, so that experiments that need the same run share it, and a run that
is in the file is never carried out again. Several sweeps may write to one file at the same time.

Every result is kept with a checksum of all that is known of it, and is checked when it is read; what earlier versions
kept has none, and is checked to be JSON under the right key.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
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
    finished REAL NOT NULL,
    checksum TEXT
)
"""
_COLUMNS = "key, kind, settings, result, provenance, finished, checksum"
_KNOWN = set(_COLUMNS.split(", "))
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
        except OSError as error:
            raise StoreError(f"{path} cannot be used as a results file: {error}") from error
        if path.is_symlink():
            raise StoreError(f"{path} is a link to another file, expected a results file or nothing")
        with self._connected() as connection:
            # Looked at before anything is written: somebody else's database stays as it is.
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            columns = {row[1] for row in connection.execute("PRAGMA table_info(runs)")}
            if tables - {"runs"} or not columns <= _KNOWN or (columns and not _KNOWN - {"checksum"} <= columns):
                raise StoreError(f"{path} is somebody else's database, expected a results file or nothing")
            connection.execute(_TABLE)
            if columns and "checksum" not in columns:
                # Another process may be adding it, too.
                with suppress(sqlite3.OperationalError):
                    connection.execute("ALTER TABLE runs ADD COLUMN checksum TEXT")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection for one use (so it may be shared by threads and survives forks), whose errors name the file."""
        try:
            with closing(sqlite3.connect(self.path, timeout=_TIMEOUT_SECONDS)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} cannot be used as a results file: {error}") from error

    def put(self, run: Run, result: dict[str, Any], provenance: dict[str, Any]) -> None:
        """Keep a result; the first one for a run stays."""
        self._insert([_row(run, result, provenance, time.time())])

    def _insert(self, rows: list[tuple[Any, ...]]) -> None:
        with self._connected() as connection:
            connection.executemany(f"INSERT OR IGNORE INTO runs ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def get(self, runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
        """The results at hand, by key."""
        return {record["key"]: record["result"] for record in self._found({run.key for run in runs})}

    def records(self, runs: Iterable[Run] | None = None) -> list[dict[str, Any]]:
        """All that is known of finished runs: of these in their order, or of all by kind and time."""
        wanted = None if runs is None else dict.fromkeys(run.key for run in runs)
        found = {record["key"]: record for record in self._found(wanted)}
        return [found[key] for key in (found if wanted is None else wanted) if key in found]

    def _found(self, wanted: Iterable[str] | None) -> list[dict[str, Any]]:
        """The records under these keys (all if None), by kind and time, each checked."""
        with self._connected() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM runs ORDER BY kind, finished").fetchall()
        keys = {row[0] for row in rows} if wanted is None else set(wanted)
        return [self._record(*row) for row in rows if row[0] in keys]

    def _record(
        self, key: str, kind: str, settings: str, result: str, provenance: str, finished: float, checksum: str | None
    ) -> dict[str, Any]:
        try:
            parts = {"settings": settings, "result": result, "provenance": provenance}
            record = {"key": key, "kind": kind, **{name: json.loads(text) for name, text in parts.items()}}
            return _checked(record | {"finished": finished, "checksum": checksum})
        except (TypeError, ValueError) as error:
            raise StoreError(f"{self.path}: the result under {key} is broken: {error}") from error

    def write_json(self, path: Path) -> None:
        """All finished runs as JSON, one line each: to be kept under version control."""
        lines = [json.dumps(record, allow_nan=False, separators=(",", ":")) for record in self.records()]
        write_bytes(path, ("[\n" + ",\n".join(lines) + "\n]\n").encode())

    def read_json(self, path: Path) -> None:
        """Take in what `write_json` wrote; results that are at hand stay as they are."""
        try:
            records = [_checked(record) for record in json.loads(path.read_text(encoding="utf-8"))]
            rows = [
                _row(Run(r["kind"], r["settings"]), r["result"], r["provenance"], float(r["finished"])) for r in records
            ]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StoreError(f"{path} does not hold results: {error}") from error
        self._insert(rows)


def _row(run: Run, result: Any, provenance: Any, finished: float) -> tuple[Any, ...]:
    """A record as the table holds it."""
    parts = (json.dumps(part, allow_nan=False) for part in (run.settings, result, provenance))
    return (run.key, run.kind, *parts, finished, _checksum(run, result, provenance, finished))


def _checksum(run: Run, result: Any, provenance: Any, finished: float) -> str:
    content = json.dumps([run.key, result, provenance, float(finished)], sort_keys=True, allow_nan=False)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _checked(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its checksum, if its key is that of its settings and its content what was kept."""
    if not isinstance(record["settings"], dict) or not isinstance(record["result"], dict):
        raise ValueError("settings and result must be JSON objects")
    run = Run(record["kind"], record["settings"])
    if run.key != record["key"]:
        raise ValueError(f"the key of {run.kind} {run.settings} is {run.key}, not {record['key']}")
    expected = _checksum(run, record["result"], record["provenance"], record["finished"])
    if record.get("checksum") not in (None, expected):
        raise ValueError(f"{run.kind} {run.settings} does not match its checksum")
    return record | {"checksum": expected}
