"""Estimators, the zoo and predictions where somebody tried to break them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from scipy import sparse
from sklearn.datasets import load_iris
from torch import nn

from mixreg.adapters.sklearn import MixupClassifier, MixupRegressor
from mixreg.adapters.tables.network import dense_layers
from mixreg.commands.main import main
from mixreg.data.errors import DataError
from mixreg.training import Config
from mixreg.training.engine import Engine
from mixreg.training.finished import load
from mixreg.training.run import train

X, Y = load_iris(return_X_y=True)
ROOT = Path(__file__).parent.parent


class Wrapped(nn.Module):
    """A network that autograd trains, since nobody looks into it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def networks() -> dict[str, nn.Sequential]:
    torch.manual_seed(0)
    shared = nn.Linear(16, 16)
    tied = nn.Linear(16, 16)
    tied.weight = shared.weight
    return {
        "frozen": nn.Sequential(nn.Linear(4, 16).requires_grad_(False), nn.ReLU(), nn.Linear(16, 3)),
        "spectral": nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 16)), nn.ReLU(), nn.Linear(16, 3)),
        "no bias": nn.Sequential(nn.Linear(4, 16, bias=False), nn.ReLU(), nn.Linear(16, 3)),
        "twice": nn.Sequential(nn.Linear(4, 16), nn.ReLU(), shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(16, 3)),
        "tied": nn.Sequential(nn.Linear(4, 16), nn.ReLU(), shared, nn.ReLU(), tied, nn.ReLU(), nn.Linear(16, 3)),
    }


