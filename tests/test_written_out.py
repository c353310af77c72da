"""Functions that are written out for tangents: what they compute, and networks that need them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mixreg import ApproximateMixup, DataMoments, MixupE
from mixreg._autodiff.tangents import tangents
from mixreg._autodiff.written_out import written_out


def loss_gradient(criterion, net, x, y) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(criterion(net, x, y), list(net.parameters()))])


def vision_transformer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(40, 3)
    ).double()


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)


@pytest.mark.parametrize("second_order", [False, True])
def test_the_gradient_of_approximate_mixup_on_a_transformer(second_order: bool) -> None:
    """Against the estimator written with differences of forward passes, for the same draw."""
    net = vision_transformer()
    x, y = torch.randn(6, 5, 6, dtype=torch.float64), torch.arange(6) % 3
    moments = DataMoments(3)
    moments.update(x, y)
    criterion = ApproximateMixup(1.0, moments, second_order=second_order)
    rows = criterion.draw(x, y, torch.Generator().manual_seed(1))
    shrunk, delta, target, epsilon, _ = rows
    found = torch.autograd.grad(criterion.losses(net, rows).mean(), list(net.parameters()))
    u = net(shrunk)
    along = (net(shrunk + 1e-5 * delta) - net(shrunk - 1e-5 * delta)) / 2e-5
    p = u.softmax(1)
    spread = (p * along.square()).sum(1) - (p * along).sum(1).square()
    losses = torch.logsumexp(u, 1) - (target * u).sum(1) + 0.5 * spread - (epsilon * along).sum(1)
    if second_order:
        curve = (net(shrunk + 1e-4 * delta) - 2 * u + net(shrunk - 1e-4 * delta)) / 1e-8
        losses = losses + 0.5 * ((p - target) * curve).sum(1)
    expected = torch.autograd.grad(losses.mean(), list(net.parameters()))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_mixupe_on_a_transformer() -> None:
    net = vision_transformer()
    x, y = torch.randn(6, 5, 6, dtype=torch.float64), torch.arange(6) % 3
    criterion = MixupE(1.0, x.mean(0), num_classes=3)
    rows = criterion.draw(x, y, torch.Generator().manual_seed(1))
    found = torch.autograd.grad(criterion.losses(net, rows).mean(), list(net.parameters()))
    towards = x.mean(0) - x
    along = (net(x + 1e-5 * towards) - net(x - 1e-5 * towards)) / 2e-5
    slope = ((net(x).softmax(1) - rows[1]) * along).sum(1)
    mixed = F.cross_entropy(net(rows[2]), rows[3], reduction="none")
    expected = torch.autograd.grad((mixed + slope.abs() / 3).mean(), list(net.parameters()))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


# The compiler looks at the .grad of tensors that come out of a part it does not trace.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_compiled_network_with_layer_normalisation() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, y = torch.randn(6, 6, dtype=torch.float64), torch.arange(6) % 3
    moments = DataMoments(3)
    moments.update(x, y)

    def gradient(given) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        return loss_gradient(ApproximateMixup(1.0, moments, generator=generator), given, x, y)

    torch._dynamo.reset()
    torch.testing.assert_close(gradient(torch.compile(net, backend="eager")), gradient(net))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_written_out_computes_what_pytorch_computes(dtype) -> None:
    torch.manual_seed(0)
    x, y, weight = torch.randn(4, 6, 5).to(dtype), torch.randn(4, 6, 5).to(dtype), torch.randn(6, 5).to(dtype)
    learns = [nn.InstanceNorm1d(6, affine=True, track_running_stats=True).to(dtype) for _ in range(2)]
    functions = [
        lambda _: F.layer_norm(x, (6, 5), weight, weight),
        lambda _: F.layer_norm(x, [5]),
        lambda k: learns[k](x),
        lambda _: F.instance_norm(x),
        lambda _: F.hardsigmoid(4 * x),
        lambda _: F.glu(x, 1),
        lambda _: F.normalize(x),
        lambda _: F.normalize(x, p=1.0),
        lambda _: F.cosine_similarity(x, y),
        lambda _: F.pairwise_distance(x, y),
        lambda _: torch.linalg.vector_norm(x),
        lambda _: torch.linalg.vector_norm(x, keepdim=True),
        lambda _: torch.linalg.vector_norm(x, 3, dim=(0, 2)),
        lambda _: x.norm(dim=1),
    ]
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}[dtype]
    for function in functions:
        expected = function(0)
        with written_out():
            found = function(1)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(learns[1].running_mean, learns[0].running_mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(learns[1].running_var, learns[0].running_var, rtol=tolerance, atol=tolerance)


def test_running_statistics_are_learnt_inside_a_tangent() -> None:
    layers = [nn.InstanceNorm1d(6, track_running_stats=True).double() for _ in range(2)]
    x, delta = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    tangents(layers[0], x, delta, second_order=True)
    layers[1](x)
    torch.testing.assert_close(layers[0].running_mean, layers[1].running_mean)
    torch.testing.assert_close(layers[0].running_var, layers[1].running_var)


def test_the_norm_has_a_gradient_of_zero_at_zero() -> None:
    x = torch.zeros(3, 4, requires_grad=True)
    with written_out():
        torch.linalg.vector_norm(x, dim=1).sum().backward()
    assert torch.equal(x.grad, torch.zeros(3, 4))
