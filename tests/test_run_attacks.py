"""Runs that are disturbed: folders that move, data that changes, statistics of several processes, odd terminals."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from runs import Interrupted, Interrupting, carry_out, environment, finish, start_two

from mixreg.commands.main import main
from mixreg.data import DataError
from mixreg.data.folders import images_in
from mixreg.training import Config
from mixreg.training.batches import Pixels
from mixreg.training.engine import Engine
from mixreg.training.observer import Observer
from mixreg.training.run import train

SHORT = Config(epochs=3, lr=0.05, samples=200)


class Moving(Observer):
    """Moves the run's folder away after an epoch, and lets another run begin there."""

    def __init__(self, out: Path, other: Config | None) -> None:
        self.out, self.other = out, other

    def on_epoch(self, record: dict) -> None:
        if record["epoch"] == 1:
            self.out.rename(self.out.with_suffix(".away"))
            if self.other is not None:
                carry_out(self.other, self.out)


@pytest.mark.parametrize("has_other", [False, True])
def test_a_folder_that_moved_is_not_written_to(has_other: bool, tmp_path: Path) -> None:
    out = tmp_path / "run"
    other = Config(epochs=1, samples=200, seed=7) if has_other else None
    with pytest.raises(ValueError, match="was moved or removed meanwhile; nothing more is written there"):
        train(SHORT, out, Engine(accelerator="cpu"), Moving(out, other), 0.0)
    assert out.exists() == has_other
    if has_other:
        assert not carry_out(other, out), "was done before, and is as it was"


def test_a_finished_run_knows_that_its_data_changed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.normal(size=(60, 3)), "y_train": np.arange(60) % 2}
    data = tmp_path / "d.npz"
    np.savez(data, **arrays)
    config = Config(data=str(data), epochs=1)
    carry_out(config, tmp_path / "run")
    assert not carry_out(config, tmp_path / "run")
    np.savez(data, **arrays | {"y_train": (np.arange(60) + 1) % 2})
    with pytest.raises(ValueError, match=r"has changed since .* was trained on it; choose another folder"):
        carry_out(config, tmp_path / "run")
    data.unlink()
    assert not carry_out(config, tmp_path / "run"), "of what is gone, nothing can be said"


def test_a_checkpoint_that_outlived_its_run_goes(tmp_path: Path) -> None:
    carry_out(SHORT, tmp_path)
    with pytest.raises(Interrupted):
        train(SHORT, tmp_path / "other", Engine(accelerator="cpu"), Interrupting(1), 0.0)
    shutil.copy(tmp_path / "other" / "checkpoint.safetensors", tmp_path)
    assert not carry_out(SHORT, tmp_path)
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_precision_is_part_of_a_run(tmp_path: Path) -> None:
    carry_out(SHORT, tmp_path)
    with pytest.raises(ValueError, match='precision = "32-true" there and "64-true" here'):
        carry_out(Config(**vars(SHORT) | {"precision": "64-true"}), tmp_path)


def test_weights_that_are_not_finite_are_named_as_divergence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="training diverged in epoch 1"):
        carry_out(Config(epochs=1, samples=128, lr=1e38), tmp_path)


def test_processes_judge_the_network_that_is_saved(tmp_path: Path) -> None:
    """Batch normalisation has seen other batches in each process; the first one's statistics are what is kept."""
    (tmp_path / "normed.py").write_text(
        "from torch import nn\n"
        "def make(num_classes):\n"
        "    norm = nn.BatchNorm1d(16, momentum=0.5)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), norm, nn.ReLU(), nn.Linear(16, num_classes))\n"
    )
    out = tmp_path / "run"
    options = ["--model", "normed:make", "--epochs", "2", "--samples", "256", "--batch-size", "32", "--lr", "0.05"]
    for process in start_two(out, *options, cwd=tmp_path):
        finish(process)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        shown = CliRunner().invoke(main, ["evaluate", str(out), "--model", "normed:make", "--json"])
    rows = {row["model"]: row for row in json.loads(shown.output)}
    metrics = json.loads((out / "metrics.json").read_text())
    for name in ("plain", "rescaled"):
        assert metrics[name]["cross_entropy"] == pytest.approx(rows[name]["cross_entropy"], rel=1e-5)


def test_somebody_elses_database_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    for statement in ("create table runs(run_uuid text primary key, name text)", "create table mine(a text)"):
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()
        before = path.read_bytes()
        arguments = ["reproduce", "least-squares", "--scale", "smoke", "--out", str(tmp_path), "--workers", "1"]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 1
        assert "results.sqlite was not written by `mixreg reproduce`" in " ".join(done.output.split())
        assert path.read_bytes() == before
        from mixreg.experiments.store import Store, StoreError

        with pytest.raises(StoreError, match="somebody else's database"):
            Store(path)
        assert path.read_bytes() == before
        assert sorted(p.name for p in tmp_path.iterdir()) == ["results.sqlite"]
    path.rename(tmp_path / "precious")
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(StoreError, match="is a link to another file"):
        Store(path)


