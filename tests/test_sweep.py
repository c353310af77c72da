"""Sweeps: killed, disturbed, with several writers; results are those of an undisturbed one."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import preloaded
import pytest

from mixreg.experiments.registry import KINDS
from mixreg.experiments.store import Run, Store, StoreError
from mixreg.experiments.sweep import SweepError, SweepProgress, Workers, sweep

SETTINGS = {"steps": 20, "features": 30, "looks": 2, "repetitions": 2}
RUNS = [
    Run("two-moons", SETTINGS | {"method": method, "alpha": alpha})
    for method in ("erm", "mixup", "approximate")
    for alpha in (0.5, 1.0)
]
CONFIG = {"data": "digits", "model": "mlp", "method": "mixup", "epochs": 4, "lr": 0.05}
RUNS.append(Run("training", {"config": CONFIG, "rescale": [1.0], "terms": {"samples": 20, "epochs": [2, 4]}}))
# What is computed once for several tests is computed in one process.
GROUP = pytest.mark.xdist_group("undisturbed")
DRIVER = """
import sys, json
from pathlib import Path
from mixreg.experiments.registry import KINDS
from mixreg.experiments.store import Run, Store
from mixreg.experiments.sweep import Workers, sweep
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    runs = [Run(kind, settings) for kind, settings in json.loads(sys.argv[2])]
    sweep(runs, Store(folder / "results.sqlite"), folder / "runs", KINDS, Workers(int(sys.argv[3]), threads=1))
