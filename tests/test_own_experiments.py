"""Experiments of a user's own: the documented one, from the command line, in workers, killed, and drawn again."""

import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import preloaded
import pytest

from mixreg.experiments.experiment import Experiment
from mixreg.experiments.registry import EXPERIMENTS, KINDS, find_experiments, kinds_of
from mixreg.experiments.verdicts import NOT_JUDGED

DOCUMENTED = Path(__file__).parents[1] / "docs" / "reproduction.md"
SHARES = "shares:EXPERIMENT"
# One worker with one thread: others are at work here too.
ONE = ("--workers", "1", "--threads", "1")
FILES = ("figures/shares.png", "figures/shares.pdf", "figures/shares.svg", "claims.json")
# Its runs wait until they are allowed to finish, and can be killed meanwhile.
SLOWLY = """
import time
fast = measure
def measure(settings, folder, progress):
    progress(0.5)
    while not (folder.parent.parent.parent / "finish").exists():
        time.sleep(0.05)
    return fast(settings, folder, progress)
"""


def write_module(folder: Path, slowly: bool = False) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)
    if slowly:
        code = code.replace("\nEXPERIMENT = ", f"{SLOWLY}\nEXPERIMENT = ")
    (folder / "shares.py").write_text(code)


def start(folder: Path, *arguments: str) -> preloaded.Started:
    """As a user does in the folder of the module."""
    return preloaded.start(["-m", "mixreg", "reproduce", *arguments], folder, new_group=True)


def finish(process: preloaded.Started) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=300)
    return process.returncode, out, errors


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    """A folder with a module of one's own, and what its experiment left in out/."""
    folder = tmp_path_factory.mktemp("mine")
    write_module(folder)
    code, out, errors = finish(start(folder, SHARES, "--scale", "smoke", "--workers", "2", "--out", "out"))
    assert code == 0, errors
    assert "θ has the mean of its formula" in out
    assert "last: shares alpha" in errors
    return folder


GROUP = pytest.mark.xdist_group("mine")


@GROUP
def test_it_is_carried_out_and_drawn_like_any_other(mine: Path) -> None:
    out = mine / "out"
    found = json.loads((out / "claims.json").read_text())
    (verdict,) = found["claims"]
    assert (verdict["experiment"], verdict["verdict"]) == ("shares", NOT_JUDGED)
    # Its `paper` scale is its own full size, and nobody's paper.
    assert found["experiments"] == {"shares": {"paper": "eq. (theta)", "against_paper": "1,000 of 100,000 draws"}}
    assert (out / "figures" / "shares.png").stat().st_size > 5000
    page = (out / "report.html").read_text()
    assert "mixreg reproduce shares:EXPERIMENT --scale smoke" in page
    assert "1,000 draws of θ; mean and 95 % interval of 5 repetitions. Also as figures/shares.png" in page
    assert len(json.loads((out / "results.json").read_text())) == 15
    assert list(json.loads((out / "experiments.json").read_text())) == [SHARES]


@pytest.mark.slow
@GROUP
def test_killed_or_not_the_result_is_the_same(mine: Path, tmp_path: Path) -> None:
    write_module(tmp_path, slowly=True)
    options = (SHARES, "--scale", "smoke", "--workers", "2", "--out", "out")
    process = start(tmp_path, *options)
    while not list(tmp_path.glob("out/runs/*/progress")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    finish(process)
    (tmp_path / "finish").touch()
    code, _, errors = finish(start(tmp_path, *options))
    assert code == 0, errors
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (mine / "out" / name).read_bytes()


@GROUP
def test_a_folder_does_not_choose_code(mine: Path, tmp_path: Path) -> None:
    """It is drawn again if somebody names the module, and not imported otherwise."""
    for name in ("results.json", "experiments.json"):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / name).write_bytes((mine / "out" / name).read_bytes())
    (tmp_path / "shares.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    sentence = "Error: out holds shares:EXPERIMENT, which is code of your own: name it on the command line too.\n"
    for options in (["--redraw"], ["overview", "--scale", "smoke"]):
        code, _, errors = finish(start(tmp_path, *options, "--out", "out"))
        assert (code, errors) == (1, sentence)
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "out" / "figures").exists()
    write_module(tmp_path)
    code, _, errors = finish(start(tmp_path, "--redraw", SHARES, "--out", "out"))
    assert code == 0, errors
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (mine / "out" / name).read_bytes()


