import copy

import pytest
import torch

from mixreg._autodiff.layers import last_dense
from mixreg.models import LeNet
from mixreg.regularisers.dropout import last_layer_regulariser, with_dropout


def test_the_regulariser_of_the_last_layer_is_what_dropout_adds_on_average() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3)).double()
    x, y = torch.randn(20, 6).double(), torch.randint(3, (20,))
    probability = 0.02
    terms = last_layer_regulariser(net, x, y, probability)
    assert float(terms.curvature) == 0.0
    torch.testing.assert_close(terms.base, torch.nn.functional.cross_entropy(net(x), y))
    dropped = with_dropout(copy.deepcopy(net), probability).train()
    u, draws, rounds = net(x).detach(), 20_000, []
    slope = u.softmax(1) - torch.eye(3).double()[y]
    for _ in range(draws // 200):
        noisy = dropped(x.repeat(200, 1)).detach()
        losses = torch.nn.functional.cross_entropy(noisy, y.repeat(200), reduction="none").reshape(200, 20)
        # The first-order part of the noise has mean 0 and would hide the second.
        first = (slope * (noisy.reshape(200, 20, 3) - u)).sum(2)
        rounds.append((losses - first).mean(1))
    values = torch.cat(rounds)
    stderr = float(values.std() / draws**0.5)
    gained = float(values.mean()) - float(terms.base)
    # Terms of fourth order are a few per cent of the second at this probability.
    assert abs(gained - float(terms.jacobian)) < 4 * stderr + 0.05 * float(terms.jacobian)
    assert float(terms.jacobian) > 20 * stderr


def test_dropout_acts_on_the_features_in_training_only_and_keeps_names() -> None:
    torch.manual_seed(0)
    net = LeNet()
    plain, x = copy.deepcopy(net), torch.randn(4, 3, 32, 32)
    dropped = with_dropout(net, 0.5)
    assert dropped.state_dict().keys() == plain.state_dict().keys()
    assert last_dense(dropped) is net.fc3
    torch.testing.assert_close(dropped.eval()(x), plain(x))
    torch.manual_seed(1)
    found = dropped.train()(x)
    torch.manual_seed(1)
    features: list[torch.Tensor] = []
    plain.fc3.register_forward_pre_hook(lambda _, given: features.append(given[0]))
    plain(x)
    torch.testing.assert_close(found, plain.fc3(torch.nn.functional.dropout(features[0], 0.5)))
    torch.testing.assert_close(copy.deepcopy(dropped).eval()(x), plain(x))


@pytest.mark.parametrize("probability", [-0.1, 1.0, float("nan")])
def test_wrong_probabilities_are_refused(probability: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\)"):
        with_dropout(LeNet(), probability)
