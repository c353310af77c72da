"""The estimators as people use them: weights, categories, several targets, stopping, continuing, methods and rules."""

import pickle

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from mixreg import Choice, Mixup, RegMixup, Theta
from mixreg.adapters.sklearn import MixupClassifier, MixupRegressor
from mixreg.adapters.tables.choosing import ALPHAS
from mixreg.methods import described

IRIS = load_iris(return_X_y=True)


def weights_of(estimator) -> list[torch.Tensor]:
    return [weight.detach() for weight in estimator.module_.parameters()]


@pytest.mark.parametrize("kind", [MixupClassifier, MixupRegressor])
def test_weights_are_repetitions_and_the_order_of_samples_does_not_matter(kind) -> None:
    x, y = IRIS
    rng = np.random.default_rng(0)
    times, order = rng.integers(0, 4, len(x)), rng.permutation(len(x))
    weighted = kind(epochs=3, random_state=0).fit(x, y, sample_weight=times)
    repeated = kind(epochs=3, random_state=0).fit(np.repeat(x, times, 0), np.repeat(y, times))
    shuffled = kind(epochs=3, random_state=0).fit(x[order], y[order], sample_weight=times[order])
    for other in (repeated, shuffled):
        assert all(torch.equal(a, b) for a, b in zip(weights_of(weighted), weights_of(other), strict=True))
        np.testing.assert_array_equal(weighted.predict(x), other.predict(x))
    without = kind(epochs=3, random_state=0).fit(x, y)
    assert not torch.equal(weights_of(weighted)[0], weights_of(without)[0])
    # The means of the rule are weighted too, of inputs as the network sees them.
    center = np.average(x, axis=0, weights=times)
    inputs = (x - center) / np.sqrt(np.average((x - center) ** 2, axis=0, weights=times))
    found = weighted.rescaled_.x_mean.numpy()
    np.testing.assert_allclose(found, np.average(inputs, axis=0, weights=times), atol=1e-6)


def test_weights_of_hidden_means() -> None:
    x, y = IRIS
    times = np.random.default_rng(0).integers(0, 4, len(x))
    weighted = MixupClassifier(method="manifold", epochs=3, random_state=0).fit(x, y, sample_weight=times)
    repeated = MixupClassifier(method="manifold", epochs=3, random_state=0)
    repeated.fit(np.repeat(x, times, 0), np.repeat(y, times))
    np.testing.assert_array_equal(weighted.predict_proba(x), repeated.predict_proba(x))
    # By hand: what goes into each layer, over samples that are written down as often as they weigh.
    seen: dict[str, torch.Tensor] = {}
    for layer in (model := weighted.rescaled_).layers:
        hook = lambda module, given, layer=layer: seen.__setitem__(layer, given[0])  # noqa: E731
        weighted.module_.get_submodule(layer).register_forward_pre_hook(hook)
    center = np.average(x, axis=0, weights=times)
    inputs = (x - center) / np.sqrt(np.average((x - center) ** 2, axis=0, weights=times))
    with torch.no_grad():
        weighted.module_(torch.from_numpy(inputs).float())
    assert len(seen) == len(model.layers) > 1
    for layer, hidden in seen.items():
        mean = np.average(hidden.numpy(), axis=0, weights=times)
        np.testing.assert_allclose(model._means()[f"x[{layer!r}]"].numpy(), mean, atol=1e-5)
        assert layer == "" or np.abs(hidden.numpy().mean(0) - mean).max() > 0.01


