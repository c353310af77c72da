"""The zoo: networks that runs keep, their cards, loaded by name; whatever is wrong is told before a file is opened."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import mixreg
from mixreg.commands.main import main
from mixreg.data.loading import load as load_data
from mixreg.experiments.cards import write_cards
from mixreg.experiments.registry import KINDS
from mixreg.experiments.requirements import is_at_hand
from mixreg.experiments.store import Run, Store
from mixreg.training import zoo
from mixreg.training.zoo import ZooError

GROUP = pytest.mark.xdist_group("zoo")


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """A folder that one run was kept in, with its card."""
    folder = tmp_path_factory.mktemp("kept")
    config = {"data": "digits-32", "model": "lenet", "method": "mixup", "alpha": 0.5, "epochs": 6, "samples": 600}
    config |= {"lr": 0.05, "augment": "none", "holdout": 0.2, "seed": 3}
    run = Run("training", {"config": config, "rescale": [0.5], "fit": True, "keep": "digits-lenet-mixup0.5"})
    store = Store(folder / "results.sqlite")
    store.put(run, KINDS["training"](run.settings, folder / "runs" / "a", lambda done: None), {"seconds": 1.0})
    # A later run of that name, whose file this is not, and one whose name is no name.
    other = Run("training", {**run.settings, "config": config | {"seed": 4}})
    store.put(other, {"test": {}}, {"seconds": 2.0})
    store.put(Run("training", {"config": {}, "keep": "../outside"}), {}, {})
    assert write_cards(folder / "models", store.records()) == [folder / "models" / "digits-lenet-mixup0.5.json"]
    return folder / "models"


@pytest.fixture
def own(kept: Path, tmp_path: Path, monkeypatch) -> Path:
    """A copy of it as one's own zoo."""
    shutil.copytree(kept, tmp_path / "mine")
    monkeypatch.setenv("MIXREG_ZOO", str(tmp_path / "mine"))
    monkeypatch.setenv("MIXREG_DATA", str(tmp_path / "data"))
    return tmp_path / "mine"


@GROUP
def test_a_network_predicts_what_its_card_says(own: Path) -> None:
    card = json.loads((own / "digits-lenet-mixup0.5.json").read_text())
    test = load_data("digits-32").test
    assert set(card["test"]) == {"plain", "rescaled", "fitted"}
    for rule, measured in card["test"].items():
        run = mixreg.load("zoo:digits-lenet-mixup0.5", rule)
        probabilities = run.predict_proba(test.x)
        right = probabilities.argmax(1).numpy() == test.y
        assert right.mean() == pytest.approx(measured["accuracy"], abs=1e-6)
        assert right.mean() > 0.2  # of ten classes
        loss = -probabilities.double().log()[range(len(test.y)), test.y].mean()
        assert float(loss) == pytest.approx(measured["cross_entropy"], rel=1e-4)
    fitted = mixreg.load("zoo:digits-lenet-mixup0.5")
    assert fitted.rule == "fitted"
    assert fitted.model.strength == pytest.approx(card["fit"]["strength"], rel=1e-4, abs=1e-6)
    assert (card["data"], card["recipe"]["alpha"], card["recipe"]["seed"]) == ("digits-32", 0.5, 3)


@GROUP
def test_commands(own: Path) -> None:
    listed = CliRunner().invoke(main, ["zoo", "list", "--json"])
    rows = {row["name"]: row for row in json.loads(listed.output)}
    assert rows["digits-lenet-mixup0.5"]["file"] == str(own / "digits-lenet-mixup0.5.safetensors")
    card = json.loads(CliRunner().invoke(main, ["zoo", "card", "digits-lenet-mixup0.5"]).output)
    assert card == rows["digits-lenet-mixup0.5"]["card"]
    table = CliRunner().invoke(main, ["zoo", "list"]).output
    assert f"{100 * card['test']['fitted']['accuracy']:.2f}" in table
    found = CliRunner().invoke(main, ["evaluate", "zoo:digits-lenet-mixup0.5", "--json"])
    assert found.exit_code == 0, found.output
    evaluated = {row["model"]: row for row in json.loads(found.stdout)}
    assert evaluated["fitted"]["accuracy"] == pytest.approx(card["test"]["fitted"]["accuracy"], abs=1e-6)


