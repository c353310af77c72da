"""What the command line says of itself: help in 80 columns, every default, completion, and answers to near misses."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner
from rich.cells import cell_len

from mixreg import __version__
from mixreg._support.near_misses import nearest, unknown
from mixreg.commands import choices
from mixreg.commands.errors import sentence
from mixreg.commands.main import FIRST, main

ROOT = Path(__file__).parent.parent


def commands(group: click.Group = main, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*above, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*above, name))


COMMANDS = dict(commands())


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments), env={"COLUMNS": "80"}, terminal_width=80)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("path", [(), *COMMANDS], ids=" ".join)
def test_help_fits_80_columns_and_nothing_is_cut_off(path: tuple[str, ...]) -> None:
    for line in invoke(*path, "--help").splitlines():
        assert cell_len(line) <= 80, line
        assert line.startswith("Usage") or not line.endswith("..."), line


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_every_default(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert "Example" in (command.help or "")
    ctx = click.Context(command, info_name=path[-1])
    for option in command.params:
        if isinstance(option, click.Option) and not (option.is_flag and not option.secondary_opts):
            _, about = option.get_help_record(ctx)
            assert "default" in about or "required" in about, (option.name, about)


def test_the_summary_of_a_command_is_its_first_sentence() -> None:
    shown = " ".join(invoke("--help").split())
    for (name, *rest), command in COMMANDS.items():
        if not rest:
            first = " ".join((command.help or "").split("\n\n")[0].split())
            assert f"{name} {first}" in shown


def test_alone_it_says_what_to_try_first() -> None:
    shown = invoke()
    assert __version__ in shown
    assert "mixreg --help" in shown
    assert all(cell_len(line) <= 80 for line in shown.splitlines())
    for line, about in FIRST:
        assert line in shown
        assert about in shown
        program, *arguments = line.split()
        assert program == "mixreg"
        # Its words are a command and options of that command.
        command = COMMANDS[(arguments[0],)]
        command.make_context(arguments[0], [word.replace("runs/digits", ".") for word in arguments[1:]])


def test_the_version_is_told() -> None:
    assert invoke("--version").strip() == f"mixreg, version {__version__}"


def test_names_are_those_that_there_are() -> None:
    """They are read from sources, so that a shell need not wait for PyTorch."""
    from mixreg.data import EMBEDDED, RECIPES
    from mixreg.data.shifted import LAYOUTS
    from mixreg.experiments.registry import EXPERIMENTS
    from mixreg.losses.derivatives import BUILT_IN
    from mixreg.models import MODELS

    assert choices.models() == tuple(MODELS)
    assert choices.datasets() == (*EMBEDDED, *RECIPES)
    assert choices.experiments() == tuple(EXPERIMENTS)
    assert set(choices.LAYOUTS) == {*LAYOUTS, "vid-robust", "ytbb-robust"}
    assert set(choices.LOSSES) <= set(BUILT_IN)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["train", "--method", "mixu"], {"mixup", "mixupe"}),
        (["train", "--model", "resnet9"], {"resnet9", "resnet9-16", "resnet9-64"}),
        (["train", "--preset", "two"], {"two-moons"}),
        (["train", "--optimizer", ""], {"sgd", "adamw"}),
        (["train", "--schedule", "o"], {"one-cycle"}),
        (["evaluate", "run", "--shifted", "imagenet-a"], {"imagenet-a:"}),
        (["predict", "run", "--rule", "f"], {"fitted"}),
        (["export", "run", "--format", "o"], {"onnx"}),
        (["reproduce", "two"], {"two-moons"}),
        (["reproduce", "--scale", ""], {"smoke", "laptop", "paper"}),
        (["data", "get", "fa"], {"fashion-mnist"}),
        (["verify", "--loss", "l"], {"logistic"}),
        (["ev"], {"evaluate"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_shell_is_offered(words: list[str], found: set[str]) -> None:
    complete = BashComplete(main, {}, "mixreg", "_MIXREG_COMPLETE")
    assert {item.value for item in complete.get_completions(words[:-1], words[-1])} == found


def test_files_are_offered_where_no_name_fits() -> None:
    complete = BashComplete(main, {}, "mixreg", "_MIXREG_COMPLETE")
    (item,) = complete.get_completions(["train", "--data"], "flowers/")
    assert (item.type, item.value) == ("file", "flowers/")


def test_completing_loads_no_torch(tmp_path: Path) -> None:
    """In a process of its own, as a shell asks."""
    code = "import sys; from mixreg.commands.main import main\ntry: main(prog_name='mixreg')\n"
    code += "except SystemExit: print('torch' in sys.modules, 'numpy' in sys.modules)"
    asked = {"_MIXREG_COMPLETE": "bash_complete", "COMP_WORDS": "mixreg train --data fash", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["plain,fashion-mnist", "False", "False"]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["data", "get", "mnist"], "did you mean fashion-mnist?"),
        (["train", "--out", "run", "--data", "CIFAR-10"], "did you mean cifar10?"),
        (["train", "--out", "run", "--method", "cut-mix"], "did you mean cutmix?"),
        (["train", "--out", "run", "--model", "resnet"], "did you mean resnet9 or"),
        (["train", "--out", "run", "--preset", "lenet"], "did you mean cifar-lenet?"),
        (["train", "--out", "run", "--schedule", "onecycle"], "did you mean one-cycle?"),
        (["reproduce", "moons", "--out", "out"], "did you mean two-moons?"),
        (["reproduce", "--scale", "lap-top", "--out", "out"], "did you mean laptop?"),
        (["reproduce", "two-moons", "--set", "step=3", "--out", "out"], "did you mean steps?"),
        (["train", "--out", "run", "--method-option", "probabilty=1"], "did you mean probability?"),
        (["evaluate", "here/digit"], "does not exist; did you mean digits?"),
        (["trian"], "Did you mean 'train'?"),
        (["train", "--epoch", "3"], "Did you mean '--epochs'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_near_misses_are_answered(arguments: list[str], meant: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "digits").mkdir(parents=True)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (1, 2)
    assert meant in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_what_is_near() -> None:
    known = ["two-moons", "digits", "digits-32", "cifar10", "cifar100", "fashion-mnist"]
    assert nearest("Two_Moons", known) == ["two-moons"]
    assert nearest("cifar", known) == ["cifar10", "cifar100"]
    assert nearest("fasion-mnst", known) == ["fashion-mnist"]
    for far in ("", "-", "c", "nowhere", "x" * 1000, "cifar10" * 100):
        assert nearest(far, known) == []
    assert unknown("dataset", 3, known).startswith("unknown dataset 3; known are two-moons, digits")
    assert sentence(ValueError("did you mean this?")) == "did you mean this?"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_real_bash_completes_after_the_documented_line(tmp_path: Path) -> None:
    program = tmp_path / "mixreg"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mixreg "$@"\n')
    program.chmod(0o755)
    line = 'eval "$(_MIXREG_COMPLETE=bash_source mixreg)"'
    assert line in invoke("--help")
    assert f"`{line}`" in (ROOT / "docs" / "command-line.md").read_text()
    asked = 'COMP_WORDS=(mixreg train --method cut); COMP_CWORD=3; _mixreg_completion mixreg; echo "${COMPREPLY[@]}"'
    paths = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    modules = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PATH": paths, "PYTHONPATH": modules}
    done = subprocess.run(
        ["bash", "-c", f"{line}; {asked}"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["cutmix"]
