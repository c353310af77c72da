"""Sweeps on a real Ray cluster of this machine, with a worker killed in the middle."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mixreg.experiments.registry import KINDS
from mixreg.experiments.store import Run, Store
from mixreg.experiments.sweep import SweepError, Workers, sweep

pytest.importorskip("ray")

CONFIG = {"data": "digits", "model": "mlp", "epochs": 25, "lr": 0.05, "holdout": 0.0}
RUNS = [
    Run("training", {"config": CONFIG | {"method": method, "seed": seed}, "rescale": [1.0]})
    for method in ("erm", "mixup")
    for seed in (0, 1)
]
DRIVER = """
import sys, json
from pathlib import Path
from mixreg.experiments.registry import KINDS
from mixreg.experiments.store import Run, Store
from mixreg.experiments.sweep import Workers, sweep
from tests.test_ray import RUNS
folder = Path(sys.argv[1])
sweep(RUNS, Store(folder / "results.sqlite"), folder / "runs", KINDS, Workers(ray_address=sys.argv[2]))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster with two cores."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Sockets have short names.
    place = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    command = [shutil.which("ray", path=str(Path(sys.executable).parent)), "start", "--head", "--block"]
    command += [f"--port={port}", "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    command += [f"--temp-dir={place}", "--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
    quiet = subprocess.DEVNULL
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True, env=environment)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "Ray did not start"
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(place, ignore_errors=True)


def workers_at_work() -> list[int]:
    """Processes of Ray that carry out a run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if status.read_bytes().startswith(b"ray::carry_out"):
                found.append(int(status.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_cluster_gives_what_this_machine_gives(cluster, tmp_path: Path, monkeypatch) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", DRIVER, str(tmp_path), cluster]
    driver = subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[1])
    killed = None
    while driver.poll() is None and killed is None:
        # In the middle: after the first epochs of some run.
        begun = [path for path in (tmp_path / "runs").glob("*/log.jsonl") if path.read_text().count("\n") >= 2]
        busy = workers_at_work()
        if begun and busy:
            killed = busy[0]
            os.kill(killed, signal.SIGKILL)
        time.sleep(0.02)
    assert driver.wait() == 0
    assert killed is not None
    here = Store(tmp_path / "here.sqlite")
    # As many threads as there: sums depend on them in their last digits.
    monkeypatch.setattr("mixreg.experiments.sweep.cores", lambda: 1)
    sweep(RUNS, here, tmp_path / "here", KINDS)
    assert Store(tmp_path / "results.sqlite").get(RUNS) == here.get(RUNS)
    assert len(here.get(RUNS)) == len(RUNS)


def test_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="no Ray cluster answers at"):
        sweep(RUNS, Store(tmp_path / "results.sqlite"), tmp_path / "runs", KINDS, Workers(ray_address="127.0.0.1:1"))