"""


def drive(folder: Path, runs: list[Run], workers: int = 1) -> preloaded.Started:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "driver.py"
    script.write_text(DRIVER)
    listed = json.dumps([[run.kind, run.settings] for run in runs])
    return preloaded.start([str(script), str(folder), listed, str(workers)], new_group=True)


def results(folder: Path) -> dict:
    return Store(folder / "results.sqlite").get(RUNS)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert drive(folder, RUNS, workers=2).wait() == 0
    return results(folder)


@GROUP
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_a_sweep_that_is_killed_gives_the_same_table(undisturbed, kills: int, tmp_path: Path) -> None:
    moments = random.Random(0)
    for _ in range(kills):
        process = drive(tmp_path, RUNS)
        try:
            process.wait(timeout=moments.uniform(0.1, 5.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert drive(tmp_path, RUNS).wait() == 0
    assert results(tmp_path) == undisturbed
    assert len(undisturbed) == len(RUNS)


@GROUP
def test_two_sweeps_on_one_file_lose_nothing(undisturbed, tmp_path: Path) -> None:
    processes = [drive(tmp_path, RUNS[:4]), drive(tmp_path, RUNS[2:])]
    assert [process.wait() for process in processes] == [0, 0]
    assert results(tmp_path) == undisturbed


@GROUP
def test_a_worker_that_dies_is_replaced(undisturbed, tmp_path: Path) -> None:
    process = drive(tmp_path, RUNS)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    killed = 0
    while process.poll() is None and killed < 2:
        for child in children.read_text().split() if children.exists() else []:
            command = Path(f"/proc/{child}/cmdline")
            if command.exists() and b"spawn_main" in command.read_bytes():
                time.sleep(0.5)
                os.kill(int(child), signal.SIGKILL)
                killed += 1
                break
        time.sleep(0.05)
    assert process.wait() == 0
    assert killed == 2
    assert results(tmp_path) == undisturbed


def children_of(process: preloaded.Started) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in listed if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.parametrize(
    "how",
    [signal.SIGTERM, *(pytest.param(other, marks=pytest.mark.slow) for other in (signal.SIGKILL, signal.SIGINT))],
)
def test_workers_die_with_their_driver(how, tmp_path: Path) -> None:
    """So that the same command again finds nobody in its way."""
    longer = Run("training", {"config": CONFIG | {"epochs": 3000}, "rescale": [1.0]})
    process = drive(tmp_path, [longer, RUNS[0]])
    while not list(tmp_path.glob("runs/*/progress")):
        assert process.poll() is None
        time.sleep(0.05)
    workers = children_of(process)
    assert workers
    process.send_signal(how)
    assert process.wait(timeout=20) != 0
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_two_sweeps_that_train_the_same_network(tmp_path: Path) -> None:
    """One waits for the other; neither fails."""
    same = [Run("training", {"config": CONFIG | {"epochs": 15, "seed": seed}, "rescale": [1.0]}) for seed in (0, 1)]
    processes = [drive(tmp_path, same), drive(tmp_path, same)]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(Store(tmp_path / "results.sqlite").get(same)) == 2


def test_a_run_that_kills_its_workers_does_not_stop_the_others(tmp_path: Path, monkeypatch) -> None:
    deadly = tmp_path / "deadly.py"
    deadly.write_text("import os\ndef factory(num_classes):\n    os._exit(3)\n")
    # Spawned workers take the path along.
    monkeypatch.syspath_prepend(tmp_path)
    bad = Run("training", {"config": CONFIG | {"model": "deadly:factory"}, "rescale": [1.0]})
    store = Store(tmp_path / "results.sqlite")
    with pytest.raises(SweepError, match=f"run {bad.key} .* failed: its worker process died 3 times$"):
        sweep([bad, RUNS[0], RUNS[1]], store, tmp_path / "runs", KINDS, Workers(threads=1))
    assert len(store.get(RUNS[:2])) == 2


def test_finished_runs_are_not_carried_out_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "results.sqlite")
    for run in RUNS:
        store.put(run, {"by": "hand"}, {})
    told = []
    sweep(RUNS + RUNS, store, tmp_path, {}, on_progress=told.append)
    assert told == [SweepProgress(7, 7.0, 7, None)]
    store.put(RUNS[0], {"by": "another hand"}, {})
    assert store.get(RUNS[:1])[RUNS[0].key] == {"by": "hand"}
    assert [record["key"] for record in store.records(RUNS)] == [run.key for run in RUNS]


def test_a_run_that_fails_is_named(tmp_path: Path) -> None:
    wrong = Run("two-moons", SETTINGS | {"method": "magic"})
    store, told = Store(tmp_path / "results.sqlite"), []
    with pytest.raises(SweepError, match=f"run {wrong.key}.*unknown method 'magic'"):
        sweep([wrong, RUNS[0]], store, tmp_path, KINDS, on_progress=told.append)
    # The others are carried out all the same.
    assert set(store.get([wrong, RUNS[0]])) == {RUNS[0].key}
    assert (told[-1].finished, told[-1].total) == (1, 2)


def test_a_kind_that_nobody_knows_is_named_before_anything_starts(tmp_path: Path) -> None:
    store = Store(tmp_path / "results.sqlite")
    with pytest.raises(ValueError, match="nothing is known to carry out runs of the kind 'unheard-of'"):
        sweep([RUNS[0], Run("unheard-of", {})], store, tmp_path, KINDS)
    assert not store.records()


def test_half_finished_runs_count_in_part(tmp_path: Path) -> None:
    longer = Run("training", {"config": CONFIG | {"epochs": 60}, "rescale": [1.0]})
    store, told = Store(tmp_path / "results.sqlite"), []
    sweep([longer], store, tmp_path, KINDS, on_progress=lambda progress: told.append(progress.done))
    assert told == sorted(told)
    assert any(0 < done < 1 for done in told)


def test_results_as_text(tmp_path: Path) -> None:
    first, second = Store(tmp_path / "first.sqlite"), Store(tmp_path / "second.sqlite")
    for run in RUNS[:4]:
        first.put(run, {"key": run.key}, {"seconds": 1.0})
    first.write_json(tmp_path / "results.json")
    second.put(RUNS[4], {"key": "of its own"}, {"seconds": 1.0})
    second.read_json(tmp_path / "results.json")
    assert second.records(RUNS[:4]) == first.records() == first.records(RUNS)
    assert len(second.records()) == 5
    text = (tmp_path / "results.json").read_text()
    assert text.count("\n") == 6
    (tmp_path / "wrong.json").write_text(text.replace('"steps":20', '"steps":21'))
    with pytest.raises(StoreError, match=r"wrong\.json does not hold results: the key of two-moons"):
        second.read_json(tmp_path / "wrong.json")


def test_keys_do_not_depend_on_order_and_files_are_checked(tmp_path: Path) -> None:
    assert Run("a", {"x": 1, "y": 2}).key == Run("a", {"y": 2, "x": 1}).key
    assert Run("a", {"x": 1}).key != Run("b", {"x": 1}).key
    (tmp_path / "broken.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match=r"broken\.sqlite cannot be used as a results file"):
        Store(tmp_path / "broken.sqlite")
    assert sqlite3.sqlite_version_info >= (3, 24)
