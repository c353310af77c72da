"""Streaming moments against NumPy, in every order and in several processes."""

import copy
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import run_processes
from torch.utils.data import DataLoader, TensorDataset

from mixreg import DataMoments
from mixreg._support.tensor_files import save_tensors


def batches(n: int, cuts: list[int]) -> list[slice]:
    edges = [0, *sorted(c % (n + 1) for c in cuts), n]
    return [slice(a, b) for a, b in pairwise(edges)]


def data(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, 3, generator=generator, dtype=torch.float64) * 3 + 7
    return x, torch.randint(0, 4, (n,), generator=generator)


def numpy_moments(x: torch.Tensor, y: torch.Tensor) -> dict[str, np.ndarray]:
    z = np.concatenate([x.double().flatten(1).numpy(), np.eye(4)[y.numpy()]], axis=1)
    covariance = np.cov(z.T, ddof=0)
    d = x[0].numel()
    return {"xx": covariance[:d, :d], "xy": covariance[:d, d:], "yy": covariance[d:, d:], "mean": z.mean(0)}


def assert_matches(m: DataMoments, x: torch.Tensor, y: torch.Tensor, tolerance: float = 1e-10) -> None:
    expected = numpy_moments(x, y)
    np.testing.assert_allclose(torch.cat([m.x_mean.flatten(), m.y_mean]), expected["mean"], rtol=0, atol=tolerance)
    for name in ("xx", "xy", "yy"):
        np.testing.assert_allclose(getattr(m, name), expected[name], rtol=0, atol=tolerance)


@given(n=st.integers(1, 40), cuts=st.lists(st.integers(0, 1000), max_size=6))
def test_batching_does_not_matter(n: int, cuts: list[int]) -> None:
    x, y = data(n)
    m = DataMoments(num_classes=4, covariance=True)
    for part in batches(n, cuts):
        m.update(x[part], y[part])
    assert m.count == n
    assert_matches(m, x, y)


@given(sizes=st.lists(st.integers(0, 12), min_size=3, max_size=3), seed=st.integers(0, 5))
def test_merge_is_associative_and_commutative(sizes: list[int], seed: int) -> None:
    def one(index: int) -> DataMoments:
        m = DataMoments(num_classes=4, covariance=True)
        m.update(*data(sizes[index], seed + 10 * index))
        return m

    left = one(0).merge(one(1)).merge(one(2))
    right = one(0).merge(one(1).merge(one(2)))
    turned = one(2).merge(one(0)).merge(one(1))
    if sum(sizes) == 0:
        assert left.count == right.count == 0
        return
    for other in (right, turned):
        assert left.count == other.count
        for name in ("x_mean", "y_mean", "xx", "xy", "yy"):
            torch.testing.assert_close(getattr(left, name), getattr(other, name), rtol=0, atol=1e-10)


def test_large_mean_in_float32() -> None:
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(4000, 5, generator=generator) + 1e6).float()
    y = torch.randn(4000, generator=generator)
    m = DataMoments(covariance=True)
    for part in batches(4000, [1, 7, 500, 900, 3000]):
        m.update(x[part], y[part])
    np.testing.assert_allclose(m.xx, np.cov(x.double().numpy().T, ddof=0), atol=1e-9)
    assert abs(m.xx.diagonal() - 1).max() < 0.1
    assert m.yy.shape == (1, 1)
    assert m.xy.shape == (5, 1)
    assert m.y_mean.shape == ()


