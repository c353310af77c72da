"""Mixup in a user's hands: streams of chance, data loaders and their workers, copies, and wrong input."""

import copy
import multiprocessing
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mixreg import Mixup
from mixreg._support.random import seeded


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
    Mixup(0.5, 8, generator=seeded(0))(x, y)
    assert torch.equal(state, torch.get_rng_state())


class Marked(torch.utils.data.Dataset):
    """Sample i is (image full of i, label i)."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 2), float(i)), i


# A server forks quickly; like a process that is spawned, its workers get the method as a pickle.
multiprocessing.set_forkserver_preload(["pytest", "torch.utils.data", "mixreg.methods.mixup"])


@pytest.mark.parametrize(
    ("own_generator", "context"), [(False, "fork"), (True, "fork"), (False, "forkserver"), (True, "spawn")]
)
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
    x, y = Mixup(1.0, 4, generator=seeded(0)).collate_fn(samples)
    torch.testing.assert_close(x["a"][:, 1], y @ torch.arange(4.0))
    torch.testing.assert_close(x["b"], y @ torch.arange(4.0))
    loader = DataLoader(TensorDataset(torch.randn(5, 3), torch.randn(5)), 5, collate_fn=Mixup(1.0).collate_fn)
    assert next(iter(loader))[1].shape == (5,)


def test_copies_and_pickles_continue_the_stream() -> None:
    x, y = torch.randn(40, 50, 20), torch.arange(40)
    mixup = Mixup(0.5, 40, generator=seeded(0))
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
    mixup = Mixup(1.0, **arguments, generator=seeded(0), inplace=True)
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
