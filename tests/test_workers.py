"""Workers: the same threads however many runs are left, and deaths that end in a sentence."""

import os
import subprocess
import sys
import time
from pathlib import Path

import preloaded
import pytest

from mixreg.experiments.provenance import cores, provenance
from mixreg.experiments.registry import KINDS
from mixreg.experiments.store import Run, Store
from mixreg.experiments.sweep import SweepError, Workers, sweep

CONFIG = {"data": "digits", "model": "mlp", "epochs": 2, "lr": 0.05}
TRAININGS = [
    Run("training", {"config": CONFIG | {"method": "mixup", "seed": seed}, "rescale": [1.0]}) for seed in range(3)
]
# A kind that notes every process that loads or carries it out; and what it does there.
NOTING = """
import os
from pathlib import Path
HERE = Path(__file__).parent
def note(what):
    with (HERE / "noted").open("a") as file:
        file.write(f"{what} {os.getpid()}\\n")
"""
LOADING = "note('load')\nif os.environ.get('DIES_IN_WORKERS') and 'spawn_main' in ' '.join(CALLED): os._exit(3)\n"
CALLED = "CALLED = Path('/proc/self/cmdline').read_text().split('\\0')\n"
KIND = "def kind(settings, folder, progress):\n    note(settings['seed'])\n    return {}\n"
DRIVER = """
import sys
from pathlib import Path
from mixreg.experiments.store import Run, Store
from mixreg.experiments.sweep import SweepError, Workers, sweep
from mixreg.experiments.overview import EXPERIMENT
if __name__ == "__main__":
    import noting
    folder = Path(sys.argv[1])
    runs = [Run("noting", {"seed": seed}) for seed in range(4)] + EXPERIMENT.runs(EXPERIMENT.sizes_at("smoke"))
    try:
        sweep(runs, Store(folder / "results.sqlite"), folder / "runs", EXPERIMENT.kinds | {"noting": noting.kind},
              Workers(int(sys.argv[2]), threads=1))
    except SweepError as error:
        sys.exit(f"told: {error}")
"""


@pytest.fixture
def noting(tmp_path: Path) -> Path:
    """A folder with such a kind, and a script that carries out four runs of it and one of another kind."""
    (tmp_path / "noting.py").write_text(NOTING + CALLED + LOADING + KIND)
    (tmp_path / "driver.py").write_text(DRIVER)
    return tmp_path