@pytest.mark.parametrize("covariance", [False, True])
def test_the_order_in_memory_does_not_matter(covariance: bool) -> None:
    x = torch.randn(12, 3, 5, 4, generator=torch.Generator().manual_seed(1)) + 10
    moments = DataMoments(4, covariance)
    moments.update(x.contiguous(memory_format=torch.channels_last), torch.arange(12) % 4)
    np.testing.assert_allclose(moments.x_mean, x.double().numpy().mean(0), rtol=1e-14)
    if covariance:
        np.testing.assert_allclose(moments.xx, np.cov(x.double().flatten(1).numpy().T, ddof=0), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_means_alone(dtype: torch.dtype) -> None:
    x, y = data(33)
    x = x.to(dtype)
    m = DataMoments(num_classes=4)
    for part in batches(33, [5, 6, 20]):
        m.update(x[part], y[part])
    torch.testing.assert_close(m.x_mean, x.double().mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(m.y_mean, torch.bincount(y, minlength=4).double() / 33, rtol=0, atol=1e-12)
    assert m.x_mean.dtype == torch.float64
    with pytest.raises(ValueError, match="covariance=True"):
        _ = m.xx


def test_soft_multi_label_and_dense_targets() -> None:
    x = torch.randn(6, 2)
    soft = torch.rand(6, 3).softmax(1)
    m = DataMoments()
    m.update(x, soft)
    torch.testing.assert_close(m.y_mean, soft.double().mean(0))
    masks = torch.randint(0, 3, (6, 4, 5))
    m = DataMoments(num_classes=3)
    m.update(x, masks)
    one_hot = torch.nn.functional.one_hot(masks, 3).permute(0, 3, 1, 2).double()
    torch.testing.assert_close(m.y_mean, one_hot.mean(0))


def test_inputs_of_several_tensors() -> None:
    image, row = torch.randn(9, 3, 2), torch.randn(9, 4)
    y = torch.randn(9, 2)
    m = DataMoments(covariance=True)
    m.update({"row": row[:4], "image": image[:4]}, y[:4])
    m.update({"image": image[4:], "row": row[4:]}, y[4:])
    torch.testing.assert_close(m.x_mean["image"], image.double().mean(0))
    torch.testing.assert_close(m.x_mean["row"], row.double().mean(0))
    flat = torch.cat([image.flatten(1), row], 1).double().numpy()
    np.testing.assert_allclose(m.xx, np.cov(flat.T, ddof=0), atol=1e-12)


def test_from_loader() -> None:
    x, y = data(25)
    m = DataMoments.from_loader(DataLoader(TensorDataset(x, y), batch_size=4), num_classes=4, covariance=True)
    assert_matches(m, x, y)


def _uneven(rank: int) -> list[torch.Tensor]:
    x, y = data(30)
    m = DataMoments(num_classes=4, covariance=True)
    part = slice(0, 11) if rank == 0 else slice(11, 30)
    for start in range(part.start, part.stop, 4):
        m.update(x[start : min(start + 4, part.stop)], y[start : min(start + 4, part.stop)])
    m.all_reduce()
    return [torch.tensor(m.count), m.x_mean, m.y_mean, m.xx, m.xy, m.yy]


def _one_without_data(rank: int) -> list[torch.Tensor]:
    m = DataMoments(num_classes=4, covariance=True)
    if rank == 1:
        m.update(*data(30))
    m.all_reduce()
    return [torch.tensor(m.count), m.x_mean, m.y_mean, m.xx, m.xy, m.yy]


@pytest.mark.parametrize("share", [_uneven, _one_without_data])
def test_two_processes_agree_with_one(share, tmp_path: Path) -> None:
    single = DataMoments(num_classes=4, covariance=True)
    single.update(*data(30))
    expected = [torch.tensor(30), single.x_mean, single.y_mean, single.xx, single.xy, single.yy]
    for results in run_processes(share, 2, tmp_path):
        for got, want in zip(results, expected, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def _different_settings(rank: int) -> str:
    m = DataMoments(num_classes=None if rank == 0 else 4)
    if rank == 1:
        m.update(*data(30))
    try:
        m.all_reduce()
    except ValueError as error:
        return str(error)
    return ""


def test_processes_that_disagree_all_raise(tmp_path: Path) -> None:
    assert all("cannot be joined" in message for message in run_processes(_different_settings, 2, tmp_path))


X, Y = data(5)


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (X, Y[:4], ValueError, "5 samples and y has 4"),
        (X, Y + 2, ValueError, r"labels must lie in 0\.\.3"),
        (X, Y - 1, ValueError, r"labels must lie in 0\.\.3"),
        (X.long(), Y, TypeError, "floating point"),
        (X[:, :1], Y, ValueError, "samples so far"),
        (X * torch.nan, Y, ValueError, "non-finite"),
        (X / 0, Y, ValueError, "non-finite"),
        ("x", Y, TypeError, "must be a tensor"),
        (X, Y.tolist(), TypeError, "targets must be a tensor"),
        ({}, Y, ValueError, "no tensor"),
        ([X, X[:2]], Y, ValueError, "2 samples"),
        (X, torch.rand(5, 3), ValueError, "num_classes=4"),
    ],
)
@pytest.mark.parametrize("covariance", [False, True])
def test_wrong_input_changes_nothing(x, y, error, message, covariance) -> None:
    m = DataMoments(num_classes=4, covariance=covariance)
    m.update(X, Y)
    before = copy.deepcopy(m.__dict__)
    with pytest.raises(error, match=message):
        m.update(x, y)
    after = m.__dict__
    assert after["count"] == before["count"] == 5
    assert torch.equal(after["_mean"], before["_mean"])
    if covariance:
        assert torch.equal(after["_scatter"].matrix, before["_scatter"].matrix)


def test_other_wrong_input() -> None:
    with pytest.raises(ValueError, match="empty"):
        DataMoments.from_loader([])
    with pytest.raises(TypeError, match=r"\(x, y\) pairs"):
        DataMoments.from_loader([X])
    with pytest.raises(ValueError, match="need num_classes"):
        DataMoments().update(X, Y)
    with pytest.raises(ValueError, match="no data yet"):
        _ = DataMoments().x_mean
    with pytest.raises(TypeError, match="only DataMoments can be merged, got int"):
        DataMoments().merge(3)
    with pytest.raises(ValueError, match="cannot be joined"):
        DataMoments(num_classes=4).merge(DataMoments(num_classes=5))
    with pytest.raises(TypeError, match="positive integer"):
        DataMoments(num_classes=2.5)
    with pytest.raises(ValueError, match="positive integer"):
        DataMoments(num_classes=0)


@pytest.mark.parametrize("covariance", [False, True])
def test_saved_and_loaded(covariance, tmp_path: Path) -> None:
    x = {"image": torch.randn(6, 2, 3), "row": (torch.randn(6, 4), [torch.randn(6)])}
    moments = DataMoments(3, covariance)
    moments.update(x, torch.arange(6) % 3)
    moments.save(tmp_path / "moments.safetensors")
    again = DataMoments.load(tmp_path / "moments.safetensors")
    assert (again.count, again.num_classes, again.covariance) == (6, 3, covariance)
    assert torch.equal(again.x_mean["image"], moments.x_mean["image"])
    assert torch.equal(again.x_mean["row"][1][0], moments.x_mean["row"][1][0])
    assert isinstance(again.x_mean["row"], tuple)
    assert torch.equal(again.y_mean, moments.y_mean)
    if covariance:
        assert torch.equal(again.xy, moments.xy)
    # Both go on alike.
    for one in (moments, again):
        one.update(x, torch.arange(6) % 2)
    assert torch.equal(again.y_mean, moments.y_mean)
    empty = DataMoments()
    empty.save(tmp_path / "empty.safetensors")
    assert DataMoments.load(tmp_path / "empty.safetensors").count == 0


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "moments.safetensors"
    for content in (b"", b"pickle", b"\x80\x04"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"moments\.safetensors cannot be read"):
            DataMoments.load(path)
    save_tensors(path, {"mean": torch.zeros(2)}, {"count": 3})
    with pytest.raises(ValueError, match=r"moments\.safetensors does not hold moments"):
        DataMoments.load(path)


def _looks_on_the_way(rank: int) -> list[int]:
    moments = DataMoments()
    moments.update(torch.full((rank + 1, 2), float(rank)), torch.zeros(rank + 1, 1))
    return [moments.joined().count, moments.count, int(3 * moments.joined().x_mean[0])]


def test_a_look_at_all_processes_leaves_each_as_it_is(tmp_path: Path) -> None:
    assert run_processes(_looks_on_the_way, 2, tmp_path) == [[3, 1, 2], [3, 2, 2]]


def test_batches_by_their_means() -> None:
    x, y = torch.randn(30, 2, 3, dtype=torch.float64), torch.randint(0, 4, (30,))
    whole, parts = DataMoments(4, by_class=False), DataMoments(4, by_class=False)
    whole.update(x, y)
    for part, labels in zip(x.split(7), y.split(7), strict=True):
        parts.update_by_mean(part.mean(0), labels)
    assert parts.count == 30
    torch.testing.assert_close(parts.x_mean, whole.x_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts.y_mean, whole.y_mean, rtol=1e-12, atol=1e-12)
    # Both ways may be taken by turns.
    parts.update(x, y)
    torch.testing.assert_close(parts.x_mean, whole.x_mean, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="samples so far were"):
        parts.update_by_mean(torch.zeros(3, dtype=torch.float64), y)
    with pytest.raises(ValueError, match="non-finite"):
        parts.update_by_mean(torch.full((2, 3), torch.nan, dtype=torch.float64), y)
    assert parts.count == 60
    for kept in ({"covariance": True}, {"by_class": True}, {}):
        with pytest.raises(ValueError, match="need the samples"):
            DataMoments(4, **kept).update_by_mean(x.mean(0), y)
