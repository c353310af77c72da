"""What the estimators for tables are made of, each against something independent."""

import copy

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.utils.class_weight import compute_sample_weight
from torch import nn

from mixreg import Mixup
from mixreg.adapters.tables.columns import Columns, Inputs, categorical_columns
from mixreg.adapters.tables.network import Embedding, backpropagate, dense_layers, perceptron
from mixreg.adapters.tables.optimizers import Adam, make_optimizer
from mixreg.adapters.tables.targets import SummedCrossEntropy
from mixreg.adapters.tables.training import AutomaticStep, Data, WrittenOutStep, drawn, make_step
from mixreg.adapters.tables.weights import class_weights, distinct_rows, epoch_order, scaled_weights, shown_rows
from mixreg.losses import BUILT_IN
from mixreg.losses.derivatives import CustomLoss
from mixreg.methods.regmixup import RegMixup


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_weights_say_how_often_samples_are_shown() -> None:
    weights = np.array([2.0, 0.3, 1.0, 1.75, 0.05, 3.0])
    source, rounds = generator(), 4000
    counts = np.stack([np.bincount(shown_rows(weights, source).numpy(), minlength=6) for _ in range(rounds)])
    assert ((counts == np.floor(weights)) | (counts == np.ceil(weights))).all()
    error = counts.std(0) / np.sqrt(rounds)
    assert (np.abs(counts.mean(0) - weights) <= 4 * error + 1e-12).all()
    assert len(shown_rows(np.array([0.01, 0.02]), source)) == 1
    # Integers are repeated exactly, and the order is random.
    whole = np.array([0.0, 3.0, 1.0, 2.0])
    order = epoch_order(whole, source)
    assert sorted(order.tolist()) == [1, 1, 1, 2, 3, 3]
    assert len({tuple(epoch_order(whole, source).tolist()) for _ in range(20)}) > 5
    assert sorted(epoch_order(np.ones(5), source).tolist()) == list(range(5))


def test_weights_of_another_size_are_relative() -> None:
    weights = np.array([1.0, 3.0, 0.0])
    assert scaled_weights(weights) is weights
    np.testing.assert_allclose(scaled_weights(weights / 400), [0.5, 1.5, 0])
    np.testing.assert_allclose(scaled_weights(weights * 1e6), [0.5, 1.5, 0])
    with pytest.raises(ValueError, match="no sample is left to train on: sample_weight"):
        scaled_weights(np.zeros(3))


def test_equal_rows_are_one_in_an_order_of_their_own() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(-2, 3, (200, 2)).astype(float), rng.integers(0, 2, (200, 1)).astype(float)
    x[x == 0] *= rng.choice([-1, 1], (x == 0).sum())  # −0 is 0
    weights = rng.integers(0, 4, 200).astype(float)
    index, summed = distinct_rows(x, y, weights)
    keys, inverse = np.unique(np.hstack([x, y])[weights > 0], axis=0, return_inverse=True)
    # np.unique sorts by numbers, as is done here by bytes.
    np.testing.assert_array_equal(np.hstack([x, y])[index], keys)
    np.testing.assert_array_equal(summed, np.bincount(inverse.ravel(), weights[weights > 0]))
    order = rng.permutation(200)
    again, summed_again = distinct_rows(x[order], y[order], weights[order])
    np.testing.assert_array_equal(x[order][again], x[index])
    np.testing.assert_array_equal(summed_again, summed)
    rows, of_sparse = distinct_rows(sparse.csr_array(x), y, weights)
    found = {(*x[i] + 0.0, *y[i]): w for i, w in zip(rows, of_sparse, strict=True)}
    assert found == {(*x[i] + 0.0, *y[i]): w for i, w in zip(index, summed, strict=True)}