def drive(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return preloaded.run([str(folder / "driver.py"), str(folder), *arguments], env=os.environ | environment)


def noted(folder: Path, what: str) -> int:
    return (folder / "noted").read_text().split().count(what)


def stored_kinds(folder: Path) -> list[str]:
    return [record["kind"] for record in Store(folder / "results.sqlite").records()]


def test_the_number_of_threads_is_the_same_for_all_runs_of_a_sweep(tmp_path: Path, monkeypatch) -> None:
    """Also for the last ones, when some workers have nothing to do, and for what a second command has left to do."""
    monkeypatch.setattr("mixreg.experiments.workers.cores", lambda: 4)
    together = Store(tmp_path / "together.sqlite")
    sweep(TRAININGS, together, tmp_path / "together", KINDS, Workers(2))
    one_by_one = Store(tmp_path / "alone.sqlite")
    for run in reversed(TRAININGS):
        sweep([run], one_by_one, tmp_path / "alone", KINDS, Workers(2))
    for store in (together, one_by_one):
        assert [record["provenance"]["threads"] for record in store.records(TRAININGS)] == [2, 2, 2]
    # To the last digit, in weights too.
    assert together.get(TRAININGS) == one_by_one.get(TRAININGS)
    for run in TRAININGS:
        weights = [(tmp_path / place / run.key / "model.safetensors").read_bytes() for place in ("together", "alone")]
        assert weights[0] == weights[1]


@pytest.mark.slow
def test_threads_can_be_chosen_and_do_not_depend_on_workers_then(tmp_path: Path) -> None:
    results = []
    for count in (1, 2):
        store = Store(tmp_path / f"{count}.sqlite")
        sweep(TRAININGS[:2], store, tmp_path / str(count), KINDS, Workers(count, threads=2))
        assert {record["provenance"]["threads"] for record in store.records()} == {2}
        results.append(store.get(TRAININGS))
    assert results[0] == results[1]


def test_shares_of_the_machine(monkeypatch) -> None:
    monkeypatch.setattr("mixreg.experiments.workers.cores", lambda: 8)
    assert [Workers(count).threads_per_run for count in (1, 3, 8, 20)] == [8, 2, 1, 1]
    assert Workers(4, ray_address="auto", cpus=3).threads_per_run == 3
    assert Workers(4, ray_address="auto", cpus=3, threads=1).threads_per_run == 1
    assert provenance(1.0)["cores"] == cores()


def test_a_kind_that_ends_workers_when_it_is_imported(noting: Path) -> None:
    """Three times, and not for ever; other kinds are carried out."""
    finished = drive(noting, "2", DIES_IN_WORKERS="yes")
    assert finished.returncode == 1
    assert "failed: worker processes died 3 times while they imported the code of 'noting' runs; 3 others" in (
        finished.stderr
    )
    # Once in the driver, and in two workers three times at most.
    assert noted(noting, "load") <= 1 + 2 * 3
    assert stored_kinds(noting) == ["overview"]


def test_workers_that_die_before_they_get_to_anything(noting: Path) -> None:
    script = noting / "driver.py"
    dying = "import os\nif __name__ != '__main__':\n    os._exit(3)\n"
    script.write_text(dying + script.read_text())
    finished = drive(noting, "2")
    assert finished.returncode == 1
    assert "failed: worker processes died 3 times in a row before they began a run; 4 others failed too" in (
        finished.stderr
    )
    assert stored_kinds(noting) == []


def test_code_that_cannot_be_imported_is_an_error_of_its_run(noting: Path) -> None:
    failing = LOADING.replace("os._exit(3)", "raise ImportError('nothing here')")
    (noting / "noting.py").write_text(NOTING + CALLED + failing + KIND)
    finished = drive(noting, "1", DIES_IN_WORKERS="yes")
    assert "failed: nothing here; 3 others failed too" in finished.stderr
    assert stored_kinds(noting) == ["overview"]


class Picky(Exception):
    def __init__(self, first, second) -> None:
        super().__init__(f"{first} and {second}")


def raise_picky(settings, folder, progress) -> dict:
    raise Picky("one", "two")


def test_an_error_that_cannot_travel_is_told_in_words(tmp_path: Path) -> None:
    store = Store(tmp_path / "results.sqlite")
    with pytest.raises(SweepError, match=r"failed: Picky: one and two$"):
        sweep([Run("picky", {})], store, tmp_path / "runs", {"picky": raise_picky})
    with pytest.raises(SweepError, match=r"failed: .*lambda"):
        sweep([Run("picky", {})], store, tmp_path / "runs", {"picky": lambda *arguments: {}})


def dies(settings, folder, progress) -> dict:
    """Waits until the other driver has come, then ends its worker; notes how often."""
    place = Path(settings["place"])
    with (place / "deaths").open("a") as file:
        file.write("x")
    (place / "begun").touch()
    while not (place / "other").exists():
        time.sleep(0.02)
    os._exit(3)


def waits(settings, folder, progress) -> dict:
    while not (Path(settings["place"]) / "finish").exists():
        time.sleep(0.02)
    return {}


SECOND = """
import sys
from pathlib import Path
from mixreg.experiments.store import Run, Store
from mixreg.experiments.sweep import Workers, sweep
sys.path.insert(0, sys.argv[2])
from test_workers import dies, waits
if __name__ == "__main__":
    place = Path(sys.argv[1])
    runs = [Run("waits", {"place": str(place)}), Run("dies", {"place": str(place)})]
    calls = []
    # The first call is before anything is begun.
    told = lambda progress: calls.append(1) or (len(calls) > 1 and (place / "other").touch())
    sweep(runs, Store(place / "results.sqlite"), place / "runs", {"dies": dies, "waits": waits}, Workers(1), told)
"""


@pytest.mark.slow
def test_a_second_driver_does_not_hide_what_the_first_ones_workers_are_at(tmp_path: Path) -> None:
    """The deadly run of the first is given up after three deaths, whatever the second does meanwhile."""
    (tmp_path / "second.py").write_text(SECOND)
    deadly, store = Run("dies", {"place": str(tmp_path)}), Store(tmp_path / "results.sqlite")
    second = None

    def begin_second(progress) -> None:
        nonlocal second
        if second is None and (tmp_path / "begun").exists():
            command = [sys.executable, str(tmp_path / "second.py"), str(tmp_path), str(Path(__file__).parent)]
            second = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        if (tmp_path / "deaths").exists() and (tmp_path / "deaths").stat().st_size > 3:
            raise AssertionError("a fourth attempt")

    try:
        with pytest.raises(SweepError, match=r"failed: its worker process died 3 times$"):
            sweep([deadly], store, tmp_path / "runs", {"dies": dies}, on_progress=begin_second)
    finally:
        if second is not None:
            second.kill()
            second.wait()
    assert (tmp_path / "deaths").stat().st_size == 3


def beside(settings, folder, progress) -> dict:
    """One run ends its worker while the other one is at work, three times."""
    place = Path(settings["place"])
    at_work, deaths = place / "at work", place / "deaths"
    if settings["deadly"]:
        while not at_work.exists():
            time.sleep(0.02)
        at_work.unlink()
        with deaths.open("a") as file:
            file.write("x")
        os._exit(3)
    at_work.touch()
    while not deaths.exists() or deaths.stat().st_size < 3:
        time.sleep(0.02)
    # Not before the worker of the third death is missed.
    time.sleep(1)
    return {}


def test_a_run_is_not_blamed_for_another_ones_deaths(tmp_path: Path) -> None:
    deadly, harmless = (Run("beside", {"place": str(tmp_path), "deadly": is_deadly}) for is_deadly in (True, False))
    store = Store(tmp_path / "results.sqlite")
    with pytest.raises(SweepError, match=f"^run {deadly.key} .* failed: its worker process died 3 times$"):
        sweep([deadly, harmless], store, tmp_path / "runs", {"beside": beside}, Workers(2))
    assert set(store.get([deadly, harmless])) == {harmless.key}
