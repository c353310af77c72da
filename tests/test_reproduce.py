"""`mixreg reproduce`: every experiment at the smallest scale, from stored results and on real pages."""

import json
import shutil
import subprocess
from dataclasses import replace
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import preloaded
import pytest
from click.testing import CliRunner
from PIL import Image

from mixreg.commands.main import main
from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.reproduce import draw
from mixreg.experiments.sizes import SCALES, SizesError, changed, check_sizes
from mixreg.experiments.store import Run, Store
from mixreg.experiments.verdicts import CONTRADICTED, NOT_JUDGED, SUPPORTED

# What is computed once for several tests is computed in one process.
GROUP = pytest.mark.xdist_group("reproduced")
# One worker with one thread: others are at work here too.
ONE = ("--workers", "1", "--threads", "1")
AT_HAND = [name for name in EXPERIMENTS if name != "imagenet-ood"]


def mixreg(*arguments: str) -> subprocess.CompletedProcess:
    return preloaded.run(["-m", "mixreg", "reproduce", *arguments])


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """A folder in which everything was reproduced that can be without any data from outside."""
    out = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIXREG_DATA", str(out / "no data"))
        finished = mixreg("--scale", "smoke", "--out", str(out))
    assert finished.returncode == 0, finished.stderr
    assert "imagenet-ood was left out: ImageNet is not here" in finished.stderr
    assert str(out / "report.html") in finished.stdout
    return out


