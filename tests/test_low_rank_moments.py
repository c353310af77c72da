"""Covariances of low rank plus a diagonal: exact where they can be, and merged over batches and processes."""

from pathlib import Path

import pytest
import torch
from processes import run_processes
from torch import nn

from mixreg import DataMoments, risk
from mixreg._support.random import stream

RANK = 6


def data(n: int = 60, d: int = 12, of_rank: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets that vary in a few directions only."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, of_rank, generator=generator, dtype=torch.float64)
    both = z @ torch.randn(of_rank, d + 2, generator=generator, dtype=torch.float64) + 3
    return both[:, :d], both[:, d:]


def matrix(moments: DataMoments) -> torch.Tensor:
    factor, rest = moments.low_rank()
    return factor @ factor.T + torch.diag(rest)


def dense(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cov(torch.cat([x, y], 1).T, correction=0)


def test_batches_weights_merging_and_files(tmp_path: Path) -> None:
    x, y = data()
    moments = DataMoments(covariance=True, rank=RANK)
    for part in (slice(0, 7), slice(7, 31)):
        moments.update(x[part], y[part])
    other = DataMoments(covariance=True, rank=RANK)
    other.update(x[31:], y[31:])
    moments.merge(other)
    torch.testing.assert_close(matrix(moments), dense(x, y), rtol=1e-9, atol=1e-9)
    assert len(moments.low_rank()[0].T) <= RANK
    moments.save(tmp_path / "m.safetensors")
    torch.testing.assert_close(matrix(DataMoments.load(tmp_path / "m.safetensors")), dense(x, y), rtol=1e-9, atol=1e-9)
    weighted = DataMoments(covariance=True, rank=RANK)
    weights = torch.arange(60) % 3
    weighted.update(x, y, weights)
    repeated = (part.repeat_interleave(weights, 0) for part in (x, y))
    torch.testing.assert_close(matrix(weighted), dense(*repeated), rtol=1e-9, atol=1e-9)


def test_of_a_larger_rank_the_diagonal_is_exact_and_the_rest_near_the_best() -> None:
    x, y = data(of_rank=14)
    moments = DataMoments(covariance=True, rank=RANK)
    for part in torch.arange(60).split(10):
        moments.update(x[part], y[part])
    found, expected = matrix(moments), dense(x, y)
    torch.testing.assert_close(found.diagonal(), expected.diagonal(), rtol=1e-9, atol=1e-9)
    values = torch.linalg.eigvalsh(expected)
    best = float(values[:-RANK].square().sum().sqrt())
    factor, _ = moments.low_rank()
    assert float(torch.linalg.norm(factor @ factor.T - expected)) < 2.5 * best


def in_each_process(rank: int) -> torch.Tensor:
    x, y = data()
    moments = DataMoments(covariance=True, rank=RANK)
    mine = slice(0, 20) if rank == 0 else slice(20, 60)
    moments.update(x[mine], y[mine])
    return matrix(moments.all_reduce())


def test_two_processes(tmp_path: Path) -> None:
    for found in run_processes(in_each_process, 2, tmp_path):
        torch.testing.assert_close(found, dense(*data()), rtol=1e-9, atol=1e-9)


def test_terms_of_a_part_of_the_data() -> None:
    """Noise of low rank has the terms of the matrix that it stands for."""
    x, y = data()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    low, full = DataMoments(covariance=True, rank=RANK), DataMoments(covariance=True)
    for moments in (low, full):
        moments.update(x, y)
    options = {"alpha": 1.0, "loss": "squared_error"}
    exact = risk.quadratic(net, x[:5], y[:5], moments=full, **options)
    # Every copy of a sample has directions of its own, so that eight of them stand for eight times as many.
    several = x[:5].repeat(8, 1), y[:5].repeat(8, 1)
    found = risk.quadratic(net, *several, moments=low, tangents=500, generator=stream("low rank"), **options)
    for name in ("joint", "r2", "r4", "total"):
        assert abs(float(getattr(found, name) - getattr(exact, name))) <= 4 * float(found.stderr[name]), name
    with pytest.raises(ValueError, match="kept with rank 6, not as matrices"):
        risk.quadratic(net, x[:5], y[:5], moments=low, **options)


def test_wrong_input_gets_a_sentence() -> None:
    for options in ({"covariance": True, "rank": 0}, {"rank": 4}):
        with pytest.raises(ValueError, match="rank must be an integer of at least 1"):
            DataMoments(**options)
    x, y = data()
    dense_moments = DataMoments(covariance=True)
    dense_moments.update(x, y)
    with pytest.raises(ValueError, match="no low rank"):
        dense_moments.low_rank()
    with pytest.raises(ValueError, match="covariance=True cannot be joined with covariance=True, rank=4"):
        dense_moments.merge(DataMoments(covariance=True, rank=4))
