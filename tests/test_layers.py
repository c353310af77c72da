"""Tangents through every kind of layer in `torch.nn`: values, gradients and second derivatives against differences.

The reference is a central difference of forward passes in float64, which reverse mode differentiates once. A layer's
tangent may be right and its gradient wrong: layer normalisation was so in PyTorch itself.
"""

import zlib
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from mixreg._autodiff.tangents import tangents

ROW, LINE, IMAGE, VOLUME, TOKENS = (4, 6), (4, 6, 8), (4, 6, 8, 8), (4, 6, 4, 4, 4), (4, 5, 6)
SPATIAL = {1: LINE, 2: IMAGE, 3: VOLUME}


class Applied(nn.Module):
    """A function of one input, with a layer that it may use."""

    def __init__(self, function, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) if self.layer is None else self.function(self.layer, x)


def first(layer, x):
    return layer(x)[0]


def transformer(**settings) -> nn.Module:
    return nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, activation="gelu", **settings)


def cases() -> dict[str, tuple[object, tuple[int, ...]]]:
    """By name: what makes the layer, and the shape of its input."""
    found: dict[str, tuple[object, tuple[int, ...]]] = {}
    smooth = "ELU CELU SELU GELU SiLU Mish Softplus Tanh Sigmoid LogSigmoid Softsign Tanhshrink"
    kinked = "ReLU ReLU6 LeakyReLU Hardtanh Hardswish Hardsigmoid Hardshrink Softshrink PReLU"
    for name in f"{smooth} {kinked} Identity".split():
        found[name] = getattr(nn, name), ROW
    for name in ("Softmin", "Softmax", "LogSoftmax"):
        found[name] = lambda name=name: getattr(nn, name)(dim=1), ROW
    found |= {
        "RReLU": (lambda: nn.RReLU().eval(), ROW),
        "Threshold": (lambda: nn.Threshold(0.1, 0.0), ROW),
        "GELU by tanh": (lambda: nn.GELU("tanh"), ROW),
        "GLU": (lambda: nn.GLU(1), ROW),
        "LayerNorm": (lambda: nn.LayerNorm(6), ROW),
        "LayerNorm of two dimensions": (lambda: nn.LayerNorm([8, 8]), IMAGE),
        "LayerNorm without weights": (lambda: nn.LayerNorm(6, elementwise_affine=False), ROW),
        "LayerNorm without bias": (lambda: nn.LayerNorm(6, bias=False), ROW),
        "torch.layer_norm": (lambda: Applied(lambda x: torch.layer_norm(x, (6,))), ROW),
        "RMSNorm": (lambda: nn.RMSNorm(6), ROW),
        "GroupNorm": (lambda: nn.GroupNorm(2, 6), IMAGE),
        "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), IMAGE),
        "PixelShuffle": (lambda: nn.PixelShuffle(2), (4, 8, 4, 4)),
        "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), IMAGE),
        "ChannelShuffle": (lambda: nn.ChannelShuffle(2), IMAGE),
        "Unfold": (lambda: nn.Unfold(2), IMAGE),
        "Fold": (lambda: nn.Fold((5, 5), 2), (4, 8, 16)),
        "Linear": (lambda: nn.Linear(6, 3), ROW),
        "Bilinear": (lambda: Applied(lambda layer, x: layer(x, x), nn.Bilinear(6, 6, 3)), ROW),
        "embedding as weights": (lambda: Applied(lambda e, x: x @ e.weight, nn.Embedding(6, 4)), ROW),
        "MultiheadAttention": (
            lambda: Applied(lambda a, x: a(x, x, x)[0], nn.MultiheadAttention(6, 2, batch_first=True)),
            TOKENS,
        ),
        "attention": (lambda: Applied(lambda x: F.scaled_dot_product_attention(x, x, x)), TOKENS),
        "causal attention": (
            lambda: Applied(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
            TOKENS,
        ),
        "TransformerEncoderLayer": (transformer, TOKENS),
        "TransformerEncoderLayer, norm first": (lambda: transformer(norm_first=True), TOKENS),
        "TransformerEncoderLayer, evaluated": (lambda: transformer().eval(), TOKENS),
        "TransformerDecoderLayer": (
            lambda: Applied(
                lambda d, x: d(x, x.roll(1, 1)),
                nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0, batch_first=True, activation="gelu"),
            ),
            TOKENS,
        ),
        "RNNCell": (lambda: nn.RNNCell(6, 5), ROW),
        "GRUCell": (lambda: nn.GRUCell(6, 5), ROW),
        "LSTMCell": (lambda: Applied(first, nn.LSTMCell(6, 5)), ROW),
        "weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(6, 3)), ROW),
        "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(6, 3)), ROW),
        "spectral_norm": (lambda: parametrizations.spectral_norm(nn.Linear(6, 3)).eval(), ROW),
        "normalize": (lambda: Applied(F.normalize), ROW),
        "CosineSimilarity": (
            lambda: Applied(lambda x: F.cosine_similarity(x, x.roll(1, 1).square()).unsqueeze(1)),
            ROW,
        ),
        "PairwiseDistance": (lambda: Applied(lambda x: F.pairwise_distance(x, x.roll(1, 1)).unsqueeze(1)), ROW),
        "vector norm": (lambda: Applied(lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True)), ROW),
        "FractionalMaxPool2d": (
            lambda: nn.FractionalMaxPool2d(2, output_size=3, _random_samples=torch.full((4, 6, 2), 0.5).double()),
            IMAGE,
        ),
        "FractionalMaxPool3d": (
            lambda: nn.FractionalMaxPool3d(2, output_size=2, _random_samples=torch.full((4, 6, 3), 0.5).double()),
            VOLUME,
        ),
    }
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        found[kind.__name__] = lambda kind=kind: Applied(first, kind(6, 5, batch_first=True)), TOKENS
    for mode, shape in (
        ("nearest", IMAGE),
        ("bilinear", IMAGE),
        ("bicubic", IMAGE),
        ("linear", LINE),
        ("trilinear", VOLUME),
    ):
        found[f"Upsample {mode}"] = lambda mode=mode: nn.Upsample(scale_factor=2, mode=mode), shape
    for d, shape in SPATIAL.items():
        made = {
            "InstanceNorm": lambda kind: kind(6, affine=True),
            "BatchNorm": lambda kind: kind(6).eval(),
            "Conv": lambda kind: kind(6, 4, 3, padding=1),
            "ConvTranspose": lambda kind: kind(6, 4, 3, stride=2),
            **{f"{name}Pad": lambda kind: kind(1) for name in ("Reflection", "Replication", "Zero", "Circular")},
            **{name: lambda kind: kind(2) for name in ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool")},
        }
        if d < 3:
            made["LPPool"] = lambda kind: kind(2, 2)
        for name, make in made.items():
            found[f"{name}{d}d"] = partial(make, getattr(nn, f"{name}{d}d")), shape
        tracking = partial(getattr(nn, f"InstanceNorm{d}d"), 6, track_running_stats=True)
        found[f"InstanceNorm{d}d with running statistics"] = lambda make=tracking: make().eval(), shape
    return found


CASES = cases()


class Bent(nn.Module):
    """A layer behind a curved map with parameters: so that all its derivatives count."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(1 + 0.5 * torch.randn(shape[1:])), layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x * self.scale
        return self.layer(z + 0.1 * z.square()).flatten(1)


@pytest.mark.parametrize("name", CASES)
def test_tangents_and_their_gradients(name: str) -> None:
    make, shape = CASES[name]
    torch.manual_seed(zlib.crc32(name.encode()))
    require_right_derivatives(Bent(make(), shape).double(), *torch.randn(2, *shape, dtype=torch.float64))


def require_right_derivatives(net: nn.Module, x: torch.Tensor, delta: torch.Tensor) -> None:
    parameters = list(net.parameters())
    value, along, bent = tangents(net, x, delta, second_order=True)
    weights = torch.randn_like(value)

    def at(t: float) -> torch.Tensor:
        return net(x + t * delta)

    def gradient(of: torch.Tensor) -> torch.Tensor:
        found = torch.autograd.grad(
            (weights * of).sum(), parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([part.flatten() for part in found])

    slope, curve = (at(1e-5) - at(-1e-5)) / 2e-5, (at(1e-4) - 2 * at(0.0) + at(-1e-4)) / 1e-8
    torch.testing.assert_close(value, at(0.0))
    for found, expected, tolerance in (
        (along, slope, 1e-7),
        (gradient(along), gradient(slope), 1e-7),
        (bent, curve, 1e-5),
        (gradient(bent), gradient(curve), 1e-5),
    ):
        assert float((found - expected).detach().norm()) <= tolerance * (1 + float(expected.detach().norm()))
