"""Batches of pictures from folders: prepared ahead by workers, which end when they should."""

import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import picture
from runs import COMMAND, environment

from mixreg.data import DataError
from mixreg.data.folders import AHEAD, ImageFiles, images_in, read_batches


class Counted(ImageFiles):
    """Counts the images that were read, in whatever process."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.count = multiprocessing.Value("i", 0)

    def __getitem__(self, key: tuple[int, int]):
        found = super().__getitem__(key)
        with self.count.get_lock():
            self.count.value += 1
        return found


def some_pictures(folder: Path, count: int) -> Counted:
    folder.mkdir()
    for k in range(count):
        picture(k, k).save(folder / f"{k:03d}.jpg")
    return Counted(images_in(folder), torch.arange(count), 16, 7)


def children() -> list:
    """Worker processes that are still there after a moment."""
    deadline = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    return multiprocessing.active_children()


def test_batches_do_not_depend_on_workers(tmp_path: Path) -> None:
    files = some_pictures(tmp_path / "a", 23)
    parts = [part.tolist() for part in torch.randperm(23, generator=torch.Generator().manual_seed(0)).split(4)]
    expected = list(read_batches(files, parts, 3, 0))
    for (x, y), part in zip(expected, parts, strict=True):
        assert y.tolist() == part
        assert torch.equal(x, torch.stack([files[3, index][0] for index in part]))
        assert x.is_contiguous(memory_format=torch.channels_last)
    for workers in (1, 2):
        found = list(read_batches(files, iter(parts), 3, workers))
        assert all(torch.equal(a[k], b[k]) for a, b in zip(found, expected, strict=True) for k in (0, 1))
        assert all(x.is_contiguous(memory_format=torch.channels_last) for x, _ in found)


def test_so_many_batches_are_prepared_ahead_and_no_more(tmp_path: Path) -> None:
    files = some_pictures(tmp_path / "a", 40)
    batches = read_batches(files, torch.arange(40).reshape(-1, 2).tolist(), 0, 2)
    next(batches)
    ahead = 2 * (1 + 2 * AHEAD)
    deadline = time.monotonic() + 30
    while files.count.value < ahead and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)  # for more, if there were more
    assert files.count.value == ahead
    batches.close()
    assert not children()


def test_an_error_names_its_file_and_ends_all_workers(tmp_path: Path) -> None:
    files = some_pictures(tmp_path / "a", 12)
    files.paths[9].write_bytes(b"\xff\xd8\xff no picture")
    batches = read_batches(files, np.arange(12).reshape(-1, 2).tolist(), 0, 2)
    assert [next(batches)[1].tolist() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(DataError, match=r"a/009\.jpg is broken or not what it should be: [^\n]*$"):
        next(batches)
    assert not children()


class Slow(ImageFiles):
    """Takes its time for every image."""

    def __getitem__(self, key: tuple[int, int]):
        time.sleep(0.3)
        return super().__getitem__(key)


def test_an_interruption_while_waiting_ends_all_workers(tmp_path: Path) -> None:
    files = some_pictures(tmp_path / "a", 30)
    batches = read_batches(Slow(files.paths, files.labels, 16, 7), [[k] for k in range(30)], 0, 2)
    next(batches)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt) as error:
            list(batches)
    finally:
        signal.signal(signal.SIGALRM, before)
    # The error is still at hand, as the last one is in a notebook.
    assert not children()
    assert error.tb is not None


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_process_behind(tmp_path: Path) -> None:
    """Ctrl-C reaches a terminal's whole group of processes."""
    for part in ("train", "val"):
        for label in range(2):
            (tmp_path / part / str(label)).mkdir(parents=True)
            for k in range(20):
                picture(label, k, (300, 300)).save(tmp_path / part / str(label) / f"{k}.jpg")
    out = tmp_path / "run"
    options = ["--model", "small-resnet", "--image-size", "32", "--epochs", "1000", "--batch-size", "8"]
    options += ["--data", str(tmp_path), "--workers", "2", "--checkpoint-seconds", "0", "--out", str(out)]
    process = subprocess.Popen(
        [*COMMAND, *options],
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and not (out / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "Traceback" not in errors
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("processes are left")
