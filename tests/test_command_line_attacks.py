"""The command line under bad values and hostile names: a sentence, no traceback, no success that is none."""

import json
import subprocess
from pathlib import Path

import numpy as np
import preloaded
import pytest
import torch
from click.testing import CliRunner, Result
from runs import carry_out

from mixreg.commands.errors import sentence
from mixreg.commands.main import main
from mixreg.commands.terminal import printable
from mixreg.training import Config


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env=environment)


def assert_refused(result: Result, message: str) -> None:
    """One sentence, as click prints it, and not the way a program dies."""
    assert result.exit_code in (1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert message in " ".join(result.output.split()), result.output
    assert "Traceback" not in result.output


def test_empty_names_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        (["train", "--out", "run", "--data", ""], "--data names a dataset, got ''"),
        (["train", "--out", ""], "expected a path, got ''"),
        (["evaluate", ".", "--data", ""], "--data names a dataset, got ''"),
        (["evaluate", ""], "expected a path, got ''"),
        (["evaluate", ".", "--device", ""], "--device is cpu, cuda, cuda:1, mps or the like, got ''"),
        (["reproduce", "--out", ""], "expected a path, got ''"),
        (["data", "get", "cifar10", "--from", ""], "--from names a folder or an address, got ''"),
    ):
        assert_refused(invoke(*arguments), message)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="a dataset is named, got ''"):
        carry_out(Config(data="", epochs=1), tmp_path / "run")


def test_nul_and_unknown_homes_are_sentences(tmp_path: Path) -> None:
    for arguments in (
        ["train", "--out", "a\0b"],
        ["reproduce", "--out", "a\0b"],
        ["evaluate", "a\0b"],
        ["evaluate", str(tmp_path), "--figures", "a\0b"],
        ["verify", "--data", "a\0b"],
    ):
        assert_refused(invoke(*arguments), "expected a path, got 'a\\x00b'")
    for arguments in (["data", "list"], ["data", "get", "cifar10"], ["train", "--data", "cifar10", "--out", "run"]):
        result = invoke(*arguments, MIXREG_DATA="~nosuchuser/x")
        assert_refused(result, "datasets cannot be kept in MIXREG_DATA=~nosuchuser/x")


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_gpus_are_a_number(value, tmp_path: Path) -> None:
    result = invoke("reproduce", "two-moons", "--gpus", value, "--ray", "local", "--out", str(tmp_path / "out"))
    assert_refused(result, f"--gpus must be a number of at least 0, got {float(value):g}")
    assert not (tmp_path / "out").exists()


def run_here(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return preloaded.run(["-m", "mixreg", *arguments], folder)


def test_code_of_one_s_own_that_ends_the_program_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("import sys\ndef make(num_classes=2):\n    sys.exit(0)\n")
    (tmp_path / "gone.py").write_text("raise SystemExit\n")
    np.savez(tmp_path / "mine.npz", x=np.ones((4, 3)), y=np.arange(4) % 2)
    for arguments in (
        ["train", "--model", "leaving:make", "--out", "run"],
        ["train", "--model", "gone:make", "--out", "run"],
        ["verify", "--model", "leaving:make", "--data", "mine.npz"],
        ["reproduce", "gone:EXPERIMENT", "--out", "out"],
    ):
        done = run_here(tmp_path, *arguments)
        assert done.returncode == 1, arguments
        assert "ended the program with exit code" in done.stderr
        assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"leaving.py", "gone.py", "mine.npz", "__pycache__"}


def test_verify_takes_all_that_it_is_given_or_nothing(tmp_path: Path, monkeypatch) -> None:
    assert_refused(invoke("verify", "--loss", "squared_error"), "--loss belongs to --model and --data")
    (tmp_path / "own_line.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(3, 2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    x, y = np.random.default_rng(0).normal(size=(6, 3)), np.arange(6) % 2
    for wrong, message in (
        ({"x": x + 1j, "y": y}, "x must be floating point, got complex128"),
        ({"x": x, "y": np.eye(2)[y] * (1 + 0j)}, "y must be labels or floating point, got complex128"),
        ({"x": x > 0, "y": y}, "x must be floating point, got bool"),
    ):
        np.savez(tmp_path / "own.npz", **wrong)
        result = invoke("verify", "--model", "own_line:make", "--data", str(tmp_path / "own.npz"), "--json")
        assert_refused(result, message)


ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\r"


def test_names_have_no_effect_on_a_terminal(tmp_path: Path) -> None:
    assert printable("å × 1\u00a0θ̄\n") == "å × 1\u00a0θ̄\n"
    assert printable("a\udcffb") == "a\\udcffb"
    assert sentence(ValueError(f"class {ESCAPES}x")) == "class \\x1b]0;owned\\x07\\x1b[2J\\u202e\\x9b31m x."
    for part in ("train", "val"):
        for name in ("a", "b") if part == "train" else (f"c{ESCAPES}",):
            (tmp_path / "set" / part / name).mkdir(parents=True)
            picture = np.zeros((8, 8, 3), np.uint8)
            from PIL import Image

            Image.fromarray(picture).save(tmp_path / "set" / part / name / "1.png")
    result = invoke("train", "--data", str(tmp_path / "set"), "--out", str(tmp_path / "run"), "--holdout", "0")
    assert_refused(result, "is not one of the 2 classes of the training set")
    missing = invoke("evaluate", f"no{ESCAPES}thing")
    assert missing.exit_code == 2
    for output in (result.output, missing.output):
        assert not any(character in output for character in "\x1b\x07\u202e\x9b\r")


def test_square_brackets_are_not_orders(tmp_path: Path) -> None:
    folder = tmp_path / "[/b] [red]"
    (folder / "a[").mkdir(parents=True)
    numbers = np.random.default_rng(0)
    x, y = numbers.normal(size=(40, 4)), np.arange(40) % 2
    np.savez(folder / "a[/b].npz", x_train=x, y_train=y, x_test=x, y_test=y)
    arguments = ["--epochs", "1", "--accelerator", "cpu", "--quiet"]
    trained = invoke("train", "--data", str(folder / "a[/b].npz"), "--out", str(folder / "run[/b]"), *arguments)
    assert trained.exit_code == 0, trained.output
    evaluated = invoke("evaluate", str(folder / "run[/b]"), "--figures", str(folder / "figures"))
    assert evaluated.exit_code == 0, evaluated.output
    shown = "".join(evaluated.output.split())
    assert "a[/b].npz" in shown
    assert "[/b][red]" in shown
    torch.testing.assert_close(
        json.loads((folder / "run[/b]" / "metrics.json").read_text())["plain"]["accuracy"],
        json.loads(invoke("evaluate", str(folder / "run[/b]"), "--json").stdout)[0]["accuracy"],
    )


@pytest.mark.parametrize("with_plan", [False, True])
def test_reproduce_does_not_write_over_what_is_not_its_own(with_plan, tmp_path: Path) -> None:
    names = ["report.html", "claims.json"] if with_plan else ["report.html", "claims.json", "figures/mine.png"]
    for name in names:
        out = tmp_path / name.partition("/")[0]
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        if with_plan:
            (out / "experiments.json").write_text("{}")
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        result = invoke("reproduce", "two-moons", "--scale", "smoke", "--out", str(out), "--workers", "1")
        assert_refused(result, "was not written by `mixreg reproduce`; choose another folder")
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
