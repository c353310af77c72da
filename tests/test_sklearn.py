"""The estimators under scikit-learn's own checks, in its tools, and against the formulas."""

import copy
import importlib
import pickle
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from mixreg import Rescaled
from mixreg.adapters.sklearn import MixupClassifier, MixupRegressor

# Short trainings; scikit-learn's checks fit dozens of times.
QUICK = {"epochs": 40, "lr": 0.01}


@pytest.mark.parametrize("estimator", [MixupClassifier(**QUICK), MixupRegressor(**QUICK)], ids=["classes", "numbers"])
def test_scikit_learn_s_own_checks_pass(estimator) -> None:
    from unittest import SkipTest

    passed = 0
    for each, check in estimator_checks_generator(estimator):
        try:
            check(each)
            passed += 1
        except SkipTest:
            # Without pandas, and without array API support switched on, two of them have nothing to check.
            continue
    assert passed >= 50


def test_grid_search_over_alpha_in_a_pipeline() -> None:
    x, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), MixupClassifier(epochs=15, lr=0.01, random_state=0))
    search = GridSearchCV(pipeline, {"mixupclassifier__alpha": [0.0, 1.0]}, cv=3, scoring="neg_log_loss").fit(x, y)
    assert set(search.best_params_) == {"mixupclassifier__alpha"}
    assert search.predict_proba(x).shape == (150, 3)
    assert search.best_estimator_.score(x, y) > 0.9


def test_regression_explains_what_a_linear_model_does() -> None:
    x, y = load_diabetes(return_X_y=True)
    regressor = MixupRegressor(epochs=40, lr=0.003, weight_decay=0.01, random_state=0)
    assert np.mean(cross_val_score(regressor, x, y, cv=3)) > 0.35
    both = np.stack([y, -y], 1)
    found = MixupRegressor(epochs=5, random_state=0).fit(x, both).predict(x)
    assert found.shape == both.shape


@pytest.mark.parametrize(("dtype", "atol"), [("float64", 1e-12), ("float32", 1e-6)])
def test_predictions_are_those_of_the_rescaled_network(dtype: str, atol: float) -> None:
    x, y = load_iris(return_X_y=True)
    classifier = MixupClassifier(epochs=5, random_state=0, dtype=dtype).fit(x, y)
    inputs = torch.from_numpy((x - x.mean(0)) / x.std(0))
    net = copy.deepcopy(classifier.module_).double()
    expected = Rescaled(net, classifier.alpha, inputs.mean(0), torch.full((3,), 1 / 3, dtype=torch.float64))(inputs)
    np.testing.assert_allclose(classifier.decision_function(x), expected.detach().numpy(), atol=atol)
    np.testing.assert_allclose(classifier.predict_proba(x), expected.softmax(1).detach().numpy(), atol=atol)
    plain = MixupClassifier(epochs=5, random_state=0, rule="plain", dtype=dtype).fit(x, y)
    np.testing.assert_allclose(plain.decision_function(x), net(inputs).detach().numpy(), atol=atol)


def test_units_change_nothing_but_units() -> None:
    x, y = load_iris(return_X_y=True)
    settings = {"epochs": 5, "random_state": 0, "dtype": "float64"}
    first, moved = (MixupClassifier(**settings).fit(t, y).predict_proba(t) for t in (x, 3 * x + 7))
    np.testing.assert_allclose(moved, first, atol=1e-8)
    targets = x[:, 0]
    first, second = (MixupRegressor(**settings).fit(x, t).predict(x) for t in (targets, 5 - 2 * targets))
    assert np.abs(first - 5).max() < 3
    np.testing.assert_allclose(MixupRegressor(**settings).fit(x, 4 * targets).predict(x), 4 * first)
    assert np.corrcoef(first, second)[0, 1] < -0.5


class Half(torch.nn.Module):
    """A module of one's own; at the top of a file, so that it can be pickled."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(features, 8), torch.nn.Linear(8, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def test_any_module_will_do_and_survives_a_pickle() -> None:
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    torch.manual_seed(0)
    own = Half(4, 3)
    weights = {key: value.clone() for key, value in own.state_dict().items()}
    for module in (own, Half):
        classifier = MixupClassifier(module, epochs=100, lr=0.01, random_state=0, dtype="float32").fit(x, names)
        assert classifier.score(x, names) > 0.9
        again = pickle.loads(pickle.dumps(classifier))
        assert (again.predict(x) == classifier.predict(x)).all()
        assert again.module_.first.weight.dtype == torch.float32
    # The module that was given is a pattern; what is trained is a copy.
    assert all(torch.equal(value, weights[key]) for key, value in own.state_dict().items())


def test_constant_columns_stay_constant() -> None:
    x, y = load_iris(return_X_y=True)
    x = x.copy()
    x[:, 2] = 0.1
    classifier = MixupClassifier(epochs=3, random_state=0).fit(x, y)
    before = classifier.decision_function(x)
    x[:, 2] += 1e-6
    np.testing.assert_allclose(classifier.decision_function(x), before, atol=1e-4)


def test_batch_normalisation_survives_a_rest_of_one_sample() -> None:
    x, y = load_iris(return_X_y=True)

    def normalised(features: int, outputs: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(features), torch.nn.Linear(features, outputs))

    classifier = MixupClassifier(normalised, epochs=2, batch_size=32, random_state=0).fit(x[10:139], y[10:139])
    assert len(classifier.loss_curve_) == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"alpha": -1.0}, "alpha"),
        ({"epochs": 0}, "epochs must be an integer of at least 1, got 0"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"dtype": "int8"}, "dtype must be one of float32, float64, got 'int8'"),
        ({"module": Half(4, 5)}, r"outputs of shape \(5,\), the targets need \(3,\)"),
        ({"module": 3}, r"module must be a torch\.nn\.Module or make one, got int"),
        ({"module": lambda features, outputs: 3}, r"module must return a torch\.nn\.Module, got int"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, sentence: str) -> None:
    x, y = load_iris(return_X_y=True)
    with pytest.raises((ValueError, TypeError), match=sentence):
        MixupClassifier(**settings).fit(x, y)


def test_an_old_scikit_learn_is_told_what_to_install(monkeypatch) -> None:
    monkeypatch.delattr("sklearn.utils.validation.validate_data")
    monkeypatch.delitem(sys.modules, "mixreg.adapters.sklearn")
    with pytest.raises(ImportError, match=r"scikit-learn 1\.6 or newer: pip install 'mixreg\[sklearn\]'"):
        importlib.import_module("mixreg.adapters.sklearn")
