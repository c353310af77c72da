"""Mixup: its definition, its invariants, its law, its speed paths, and its life in data loaders."""

import copy
import pickle
from collections import namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import roots_jacobi
from torch.utils.data import DataLoader, TensorDataset

from mixreg import Mixup, Theta
from mixreg.mixing import LOOP_FROM_ELEMENTS, Pairing, draw_pairing, mix
from mixreg.targets import LARGEST_TABLE

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-12}
# Small samples are gathered; samples of this shape are mixed one by one.
SHAPES = [(3,), (2, 3, 4), (), (1, LOOP_FROM_ELEMENTS)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dense(x: torch.Tensor, pairing: Pairing) -> torch.Tensor:
    """Θ X with the n × n mixing matrix written out, in float64."""
    n = len(x)
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for i, (j, share) in enumerate(zip(pairing.partner.tolist(), pairing.share.tolist(), strict=True)):
        matrix[i, i] += 1 - share
        matrix[i, j] += share
    return (matrix @ x.double().reshape(n, -1)).reshape(x.shape)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_mix_is_its_definition(n, shape, dtype, inplace) -> None:
    x = torch.randn(n, *shape, generator=seeded()).to(dtype)
    pairing = draw_pairing(n, Theta(0.7), generator=seeded(), dtype=torch.promote_types(dtype, torch.float32))
    expected = dense(x, pairing)
    given_x = x.clone()
    mixed = mix(given_x, pairing, inplace)
    assert mixed.dtype == dtype
    assert mixed.shape == x.shape
    assert (mixed.data_ptr() == given_x.data_ptr()) == inplace
    if not inplace:
        assert torch.equal(given_x, x)
    torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=4 * TOLERANCE[dtype])


@pytest.mark.parametrize("cycles", [[1, 2, 3, 0], [1, 0, 3, 2], [0, 1, 2, 3], [2, 1, 3, 0]])
def test_in_place_follows_every_kind_of_cycle(cycles) -> None:
    x = torch.randn(4, LOOP_FROM_ELEMENTS, dtype=torch.float64)
    pairing = Pairing(torch.tensor(cycles), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64))
    torch.testing.assert_close(mix(x.clone(), pairing, inplace=True), dense(x, pairing), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [4, 160])
def test_memory_formats_survive(size) -> None:
    x = torch.randn(5, 3, size, size).to(memory_format=torch.channels_last)
    mixup = Mixup(generator=seeded())
    for _ in range(2):
        mixed, _ = mixup(x, torch.zeros(5))
        assert mixed.is_contiguous(memory_format=torch.channels_last)
    pairing = draw_pairing(5, Theta(1.0), generator=seeded(3))
    torch.testing.assert_close(mix(x, pairing).double(), dense(x, pairing), rtol=0, atol=1e-6)


@given(n=st.integers(1, 12), alpha=st.floats(0.01, 20), seed=st.integers(0, 100))
def test_one_theta_per_batch_preserves_the_batch_sum(n, alpha, seed) -> None:
    x = torch.randn(n, 3, dtype=torch.float64, generator=seeded(seed))
    y = torch.randn(n, dtype=torch.float64, generator=seeded(seed))
    mixed_x, mixed_y = Mixup(alpha, per_sample=False, generator=seeded(seed))(x, y)
    torch.testing.assert_close(mixed_x.sum(0), x.sum(0), rtol=0, atol=1e-10)
    torch.testing.assert_close(mixed_y.sum(), y.sum(), rtol=0, atol=1e-10)


@given(n=st.integers(1, 12), seed=st.integers(0, 100))
def test_matched_permutations_preserve_the_sum(n, seed) -> None:
    # Mixing (i, p(i)) with θ and the same pair the other way round with θ shares out x_i + x_{p(i)}.
    x = torch.randn(n, 2, dtype=torch.float64, generator=seeded(seed))
    pairing = draw_pairing(n, Theta(0.5), generator=seeded(seed), dtype=torch.float64)
    back = Pairing(torch.argsort(pairing.partner), pairing.share[torch.argsort(pairing.partner)])
    other_way = mix(x, back)[pairing.partner]
    torch.testing.assert_close(mix(x, pairing) + other_way, x + x[pairing.partner], rtol=0, atol=1e-12)


