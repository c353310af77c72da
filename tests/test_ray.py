"""Sweeps on a real Ray cluster of this machine, with a worker killed in the middle."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
ROOT = Path(__file__).parents[1]
# Clusters and their clients show each other a token, from Ray 2.59 on always; these clusters have one of their own.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **TOKEN}
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


@contextmanager
def running_cluster(**environment: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """The address of a new cluster with two cores, and its head."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Sockets have short names.
    place = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    command = [shutil.which("ray", path=str(Path(sys.executable).parent)), "start", "--head", "--block"]
    command += [f"--port={port}", "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    command += [f"--temp-dir={place}", "--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
    quiet = subprocess.DEVNULL
    environment = os.environ | ENVIRONMENT | environment
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True, env=environment)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "Ray did not start"
            time.sleep(0.2)
        yield f"127.0.0.1:{port}", process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with running_cluster() as (address, _):
        yield address


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
def test_a_cluster_gives_what_this_machine_gives(cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path), cluster]
    driver = subprocess.Popen(command, env=os.environ | ENVIRONMENT, cwd=ROOT)
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
    sweep(RUNS, here, tmp_path / "here", KINDS, Workers(threads=1))
    assert Store(tmp_path / "results.sqlite").get(RUNS) == here.get(RUNS)
    assert len(here.get(RUNS)) == len(RUNS)


def test_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="no Ray cluster answers at"):
        sweep(RUNS, Store(tmp_path / "results.sqlite"), tmp_path / "runs", KINDS, Workers(ray_address="127.0.0.1:1"))


@pytest.mark.slow
def test_a_killed_head_is_told_and_leaves_a_report(tmp_path: Path) -> None:
    # Ray itself waits a minute for its head to come back.
    sooner = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3"}
    options = ["overview", "terms", "--scale", "smoke", "--set", "epochs=5000", "--out", str(tmp_path)]
    with running_cluster(**sooner) as (address, head):
        command = [sys.executable, "-m", "mixreg", "reproduce", *options, "--ray", address]
        driver = subprocess.Popen(command, env=os.environ | ENVIRONMENT | sooner, stderr=subprocess.PIPE, text=True)
        while not list((tmp_path / "runs").glob("*/log.jsonl")):
            assert driver.poll() is None, driver.communicate()[1]
            time.sleep(0.1)
        os.killpg(head.pid, signal.SIGKILL)
        _, told = driver.communicate(timeout=120)
    assert driver.returncode == 1
    assert f"the Ray cluster at '{address}' is gone" in told
    assert "report.html shows what is there" in told
    assert "Traceback" not in told
    assert (tmp_path / "report.html").exists()