@pytest.mark.parametrize("asked", ["balanced", {0: 2.0, 1: 0.5, 2: 1.0}])
def test_class_weights_are_scikit_learn_s(asked) -> None:
    y = np.array([0, 0, 1, 2, 2, 2])
    np.testing.assert_allclose(class_weights(asked, y, np.ones(6)), compute_sample_weight(asked, y))
    # A weight is a repetition here too: of classes as they weigh.
    times = np.array([1, 3, 2, 1, 0, 2])
    per_time = compute_sample_weight(asked, np.repeat(y, times))
    found = class_weights(asked, y, times.astype(float))
    np.testing.assert_allclose(np.repeat(np.divide(found, times, where=times > 0, out=np.zeros(6)), times), per_time)
    several = np.stack([y, y % 2], 1)
    each = asked if isinstance(asked, str) else [asked, {0: 1.0, 1: 3.0}]
    np.testing.assert_allclose(class_weights(each, several, np.ones(6)), compute_sample_weight(each, several))


def test_wrong_class_weights_are_refused() -> None:
    y = np.array([[0, 1], [1, 0]])
    for asked, given in (("even", y[:, 0]), (3, y[:, 0]), ({0: 1.0}, y), ([{0: 1.0}], y)):
        with pytest.raises(ValueError, match="class_weight must be None, 'balanced'"):
            class_weights(asked, given, np.ones(2))


@pytest.mark.parametrize("hidden", [(), (7,), (6, 5)])
@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "squared_error", "several"])
def test_gradients_written_out_are_the_automatic_ones(hidden: tuple[int, ...], loss: str) -> None:
    torch.manual_seed(0)
    net = perceptron(4, [], hidden, 5).double()
    x, y = torch.randn(9, 4).double(), torch.rand(9, 5).double()
    if loss == "cross_entropy":
        y = y / y.sum(1, keepdim=True)
    if loss == "several":
        y = torch.cat([part / part.sum(1, keepdim=True) for part in y.split([2, 3], 1)], 1)
    kind = SummedCrossEntropy([2, 3]) if loss == "several" else BUILT_IN[loss]
    layers = dense_layers(net)
    assert layers is not None
    u = backpropagate(layers, x, y, kind)
    found = [weight.grad.clone() for weight in net.parameters()]
    torch.testing.assert_close(u, net(x).detach())
    expected = torch.autograd.grad(kind.value(y, net(x)).mean(), list(net.parameters()))
    torch.testing.assert_close(found, list(expected), atol=1e-12, rtol=1e-10)


def test_only_dense_layers_are_written_out() -> None:
    net = perceptron(4, [], (3,), 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = BUILT_IN["cross_entropy"]
    assert isinstance(make_step(net, net, Mixup(1.0), loss, optimizer), WrittenOutStep)
    assert isinstance(make_step(net, net, RegMixup(1.0), loss, optimizer), AutomaticStep)
    for other in (
        perceptron(4, [3], (3,), 2),
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)),
    ):
        assert dense_layers(other) is None


def test_both_steps_end_with_the_same_weights_and_losses() -> None:
    torch.manual_seed(0)
    first = perceptron(3, [], (8,), 2).double()
    second = copy.deepcopy(first)
    x, y = torch.randn(40, 3).double(), torch.eye(2).double()[torch.randint(2, (40,))]
    mix = Mixup(0.5)
    steps = [
        AutomaticStep(first, mix, torch.optim.Adam(first.parameters(), lr=0.01)),
        WrittenOutStep(dense_layers(second), BUILT_IN["cross_entropy"], Adam(second.parameters(), lr=0.01)),
    ]
    for step in steps:
        source = generator(1)
        for _ in range(5):
            step(mix.draw(x, y, source))
    torch.testing.assert_close(list(first.parameters()), list(second.parameters()), atol=1e-12, rtol=1e-9)
    assert steps[0].mean_loss() == pytest.approx(steps[1].mean_loss(), rel=1e-12)