@GROUP
def test_it_stands_beside_the_papers(mine: Path, tmp_path: Path) -> None:
    write_module(tmp_path)
    options = ("--scale", "smoke", "--set", "repetitions=3", *ONE, "--out", "out")
    code, _, errors = finish(start(tmp_path, SHARES, "least-squares", *options))
    assert code == 0, errors
    page = (tmp_path / "out" / "report.html").read_text()
    # The paper's come first.
    assert page.index('<section id="least-squares"') < page.index('<section id="shares"')
    assert "mixreg reproduce shares:EXPERIMENT --scale smoke --set repetitions=3" in page


@GROUP
@pytest.mark.slow
def test_a_cluster_finds_it_too(mine: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    write_module(tmp_path)
    code, _, errors = finish(start(tmp_path, SHARES, "--scale", "smoke", "--ray", "local", "--out", "out"))
    assert code == 0, errors
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (mine / "out" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere:EXPERIMENT"], "cannot find 'nowhere:EXPERIMENT': No module named 'nowhere'"),
        (["shares:NOTHING"], "cannot find 'shares:NOTHING'"),
        (["shares:measure"], "shares:measure must be an Experiment, got function"),
        ([SHARES, "--set", "moons=3"], "none of the experiments has a size 'moons'; they have alphas, draws, repet"),
        (["--redraw", SHARES], "out holds no results of shares:EXPERIMENT"),
        (["--redraw", SHARES, "--set", "draws=3"], "--redraw takes no experiments of the paper and no sizes"),
    ],
)
def test_wrong_input(arguments, sentence, tmp_path: Path) -> None:
    write_module(tmp_path)
    code, _, errors = finish(start(tmp_path, *arguments, "--out", "out"))
    assert code != 0
    assert sentence in " ".join(errors.split())
    assert "Traceback" not in errors


def other(settings: dict, folder: Path, progress) -> dict:
    return {}


def test_names_and_kinds_are_nobody_elses(monkeypatch) -> None:
    module = sys.modules[__name__]
    terms = EXPERIMENTS["terms"]
    monkeypatch.setattr(module, "MINE", replace(terms, name="mine"), raising=False)
    monkeypatch.setattr(module, "TERMS", replace(terms, paper="nowhere"), raising=False)
    here = f"{__name__}:"
    assert find_experiments([f"{here}MINE", "terms"]) == {f"{here}MINE": module.MINE, "terms": terms}
    with pytest.raises(ValueError, match="TERMS is called 'terms', as one of the paper's is"):
        find_experiments([f"{here}TERMS"])
    monkeypatch.setattr(module, "AGAIN", replace(terms, name="mine"), raising=False)
    with pytest.raises(ValueError, match="two of the experiments are called 'mine'"):
        find_experiments([f"{here}MINE", f"{here}AGAIN"])
    # A kind of the paper's may be used, but not be another function.
    assert kinds_of([*EXPERIMENTS.values(), module.MINE]) == KINDS
    with pytest.raises(ValueError, match="mine has runs of a kind 'training', which is another experiment's already"):
        kinds_of([*EXPERIMENTS.values(), replace(module.MINE, kinds={"training": other})])


def test_an_experiment_is_built_with_named_arguments_and_has_a_plain_name() -> None:
    with pytest.raises(TypeError):
        Experiment("mine")
    for name in ("", "Mine", "../mine", "my experiment", "a--b"):
        with pytest.raises(ValueError, match="an experiment's name is lower-case words with hyphens"):
            replace(EXPERIMENTS["terms"], name=name)
