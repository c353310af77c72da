"""Stored results that changed or broke: noticed, and named with their file; those of earlier versions are read."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mixreg.experiments.store import Run, Store, StoreError

RESULTS = Path(__file__).parent.parent / "results"
RUNS = [Run("training", {"seed": seed}) for seed in range(3)]


def kept(path: Path) -> Store:
    store = Store(path)
    for run in RUNS:
        store.put(run, {"loss": 0.1 + run.settings["seed"], "log": [1e-300, "θ"]}, {"seconds": 1.5})
    return store


@pytest.mark.parametrize("column", ["result", "provenance", "settings", "kind", "finished"])
def test_a_stored_result_that_changed_is_named(column, tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    store = kept(path)
    assert store.get(RUNS)[RUNS[1].key] == {"loss": 1.1, "log": [1e-300, "θ"]}
    values = {"kind": "other", "settings": '{"seed": 5}', "finished": 3.0, "result": '{"loss": 1.2}'}
    for value in (values.get(column, "{}"), "{"):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE runs SET {column} = ? WHERE key = ?", (value, RUNS[1].key))
        for read in (store.records, lambda: store.get(RUNS), lambda: store.write_json(tmp_path / "results.json")):
            with pytest.raises(StoreError, match=rf"results\.sqlite: the result under {RUNS[1].key} is broken"):
                read()
    assert not (tmp_path / "results.json").exists()
    # The others are as they were.
    assert set(store.get([RUNS[0], RUNS[2]])) == {RUNS[0].key, RUNS[2].key}


def test_results_as_text_are_checked(tmp_path: Path) -> None:
    kept(tmp_path / "results.sqlite").write_json(tmp_path / "results.json")
    text = (tmp_path / "results.json").read_text()
    (tmp_path / "wrong.json").write_text(text.replace('"loss":1.1', '"loss":1.2'))
    store = Store(tmp_path / "again.sqlite")
    with pytest.raises(StoreError, match=r"wrong\.json does not hold results: training .* does not match its checksum"):
        store.read_json(tmp_path / "wrong.json")
    assert store.records() == []
    store.read_json(tmp_path / "results.json")
    store.write_json(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == text


def test_results_of_earlier_versions_have_no_checksum_and_are_read(tmp_path: Path) -> None:
    """From the text that is under version control, and from a table with one column less."""
    records = json.loads((RESULTS / "results.json").read_text())
    for record in records:
        record.pop("checksum", None)
    (tmp_path / "old.json").write_text(json.dumps(records))
    runs = [Run(record["kind"], record["settings"]) for record in records]
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as connection, connection:
        connection.execute(
            "CREATE TABLE runs (key TEXT PRIMARY KEY, kind TEXT NOT NULL, settings TEXT NOT NULL, result TEXT NOT NULL,"
            "provenance TEXT NOT NULL, finished REAL NOT NULL)"
        )
        rows = [
            (
                r["key"],
                r["kind"],
                *(json.dumps(r[part]) for part in ("settings", "result", "provenance")),
                r["finished"],
            )
            for r in records
        ]
        connection.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", rows)
    from_text = Store(tmp_path / "new.sqlite")
    from_text.read_json(tmp_path / "old.json")
    for store in (from_text, Store(tmp_path / "old.sqlite")):
        assert store.get(runs) == {record["key"]: record["result"] for record in records}
        store.put(RUNS[0], {}, {})
        assert len(store.records()) == len(records) + 1


def test_a_broken_results_file_is_named_whenever_it_breaks(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    store = kept(path)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    for broken in (bytes(content), b"no database at all" * 1000):
        path.write_bytes(broken)
        for use in (store.records, lambda: store.get(RUNS), lambda: store.put(RUNS[0], {}, {})):
            with pytest.raises(StoreError, match=r"results\.sqlite cannot be used as a results file"):
                use()