def test_adam_is_pytorch_s() -> None:
    torch.manual_seed(0)
    options = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}
    weights = [nn.Parameter(torch.randn(4, 3).double()), nn.Parameter(torch.randn(3).double())]
    others = copy.deepcopy(weights)
    ours, theirs = Adam(weights, **options), torch.optim.Adam(others, **options)
    for step in range(12):
        for weight, other in zip(weights, others, strict=True):
            weight.grad = torch.randn_like(weight)
            other.grad = weight.grad.clone()
        ours.step()
        theirs.step()
        if step == 5:  # also when continued
            ours, state = Adam(weights, **options), ours.state_dict()
            ours.load_state_dict(state)
    torch.testing.assert_close(weights, others)
    # What it does not know it leaves to PyTorch.
    assert type(make_optimizer("adam", weights, 0.1, 0.0, {"amsgrad": True})) is torch.optim.Adam
    with pytest.raises(TypeError, match=r"optimizer must make a torch\.optim\.Optimizer, got int"):
        make_optimizer(lambda parameters, lr, weight_decay: 3, weights, 0.1, 0.0, None)


def test_summed_cross_entropy_has_right_derivatives() -> None:
    torch.manual_seed(0)
    loss = SummedCrossEntropy([2, 3])
    y = torch.cat([torch.rand(4, k).double().softmax(1) for k in (2, 3)], 1)
    u, dy, du = (torch.randn(4, 5).double() for _ in range(3))

    def one(y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return sum(-(a * b.log_softmax(0)).sum() for a, b in zip(y.split([2, 3]), u.split([2, 3]), strict=True))

    # ℓ is written for targets that sum to 1; directions keep the sums.
    dy = torch.cat([part - part.mean(1, keepdim=True) for part in dy.split([2, 3], 1)], 1)
    automatic = CustomLoss(one, torch.Size([5]), torch.Size([5]))
    torch.testing.assert_close(loss.value(y, u), automatic.value(y, u))
    torch.testing.assert_close(loss.u(y, u), automatic.u(y, u))
    torch.testing.assert_close(loss.uu(y, u), automatic.uu(y, u))
    torch.testing.assert_close(loss.yy(y, u), automatic.yy(y, u))
    torch.testing.assert_close((loss.uy(y, u) @ dy.unsqueeze(2)), automatic.uy(y, u) @ dy.unsqueeze(2))
    torch.testing.assert_close(loss.along(y, u, dy, du), automatic.along(y, u, dy, du))


def test_mixing_one_hot_vectors_is_mixing_embeddings() -> None:
    torch.manual_seed(0)
    embedding = Embedding(2, [4, 3]).double()
    numbers, first, second = torch.randn(6, 2).double(), torch.randint(4, (6,)), torch.randint(3, (6,))
    eye = [torch.eye(k).double() for k in (4, 3)]
    x = torch.cat([numbers, eye[0][first], eye[1][second]], 1)
    looked_up = [nn.functional.embedding(i, m) for i, m in zip((first, second), embedding.matrices, strict=True)]
    expected = torch.cat([numbers, *looked_up], 1)
    torch.testing.assert_close(embedding(x), expected)
    assert embedding.width == expected.shape[1]
    share, partner = torch.rand(6, 1).double(), torch.randperm(6)
    torch.testing.assert_close(
        embedding(torch.lerp(x, x[partner], share)), torch.lerp(expected, expected[partner], share)
    )
    weights = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad((out * weights).sum(), list(embedding.parameters()), retain_graph=True)
        for out in (embedding(x), expected)
    ]
    torch.testing.assert_close(*gradients)