def test_what_another_version_planned_stays(tmp_path: Path) -> None:
    from mixreg.experiments.reproduce import PLAN

    arguments = ["reproduce", "least-squares", "--scale", "smoke", "--out", str(tmp_path), "--workers", "1"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    plan = json.loads((tmp_path / PLAN).read_text())
    later = {"from-tomorrow": {"scale": "smoke", "changes": {}, "sizes": {}}}
    (tmp_path / PLAN).write_text(json.dumps(plan | later))
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert json.loads((tmp_path / PLAN).read_text()) == plan | later


def test_a_network_that_is_none_is_not_verified(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "odd.py").write_text("def none(): return None\n")
    np.savez(tmp_path / "v.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(
        main, ["verify", "--model", "odd:none", "--data", str(tmp_path / "v.npz"), "--alpha", "1"]
    )
    assert done.exit_code == 1
    assert "odd:none must return a network (torch.nn.Module), got NoneType" in done.output


def test_closed_pipes_and_terminals(tmp_path: Path) -> None:
    command = f"{sys.executable} -m mixreg data list | true"
    done = subprocess.run(["bash", "-c", command], env=environment(), capture_output=True, text=True, check=False)
    assert "code that was run" not in done.stderr
    assert "Traceback" not in done.stderr
    command = f"{sys.executable} -m mixreg train --accelerator cpu --epochs 1 --out {tmp_path / 'run'} 2>&-"
    done = subprocess.run(["bash", "-c", command], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_folder_that_is_not_utf8_can_be_trained_in(tmp_path: Path) -> None:
    out = os.fsencode(tmp_path) + b"/run-\xff"
    carry_out(Config(epochs=1, samples=64), Path(os.fsdecode(out)))
    assert b"run-\xff" in os.listdir(os.fsencode(tmp_path))


@pytest.mark.parametrize("header", ["5", "null", "[1, 2]"])
def test_broken_records_name_their_file(header: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from mixreg._support.tensor_files import TensorFileError, load_tensors

    save_file({"a": torch.zeros(2)}, tmp_path / "m.safetensors", {"mixreg": header})
    with pytest.raises(TensorFileError, match=r"m\.safetensors was not written by mixreg"):
        load_tensors(tmp_path / "m.safetensors")


def test_pictures_are_neither_left_out_nor_taken_in_without_a_word(tmp_path: Path) -> None:
    def picture(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path, format="PNG")

    folder = tmp_path / "class"
    picture(folder / "a.png")
    picture(folder / "without_ending")
    picture(folder / ".ipynb_checkpoints" / "a.png")
    picture(folder / "._a.png")
    (folder / "notes.txt").write_text("not a picture")
    (folder / "LICENSE").write_text("not a picture either")
    picture(tmp_path / "elsewhere" / "b.png")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "elsewhere").symlink_to(folder)
    assert [path.name for path in images_in(folder)] == ["a.png", "b.png", "without_ending"]
    for make in (
        lambda path: path.symlink_to(tmp_path / "nothing"),
        lambda path: os.mkfifo(path),
    ):
        bad = folder / "bad.png"
        make(bad)
        with pytest.raises(DataError, match=r"bad\.png is named like a picture and is no file"):
            images_in(folder)
        bad.unlink()
    for ending in ("mpo", "cr2", "qoi", "apng"):
        (folder / f"x.{ending}").write_bytes(b"")
        with pytest.raises(DataError, match="is a picture of a kind that is not read"):
            images_in(folder)
        (folder / f"x.{ending}").unlink()


def test_a_dictionary_in_parquet_is_no_bomb(tmp_path: Path) -> None:
    """One picture with zeros after it, in every row: counted in every row, and read a few rows at a time."""
    pa = pytest.importorskip("pyarrow")
    import io

    import pyarrow.parquet as pq

    from mixreg.data.formats import parquet, rows_at_once

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    content = buffer.getvalue() + bytes(30_000_000)
    index = pa.array([0] * 40, pa.int32())
    values = pa.DictionaryArray.from_arrays(index, pa.array([content], pa.binary()))
    table = pa.table({"img": pa.StructArray.from_arrays([values], ["bytes"]), "label": list(range(40))})
    pq.write_table(table, tmp_path / "b.parquet", compression="zstd", dictionary_pagesize_limit=1 << 30)
    assert (tmp_path / "b.parquet").stat().st_size < 100_000
    with pq.ParquetFile(tmp_path / "b.parquet") as file:
        assert rows_at_once(file, 64) <= 8
    with pytest.raises(DataError, match="would unpack from"):
        parquet([tmp_path / "b.parquet"])


def test_pixel_statistics_need_little_memory() -> None:
    import tracemalloc

    images = np.random.default_rng(0).integers(0, 256, (4000, 32, 32, 3), dtype=np.uint8)
    tracemalloc.start()
    pixels = Pixels.of(images)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(pixels.mean.numpy(), images.mean((0, 1, 2)) / 255, rtol=1e-6)
    np.testing.assert_allclose(pixels.std.numpy(), images.std((0, 1, 2)) / 255, rtol=1e-6)
    assert peak < 64e6  # of 12 MB of images, as eight-byte integers 98 MB


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logits_shrunk": np.zeros((6, 3), complex)}, "logits_shrunk must hold real numbers, got complex128"),
        ({"y_mean": np.array(["a", "b", "c"])}, "y_mean must hold real numbers"),
        ({"holdout_logits": np.zeros((6, 4)), "holdout_labels": np.zeros(6, int)}, "has 4 columns, logits 3"),
        ({"holdout_labels": np.zeros(6, int)}, "it lacks 'holdout_logits'"),
        ({"logits": np.zeros((6, 1))}, "n × c numbers for c classes, at least 2"),
        ({"logits": np.zeros((6, 0))}, "n × c numbers for c classes, at least 2"),
    ],
)
def test_wrong_saved_outputs(arrays: dict, message: str, tmp_path: Path) -> None:
    from mixreg.evaluation.table import saved_outputs

    np.savez(tmp_path / "o.npz", **{"logits": np.zeros((6, 3)), "labels": np.zeros(6, int)} | arrays)
    with pytest.raises(DataError, match=message) as error:
        saved_outputs(tmp_path / "o.npz", 1.0)
    assert "o.npz" in str(error.value)


