"""Estimators at the edges: partners, weights, rules and arguments that make no sense."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from mixreg import Mixup, SimilarTargets
from mixreg.adapters.sklearn import MixupClassifier, MixupRegressor

RANDOM = np.random.RandomState(0)
X = RANDOM.randn(60, 4)
LABELS = (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)
NUMBERS = X @ [1, 2, 3, 4.0] * 10 + 100


def classifier(**settings: Any) -> MixupClassifier:
    return MixupClassifier(**{"epochs": 2, "random_state": 0} | settings)


def regressor(**settings: Any) -> MixupRegressor:
    return MixupRegressor(**{"epochs": 2, "random_state": 0} | settings)


class Watched(SimilarTargets):
    """Keeps what it was shown."""

    seen: ClassVar[list[torch.Tensor]] = []

    def __call__(self, y: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        partner = super().__call__(y, generator)
        Watched.seen.append(torch.stack([y.flatten(), y.flatten()[partner]]))
        return partner


def test_partners_are_shown_targets_in_their_own_units_and_a_batch_at_a_time() -> None:
    Watched.seen.clear()
    regressor(method=Mixup(1.0, partners=Watched(10.0)), epochs=1, batch_size=16).fit(X, 1000 * NUMBERS)
    assert max(len(batch[0]) for batch in Watched.seen) == 16
    own, other = torch.cat(Watched.seen, 1)
    np.testing.assert_allclose(np.sort(own), np.sort(1000 * NUMBERS), rtol=1e-5)
    # A bandwidth of 10 among numbers thousands apart: everybody is their own partner.
    assert float((own - other).abs().max()) < 100


def test_balanced_partners_of_classes_have_their_rule() -> None:
    weights = RANDOM.rand(60) + 0.5
    model = classifier(method_options={"partners": "balanced"}).fit(X, LABELS, sample_weight=weights)
    columns = model._fitted.columns
    scaled = (X - columns.center) / columns.spread
    means = [np.average(scaled[c == LABELS], axis=0, weights=weights[c == LABELS]) for c in range(3)]
    np.testing.assert_allclose(model.rescaled_.x_mean.numpy(), np.mean(means, 0), atol=1e-6)
    np.testing.assert_allclose(model.rescaled_.y_mean.numpy(), 1 / 3, atol=1e-12)
    with pytest.raises(ValueError, match="balanced partners are for labels"):
        regressor(method=Mixup(1.0, partners="balanced")).fit(X, NUMBERS)


def test_smoothing_is_refused_for_numbers() -> None:
    with pytest.raises(ValueError, match="label_smoothing is for classes"):
        regressor(method=Mixup(0.2, label_smoothing=0.3)).fit(X, NUMBERS)


def test_weights_of_one_call_are_not_relative_to_those_of_another() -> None:
    model = regressor(epochs=1)
    model.partial_fit(X[:30], NUMBERS[:30], sample_weight=np.full(30, 0.05))
    model.partial_fit(X[30:], NUMBERS[30:], sample_weight=np.ones(30))
    columns = model._fitted.columns
    mean = model.rescaled_.x_mean.numpy() * columns.spread + columns.center
    np.testing.assert_allclose(mean, np.average(X, axis=0, weights=np.repeat([0.05, 1.0], 30)), atol=1e-6)


def test_sparse_labels_are_scored() -> None:
    labels = np.stack([LABELS > 0, LABELS > 1], 1).astype(int)
    model = classifier().fit(X, sparse.csr_matrix(labels))
    assert model.score(X, sparse.csr_matrix(labels)) == model.score(X, labels)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.score(X, labels[:30])


@pytest.mark.parametrize(
    ("settings", "y", "sentence"),
    [
        ({"hidden": None}, LABELS, "hidden must be widths of at least 1, got None"),
        ({"optimizer_options": [1]}, LABELS, "optimizer_options must be a dict, got list"),
        ({"module": nn.Linear(5, 3)}, LABELS, "the module cannot take rows of 4 numbers"),
        ({"rule": "fitted"}, np.stack([LABELS, LABELS % 2], 1), "not for several classes at once"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_training(
    settings: dict[str, Any], y: np.ndarray, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        classifier(verbose=True, **settings).fit(X, y)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 2]])
def test_classes_of_several_targets_are_a_list_for_each(classes: list[int]) -> None:
    with pytest.raises(ValueError, match="a list of the classes of each of 2 targets"):
        classifier().partial_fit(X, np.stack([LABELS, LABELS % 2], 1), classes=classes)


def test_one_column_of_categories_can_be_named_alone() -> None:
    rows = np.array([["a", 1.0], ["b", 2.0]] * 10, dtype=object)
    found = [classifier(categorical_features=asked).fit(rows, [0, 1] * 10) for asked in (0, [0])]
    np.testing.assert_array_equal(*(model.predict_proba(rows) for model in found))