def test_categories_are_found() -> None:
    x = np.array([["a", 1.0, "u"], ["b", 2.0, "v"]], dtype=object)
    assert categorical_columns(x, "from_dtype") == []
    assert categorical_columns(x, None) == categorical_columns(x, []) == []
    assert categorical_columns(x, [2, 0]) == categorical_columns(x, [True, False, True]) == [0, 2]
    for asked, sentence in (
        ([3], r"columns in 0\.\.2, got \[3\]"),
        ([True], "one entry for each of 3 columns"),
        (["size"], "no columns size that categorical_features names"),
        ("all", "must be 'from_dtype', None, a mask, indices or names, got 'all'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            categorical_columns(x, asked)


def test_unknown_categories_are_put_at_the_mean() -> None:
    x = np.array([["a", 1.0], ["b", 2.0], ["a", 6.0], [None, 3.0]], dtype=object)
    columns = Columns(2, [0])
    columns.learn_categories(x)
    columns.learn_scales(columns.coded(x), np.array([1.0, 1.0, 2.0, 1.0]))
    # Missing is a category of its own where training data has some.
    assert columns.features == 4
    center = (1 + 2 + 12 + 3) / 5
    spread = np.sqrt((1 + 4 + 72 + 9) / 5 - center**2)
    found = columns.inputs(columns.coded(np.array([["b", 2.0], [None, 1.0], ["new", center]], dtype=object)))
    expected = [[(2 - center) / spread, 0, 1, 0], [(1 - center) / spread, 0, 0, 1], [0, 0.6, 0.2, 0.2]]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    known = Columns(2, [0])
    known.learn_categories(x[:3])
    known.learn_scales(known.coded(x[:3]), np.ones(3))
    np.testing.assert_allclose(known.inputs(known.coded(x[3:]))[0, 1:], [2 / 3, 1 / 3])


def test_sparse_columns_are_scaled_as_dense_ones() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 6)) * (rng.random((50, 6)) < 0.3)
    x[:, 5] = 0.1
    weights = rng.random(50)
    dense, thin = Columns(6, []), Columns(6, [])
    dense.learn_scales(x, weights)
    thin.learn_scales(sparse.csr_array(x), weights)
    np.testing.assert_allclose(thin.center, dense.center)
    np.testing.assert_allclose(thin.spread, dense.spread)
    np.testing.assert_allclose(dense.center, np.average(x, axis=0, weights=weights))
    assert dense.spread[5] == 1
    np.testing.assert_allclose(thin.inputs(sparse.csr_array(x)), dense.inputs(x))
    # Rows that are made when asked for are those that are made at once.
    inputs = Inputs(dense, x, torch.float64, "cpu")
    index = torch.tensor([4, 4, 9])
    whole, inputs.whole = inputs.take(index), None
    torch.testing.assert_close(inputs.take(index), whole)


@pytest.mark.parametrize("per_sample", [True, False])
def test_an_epoch_shows_samples_and_partners_as_they_weigh(per_sample: bool) -> None:
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((30, 2)), rng.integers(1, 4, 30).astype(float)
    columns = Columns(2, [])
    columns.learn_scales(np.eye(2), np.ones(2))
    columns.center, columns.spread = np.zeros(2), np.ones(2)
    data = Data(Inputs(columns, x, torch.float64, "cpu"), torch.from_numpy(x[:, :1]), weights)
    mix, source = Mixup(1.0, per_sample=per_sample), generator()
    means, products = [], []
    for _ in range(400):
        rows = list(drawn(data, mix, 10, source))
        sizes = [len(shown) for shown, _ in rows]
        assert sum(sizes) == weights.sum()
        assert min(sizes) > 1
        shown, targets = (torch.cat(part) for part in zip(*rows, strict=True))
        torch.testing.assert_close(targets, shown[:, :1])  # inputs and targets are mixed alike
        means.append(shown.mean(0).numpy())
        products.append(shown.square().mean(0).numpy())
    center = np.average(x, axis=0, weights=weights)
    error = np.std(means, 0) / 20
    assert (np.abs(np.mean(means, 0) - center) < 4 * error + 1e-12).all()
    # Independent partners keep E λ² + (1 − λ)² = 2/3 of the variance.
    variance = np.average((x - center) ** 2, axis=0, weights=weights)
    kept = (np.mean(products, 0) - center**2) / variance
    np.testing.assert_allclose(kept, 2 / 3, atol=0.04 if per_sample else 0.1)
