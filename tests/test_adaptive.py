import pytest
import torch

from mixreg.methods.adaptive import AdaptiveMixup


def network(inputs: int = 4, classes: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, classes))


def force(policy: AdaptiveMixup, logits: list[float]) -> None:
    """A policy that says the same of every pair."""
    with torch.no_grad():
        policy.policy[2].weight.zero_()
        policy.policy[2].bias.copy_(torch.tensor(logits))


def test_shares_fill_the_interval_that_the_policy_chooses() -> None:
    net = network()
    policy = AdaptiveMixup(net)
    force(policy, [0.0, 1.0, 0.5])
    low, width, _ = torch.tensor([0.0, 1.0, 0.5]).softmax(0).tolist()
    features, partner = torch.randn(5, 16), torch.randperm(5)
    for place in (0.0, 0.25, 1.0):
        share = policy.share(features, partner, torch.full((5,), place))
        torch.testing.assert_close(share, torch.full((5,), low + width * place))
    random = AdaptiveMixup(net).share(features, partner, torch.rand(5))
    assert bool(((random >= 0) & (random <= 1)).all())


def test_a_policy_that_does_not_mix_gives_the_plain_loss() -> None:
    net, x, y = network(), torch.randn(9, 4), torch.randint(3, (9,))
    policy = AdaptiveMixup(net, weight=0.0, num_classes=3)
    force(policy, [60.0, 0.0, 0.0])
    torch.testing.assert_close(policy(net, x, y), torch.nn.functional.cross_entropy(net(x), y))


def test_the_loss_is_that_of_the_formula_and_its_gradient_reaches_the_policy() -> None:
    net, x, y = network().double(), torch.randn(9, 4).double(), torch.eye(3).double()[torch.randint(3, (9,))]
    policy = AdaptiveMixup(net, weight=0.3).double()
    partner, place = torch.randperm(9), torch.rand(9).double()

    def expected() -> torch.Tensor:
        hidden = net[:2](x)
        both = torch.cat([hidden, hidden[partner]], 1).detach()
        low, width, _ = policy.policy(both).softmax(1).T
        share = (low + width * place).unsqueeze(1)
        mixed_x, mixed_y = (share * part + (1 - share) * part[partner] for part in (x, y))
        cross_entropy = torch.nn.functional.cross_entropy
        fit = cross_entropy(net(x), y, reduction="none") + cross_entropy(net(mixed_x), mixed_y, reduction="none")
        scores = policy.discriminator(torch.cat([hidden, net[:2](mixed_x)])).squeeze(1)
        is_real = torch.cat([torch.ones(9), torch.zeros(9)]).double()
        intrusion = torch.nn.functional.binary_cross_entropy_with_logits(scores, is_real, reduction="none")
        return 0.5 * fit + 0.15 * intrusion.reshape(2, 9).sum(0)

    found = policy.pair_losses(net, x, y, partner, place)
    torch.testing.assert_close(found, expected())
    parameters = [*policy.parameters(), *net.parameters()]
    mine = torch.autograd.grad(found.sum(), parameters)
    torch.testing.assert_close(mine, torch.autograd.grad(expected().sum(), parameters))
    assert all(float(gradient.abs().max()) > 0 for gradient in mine)


def test_mixing_that_intrudes_is_unlearnt() -> None:
    # Halfway between classes 0 and 2 lies class 1: mixing 0 with 2 evenly contradicts the data.
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    x = y.float().unsqueeze(1) - 1 + 0.05 * torch.randn(300, 1, generator=generator)
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(1, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)
    )
    policy = AdaptiveMixup(net, num_classes=3, generator=generator)
    ends = torch.tensor([[-1.0], [1.0]])

    def evenness() -> float:
        """How even the mixtures of classes 0 and 2 are: ½ at most."""
        with torch.no_grad():
            places = torch.linspace(0, 1, 11)
            shares = [policy.share(net[:-1](ends), torch.tensor([1, 0]), place.expand(2)) for place in places]
        share = torch.stack(shares)
        return float(torch.minimum(share, 1 - share).mean())

    before = evenness()
    optimizer = torch.optim.Adam([*net.parameters(), *policy.parameters()], lr=3e-3)
    for _ in range(400):
        optimizer.zero_grad()
        policy(net, x, y).backward()
        optimizer.step()
    assert before > 0.3
    assert evenness() < 0.1
    assert float((net(x).argmax(1) == y).float().mean()) == 1.0


def test_wrong_networks_and_weights_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Conv2d has no nn\.Linear layer"):
        AdaptiveMixup(torch.nn.Conv2d(3, 4, 3))
    with pytest.raises(ValueError, match="weight must be a number of at least 0, got -2"):
        AdaptiveMixup(network(), weight=-2)