@given(n=st.integers(1, 12), classes=st.integers(1, 700), alpha=st.floats(0, 20), seed=st.integers(0, 100))
def test_soft_labels_stay_on_the_simplex(n, classes, alpha, seed) -> None:
    y = torch.randint(classes, (n,), generator=seeded(seed))
    _, soft = Mixup(alpha, classes, generator=seeded(seed))(torch.zeros(n, 1, dtype=torch.float64), y)
    assert soft.shape == (n, classes)
    assert (soft >= 0).all()
    torch.testing.assert_close(soft.sum(1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-12)
    # At least half of every sample is its own.
    assert (soft[torch.arange(n), y] >= 0.5).all()


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_every_tensor_of_a_sample_gets_the_same_partner_and_share(per_sample, inplace) -> None:
    # Each sample is marked by a number; then every tensor's mixture must be that of the marks.
    n = 9
    mark = torch.arange(n, dtype=torch.float64)
    pair = namedtuple("pair", "left right")
    x = {
        "image": mark.reshape(n, 1, 1).expand(n, 2, 3).clone(),
        "big": mark.reshape(n, 1).expand(n, LOOP_FROM_ELEMENTS).clone(),
        "more": [mark.clone(), (mark.float().clone(),)],
        "named": pair(mark.clone(), mark.clone()),
    }
    mixed, y = Mixup(0.8, num_classes=n, per_sample=per_sample, generator=seeded(), inplace=inplace)(x, torch.arange(n))
    expected = y @ mark
    assert not torch.equal(expected, mark)
    torch.testing.assert_close(mixed["image"], expected.reshape(n, 1, 1).expand(n, 2, 3))
    torch.testing.assert_close(mixed["big"][:, -1], expected)
    torch.testing.assert_close(mixed["more"][0], expected)
    torch.testing.assert_close(mixed["more"][1][0].double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(mixed["named"].right, expected)
    assert (mixed["image"] is x["image"]) == inplace
    shares = 1 - y[torch.arange(n), torch.arange(n)]
    moved = shares[shares > 0]
    assert (len(moved.unique()) == 1) != per_sample


def test_targets_of_every_kind() -> None:
    n = 6
    x = torch.arange(n, dtype=torch.float64).unsqueeze(1)

    def weights(mixup_seed: int) -> torch.Tensor:
        return Mixup(1.0, n, generator=seeded(mixup_seed))(x, torch.arange(n))[1]

    def mixed(y, num_classes=None):
        return Mixup(1.0, num_classes, generator=seeded(4))(x, y)[1]

    w = weights(4)
    soft = torch.rand(n, 3, dtype=torch.float64).softmax(1)
    torch.testing.assert_close(mixed(soft), w @ soft)
    torch.testing.assert_close(mixed(soft, 3), w @ soft)
    regression = torch.randn(n, dtype=torch.float64)
    torch.testing.assert_close(mixed(regression), w @ regression)
    multi = torch.randint(2, (n, 4))
    for labels in (multi, multi.bool(), multi.double(), multi.to(torch.uint8)):
        torch.testing.assert_close(mixed(labels), w @ multi.double())
        torch.testing.assert_close(mixed(labels, 4), w @ multi.double())
    for labels in (torch.arange(n) % 3, (torch.arange(n) % 3).to(torch.uint8), (torch.arange(n) % 3).int()):
        one_hot = torch.nn.functional.one_hot(labels.long(), 3).double()
        torch.testing.assert_close(mixed(labels, 3), w @ one_hot)
    masks = torch.randint(3, (n, 2, 2))
    one_hot = torch.nn.functional.one_hot(masks, 3).permute(0, 3, 1, 2).double()
    torch.testing.assert_close(mixed(masks, 3), torch.einsum("ij,jkab->ikab", w, one_hot))


@pytest.mark.parametrize("classes", [LARGEST_TABLE, LARGEST_TABLE + 1, 5000])
def test_labels_of_few_and_many_classes(classes) -> None:
    """Looked up in a table or written into zeros; pairs of one class included."""
    y = torch.tensor([0, 0, 0, 5, 5, classes - 1, 7, 7])
    mixed = Mixup(0.4, classes, generator=seeded(3))(torch.rand(8, 2), y)[1]
    pairing = draw_pairing(8, Theta(0.4), generator=seeded(3))
    same = y == y[pairing.partner]
    assert same.any()
    assert not same.all()
    expected = dense(torch.nn.functional.one_hot(y, classes), pairing)
    torch.testing.assert_close(mixed.double(), expected, atol=1e-6, rtol=0)


def test_label_dtype_follows_the_data() -> None:
    y = torch.tensor([0, 1])
    for dtype, expected in zip(FLOATS, [torch.float32, torch.float32, torch.float32, torch.float64], strict=True):
        assert Mixup(1.0, 2)(torch.zeros(2, 3, dtype=dtype), y)[1].dtype == expected
    assert Mixup(1.0)(torch.zeros(2, 3), torch.zeros(2, dtype=torch.float64))[1].dtype == torch.float64


@pytest.mark.parametrize("inplace", [False, True])
def test_alpha_zero_leaves_the_batch_as_it_is(inplace) -> None:
    x, y = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])
    mixed, soft = Mixup(0, 3, inplace=inplace)(x.clone(), y)
    assert torch.equal(mixed, x)
    assert torch.equal(soft, torch.nn.functional.one_hot(y, 3).float())


