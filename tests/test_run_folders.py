"""Folders of runs: what is somebody else's stays as it is, and what is half-done is not left behind."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from runs import Interrupted, carry_out, environment, finish, start

from mixreg import DataMoments
from mixreg._support.files import locked, remove_leftovers, write_json
from mixreg._support.tensor_files import TensorFileError
from mixreg.data.fetch import from_debian
from mixreg.training import Config, run
from mixreg.training.checkpoint import CheckpointError
from mixreg.training.engine import Engine
from mixreg.training.observer import Observer
from mixreg.training.trained import load_trained

QUICK = Config(data="digits", epochs=1, batch_size=500)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("done") / "run"
    assert carry_out(QUICK, folder)
    return folder


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_is_kept(link, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("years of work")
    (tmp_path / "run").mkdir()
    link(tmp_path / "precious", tmp_path / "run" / ".lock")
    with pytest.raises(OSError, match=r"cannot write .*\.lock: it is a link to another file"):
        carry_out(QUICK, tmp_path / "run")
    with pytest.raises(OSError, match="it is a link"), locked(tmp_path / "run" / ".lock"):
        pass
    assert (tmp_path / "precious").read_text() == "years of work"
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


@pytest.mark.parametrize("name", ["model.safetensors", "log.jsonl", "metrics.json", "checkpoint.safetensors"])
def test_somebody_s_files_are_not_overwritten(name, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    (tmp_path / ".notes.part").write_text("mine too")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=rf"holds {name} without config\.json: it belongs to another run or to"):
        carry_out(QUICK, tmp_path)
    assert contents(tmp_path) == before


def test_only_a_run_s_own_leftovers_are_deleted(tmp_path: Path) -> None:
    others = [".notes.part", ".checkpoint.safetensors.part", ".model.safetensors.backup-of-june.part"]
    for name in [*others, ".log.jsonl.0a_b9xyz.part"]:
        (tmp_path / name).write_text("x")
    (tmp_path / ".config.json.abcdefgh.part").symlink_to(tmp_path / others[0])
    assert carry_out(QUICK, tmp_path)
    left = {path.name for path in tmp_path.glob(".*.part")}
    assert left == {*others, ".config.json.abcdefgh.part"}
    remove_leftovers(tmp_path, ["notes"])
    assert (tmp_path / ".notes.part").exists()


def test_the_folder_is_looked_at_again_when_its_lock_is_held(tmp_path: Path, monkeypatch) -> None:
    """While one command loads its data another one begins, and is killed."""
    other, opened = Config(data="digits", epochs=7), run.open_batches

    def slowly(*arguments, **settings):
        write_json(tmp_path / "config.json", other.to_json())
        return opened(*arguments, **settings)

    monkeypatch.setattr(run, "open_batches", slowly)
    with pytest.raises(ValueError, match=r"holds another run: .*epochs = 7 there and 1 here"):
        carry_out(QUICK, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == other.to_json()


def test_of_two_commands_at_once_one_is_refused_and_the_other_ends(tmp_path: Path) -> None:
    commands = [start(tmp_path / "run", "--epochs", "3", "--seed", str(seed)) for seed in (1, 2)]
    outputs = [command.communicate()[0] for command in commands]
    codes = [command.returncode for command in commands]
    assert sorted(codes) == [0, 1], outputs
    winner, loser = codes.index(0), codes.index(1)
    assert "holds another run" in outputs[loser] or "is being trained by another process" in outputs[loser]
    assert load_trained(tmp_path / "run").config.seed == (1, 2)[winner]
    assert "was done before" in finish(start(tmp_path / "run", "--epochs", "3", "--seed", str((1, 2)[winner])))


class StopsAfterAnEpoch(Observer):
    def on_epoch(self, record) -> None:
        raise Interrupted


def foreign_models(done: Path, folder: Path) -> dict[str, tuple[bytes, str]]:
    """Files that are no model of the run, with what is to be said of them."""
    assert carry_out(Config(data="digits", epochs=1, batch_size=500, seed=1), folder / "other")
    moments = DataMoments()
    moments.update(torch.randn(4, 3), torch.randn(4, 2))
    moments.save(folder / "moments.safetensors")
    with pytest.raises(Interrupted):
        run.train(QUICK, folder / "half", Engine(accelerator="cpu"), StopsAfterAnEpoch(), checkpoint_seconds=0)
    broken = bytearray((done / "model.safetensors").read_bytes())
    broken[-5] ^= 1
    return {
        "empty": (b"", "cannot be read"),
        "foreign": (safetensors.torch.save({"a": torch.zeros(2)}), "was not written by mixreg"),
        "broken": (bytes(broken), "does not match its checksum"),
        "of another run": ((folder / "other" / "model.safetensors").read_bytes(), "is not the model of the run"),
        "moments": ((folder / "moments.safetensors").read_bytes(), "is not the model of the run"),
        "a checkpoint": ((folder / "half" / "checkpoint.safetensors").read_bytes(), "is not the model of the run"),
    }


def test_done_before_means_this_run_and_whole(done: Path, tmp_path: Path) -> None:
    assert carry_out(QUICK, done) is False
    place = tmp_path / "run"
    for name, (content, message) in foreign_models(done, tmp_path).items():
        shutil.copytree(done, place)
        (place / "model.safetensors").write_bytes(content)
        before = contents(place)
        with pytest.raises((CheckpointError, TensorFileError), match=rf"model\.safetensors.*{message}"):
            carry_out(QUICK, place)
        assert contents(place) == before, name
        shutil.rmtree(place)
    for name, message in (
        ("metrics.json", "does not hold the measures of the run"),
        ("log.jsonl", "is not the log of a run"),
        ("config.json", "is not the configuration of a run"),
    ):
        for content in ("[]\n", '{"mine": 1}\n', "\n"):
            shutil.copytree(done, place)
            (place / name).write_text(content)
            with pytest.raises(CheckpointError, match=message):
                carry_out(QUICK, place)
            assert (place / name).read_text() == content
            shutil.rmtree(place)
    shutil.copytree(done, place)
    (place / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds log\.jsonl, model\.safetensors, metrics\.json without config"):
        carry_out(QUICK, place)


def test_a_first_step_that_fails_leaves_the_folder_free(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "failing_network.py").write_text(
        "from torch import nn\n"
        "def wrong(num_classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(63, num_classes))\n"
        "def right(num_classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for change, message in (({"model": "failing_network:wrong"}, "shapes"), ({"lr": 1e30}, "diverged")):
        settings = {"data": "digits", "model": "failing_network:right", "epochs": 2, "batch_size": 300}
        with pytest.raises((RuntimeError, ValueError), match=message):
            carry_out(Config(**settings | change), out, seconds=60.0)
        assert {path.name for path in out.iterdir()} <= {".lock", "notes.txt"}
    assert carry_out(Config(**settings), out)
    # What has a checkpoint is kept: it is resumed.
    with pytest.raises(Interrupted):
        carry_out(Config(**settings), tmp_path / "kept", stop_after=1)
    assert {"config.json", "checkpoint.safetensors"} <= {path.name for path in (tmp_path / "kept").iterdir()}


def test_debian_s_files_go_through_a_folder_of_one_s_own(tmp_path: Path, monkeypatch) -> None:
    """Programs that do what apt-get and dpkg-deb do; the second notes who might have written meanwhile."""
    programs, folder = tmp_path / "bin", tmp_path / "getting"
    programs.mkdir()
    folder.mkdir(mode=0o700)
    (programs / "apt-get").write_text('#!/bin/sh\necho "$@" > arguments\n: > package.deb\n')
    (programs / "dpkg-deb").write_text(
        '#!/bin/sh\nstat -c %a . > mode\nmkdir -p "$3/usr"\necho new > "$3/usr/a.gz"\nln -s /etc/passwd "$3/usr/b.gz"\n'
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (tmp_path / "precious").write_text("precious")
    (folder / "a.gz").symlink_to(tmp_path / "precious")
    from_debian("some-data")(folder, lambda *_: None)
    assert (folder / "mode").read_text().strip() == "700"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (tmp_path / "precious").read_text() == "precious"
    assert (folder / "a.gz").read_text() == "new\n"
    assert not (folder / "a.gz").is_symlink()
    assert not (folder / "b.gz").exists()
    # For root, apt would otherwise change to a user who cannot write here.
    assert "APT::Sandbox::User=root download some-data" in (folder / "arguments").read_text()


def test_where_the_first_process_is_refused_all_are(tmp_path: Path) -> None:
    """Nobody is left waiting for a process that has gone."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "mixreg"]
    command += ["train", "--accelerator", "cpu", "--devices", "2", "--strategy", "ddp", "--out", str(tmp_path)]
    with run.only_one(tmp_path):
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert done.stderr.count("is being trained by another process") == 2, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
