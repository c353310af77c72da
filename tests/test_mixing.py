"""Mixup: its definition, its invariants, its law and its speed paths."""

from collections import namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import roots_jacobi

from mixreg import Mixup
from mixreg._support.random import seeded
from mixreg.losses.targets import LARGEST_TABLE
from mixreg.methods.pairing import LOOP_FROM_ELEMENTS, Pairing, draw_pairing, mix

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-12}
# Small samples are gathered; samples of this shape are mixed one by one.
SHAPES = [(3,), (2, 3, 4), (), (1, LOOP_FROM_ELEMENTS)]


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
    x = torch.randn(n, *shape, generator=seeded(0)).to(dtype)
    pairing = draw_pairing(n, 0.7, generator=seeded(0), dtype=torch.promote_types(dtype, torch.float32))
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
    mixup = Mixup(generator=seeded(0))
    for _ in range(2):
        mixed, _ = mixup(x, torch.zeros(5))
        assert mixed.is_contiguous(memory_format=torch.channels_last)
    pairing = draw_pairing(5, 1.0, generator=seeded(3))
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
    pairing = draw_pairing(n, 0.5, generator=seeded(seed), dtype=torch.float64)
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
    mixed, y = Mixup(0.8, num_classes=n, per_sample=per_sample, generator=seeded(0), inplace=inplace)(
        x, torch.arange(n)
    )
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
    pairing = draw_pairing(8, 0.4, generator=seeded(3))
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
    fresh = Mixup(1.0, generator=seeded(0))(x.clone(), x.clone())
    both = x.clone()
    inplace = Mixup(1.0, generator=seeded(0), inplace=True)(both, both)
    torch.testing.assert_close(inplace[0], fresh[0])
    torch.testing.assert_close(inplace[1], fresh[1])
    twice, _ = Mixup(1.0, generator=seeded(0), inplace=True)((x, x), torch.zeros(8))
    torch.testing.assert_close(twice[1], fresh[0])


def test_a_pair_may_come_as_one_argument() -> None:
    x, y = torch.rand(8, 4), torch.arange(8)
    one, two = Mixup(1.0, 8, generator=seeded(0))((x, y)), Mixup(1.0, 8, generator=seeded(0))(x, y)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    with pytest.raises(TypeError, match="got a single Tensor"):
        Mixup(1.0, 8)(x)


def test_gradients_flow_through_the_mixture() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    pairing = draw_pairing(4, 1.0, generator=seeded(0), dtype=torch.float64)
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
    # Where every row has a share of its own, a batch of twenty copies is twenty batches.
    for per_sample, copies in ((True, 20), (False, 1)):
        mixup = Mixup(alpha, per_sample=per_sample, generator=seeded(3))
        batch = x.repeat(copies, 1), y.repeat(copies)
        means = torch.stack([loss(*mixup(*batch)).mean() for _ in range(20_000 // copies)])
        assert abs(means.mean() - exact) <= 4 * means.std() / len(means) ** 0.5
