"""Manifold Mixup: against the network cut in two by hand."""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mixreg import Rescaled
from mixreg._autodiff.layers import changing_input, first_layers
from mixreg.losses.targets import to_values
from mixreg.methods.manifold import ManifoldMixup, mixed_outputs
from mixreg.methods.pairing import Pairing, mix
from mixreg.models import build
from mixreg.prediction.hidden import RescaledManifold, hidden_means
from mixreg.theory.theta import Theta


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(7, 3, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0, 1])


@pytest.mark.parametrize("layer", ["", "2", "4"])
def test_hidden_expectations_are_shrunk(layer) -> None:
    """E of the mixed representation given i is h̄ + θ̄ (h_i − h̄), and of the targets ȳ + θ̄ (y_i − ȳ)."""
    net, (x, y) = network(), data()
    cut = int(layer) if layer else 0
    # The layer and what follows it are made the identity, so that outputs are what was mixed.
    head = nn.Sequential(*net[:cut], nn.Identity())
    mixup = ManifoldMixup([layer], 0.7, 2, torch.Generator().manual_seed(1))
    with torch.no_grad():
        draws = [mixup(head, x, y) for _ in range(5_000)]
        hidden = head(x)
    theta_mean = float(Theta(0.7).mean)
    mixed, targets = (torch.stack([draw[k] for draw in draws]) for k in range(2))
    for found, own in ((mixed, hidden), (targets, to_values(y, 2, x.dtype))):
        expected = own.mean(0) + theta_mean * (own - own.mean(0))
        error = (found.std(0) / math.sqrt(len(found))).clamp(min=1e-12)
        assert float(((found.mean(0) - expected).abs() / error).max()) < 4.5


def test_the_input_is_a_layer_and_gives_mixup() -> None:
    net, (x, y) = network(), data()
    model = RescaledManifold(net, 1.0, {"": x.mean(0)}, torch.tensor([0.4, 0.6]))
    torch.testing.assert_close(model(x), Rescaled(net, 1.0, x.mean(0), torch.tensor([0.4, 0.6]))(x))
    means = hidden_means(net, ["", "2"], [(x[:3], y[:3]), (x[3:], y[3:])])
    torch.testing.assert_close(means[""], x.mean(0))
    torch.testing.assert_close(means["2"], net[:2](x).mean(0).detach())


def test_rescaled_prediction_of_a_hidden_layer() -> None:
    net, (x, y) = network(), data()
    y_mean = torch.tensor([0.4, 0.6], dtype=torch.float64)
    means = hidden_means(net, ["2", "4"], [(x, y)])
    theta_mean = float(Theta(1.5).mean)
    expected = []
    for cut in (2, 4):
        hidden = net[:cut](x)
        shrunk = hidden.mean(0) + theta_mean * (hidden - hidden.mean(0))
        expected.append(y_mean + (net[cut:](shrunk) - y_mean) / theta_mean)
    both = RescaledManifold(net, 1.5, means, y_mean)
    torch.testing.assert_close(both(x), (expected[0] + expected[1]) / 2)
    single = RescaledManifold(net, 1.5, {"2": means["2"]}, y_mean)
    torch.testing.assert_close(single(x), expected[0])
    again = RescaledManifold(net, 0.2, {"2": torch.zeros(5)}, torch.zeros(2))
    again.load_state_dict(single.state_dict())
    torch.testing.assert_close(again(x), expected[0])
    # Nothing is left behind in the network.
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_training_lowers_the_loss() -> None:
    net, (x, y) = network(), data()
    mixup = ManifoldMixup(["", "2", "4"], 1.0, 2, torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    for _ in range(300):
        outputs, targets = mixup(net, x, y)
        loss = nn.functional.cross_entropy(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-50:]) < 0.95 * sum(losses[:50])


def test_wrong_input() -> None:
    net, (x, y) = network(), data()
    with pytest.raises(ValueError, match="no layer 'conv'; it has 0, 1, 2, 3, 4"):
        ManifoldMixup(["conv"], 1.0, 2)(net, x, y)
    with pytest.raises(ValueError, match="at least one layer"):
        ManifoldMixup([])
    with pytest.raises(ValueError, match="x has 7 samples and y has 6"):
        ManifoldMixup(["1"], 1.0, 2)(net, x, y[:6])
    net.unused = nn.Linear(2, 2)
    with pytest.raises((ValueError, RuntimeError)):
        ManifoldMixup(["unused"], 1.0, 2)(net, x, y)
    with pytest.raises(ValueError, match="hidden mean of at least one layer"):
        RescaledManifold(net, 1.0, {}, torch.zeros(2))

    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    pair = nn.Sequential(Pair(), Pair())
    with pytest.raises(TypeError, match="must take one floating-point tensor"), changing_input(pair, "1", lambda h: h):
        pair(x)