def test_class_weight_moves_predictions_to_the_rare_class() -> None:
    rng = np.random.default_rng(0)
    x = np.vstack([rng.normal(0, 1, (300, 2)), rng.normal(1, 1, (30, 2))])
    y = np.repeat([0, 1], [300, 30])
    plain = MixupClassifier(random_state=0, epochs=30).fit(x, y)
    balanced = MixupClassifier(random_state=0, epochs=30, class_weight="balanced").fit(x, y)
    assert (plain.predict(x) == 1).mean() < 0.1 < 0.2 < (balanced.predict(x) == 1).mean()
    np.testing.assert_allclose(balanced.rescaled_.y_mean.numpy(), [0.5, 0.5], atol=1e-6)
    # The same as weights that say the same.
    by_hand = MixupClassifier(random_state=0, epochs=30)
    by_hand.fit(x, y, sample_weight=np.where(y == 1, 330 / 60, 330 / 600))
    np.testing.assert_allclose(by_hand.predict_proba(x), balanced.predict_proba(x), atol=1e-6)


def test_partial_fit_is_fit_in_parts() -> None:
    x, y = IRIS
    whole = MixupClassifier(random_state=0, epochs=3).fit(x, y)
    parts = MixupClassifier(random_state=0)
    for _ in range(3):
        parts.partial_fit(x, y, classes=[0, 1, 2])
        parts = pickle.loads(pickle.dumps(parts))
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(parts), strict=True))
    np.testing.assert_allclose(parts.predict_proba(x), whole.predict_proba(x), atol=1e-6)
    assert parts.n_iter_ == 3
    assert parts.loss_curve_ == whole.loss_curve_
    # Batches of one class each: the mean label is that of all that was seen.
    stream = MixupClassifier(random_state=0)
    for label, count in ((0, 10), (1, 20), (2, 50)):
        stream.partial_fit(x[y == label][:count], y[y == label][:count], classes=[0, 1, 2])
    np.testing.assert_allclose(stream.rescaled_.y_mean.numpy(), [1 / 8, 2 / 8, 5 / 8], atol=1e-6)
    with pytest.raises(ValueError, match="classes must be passed on the first call to partial_fit"):
        MixupClassifier().partial_fit(x, y)
    with pytest.raises(ValueError, match="not the same as on the first call"):
        stream.partial_fit(x, y, classes=[0, 1])
    with pytest.raises(ValueError, match="label 7 is none of the classes"):
        stream.partial_fit(x[:1], [7])
    with pytest.raises(ValueError, match="partial_fit has no samples to hold out"):
        MixupClassifier(early_stopping=True).partial_fit(x, y, classes=[0, 1, 2])


def test_a_warm_start_goes_on_from_the_weights_that_are_there() -> None:
    x, y = load_diabetes(return_X_y=True)
    regressor = MixupRegressor(random_state=0, epochs=30, warm_start=True, alpha=0.0).fit(x, y)
    first = regressor.loss_curve_[-1]
    again = regressor.fit(x, y)
    assert again.n_iter_ == 60
    assert again.loss_curve_[30] < 1.1 * first < 0.8 * again.loss_curve_[0]
    cold = MixupRegressor(random_state=0, epochs=30, alpha=0.0).fit(x, y).fit(x, y)
    assert cold.n_iter_ == 30


def test_early_stopping_keeps_the_best_epoch() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    settings = {"random_state": 0, "lr": 0.02, "alpha": 0.0, "early_stopping": True, "validation_fraction": 0.3}
    classifier = MixupClassifier(epochs=200, n_iter_no_change=5, **settings).fit(x, y)
    losses = classifier.validation_losses_
    assert classifier.n_iter_ == len(losses) < 200
    best = int(np.argmin(losses))
    assert best < len(losses) - 1
    # The same draws up to there.
    until = MixupClassifier(epochs=best + 1, n_iter_no_change=200, **settings).fit(x, y)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(classifier), weights_of(until), strict=True))
    with pytest.raises(ValueError, match="leaves none to train or none to validate on"):
        MixupClassifier(early_stopping=True, validation_fraction=0.01).fit(x[:20], y[:20])


def test_verbose_says_every_epoch(capsys) -> None:
    x, y = IRIS
    MixupClassifier(epochs=2, verbose=True, early_stopping=True, random_state=0).fit(x, y)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1", "epoch 2"]
    assert "held-out loss" in lines[0]