def test_shared_memory_is_mixed_once() -> None:
    x = torch.rand(8, 4)
    fresh = Mixup(1.0, generator=seeded())(x.clone(), x.clone())
    both = x.clone()
    inplace = Mixup(1.0, generator=seeded(), inplace=True)(both, both)
    torch.testing.assert_close(inplace[0], fresh[0])
    torch.testing.assert_close(inplace[1], fresh[1])
    twice, _ = Mixup(1.0, generator=seeded(), inplace=True)((x, x), torch.zeros(8))
    torch.testing.assert_close(twice[1], fresh[0])


def test_a_pair_may_come_as_one_argument() -> None:
    x, y = torch.rand(8, 4), torch.arange(8)
    one, two = Mixup(1.0, 8, generator=seeded())((x, y)), Mixup(1.0, 8, generator=seeded())(x, y)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    with pytest.raises(TypeError, match="got a single Tensor"):
        Mixup(1.0, 8)(x)


def test_gradients_flow_through_the_mixture() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    pairing = draw_pairing(4, Theta(1.0), generator=seeded(), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: mix(z, pairing), x)
    big = torch.randn(3, LOOP_FROM_ELEMENTS, requires_grad=True)
    mixed, _ = Mixup(1.0)(big, torch.zeros(3))
    mixed.sum().backward()
    assert big.grad is not None


def test_the_average_loss_is_the_mixup_risk() -> None:
    """Eq. (mixup) by all pairs and Gauss–Jacobi nodes, against the mean loss of many mixed batches."""
    n, alpha = 5, 0.4
    x = torch.randn(n, 2, dtype=torch.float64, generator=seeded(1))
    y = torch.randn(n, dtype=torch.float64, generator=seeded(2))

    def loss(x, y):
        return (torch.sin(2 * x[..., 0]) * x[..., 1].exp() - y) ** 2

    nodes, weights = roots_jacobi(40, alpha - 1, alpha - 1)
    exact = 0.0
    for node, weight in zip((nodes + 1) / 2, weights / weights.sum(), strict=True):
        pairs_x = node * x[:, None] + (1 - node) * x[None]
        pairs_y = node * y[:, None] + (1 - node) * y[None]
        exact += weight * loss(pairs_x, pairs_y).mean().item()
    for per_sample in (True, False):
        mixup = Mixup(alpha, per_sample=per_sample, generator=seeded(3))
        means = torch.stack([loss(*mixup(x, y)).mean() for _ in range(20_000)])
        assert abs(means.mean() - exact) <= 4 * means.std() / len(means) ** 0.5


