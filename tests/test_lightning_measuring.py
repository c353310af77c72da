"""Terms measured in validation are those of the network; other methods in the adapters."""

import pytest
import torch
from test_lightning import Classifier, data, loader, pytestmark, trainer  # noqa: F401
from torch.utils.data import DataLoader

from mixreg import ApproximateMixup, CutMix, DataMoments, Rescaled, risk
from mixreg.adapters.lightning import MixupCallback


class Measuring(Classifier):
    """Asks for terms of its own network in validation, in every way that one would."""

    def __init__(self, callback: MixupCallback) -> None:
        super().__init__()
        self.callback, self.found = callback, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(self.net(x), 0.5, self.training)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        y = torch.nn.functional.one_hot(y, 3).float()
        moments = DataMoments()
        moments.update(x, y)
        approximate = ApproximateMixup(0.7, moments, generator=torch.Generator().manual_seed(4))
        with torch.inference_mode(False), self.callback.plain():
            plain = self(x)
        with torch.inference_mode(False):
            x, y = x.clone(), y.clone()
            values = [
                risk.quadratic(self, x, y, 0.7).total,
                risk.quadratic(lambda x: self(x), x, y, 0.7).total,
                risk.mixup(self, x, y, 0.7),
                approximate(self, x, y),
            ]
        self.found = [plain.detach(), *(value.detach() for value in values)]
        self.seen.append(self(x).detach())


def test_terms_of_a_lightning_module_in_validation_are_those_of_the_network(tmp_path) -> None:
    callback = MixupCallback(0.7, 3, seed=3)
    module = Measuring(callback)
    run = trainer(tmp_path, callback, epochs=2, num_sanity_val_steps=0, inference_mode=False)
    run.fit(module, loader(), DataLoader(data(), batch_size=50))
    x, y = data().tensors
    y = torch.nn.functional.one_hot(y, 3).float()
    moments = DataMoments()
    moments.update(x, y)
    net = module.net
    approximate = ApproximateMixup(0.7, moments, generator=torch.Generator().manual_seed(4))
    plain = net(x)
    expected = [plain, risk.quadratic(net, x, y, 0.7).total, risk.quadratic(net, x, y, 0.7).total]
    expected += [risk.mixup(net, x, y, 0.7), approximate(net, x, y)]
    for found, wanted in zip(module.found, expected, strict=True):
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-5, atol=1e-6)
    # The steps themselves see the rescaled one, whose terms are others.
    rescaled = Rescaled(net, 0.7, callback.moments.x_mean, callback.moments.y_mean)
    torch.testing.assert_close(module.seen[-1], rescaled(x).detach())
    assert float((risk.quadratic(rescaled, x, y, 0.7).total - expected[1]).abs()) > 1e-2


class OnlyMeasuring(Classifier):
    def validation_step(self, batch, batch_idx):
        self.seen.append(risk.empirical(self, *batch))


def test_a_validation_that_only_measures_is_no_mistake(tmp_path) -> None:
    module = OnlyMeasuring()
    trainer(tmp_path, MixupCallback(0.7, 3), epochs=1).fit(module, loader(), DataLoader(data(), batch_size=50))
    torch.testing.assert_close(module.seen[-1], risk.empirical(module.net, *data().tensors))


@pytest.mark.parametrize("adapter", ["lightning", "huggingface"])
def test_other_methods_and_what_they_bring(adapter: str) -> None:
    from importlib import import_module

    from mixreg import DataMoments, GaussianMixup, MixupE

    callback = import_module(f"mixreg.adapters.{adapter}").MixupCallback
    moments = DataMoments(3)
    moments.update(torch.randn(4, 2), torch.arange(4) % 3)
    # A method that refers to the data's mean knows how many classes there are.
    assert callback(method=GaussianMixup(1.0, moments)).method.num_classes == 3
    if adapter == "huggingface":
        with pytest.raises(TypeError, match=r"Trainer computes the loss of a batch, .* MixupE is a loss of the net"):
            callback(method=MixupE(1.0, moments.x_mean, num_classes=3))
    with pytest.raises(TypeError, match="alpha, num_classes, seed beside a method would not be used: give them"):
        callback(alpha=0.2, num_classes=7, seed=3, method=CutMix(1.0, num_classes=10))