def test_several_labels_at_once() -> None:
    x, y = load_wine(return_X_y=True)
    labels = np.stack([y == 0, y > 0, x[:, 0] > 13], 1).astype(int)
    classifier = MixupClassifier(random_state=0, epochs=60, lr=0.01).fit(x, labels)
    found = classifier.predict_proba(x)
    assert found.shape == labels.shape
    np.testing.assert_allclose(np.log(found), classifier.predict_log_proba(x))
    np.testing.assert_array_equal(classifier.predict(x), found > 0.5)
    assert classifier.score(x, labels) > 0.9
    logits = classifier.decision_function(x)
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), found)
    of_sparse = MixupClassifier(random_state=0, epochs=60, lr=0.01).fit(x, sparse.csr_array(labels))
    np.testing.assert_array_equal(of_sparse.predict_proba(x), found)


def test_several_classes_at_once() -> None:
    x, y = load_wine(return_X_y=True)
    names = np.array(["red", "white", "rosé"])[y]
    sizes = np.where(x[:, 0] > 13, "large", "small")
    both = np.stack([names, sizes], 1).astype(object)
    classifier = MixupClassifier(random_state=0, epochs=60, lr=0.01).fit(x, both)
    first, second = classifier.predict_proba(x)
    assert first.shape == (178, 3)
    assert second.shape == (178, 2)
    np.testing.assert_allclose(first.sum(1), 1)
    np.testing.assert_array_equal(classifier.classes_[1], ["large", "small"])
    np.testing.assert_array_equal(classifier.predict(x)[:, 0], classifier.classes_[0][first.argmax(1)])
    assert classifier.score(x, both) > 0.9
    with pytest.raises(ValueError, match="rule='fitted' is for one class, several labels or numbers"):
        MixupClassifier(rule="fitted", epochs=1).fit(x, both)
    numbers = MixupRegressor(random_state=0, epochs=60, lr=0.01).fit(x, x[:, :2])
    assert numbers.score(x, x[:, :2]) > 0.9


def test_sparse_inputs_are_those_of_a_dense_table() -> None:
    x, y = load_wine(return_X_y=True)
    x = np.where(x > x.mean(0), x, 0)
    dense = MixupClassifier(random_state=0, epochs=20).fit(x, y)
    np.testing.assert_allclose(dense.predict_proba(sparse.csr_array(x)), dense.predict_proba(x))
    thin = MixupClassifier(random_state=0, epochs=20).fit(sparse.csc_matrix(x), y)
    np.testing.assert_allclose(thin.rescaled_.x_mean.numpy(), dense.rescaled_.x_mean.numpy(), atol=1e-6)
    assert thin.score(x, y) > 0.9


def table_with_categories() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    kinds, numbers = rng.choice(["a", "b", "c", "d"], 400), rng.standard_normal((400, 2))
    x = np.empty((400, 3), dtype=object)
    x[:, 0], x[:, 1], x[:, 2] = numbers[:, 0], kinds, numbers[:, 1]
    return x, ((kinds == "a") | (kinds == "c")) ^ (numbers[:, 0] > 0)


def test_categories_are_learnt_and_their_numbering_does_not_matter() -> None:
    x, y = table_with_categories()
    classifier = MixupClassifier(random_state=0, epochs=60, lr=0.01, categorical_features=[1]).fit(x[:300], y[:300])
    assert classifier.score(x[300:], y[300:]) > 0.9
    # x̄ of one-hot columns: frequencies.
    frequencies = [(x[:300, 1] == kind).mean() for kind in "abcd"]
    np.testing.assert_allclose(classifier.rescaled_.x_mean.numpy()[2:], frequencies, atol=1e-6)
    new = x[:2].copy()
    new[:, 1] = "never seen"
    assert np.isfinite(classifier.predict_proba(new)).all()
    with pytest.raises(TypeError, match="a sparse X holds numbers"):
        MixupClassifier(categorical_features=[0]).fit(sparse.eye_array(4).tocsr(), [0, 1, 0, 1])
    own = MixupClassifier(
        lambda inputs, outputs: torch.nn.Linear(inputs, outputs), epochs=2, categorical_features=[1]
    ).fit(x, y)
    assert own.module_.in_features == 6