@GROUP
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "a name in the zoo is lower-case words with hyphens and dots, got ''"),
        ("../mine/digits-lenet-mixup0.5", "lower-case words with hyphens and dots, got '../mine/digits"),
        ("/etc/passwd", "lower-case words"),
        ("a..b", "lower-case words"),
        ("Digits", "lower-case words"),
        ("a\0b", "lower-case words"),
        ("digits-lenet-mixup05", "is not in the zoo (did you mean 'digits-lenet-mixup0.5'); looked in "),
        ("nothing-like-it", "is not in the zoo (known are digits-lenet-mixup0.5"),
    ],
)
def test_names(name: str, sentence: str, own: Path) -> None:
    with pytest.raises(ZooError) as error:
        mixreg.load(f"zoo:{name}")
    assert sentence in str(error.value)
    command = CliRunner().invoke(main, ["predict", f"zoo:{name}", str(own)])
    assert command.exit_code != 0
    assert "Traceback" not in command.output


@GROUP
def test_files_are_held_against_their_cards(own: Path, tmp_path: Path) -> None:
    path = own / "digits-lenet-mixup0.5.safetensors"
    card, content = path.with_suffix(".json"), path.read_bytes()
    name = "zoo:digits-lenet-mixup0.5"
    path.write_bytes(content + b"\0")
    with pytest.raises(ZooError, match=rf"has {len(content) + 1:,} bytes, and its card says {len(content):,}"):
        mixreg.load(name)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ZooError, match="is not the file that its card was written for: their checksums differ"):
        mixreg.load(name)
    path.write_bytes(content)
    for wrong in ("{", "[]", '{"name": "digits-lenet-mixup0.5"}', card.read_text().replace('"bytes": ', '"bytes": 0.')):
        before = card.read_text()
        card.write_text(wrong)
        with pytest.raises(ZooError, match="is not the card of a network"):
            mixreg.load(name)
        card.write_text(before)
    # A link out of the folder is none of its networks; without a card a file vouches for itself.
    card.unlink()
    assert mixreg.load(name).config.seed == 3
    path.rename(tmp_path / "elsewhere.safetensors")
    path.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ZooError, match="is a link to another folder, expected a file"):
        mixreg.load(name)


@GROUP
def test_ones_own_comes_before_the_data_folder(own: Path, tmp_path: Path, monkeypatch) -> None:
    shutil.copytree(own, tmp_path / "data" / "zoo")
    assert zoo.networks()["digits-lenet-mixup0.5"].parent == own
    monkeypatch.delenv("MIXREG_ZOO")
    assert zoo.networks()["digits-lenet-mixup0.5"].parent == tmp_path / "data" / "zoo"


@GROUP
def test_a_broken_network_gets_no_card(kept: Path, tmp_path: Path) -> None:
    records = Store(kept.parent / "results.sqlite").records()
    for content in (b"", b"somebody else's"):
        (tmp_path / "digits-lenet-mixup0.5.safetensors").write_bytes(content)
        assert write_cards(tmp_path, records) == []


RELEASED = sorted(path.name.removesuffix(zoo.SUFFIX) for path in zoo.RELEASED.glob(f"*{zoo.SUFFIX}"))


@pytest.mark.parametrize("name", RELEASED)
def test_every_released_network_has_a_card_from_its_stored_run(name: str) -> None:
    card = zoo.read_card(zoo.find(name))
    records = json.loads((zoo.RELEASED.parent / "results.json").read_text())
    (result,) = (record["result"] for record in records if record["key"] == card["run"])
    assert card["test"]["fitted"] == result["test"]["fitted"]
    assert card["test"]["plain"] == result["test"]["plain"]


def test_they_are_small_enough_for_the_repository() -> None:
    assert sum((zoo.RELEASED / f"{name}{zoo.SUFFIX}").stat().st_size for name in RELEASED) < 20e6


@pytest.mark.slow
@pytest.mark.skipif(not is_at_hand("cifar10"), reason="needs CIFAR-10")
@pytest.mark.parametrize("name", [name for name in RELEASED if name.startswith("cifar10-")])
def test_a_released_network_has_the_stored_accuracy(name: str) -> None:
    card, test = zoo.read_card(zoo.find(name)), load_data("cifar10").test
    for rule, measured in card["test"].items():
        probabilities = mixreg.load(f"zoo:{name}", rule).predict_proba(test.x)
        right = probabilities.argmax(1).numpy() == test.y
        # Sums in another order may turn a tie.
        assert right.mean() == pytest.approx(measured["accuracy"], abs=2e-4)
