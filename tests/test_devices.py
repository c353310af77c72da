"""Devices that are not here: on a GPU that PyTorch only imagines, all results are there and nobody waits for a number.

Under `FakeTensorMode` tensors have shapes and devices but no values: an operation on tensors of two devices is an
error, and so is looking at a value, which on a real GPU would be waiting for it. A PyTorch that is not linked with CUDA
imagines no gradients there, so that only what runs without them is seen.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._decomp.decompositions_for_jvp  # compiled on import, before `where` is replaced
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from mixreg import (
    ApproximateMixup,
    CutMix,
    DataMoments,
    GaussianMixup,
    Mixup,
    PartialMixup,
    Rescaled,
    RescaledCutMix,
    ScaledMixup,
    losses,
)
from mixreg._support.devices import assert_later

GPU = torch.device("cuda:0")
X, Y = torch.randn(8, 3, 6, 6), torch.randint(3, (8,))
MOMENTS = DataMoments(3)
MOMENTS.update(X, Y)
METHODS: dict[str, Callable[[], Any]] = {
    "mixup": lambda: Mixup(1.0, 3),
    "mixup of batches": lambda: Mixup(1.0, 3, per_sample=False),
    "mixup at times": lambda: Mixup(1.0, 3, probability=0.5),
    "mixup in place": lambda: Mixup(1.0, 3, inplace=True),
    "smoothed": lambda: Mixup(1.0, 3, label_smoothing=0.1),
    "cutmix": lambda: CutMix(1.0, 3),
    "cutmix of batches": lambda: CutMix(1.0, 3, per_sample=False),
    "inputs": lambda: PartialMixup("inputs", 1.0, 3),
    "independent": lambda: PartialMixup("independent", 1.0, 3),
    "scaled": lambda: ScaledMixup(4.0, MOMENTS.x_mean, 3),
    "gaussian": lambda: GaussianMixup(1.0, MOMENTS),
}


@pytest.fixture
def imagined(monkeypatch) -> FakeTensorMode:
    """The mode; what this PyTorch cannot imagine of `where` is written out."""
    where = torch.where

    def written_out(condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return condition * a + condition.logical_not() * b if condition.is_cuda else where(condition, a, b)

    monkeypatch.setattr(torch, "where", written_out)
    return FakeTensorMode(allow_non_fake_inputs=True)


@pytest.mark.parametrize("name", METHODS)
def test_methods_stay_on_the_device_and_wait_for_nothing(name: str, imagined: FakeTensorMode) -> None:
    method = METHODS[name]()
    with imagined, torch.no_grad():
        for y in (torch.empty(8, dtype=torch.long, device=GPU), torch.empty(8, 3, device=GPU)):
            mixed = method(torch.empty(8, 3, 6, 6, device=GPU), y)
            assert [part.device for part in mixed] == [GPU, GPU]
            assert [tuple(part.shape) for part in mixed] == [(8, 3, 6, 6), (8, 3)]


def moved(module: nn.Module) -> nn.Module:
    """With parameters and buffers on the imagined device."""
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = nn.Parameter(torch.empty(value.shape, device=GPU), requires_grad=False)
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = torch.empty(value.shape, dtype=value.dtype, device=GPU)
    return module


def test_prediction_rules(imagined: FakeTensorMode) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(108, 3))
    models = [
        Rescaled(net, 1.0, MOMENTS.x_mean, MOMENTS.y_mean),
        Rescaled(net, 1.0, MOMENTS.x_mean, MOMENTS.y_mean, strength=0.5, temperature=0.8),
        RescaledCutMix(net, 1.0, MOMENTS.x_mean, MOMENTS.y_mean),
    ]
    with imagined, torch.no_grad():
        for model in models:
            u = moved(model.eval())(torch.empty(8, 3, 6, 6, device=GPU))
            assert u.device == GPU
            assert u.shape == (8, 3)


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("second_order", [False, True])
def test_tangents_wait_for_nothing_when_nothing_is_checked(part, second_order, imagined: FakeTensorMode) -> None:
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.GELU()]
    net = nn.Sequential(*layers, nn.Linear(8, 3))
    criterion = ApproximateMixup(1.0, MOMENTS, second_order=second_order, part=part, validate=False)
    with imagined, torch.no_grad():
        for y in (torch.empty(8, dtype=torch.long, device=GPU), torch.empty(8, 3, device=GPU)):
            value = criterion(moved(net), torch.empty(8, 3, 6, 6, device=GPU), y)
            assert (value.device, value.shape) == (GPU, ())
        criterion.validate = True
        with pytest.raises(DataDependentOutputException):
            criterion(net, torch.empty(8, 3, 6, 6, device=GPU), y)


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_differences_wait_for_nothing_when_nothing_is_checked(part, imagined: FakeTensorMode) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3), nn.LayerNorm(3))
    criterion = ApproximateMixup(1.0, MOMENTS, part=part, validate=False, derivatives="differences")
    with imagined, torch.no_grad():
        y = torch.empty(8, dtype=torch.long, device=GPU)
        value = criterion(moved(net), torch.empty(8, 3, 6, 6, device=GPU), y)
        assert (value.device, value.shape) == (GPU, ())


def test_losses_and_moments(imagined: FakeTensorMode) -> None:
    with imagined, torch.no_grad():
        y, u = torch.empty(8, 3, device=GPU), torch.empty(8, 3, device=GPU)
        for loss in (losses.logistic, losses.squared_error, losses.cross_entropy):
            assert loss(y, u).device == GPU
        for loss in losses.BUILT_IN.values():
            for part in (loss.value, loss.u, loss.uu, loss.uy, loss.yy):
                assert part(y, u).device == GPU
            assert loss.along(y, u, y, u).device == GPU


def test_the_mode_sees_what_it_is_there_for(imagined: FakeTensorMode) -> None:
    with imagined, torch.no_grad():
        on_gpu = torch.empty(3, device=GPU)
        with pytest.raises(RuntimeError, match="at least two devices"):
            on_gpu + torch.empty(3)
        with pytest.raises(DataDependentOutputException):
            bool(on_gpu.sum() > 0)


def test_a_check_that_does_not_wait_still_checks() -> None:
    assert_later(torch.tensor([True, True]), "all is well")
    with pytest.raises(RuntimeError, match="labels must lie in"):
        assert_later(torch.tensor([True, False]), "labels must lie in 0..2")