def test_categories_of_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = table_with_categories()
    frame = pandas.DataFrame(
        {"size": x[:, 0].astype(float), "kind": pandas.Categorical(x[:, 1]), "age": x[:, 2].astype(float)}
    )
    settings = {"random_state": 0, "epochs": 3}
    found = MixupClassifier(**settings).fit(frame, y).predict_proba(frame)
    for asked, given in (([1], x), (["kind"], frame), ([False, True, False], frame)):
        other = MixupClassifier(categorical_features=asked, **settings).fit(given, y)
        np.testing.assert_allclose(other.predict_proba(given), found, atol=1e-12)


@pytest.mark.parametrize("name", sorted(set(described()) - {"cutmix", "choice"}))
def test_every_method_for_tables_trains_and_predicts(name: str) -> None:
    x, y = IRIS
    alpha = 2.0 if name == "scaled" else 0.5
    classifier = MixupClassifier(method=name, alpha=alpha, epochs=2, random_state=0).fit(x, y)
    np.testing.assert_allclose(classifier.predict_proba(x).sum(1), 1)
    regressor = MixupRegressor(method=name, alpha=alpha, epochs=2, random_state=0)
    assert np.isfinite(regressor.fit(x, y).predict(x)).all()


def test_a_method_by_name_or_as_an_object() -> None:
    x, y = IRIS
    settings = {"epochs": 2, "random_state": 0}
    named = MixupClassifier(method="regmixup", method_options={"weight": 0.5}, alpha=10.0, **settings).fit(x, y)
    made = MixupClassifier(method=RegMixup(10.0, weight=0.5), **settings).fit(x, y)
    np.testing.assert_array_equal(named.predict_proba(x), made.predict_proba(x))
    # η / (1 + η) of Mixup's shrinkage.
    assert made.rescaled_.x_share == pytest.approx(1 - Theta(10.0).shrinkage / 3)
    assert made.alpha_ == 10
    often = MixupClassifier(method=Choice([Mixup(0.2), Mixup(2.0)], [0.25, 0.75]), **settings).fit(x, y)
    assert often.rescaled_.x_share == pytest.approx(0.25 * Theta(0.2).mean + 0.75 * Theta(2.0).mean)


def test_the_three_rules() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    settings = {"alpha": 1.0, "epochs": 40, "lr": 0.01, "random_state": 0, "validation_fraction": 0.4}
    plain, rescaled = (MixupClassifier(rule=rule, **settings).fit(x, y) for rule in ("plain", "rescaled"))
    assert all(torch.equal(a, b) for a, b in zip(weights_of(plain), weights_of(rescaled), strict=True))
    assert plain.rescaled_.x_share == 1
    assert rescaled.rescaled_.x_share == 0.75
    fitted = MixupClassifier(rule="fitted", **settings).fit(x, y)
    fit = fitted.rescaled_.fitted
    assert fit.samples == round(0.4 * len(x))
    assert fit.best.loss <= min(fit.at(0.0).loss, fit.at(1.0).loss)
    np.testing.assert_allclose(fitted.predict_proba(x).sum(1), 1)
    assert MixupRegressor(rule="fitted", epochs=3, random_state=0).fit(x, y).rescaled_.fitted.loss == "squared_error"