def test_reproducible_through_the_generator_or_the_global_seed() -> None:
    x, y = torch.randn(8, 3), torch.arange(8)
    first, second = (Mixup(0.5, 8, generator=seeded(9))(x, y) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    results = []
    mixup = Mixup(0.5, 8)
    for _ in range(2):
        torch.manual_seed(11)
        results.append(mixup(x, y)[0].clone())
    assert torch.equal(*results)
    state = torch.get_rng_state()
    Mixup(0.5, 8, generator=seeded())(x, y)
    assert torch.equal(state, torch.get_rng_state())


class Marked(torch.utils.data.Dataset):
    """Sample i is (image full of i, label i)."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 2), float(i)), i


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("own_generator", [False, True])
def test_workers_have_distinct_seeded_streams(own_generator, context) -> None:
    def shares(seed: int, persistent: bool = False) -> list[list[list[float]]]:
        mixup = Mixup(0.6, 48, generator=seeded(seed) if own_generator else None)
        loader = DataLoader(
            Marked(),
            batch_size=8,
            num_workers=2,
            collate_fn=mixup.collate_fn,
            generator=seeded(seed),
            multiprocessing_context=context,
            persistent_workers=persistent,
        )
        epochs = []
        for _ in range(2):
            found = []
            for x, y in loader:
                # Images and labels are mixed alike in the worker.
                torch.testing.assert_close(x[:, 0, 0], y @ torch.arange(48.0), rtol=0, atol=1e-4)
                found.append(y.max(1).values.tolist())
            epochs.append(found)
        return epochs

    first = shares(1)
    # No two batches of either epoch, and so no two workers, drew the same θ.
    flat = [tuple(batch) for epoch in first for batch in epoch]
    assert len(set(flat)) == len(flat) == 12
    if context == "fork":
        assert shares(1) == first
        assert shares(2) != first
        persistent = [tuple(batch) for epoch in shares(1, persistent=True) for batch in epoch]
        assert len(set(persistent)) == 12


def test_collate_in_this_process_and_of_structures() -> None:
    samples = [({"a": torch.full((2,), float(i)), "b": torch.tensor(float(i))}, i) for i in range(4)]
    x, y = Mixup(1.0, 4, generator=seeded()).collate_fn(samples)
    torch.testing.assert_close(x["a"][:, 1], y @ torch.arange(4.0))
    torch.testing.assert_close(x["b"], y @ torch.arange(4.0))
    loader = DataLoader(TensorDataset(torch.randn(5, 3), torch.randn(5)), 5, collate_fn=Mixup(1.0).collate_fn)
    assert next(iter(loader))[1].shape == (5,)


def test_copies_and_pickles_continue_the_stream() -> None:
    x, y = torch.randn(40, 50, 20), torch.arange(40)
    mixup = Mixup(0.5, 40, generator=seeded())
    mixup(x, y)
    for other in (pickle.loads(pickle.dumps(mixup)), copy.deepcopy(mixup)):
        assert torch.equal(other(x, y)[0], copy.deepcopy(mixup)(x, y)[0])
    assert repr(mixup) == "Mixup(alpha=0.5, num_classes=40, per_sample=True, inplace=False)"


X, Y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("arguments", "x", "y", "error", "message"),
    [
        ({"num_classes": 3}, X, Y[:3], ValueError, "x has 4 samples and y has 3"),
        ({"num_classes": 2}, X, Y, ValueError, r"labels must lie in 0\.\.1 .* from 0 to 2"),
        ({"num_classes": 600}, X, Y + 598, ValueError, r"labels must lie in 0\.\.599 .* from 598 to 600"),
        ({"num_classes": 3}, X, Y - 1, ValueError, r"labels must lie in 0\.\.2 .* from -1 to 1"),
        ({}, X, Y, ValueError, "integer labels .* need num_classes"),
        ({"num_classes": 3}, (X * 255).to(torch.uint8), Y, TypeError, "x has dtype torch.uint8"),
        ({"num_classes": 3}, {"ids": X.long()}, Y, TypeError, r"x\['ids'\] has dtype torch.int64"),
        ({"num_classes": 3}, [X, X[:2]], Y, ValueError, r"x\[1\] has 2 samples where x\[0\] has 4"),
        ({"num_classes": 3}, "images", Y, TypeError, "tuple, list or dict of tensors, got str"),
        ({"num_classes": 3}, X, Y.float(), ValueError, "num_classes=3"),
        ({"num_classes": 3}, X, torch.rand(4, 5), ValueError, "rows of 3 values"),
        ({}, X, torch.tensor([[2, 0]] * 4), ValueError, "zeros and ones"),
        ({}, X, torch.tensor(1.0), ValueError, "batch dimension"),
        ({}, torch.tensor(1.0), Y.float(), ValueError, "batch dimension"),
        ({}, X, torch.zeros(4, dtype=torch.complex64), TypeError, "real"),
        ({"num_classes": 3}, X, [0, 1, 2, 0], TypeError, "targets must be a tensor, got list"),
    ],
)
def test_wrong_input(arguments, x, y, error, message) -> None:
    mixup = Mixup(1.0, **arguments, generator=seeded(), inplace=True)
    before, state = copy.deepcopy(x), mixup.generator.get_state()
    with pytest.raises(error, match=message):
        mixup(x, y)
    # Nothing was mixed and nothing was drawn.
    if isinstance(x, torch.Tensor):
        assert torch.equal(x, before)
    assert torch.equal(mixup.generator.get_state(), state)


def test_in_place_refuses_before_it_changes_anything() -> None:
    x, b = torch.rand(8, 4), torch.rand(8, 2, requires_grad=True)
    before = x.clone()
    with pytest.raises(ValueError, match=r"x\[1\] requires gradients"):
        Mixup(1.0, inplace=True)((x, b), torch.zeros(8))
    assert torch.equal(x, before)


def test_labels_of_every_integer_type() -> None:
    for dtype in (torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.int64):
        labels = torch.tensor([0, 1, 2, 0]).to(dtype)
        assert Mixup(1.0, 3)(X, labels)[1].shape == (4, 3)
        with pytest.raises(ValueError, match="labels must lie in"):
            Mixup(1.0, 2)(X, labels)


def test_wrong_settings() -> None:
    for alpha in (-0.1, float("nan")):
        with pytest.raises(ValueError, match=r"alpha must lie in \[0, inf\]"):
            Mixup(alpha)
    with pytest.raises(TypeError, match="alpha as a number"):
        Mixup(torch.tensor(1.0))
    with pytest.raises(TypeError, match="num_classes must be a positive integer"):
        Mixup(1.0, num_classes="ten")
    with pytest.raises(TypeError, match=r"\(x, y\) pairs"):
        Mixup(1.0).collate_fn([X, X])
