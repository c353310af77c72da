"""Networks: shapes, sizes, names of parameters, and random features against their kernel."""

import math

import pytest
import torch

from mixreg._support.references import load_reference
from mixreg.models import MODELS, RandomFourierFeatures, build, resnet50


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("lenet", (3, 32, 32), 62_006),
        ("resnet34", (3, 32, 32), 21_282_122),
        ("small-resnet", (3, 32, 32), 78_042),
        ("resnet9", (3, 32, 32), 464_170),
        ("resnet9-16", (3, 32, 32), 116_890),
        ("resnet9-64", (1, 28, 28), 1_848_778),
        ("mlp", (1, 8, 8), 26_122),
        ("random-features", (2,), 10_000),
        ("lenet", (1, 28, 28), 44_426),
    ],
)
def test_sizes(name, shape, parameters) -> None:
    net = build(name, shape, 10)
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert net.eval()(torch.zeros(2, *shape)).shape == (2, 10)
    first, second = (build(name, shape, 10, seed).state_dict() for seed in (1, 1))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_resnet50_has_torchvisions_names() -> None:
    """Published sizes, and the names that the published weights have."""
    state = resnet50().state_dict()
    assert sum(v.numel() for k, v in state.items() if "running" not in k and "tracked" not in k) == 25_557_032
    assert state["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    assert state["layer4.2.conv3.weight"].shape == (2048, 512, 1, 1)
    assert state["fc.weight"].shape == (1000, 2048)
    assert len(state) == 320


def test_random_features_approximate_the_gaussian_kernel() -> None:
    """2 φ(x)·φ(y) → exp(−σ² ‖x − y‖² / 2)."""
    torch.manual_seed(0)
    net = RandomFourierFeatures(2, 1, features=200_000, scale=3.0)
    x = torch.tensor([[0.0, 0.0], [0.2, 0.1], [0.5, -0.3]])
    phi = net.features(x).double()
    expected = torch.exp(-9 * torch.cdist(x, x).double() ** 2 / 2)
    assert (2 * phi @ phi.T - expected).abs().max() < 5 / math.sqrt(200_000)
    assert not net(x).any()


def test_wrong_input() -> None:
    with pytest.raises(ValueError, match="unknown model 'vgg'; known are lenet"):
        build("vgg", (3, 32, 32), 10)
    with pytest.raises(ValueError, match="takes images of at least 8 × 8"):
        build("resnet34", (2,), 10)
    for wrong, message in (("a", "MODULE:NAME"), ("nowhere:a", "No module"), ("math:nothing", "no attribute")):
        with pytest.raises(ValueError, match=message):
            load_reference(wrong)
    assert set(MODELS) == {
        "lenet",
        "resnet9",
        "resnet9-16",
        "resnet9-64",
        "resnet34",
        "resnet50",
        "small-resnet",
        "random-features",
        "mlp",
    }