def test_alpha_by_validation() -> None:
    # Labels of which a third are wrong: mixing helps, and "auto" finds it.
    x, y = load_wine(return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = np.where(rng.random(len(y)) < 0.35, rng.integers(0, 3, len(y)), y)
    x, x_test, wrong, _, _, y_test = train_test_split(x, wrong, y, random_state=0, train_size=110)
    settings = {"epochs": 60, "lr": 0.01, "random_state": 0}
    auto = MixupClassifier(alpha="auto", **settings).fit(x, wrong)
    assert set(auto.alpha_losses_) == set(ALPHAS)
    assert auto.alpha_ == min(auto.alpha_losses_, key=auto.alpha_losses_.get) > 0
    same = MixupClassifier(alpha=auto.alpha_, **settings).fit(x, wrong)
    np.testing.assert_array_equal(auto.predict_proba(x_test), same.predict_proba(x_test))
    erm = MixupClassifier(alpha=0.0, **settings).fit(x, wrong)
    assert log_loss(y_test, auto.predict_proba(x_test)) < log_loss(y_test, erm.predict_proba(x_test))


def test_classes_that_weigh_nothing_are_no_classes() -> None:
    x, y = IRIS
    classifier = MixupClassifier(epochs=2, random_state=0).fit(x, y, sample_weight=y != 1)
    np.testing.assert_array_equal(classifier.classes_, [0, 2])
    np.testing.assert_allclose(classifier.rescaled_.y_mean.numpy(), [0.5, 0.5], atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", torch.optim.NAdam])
def test_optimisers_learn(optimizer) -> None:
    x, y = IRIS
    options = {"momentum": 0.9} if optimizer == "sgd" else None
    classifier = MixupClassifier(
        optimizer=optimizer, optimizer_options=options, lr=0.02, schedule="cosine", epochs=40, random_state=0
    ).fit(x, y)
    assert classifier.score(x, y) > 0.93


def test_probabilities_that_round_keep_their_logarithm() -> None:
    x = np.array([[0.0], [1.0]] * 20)
    classifier = MixupClassifier(alpha=0.0, lr=0.1, epochs=300, random_state=0).fit(x, x.ravel())
    far = classifier.predict_log_proba([[-300.0], [300.0]])
    assert np.isfinite(far).all()
    assert (classifier.predict_proba([[-300.0], [300.0]]) == 0).any()
    np.testing.assert_allclose(far[0, 1], -abs(classifier.decision_function([[-300.0]])[0]))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "cutmix"}, "CutMix takes floating-point images"),
        ({"method": "mixdown"}, "unknown method 'mixdown'"),
        ({"method": 3}, "method must be a name or a method, got int"),
        ({"method_options": {"shares": 2}}, "method mixup has no option 'shares'; it has probability, per_sample"),
        ({"method": Mixup(0.5), "method_options": {"per_sample": True}}, "would not be used"),
        ({"rule": "best"}, "rule must be one of plain, rescaled, fitted, got 'best'"),
        ({"optimizer": "lbfgs"}, "optimizer must be one of adam, adamw, sgd, got 'lbfgs'"),
        ({"schedule": "slow"}, "schedule must be one of constant, cosine, one-cycle, got 'slow'"),
        ({"validation_fraction": 1.0}, r"validation_fraction must lie between 0 and 1, got 1\.0"),
        ({"n_iter_no_change": 0}, "n_iter_no_change must be an integer of at least 1, got 0"),
        ({"hidden": (0,)}, r"hidden must be widths of at least 1, got \(0,\)"),
        ({"lr": "fast"}, "lr must be a number, got 'fast'"),
        ({"alpha": "best"}, "alpha must be a number or a tensor, got 'best'"),
        ({"class_weight": "even"}, "class_weight must be None, 'balanced', or a dict, got 'even'"),
        ({"lr": 1e30, "optimizer": "sgd"}, "the training loss is .* a smaller lr may help"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing_behind(settings: dict, sentence: str) -> None:
    x, y = IRIS
    classifier = MixupClassifier(**{"epochs": 3, "random_state": 0} | settings)
    with pytest.raises((ValueError, TypeError), match=sentence):
        classifier.fit(x, y)
    with pytest.raises(NotFittedError):
        classifier.predict(x)