def test_saved_outputs_in_another_order_of_bytes(tmp_path: Path) -> None:
    from mixreg.evaluation.table import saved_outputs, table

    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(20, 3)), rng.integers(0, 3, 20)
    np.savez(tmp_path / "a.npz", logits=logits, labels=labels, note=np.array(["text"]))
    np.savez(tmp_path / "b.npz", logits=logits.astype(">f8"), labels=labels.astype(">i8"))
    assert table(saved_outputs(tmp_path / "a.npz", 1.0)) == table(saved_outputs(tmp_path / "b.npz", 1.0))


@pytest.mark.parametrize("kind", ["numpy", "detached", "no_grad"])
def test_networks_that_autograd_cannot_see_have_no_terms(kind: str) -> None:
    from mixreg import risk

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()

    def hidden(x: torch.Tensor) -> torch.Tensor:
        if kind == "no_grad":
            with torch.no_grad():
                return net(x)
        if kind == "detached":
            return net(x.detach())
        return torch.from_numpy(net(x.detach()).detach().numpy() * 1.0)

    x, y = torch.randn(12, 3).double(), torch.arange(12) % 2
    with pytest.raises(ValueError, match="autograd does not see that the network's output depends on x"):
        risk.quadratic(hidden, x, y, 1.0)
    # What needs no derivative works, and a constant is rightly flat.
    assert torch.isfinite(risk.mixup(hidden, x, y, 1.0, nodes=4))
    assert float(risk.quadratic(lambda x: torch.zeros(len(x), 2).double(), x, y, 1.0).joint) == 0


@pytest.mark.parametrize("alpha", ["1e-100", "1e15"])
def test_alphas_that_cannot_be_verified_get_a_sentence(alpha: str) -> None:
    done = CliRunner().invoke(main, ["verify", f"--alpha={alpha}"])
    assert done.exit_code == 2
    assert "--alpha must be 0, inf or between 1e-06 and 1e+06" in " ".join(done.output.split())


def test_results_that_are_no_objects_name_their_file(tmp_path: Path) -> None:
    from mixreg.experiments.store import Run, Store, StoreError

    store = Store(tmp_path / "r.sqlite")
    store.put(Run("two-moons", {"a": 1}), {"b": 2}, {})
    with sqlite3.connect(tmp_path / "r.sqlite") as connection:
        connection.execute("update runs set result = '[]', checksum = null")
    connection.close()
    with pytest.raises(StoreError, match=r"r\.sqlite: the result under .* is broken"):
        store.records()


def test_shifted_sets_without_images_get_a_sentence(tmp_path: Path) -> None:
    from mixreg.data.shifted import file_batches

    with pytest.raises(DataError, match="holds no images"):
        file_batches([], [], 16, 0)