@pytest.mark.parametrize("kind", networks())
def test_networks_that_look_plain_are_trained_by_autograd(kind) -> None:
    net = networks()[kind]
    assert dense_layers(net) is None
    found, expected = (
        MixupClassifier(each, epochs=5, random_state=0).fit(X, Y).predict_proba(X) for each in (net, Wrapped(net))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_networks_with_hooks_are_trained_by_autograd() -> None:
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    assert dense_layers(net) is not None
    net[1].register_forward_hook(lambda *_: None)
    assert dense_layers(net) is None


def test_labels_that_are_no_labels() -> None:
    r = np.random.default_rng(0)
    a = r.normal(size=(60, 3))
    several = MixupClassifier(random_state=0)
    several.partial_fit(a, r.integers(0, 2, (60, 2)), classes=[[0, 1, 2], [0, 1, 2]])
    several.partial_fit(a, r.integers(0, 3, (60, 2)))
    assert [list(each) for each in several.classes_] == [[0, 1, 2], [0, 1, 2]]
    labels = MixupClassifier(random_state=0).partial_fit(a, r.integers(0, 2, (60, 2)))
    with pytest.raises(ValueError, match="each 0 or 1"):
        labels.partial_fit(a, r.integers(0, 2, (60, 2)) * 7 + 3)


def test_settings_that_change_between_calls() -> None:
    model = MixupRegressor(random_state=0).partial_fit(X, X[:, 0])
    model.set_params(lr=1.0).partial_fit(X, X[:, 0])
    assert model._fitted.state["optimizer"]["param_groups"][0]["lr"] == 1.0
    with pytest.raises(ValueError, match="cannot go on with 'sgd'"):
        model.set_params(optimizer="sgd").partial_fit(X, X[:, 0])


def test_what_a_method_learns_has_the_estimators_seed() -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(MixupClassifier(method="adaptive", epochs=2, random_state=0).fit(X, Y).predict_proba(X))
    np.testing.assert_array_equal(*found)


def test_class_weights_below_zero() -> None:
    with pytest.raises(ValueError, match="class_weight must hold numbers of at least 0"):
        MixupClassifier(epochs=1, class_weight={0: -1.0, 1: 1.0, 2: 1.0}).fit(X, Y)


def test_predictions_that_are_not_finite(tmp_path: Path) -> None:
    train(Config(data="digits", epochs=1), tmp_path / "run", Engine(accelerator="cpu"))
    huge = (np.random.default_rng(0).random((50, *load(tmp_path / "run").trained.shape)) * 3e38).astype(np.float32)
    with pytest.raises(DataError, match="row 0 is not finite"):
        load(tmp_path / "run").predict_proba(huge)


def test_one_bad_card_hides_no_other_network(tmp_path: Path, monkeypatch) -> None:
    source = ROOT / "results" / "evidence" / "models" / "cifar10-resnet9-erm.safetensors"
    for name in ("bad", "good"):
        shutil.copy(source, tmp_path / f"{name}.safetensors")
    card = {"name": "bad", "bytes": 1, "sha256": "x", "recipe": {}, "test": {"plain": {}}}
    (tmp_path / "bad.json").write_text(json.dumps(card))
    monkeypatch.setenv("MIXREG_ZOO", str(tmp_path))
    result = CliRunner().invoke(main, ["zoo", "list"])
    assert result.exit_code == 0
    assert "good" in result.stdout
    assert "bad.json is not the card of a network" in result.stderr
    (tmp_path / "good.json").symlink_to(tmp_path / "nowhere")
    assert CliRunner().invoke(main, ["zoo", "card", "good"]).exit_code == 1


@pytest.mark.parametrize("missing", [None, pd.NA, pd.NaT, float("nan")])
@pytest.mark.parametrize("kind", ["object", "string", "category", "array"])
def test_whatever_is_missing_is_one_category(missing: object, kind: str) -> None:
    """As NaN of pandas' own categories is, which scikit-learn knows."""
    rng = np.random.default_rng(0)
    numbers, y = rng.normal(size=40), np.tile([0, 1], 20)
    names = np.array(["a", "b"] * 20, dtype=object)
    names[::5] = missing
    names[1::10] = None
    x = pd.DataFrame({"n": numbers, "c": pd.Series(names, dtype="object" if kind == "array" else kind)})
    same = pd.DataFrame({"n": numbers, "c": pd.Series(names, dtype="category")})
    given = x.to_numpy(dtype=object) if kind == "array" else x
    before = given.copy()
    fitted = MixupClassifier(epochs=2, random_state=0, categorical_features=[1]).fit(given, y)
    expected = MixupClassifier(epochs=2, random_state=0, categorical_features=[1]).fit(same, y)
    np.testing.assert_array_equal(fitted.predict_proba(given), expected.predict_proba(same))
    # What is given stays as it is, and columns may have numbers for names.
    if kind != "array":
        numbered = MixupClassifier(epochs=2, random_state=0, categorical_features=[1]).fit(
            x.set_axis([0, 1], axis=1), y
        )
        np.testing.assert_array_equal(numbered.predict_proba(x.set_axis([0, 1], axis=1)), fitted.predict_proba(x))
    assert pd.DataFrame(given).equals(pd.DataFrame(before))
    assert [type(v) for v in np.asarray(given, object).flat] == [type(v) for v in np.asarray(before, object).flat]


def test_an_empty_text_is_a_category_beside_those_that_are_missing() -> None:
    names = np.array(["a", "", None, "b"] * 10, dtype=object)
    x = np.stack([np.arange(40.0).astype(object), names], 1)
    model = MixupClassifier(epochs=1, random_state=0, categorical_features=[1]).fit(x, np.tile([0, 1], 20))
    assert model._fitted.columns.sizes == [4]


@pytest.mark.parametrize("exponent", [600, 1000, -600, -1000])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_units_do_not_matter_however_large(exponent: int, is_sparse: bool) -> None:
    """Powers of two change no digit: networks are the same to the last bit."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), np.tile([0, 1], 20)
    made = sparse.csr_matrix if is_sparse else np.asarray
    plain, scaled = made(x), made(x * 2.0**exponent)
    expected = MixupClassifier(epochs=3, random_state=0).fit(plain, y).predict_proba(plain)
    found = MixupClassifier(epochs=3, random_state=0).fit(scaled, y).predict_proba(scaled)
    np.testing.assert_array_equal(found, expected)
    numbers = x @ [1.0, -2.0, 0.5]
    expected = MixupRegressor(epochs=3, random_state=0).fit(plain, numbers).predict(plain)
    found = MixupRegressor(epochs=3, random_state=0).fit(scaled, numbers * 2.0**exponent).predict(scaled)
    np.testing.assert_allclose(found * 2.0**-exponent, expected, rtol=1e-12)
