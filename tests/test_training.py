"""Training runs: what they leave behind, broken and foreign files, wrong settings, networks of one's own."""

import json
import subprocess
from pathlib import Path

import numpy as np
import preloaded
import pytest
import torch
from click.testing import CliRunner
from runs import COMMAND, Interrupted, carry_out, environment, finish, start
from safetensors.torch import load_file

from mixreg import DataMoments
from mixreg._support.tensor_files import TensorFileError
from mixreg.commands.main import main
from mixreg.training import Config
from mixreg.training.array_batches import ArrayBatches
from mixreg.training.checkpoint import CheckpointError
from mixreg.training.engine import Engine
from mixreg.training.run import train
from mixreg.training.trained import load_trained


def test_means_are_those_of_what_the_network_saw(tmp_path: Path) -> None:
    config = Config(data="digits", method="mixup", epochs=2, label_noise=0.3)
    carry_out(config, tmp_path)
    from mixreg.data import digits

    batches = ArrayBatches(digits(), config)
    moments = DataMoments(num_classes=10)
    for epoch in range(2):
        for batch in batches.epoch(epoch):
            moments.update(batch.x, batch.y)
    stored = load_file(tmp_path / "model.safetensors")
    torch.testing.assert_close(stored["x_mean"].double(), moments.x_mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(stored["y_mean"].double(), moments.y_mean, rtol=1e-6, atol=1e-7)


def test_broken_and_foreign_files_are_named(tmp_path: Path) -> None:
    config = Config(data="digits", epochs=2)
    with pytest.raises(Interrupted):
        carry_out(config, tmp_path, stop_after=0)
    path = tmp_path / "checkpoint.safetensors"
    if not path.exists():
        with pytest.raises(Interrupted):
            carry_out(config, tmp_path, stop_after=1)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-10] ^= 1
    import safetensors.torch

    foreign = safetensors.torch.save({"a": torch.zeros(3)})
    for content, message in (
        (whole[: len(whole) // 2], "cannot be read"),
        (b"", "cannot be read"),
        (bytes(flipped), "does not match its checksum"),
        (foreign, "was not written by mixreg"),
        (b"\x80\x04\x95pickle", "cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(TensorFileError, match=f"checkpoint.safetensors.*{message}"):
            carry_out(config, tmp_path)
        assert path.read_bytes() == content
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="holds another run: seed = 0 there and 1 here"):
        carry_out(Config(data="digits", epochs=2, seed=1), tmp_path)
    with pytest.raises(CheckpointError, match="the run is not finished"):
        load_trained(tmp_path)
    assert carry_out(config, tmp_path)
    trained = load_trained(tmp_path)
    assert trained.shape == (1, 8, 8)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    from mixreg.training.run import only_one

    with only_one(tmp_path), pytest.raises(CheckpointError, match="is being trained by another process"):
        carry_out(Config(data="digits", epochs=1), tmp_path)


def test_no_room_and_no_permission_leave_the_last_checkpoint(tmp_path: Path) -> None:
    """A file size limit is what a full disk looks like to a program."""
    config = ["--epochs", "3", "--checkpoint-seconds", "0"]
    with pytest.raises(Interrupted):
        carry_out(Config(data="digits", epochs=3), tmp_path, stop_after=1)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    limited = f"ulimit -f 50; exec {' '.join(COMMAND)} --out {tmp_path} {' '.join(config)}"
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; {limited}"], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert "checkpoint.safetensors: File too large; the previous file is untouched" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert not list(tmp_path.glob(".*part"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "unknown dataset 'nowhere'; known are two-moons, digits"),
        (["--model", "lenet"], r"this network takes images of at least 16 × 16, got samples of shape (1, 8, 8)"),
        (["--model", "perceptron"], "unknown model 'perceptron'; known are lenet"),
        (["--model", "nowhere:net"], "cannot find 'nowhere:net'"),
        (["--preset", "imagenet-resnet50"], "needs --data"),
        (["--preset", "mine"], "unknown preset 'mine'; known are cifar-resnet34"),
        (["--method", "magic"], "unknown method 'magic'"),
    ],
)
def test_one_line_errors(arguments, message, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["train", "--accelerator", "cpu", "--out", str(tmp_path / "out"), *arguments])
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_network_of_one_s_own(tmp_path: Path) -> None:
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\ndef make(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.2), nn.Linear(16, num_classes))\n"
    )
    finish(start("run", "--model", "own_network:make", "--epochs", "1", cwd=tmp_path))
    evaluate = ["-m", "mixreg", "evaluate", "run"]
    evaluated = preloaded.run([*evaluate, "--json", "--model", "own_network:make"], tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    unasked = preloaded.run(evaluate, tmp_path)
    assert unasked.returncode == 1
    assert "its network is code of your own: give it with --model own_network:make" in unasked.stderr
    rows = json.loads(evaluated.stdout)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert [row["model"] for row in rows] == [
        "plain",
        "plain, tempered",
        "rescaled",
        "rescaled, tempered",
        "fitted",
        "fitted, tempered",
    ]
    assert rows[0]["accuracy"] == pytest.approx(metrics["plain"]["accuracy"])
    assert rows[2]["ece"] == pytest.approx(metrics["rescaled"]["ece"], abs=1e-6)


def test_data_that_changed_is_noticed(tmp_path: Path) -> None:
    random_numbers = np.random.default_rng(0)
    x, y = random_numbers.normal(size=(60, 5)), np.arange(60) % 3
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    config = Config(data=str(path), epochs=2, batch_size=20)
    with pytest.raises(Interrupted):
        carry_out(config, tmp_path / "run", stop_after=1)
    np.savez(path, x_train=x, y_train=(y + 1) % 3, x_test=x, y_test=y)
    with pytest.raises(CheckpointError, match=r"mine\.npz has changed since"):
        carry_out(config, tmp_path / "run")


def test_a_model_is_not_a_checkpoint(tmp_path: Path) -> None:
    config = Config(data="digits", epochs=1)
    carry_out(config, tmp_path / "done")
    (tmp_path / "new").mkdir()
    content = (tmp_path / "done" / "model.safetensors").read_bytes()
    (tmp_path / "new" / "checkpoint.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        carry_out(config, tmp_path / "new")


def test_tied_weights_are_saved(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "tied_network.py").write_text(
        "from torch import nn\ndef make(num_classes):\n    a, b = nn.Linear(64, 64), nn.Linear(64, 64)\n"
        "    b.weight = a.weight\n    return nn.Sequential(nn.Flatten(), a, b, nn.Linear(64, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    carry_out(Config(data="digits", model="tied_network:make", epochs=1), tmp_path / "run")
    trained = load_trained(tmp_path / "run", "tied_network:make")
    assert torch.equal(trained.net[1].weight, trained.net[2].weight)


def test_nothing_is_left_behind_by_wrong_settings(tmp_path: Path) -> None:
    for change in ({"data": "nowhere"}, {"model": "nothing"}):
        with pytest.raises(ValueError, match="unknown"):
            carry_out(Config(**change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_divergence_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="training diverged in epoch 1: the loss is not finite"):
        carry_out(Config(data="digits", lr=1e12, epochs=3), tmp_path)


def test_a_name_is_not_taken_for_a_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    carry_out(Config(data="digits", epochs=1), Path("digits"))
    assert Path("digits/metrics.json").exists()


@pytest.mark.parametrize("method", ["mixup", "approximate"])
def test_other_precisions(method, tmp_path: Path) -> None:
    config = Config(data="digits", method=method, epochs=1, precision="64-true")
    train(config, tmp_path, Engine(accelerator="cpu"))
    assert load_trained(tmp_path).config == config