class Twice(nn.Module):
    """Uses one activation in two places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.relu(self.second(self.relu(self.first(x)))))


def test_a_layer_that_is_used_twice_is_mixed_averaged_and_shrunk_the_first_time() -> None:
    net, (x, y) = Twice().double(), data()
    means = hidden_means(net, ["relu"], [(x, y)])
    torch.testing.assert_close(means["relu"], net.first(x).mean(0).detach())
    keep = float(Theta(1.0).mean)
    hidden = net.first(x)
    rest = net.last(torch.relu(net.second(torch.relu(means["relu"] + keep * (hidden - means["relu"])))))
    zero = torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(RescaledManifold(net, 1.0, means, zero)(x), rest / keep)
    outputs, _ = ManifoldMixup(["relu"], 1.0, 2, torch.Generator().manual_seed(0))(net, x, y)
    pairing = draw_pairing_as(ManifoldMixup(["relu"], 1.0, 2, torch.Generator().manual_seed(0)), 7)
    expected = net.last(torch.relu(net.second(torch.relu(mix(hidden, pairing)))))
    torch.testing.assert_close(outputs, expected)


def draw_pairing_as(mixup: ManifoldMixup, n: int) -> Pairing:
    """What a call draws: first the layer, then shares, then numbers that say who is whose partner."""
    torch.randint(len(mixup.layers), (), generator=mixup.generator)
    share = Theta(mixup.alpha).sample_share(n, mixup.generator, torch.float64)
    return Pairing(torch.rand(n, generator=mixup.generator).argsort(), share)


@pytest.mark.parametrize("model", ["mlp", "lenet", "resnet34", "small-resnet", "resnet50"])
def test_default_layers_lie_behind_a_nonlinearity(model: str) -> None:
    net = build(model, (3, 32, 32), 4).eval()
    layers = first_layers(net)
    assert layers[0] == ""
    assert len(layers) == 3
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    pairing = Pairing(torch.tensor([1, 2, 3, 0]), torch.full((4,), 0.4))
    with torch.no_grad():
        plain = mixed_outputs(net, "", x, pairing)
        for layer in layers[1:]:
            # Mixing behind linear layers only would be the same as mixing the input.
            assert float((mixed_outputs(net, layer, x, pairing) - plain).norm() / plain.norm()) > 1e-3


def test_compiled_networks_are_mixed_too() -> None:
    net, (x, y) = network(), data()
    compiled = torch.compile(net, backend="eager")
    compiled(x)
    first, second = (
        ManifoldMixup(["2"], 1.0, 2, torch.Generator().manual_seed(0))(given, x, y)[0] for given in (net, compiled)
    )
    assert torch.equal(first, second)
    assert float((first - net(x)).detach().abs().max()) > 1e-3


class Checkpointed(nn.Module):
    """A network that computes its middle again in the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        if self.use_reentrant is not None:
            hidden = checkpoint(self.middle, hidden, use_reentrant=self.use_reentrant)
        else:
            hidden = self.middle(hidden)
        return self.last(torch.tanh(hidden))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_is_checkpointed_is_mixed_outside_or_refused(use_reentrant) -> None:
    (x, y), plain, net = data(), Checkpointed(None).double(), Checkpointed(use_reentrant).double()
    with pytest.raises(ValueError, match=r"layer 'middle' lies in a part of the network that torch\.utils\.checkpoint"):
        ManifoldMixup(["middle"], 1.0, 2)(net, x, y)
    # Without gradients nothing is computed again (of which PyTorch warns).
    with torch.no_grad():
        means = hidden_means(net, ["middle"], [(x, y)])
        torch.testing.assert_close(means, hidden_means(plain, ["middle"], [(x, y)]))
        RescaledManifold(net, 1.0, means, torch.zeros(2))(x)
    for layer in ("", "last"):
        gradients = []
        for given in (plain, net):
            logits, targets = ManifoldMixup([layer], 1.0, 2, torch.Generator().manual_seed(0))(given, x, y)
            given.zero_grad()
            nn.functional.cross_entropy(logits, targets).backward()
            gradients.append([parameter.grad for parameter in given.parameters()])
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b)


def test_a_compiled_rescaled_manifold_has_both_layers_effects() -> None:
    net, (x, y) = network(), data()
    model = RescaledManifold(net, 1.0, hidden_means(net, ["", "2"], [(x, y)]), torch.tensor([0.4, 0.6]))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(compiled(x), model(x))