@GROUP
def test_what_it_leaves(done: Path) -> None:
    for name in AT_HAND:
        with Image.open(done / "figures" / f"{name}.png") as figure:
            assert min(figure.size) > 400
        assert (done / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert ElementTree.parse(done / "figures" / f"{name}.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    verdicts = json.loads((done / "claims.json").read_text())["claims"]
    assert {verdict["verdict"] for verdict in verdicts} == {SUPPORTED, CONTRADICTED, NOT_JUDGED}
    assert {verdict["experiment"] for verdict in verdicts} == set(EXPERIMENTS) - {"overview"}
    assert [v["verdict"] for v in verdicts if v["experiment"] == "imagenet-ood"] == [NOT_JUDGED]
    for record in json.loads((done / "results.json").read_text()):
        assert record["provenance"]["torch"]
        assert record["provenance"]["seconds"] > 0


@GROUP
def test_what_must_hold_at_any_scale(done: Path) -> None:
    """Theorems, which no scale can spoil; nothing else is judged at this one."""
    verdicts = {v["name"]: v["verdict"] for v in json.loads((done / "claims.json").read_text())["claims"]}
    theorems = {
        "Mixup has no effect on linear least squares": SUPPORTED,
        "the Mixup risk of linear models, corrected constants": SUPPORTED,
        "the Mixup risk of linear models, constants as printed": CONTRADICTED,
        "the entropy bound": SUPPORTED,
        "label smoothing raises the entropy of predictions": SUPPORTED,
    }
    assert {name: verdict for name, verdict in verdicts.items() if verdict != NOT_JUDGED} == theorems


@GROUP
def test_drawing_again_needs_no_training(done: Path, tmp_path: Path, monkeypatch) -> None:
    """From the text alone, as it is kept under version control."""
    monkeypatch.setattr("mixreg.experiments.workers.carry_out", None)
    for name in ("results.json", "experiments.json"):
        shutil.copy(done / name, tmp_path / name)
    found = draw(tmp_path)
    assert len(found.figures) == 3 * len(AT_HAND)
    for path in [Path("claims.json"), *(path.relative_to(done) for path in (done / "figures").iterdir())]:
        assert (tmp_path / path).read_bytes() == (done / path).read_bytes(), path


def test_sizes_can_be_changed_and_are_told(tmp_path: Path) -> None:
    options = ["two-moons", "--scale", "smoke", "--set", "repetitions=2", "--set", "steps=10", "--out", str(tmp_path)]
    finished = mixreg(*options, *ONE, "--json")
    assert finished.returncode == 0, finished.stderr
    assert {verdict["verdict"] for verdict in json.loads(finished.stdout)["claims"]} == {NOT_JUDGED}
    page = (tmp_path / "report.html").read_text()
    assert "mixreg reproduce two-moons --scale smoke --set repetitions=2 --set steps=10" in page
    # What was drawn before stays in the report of its folder.
    options = ["least-squares", "--scale", "smoke", "--set", "alphas=0.5,2", "--out", str(tmp_path)]
    other = mixreg(*options, *ONE)
    assert other.returncode == 0, other.stderr
    page = (tmp_path / "report.html").read_text()
    assert 'id="two-moons"' in page
    assert 'id="least-squares"' in page
    experiment = EXPERIMENTS["least-squares"]
    runs = experiment.runs({**experiment.sizes_at("smoke"), "alphas": [0.5, 2.0]})
    assert len(Store(tmp_path / "results.sqlite").records(runs)) == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["three-moons"], "unknown experiment 'three-moons'; known are overview, regularizers"),
        (["--scale", "huge"], "unknown scale 'huge'; known are smoke, laptop, paper"),
        (["two-moons", "--set", "moons=3"], "none of the experiments has a size 'moons'; they have alpha, features"),
        (["two-moons", "--set", "steps=many"], 'steps is like 1000, got "many"'),
        (["two-moons", "--set", "steps=0"], "steps must be a number above 0, got 0"),
        (["least-squares", "--set", "alphas=1,a"], 'alphas is like 0.01, got "a"'),
        (["least-squares", "--set", "samples=500"], "samples must be at most 442, got 500"),
        (["label-smoothing", "--set", "datasets=cifar10"], "unknown dataset 'cifar10'; known are iris"),
        (["terms", "--set", "data=mnist"], "unknown dataset 'mnist'; known are two-moons"),
        (["ood", "--set", "model=mlp"], "model must be one of resnet34, lenet, resnet9, got mlp"),
        (["ood", "--set", "corruptions=nowhere"], "nowhere is not a folder of corrupted images"),
        (["two-moons", "--set", "steps"], "--set takes SIZE=VALUE, got 'steps'"),
        (["terms", "--set", "moments=all"], "moments must be 'training set' or 'samples', got 'all'"),
        (["two-moons", "--threads", "0"], "--threads must be a number of at least 1, got 0"),
        (["two-moons", "--workers", "0"], "--workers must be a number of at least 1, got 0"),
        (["imagenet-ood"], "ImageNet is not here: put or link its folders train/ and val/"),
        (["rescaling", "--scale", "paper"], "cifar10 is not here yet: run `mixreg data get cifar10`"),
        (["--redraw"], "holds no results; name experiments to carry out"),
        (["--redraw", "terms"], "--redraw takes no experiments"),
    ],
)
def test_wrong_input(arguments, sentence, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MIXREG_DATA", str(tmp_path / "no data"))
    finished = CliRunner().invoke(main, ["reproduce", *arguments, "--out", str(tmp_path / "out")])
    assert finished.exit_code != 0
    assert sentence in " ".join(finished.output.split())
    assert "Traceback" not in finished.output
    assert not (tmp_path / "out" / "experiments.json").exists()


def test_numbers_are_numbers_of_their_kind() -> None:
    assert changed({"alphas": [0.5], "epochs": 3, "data": "x"}, {"alphas": 1, "epochs": 5, "other": 1}) == {
        "alphas": [1.0],
        "epochs": 5,
        "data": "x",
    }
    # The same α is the same run, however it was written.
    runs = [Run("a", changed({"alphas": [0.5]}, {"alphas": [value]})) for value in (1, 1.0)]
    assert runs[0].key == runs[1].key
    for wrong in ([], [float("inf")], ["a"], [0.0]):
        with pytest.raises(SizesError, match="alphas"):
            changed({"alphas": [0.5]}, {"alphas": wrong})
    # Numbers that may be negative may be.
    assert changed({"shifts": [-1.0, 1.0]}, {"shifts": [0, -2]}) == {"shifts": [0.0, -2.0]}


def test_sizes_of_a_plan_are_like_those_of_its_scale() -> None:
    expected = {"alphas": [0.5], "epochs": 3, "sets": ["a"]}
    check_sizes({"alphas": [1.0, 2.0], "epochs": 5, "sets": []}, expected)
    for wrong, sentence in (
        ({"alphas": [1.0], "epochs": 5}, "sets is not given"),
        ({"alphas": [1.0], "epochs": 5, "sets": [], "moons": 2}, "there is no size 'moons'"),
        ({"alphas": [1.0], "epochs": "five", "sets": []}, 'epochs is like 3, got "five"'),
    ):
        with pytest.raises(SizesError, match=sentence):
            check_sizes(wrong, expected)


@GROUP
def test_what_cannot_be_drawn_does_not_hide_the_rest(done: Path, tmp_path: Path) -> None:
    for name in ("results.json", "experiments.json"):
        shutil.copy(done / name, tmp_path / name)
    plan = json.loads((tmp_path / "experiments.json").read_text())
    plan = {name: plan[name] for name in ("terms", "rescaling", "ood", "two-moons")}
    plan["terms"]["sizes"]["looks"] = "many"
    plan["ood"]["sizes"]["model"] = "mlp"
    plan["rescaling"]["sizes"]["repetitions"] = 9
    (tmp_path / "experiments.json").write_text(json.dumps(plan))
    found = draw(tmp_path)
    assert found.undrawn == {
        "terms": ['its sizes make no sense: looks is like 2, got "many"'],
        "ood": ["its sizes make no sense: model must be one of resnet34, lenet, resnet9, got mlp"],
        "rescaling": ["21 of 27 runs are not finished"],
    }
    assert (tmp_path / "figures" / "two-moons.png").exists()
    # It is no success.
    again = CliRunner().invoke(main, ["reproduce", "--redraw", "--out", str(tmp_path)])
    assert again.exit_code == 1
    assert "the report lacks what could not be drawn: terms (its sizes" in " ".join(again.output.split())
    # Nothing is dropped from the text, whatever the plan says.
    count = len(json.loads((done / "results.json").read_text()))
    assert len(json.loads((tmp_path / "results.json").read_text())) == count


@GROUP
@pytest.mark.parametrize("part", ["figure", "caption", "table", "claims", "runs"])
@pytest.mark.parametrize("error", [KeyError, TypeError, ValueError])
def test_a_mistake_in_an_experiment_is_not_hidden(part: str, error, done: Path, tmp_path: Path, monkeypatch) -> None:
    """Only sizes that make no sense leave an experiment out; whatever else goes wrong is raised."""

    def mistaken(*arguments):
        raise error("a mistake")

    for name in ("results.json", "experiments.json"):
        shutil.copy(done / name, tmp_path / name)
    monkeypatch.setitem(EXPERIMENTS, "overview", replace(EXPERIMENTS["overview"], **{part: mistaken}))
    with pytest.raises(error, match="a mistake"):
        draw(tmp_path)


@GROUP
def test_captions_are_on_the_figures_and_in_the_report(done: Path, tmp_path: Path, monkeypatch) -> None:
    plan, page = json.loads((done / "experiments.json").read_text()), (done / "report.html").read_text()
    for name in AT_HAND:
        caption = EXPERIMENTS[name].caption(plan[name]["sizes"])
        files = f"figures/{name}.png, figures/{name}.pdf and figures/{name}.svg"
        assert f"{escape(caption)}. Also as {files}." in page
    # The experiment draws, the driver puts the caption on.
    drawn = {}
    monkeypatch.setattr(
        "mixreg.experiments.reproduce.save_figure", lambda figure, *_: drawn.setdefault("it", figure) and []
    )
    for file in ("results.json", "experiments.json"):
        shutil.copy(done / file, tmp_path / file)
    (tmp_path / "experiments.json").write_text(json.dumps({"two-moons": plan["two-moons"]}))
    draw(tmp_path)
    caption = EXPERIMENTS["two-moons"].caption(plan["two-moons"]["sizes"])
    assert drawn["it"].get_suptitle().replace("\n", " ") == caption
    assert "2 repetitions" in caption


def test_a_failed_run_leaves_a_report(tmp_path: Path) -> None:
    """Terms on more samples than there are: found when the training set is opened."""
    options = ["--scale", "smoke", "--set", "samples=5000", *ONE, "--out", str(tmp_path)]
    finished = mixreg("terms", "overview", *options)
    assert finished.returncode != 0
    assert "terms are asked for on 5000 samples" in finished.stderr
    assert "report.html shows what is there" in finished.stderr
    assert (tmp_path / "figures" / "overview.png").exists()


@pytest.mark.parametrize(
    "plan",
    [
        {"two-moons": 3},
        {"two-moons": {"scale": "smoke", "sizes": {}}},
        {"two-moons": {"scale": "huge", "changes": {}, "sizes": {}}},
        {"two-moons": {"scale": "smoke", "changes": {}, "sizes": []}},
        ["two-moons"],
    ],
)
def test_a_broken_plan_is_named(plan, tmp_path: Path) -> None:
    (tmp_path / "experiments.json").write_text(json.dumps(plan))
    with pytest.raises(ValueError, match=r"experiments\.json does not say what to reproduce"):
        draw(tmp_path)


def test_the_list() -> None:
    listed = mixreg("--list").stdout
    assert all(name in listed for name in EXPERIMENTS)


def test_scales_change_sizes_only(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MIXREG_DATA", str(tmp_path))
    for experiment in EXPERIMENTS.values():
        sizes = [experiment.sizes_at(scale) for scale in SCALES]
        assert sorted(sizes[0]) == sorted(sizes[1]) == sorted(sizes[2])
        # How often a run is evaluated is left out where it is after every epoch, as in the runs of earlier versions.
        shapes = [
            {(run.kind, *sorted(run.settings.keys() - {"evaluate_every"})) for run in experiment.runs(size)}
            for size in sizes
        ]
        assert shapes[0] == shapes[1] == shapes[2]
        assert len(experiment.runs(sizes[0])) <= len(experiment.runs(sizes[2]))
