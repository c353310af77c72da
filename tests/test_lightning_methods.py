"""Every method in the Lightning callback: the plain loop's weights, resumed runs, and what is refused before a step."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from mixreg import (
    AdaptiveMixup,
    Choice,
    CutMix,
    DataMoments,
    GaussianMixup,
    ManifoldMixup,
    Mixup,
    MixupE,
    RegMixup,
    SimilarTargets,
)
from mixreg.methods import described, load_method
from mixreg.methods.method import Augmentation, Method, Setting

lightning = pytest.importorskip("lightning.pytorch")
from test_lightning import pytestmark, trainer  # noqa: E402, F401

from mixreg.adapters.chosen import is_own_loss  # noqa: E402
from mixreg.adapters.learned import NAME  # noqa: E402
from mixreg.adapters.lightning import MixupCallback  # noqa: E402

ALPHA, CLASSES = 1.7, 3
OPTIONS = {"manifold": {"layers": ("input", "3")}, "choice": {"methods": ("mixup:0.5", "cutmix:1.0")}}
WITHOUT_RULE = {"adaptive", "manifold"}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class Images(lightning.LightningModule):
    """As anybody would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return cross_entropy(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        self.seen.append(self.net(batch[0]).detach())

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 1, 4, 4, generator=generator) + 1
    return TensorDataset(x, torch.randint(CLASSES, (24,), generator=generator))


def loader() -> DataLoader:
    # In order: Lightning does not restore the stream of a loader.
    return DataLoader(data(), batch_size=8)


def callback_of(name: str, seed: int = 3, **more) -> MixupCallback:
    loss = {"loss": "cross_entropy"} if is_own_loss(load_method(name)) else {}
    more = {"rescale": name not in WITHOUT_RULE, **loss, **OPTIONS.get(name, {}), **more}
    return MixupCallback(method=name, alpha=ALPHA, num_classes=CLASSES, network="net", seed=seed, **more)


def written_out(name: str, epochs: int, net: nn.Module | None = None) -> tuple[nn.Module, Method]:
    """The same training as a plain loop with the method itself."""
    from mixreg._support.random import stream_seed

    net = network() if net is None else net
    moments = DataMoments.from_loader(loader(), CLASSES)
    torch.manual_seed(stream_seed(3, "policy"))
    method = load_method(name).build(Setting(ALPHA, CLASSES, net, lambda: moments, OPTIONS.get(name, {})))
    method.generator = torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(method.extended(net).parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for x, y in loader():
            if isinstance(method, Augmentation):
                mixed_x, mixed_y = method(x, y)
                loss = cross_entropy(net(mixed_x), mixed_y)
            elif isinstance(method, ManifoldMixup):
                loss = cross_entropy(*method(net, x, y))
            else:
                loss = method(net, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net, method


def assert_same(first: nn.Module, second: nn.Module) -> None:
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key


@pytest.mark.parametrize("name", described())
def test_every_method_ends_with_the_weights_of_the_plain_loop_also_when_resumed(tmp_path, name: str) -> None:
    module, callback = Images(), callback_of(name)
    before = network()
    whole = trainer(tmp_path, callback, epochs=2, num_sanity_val_steps=0)
    whole.fit(module, loader(), loader())
    net, method = written_out(name, 2)
    assert_same(net, module.net)
    assert any(not torch.equal(value, before.state_dict()[key]) for key, value in net.state_dict().items())
    assert {"training_step", "forward"}.isdisjoint(module.__dict__)
    assert NAME not in dict(module.named_modules())
    # Validation sees the rule, if there is one.
    x, y = data().tensors
    moments = DataMoments(CLASSES)
    moments.update(x, y)
    rule = method.rule(moments)
    expected = net(x) if rule is None else rule.stretch(net(rule.shrink(x)))
    torch.testing.assert_close(torch.cat(module.seen[-3:]), expected.detach(), rtol=1e-5, atol=1e-5)
    # The first epoch, a checkpoint, and the second one in another callback and module.
    first = trainer(tmp_path, callback_of(name), epochs=1, num_sanity_val_steps=0)
    first.fit(Images(), loader())
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed = Images()
    again = trainer(tmp_path, callback_of(name, seed=99), epochs=2)
    again.fit(resumed, loader(), loader(), ckpt_path=tmp_path / "half.ckpt")
    assert_same(net, resumed.net)
    # A checkpoint is that of the module as it was written, and holds α and the rule.
    assert Images.load_from_checkpoint(tmp_path / "half.ckpt") is not None
    state = torch.load(tmp_path / "half.ckpt", weights_only=True)["callbacks"]["MixupCallback"]
    assert state["settings"].get("alpha", ALPHA) == (0.5 if name == "choice" else ALPHA)
    assert ("rule" in state) == (rule is not None)
    # A method of the checkpoint predicts, without any data.
    if rule is not None:
        found = trainer(tmp_path, callback_of(name)).predict(module, loader(), ckpt_path=tmp_path / "half.ckpt")
        half = Images.load_from_checkpoint(tmp_path / "half.ckpt").net
        expected = rule.stretch(half(rule.shrink(x))).detach()
        torch.testing.assert_close(torch.cat(found), expected, rtol=1e-5, atol=1e-5)


def made() -> dict[str, Method]:
    moments = DataMoments.from_loader(loader(), CLASSES)
    generator = torch.Generator().manual_seed(3)
    return {
        "choice": Choice([Mixup(0.5, CLASSES), CutMix(1.0, CLASSES)], generator=generator),
        "manifold": ManifoldMixup(["", "3"], ALPHA, CLASSES, generator),
        "regmixup": RegMixup(ALPHA, num_classes=CLASSES, generator=generator),
        "mixupe": MixupE(ALPHA, moments.x_mean, num_classes=CLASSES, generator=generator),
        "gaussian": GaussianMixup(ALPHA, moments, generator),
    }


@pytest.mark.parametrize("name", made())
def test_methods_that_are_made_train_alike(tmp_path, name: str) -> None:
    module = Images()
    callback = MixupCallback(method=made()[name], network="net", rescale=False)
    trainer(tmp_path, callback, epochs=2).fit(module, loader())
    assert_same(written_out(name, 2)[0], module.net)


def test_a_loss_of_the_network_is_logged_and_ends_when_it_is_told(tmp_path) -> None:
    module = Images()
    run = trainer(tmp_path, callback_of("regmixup", until=1), epochs=2)
    run.fit(module, loader(), loader())
    net, _ = written_out("regmixup", 1)
    assert not any(torch.equal(value, net.state_dict()[key]) for key, value in module.net.state_dict().items())
    assert "train_loss" in run.callback_metrics
    # Predictions are plain then.
    assert torch.equal(torch.cat(module.seen[-3:]), module.net(data().tensors[0]).detach())


class OnlyTheNetwork(Images):
    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


class ByHand(Images):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Endless(IterableDataset):
    def __iter__(self):
        return iter(data())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "mixupp"}, "unknown method 'mixupp'; known are .*did you mean mixup"),
        ({"method": "cutmix", "weight": 2.0}, "method cutmix has no option 'weight'; it has probability, per_sample"),
        ({"method": "cutmix", "probability": "often"}, "option probability takes float, got 'often'"),
        ({"method": "regmixup"}, "takes the place of the training step: say what it puts on outputs with loss="),
        ({"method": "regmixup", "loss": "cross"}, "unknown loss 'cross'"),
        ({"method": "mixup", "alpha": -1.0}, "alpha must lie in"),
        ({"method": RegMixup(10.0, num_classes=3), "loss": "logistic"}, "loss beside a method would not be used"),
        ({"method": CutMix(1.0, 3), "probability": 0.5}, "probability beside a method would not be used"),
        ({"fit": True, "rescale": False}, "places the rule that predictions obey"),
        ({"method": 3}, "method must be an augmentation"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings: dict, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        MixupCallback(**settings)


@pytest.mark.parametrize(
    ("settings", "module", "sentence"),
    [
        ({"method": "scaled", "alpha": 0.5}, Images, "ScaledMixup needs alpha above 1"),
        ({"method": "adaptive", "loss": "cross_entropy"}, Images, "AdaptiveMixup has no prediction rule .*rescale"),
        (
            {"method": "adaptive", "loss": "cross_entropy", "rescale": False},
            OnlyTheNetwork,
            "learns parameters of its own, which configure_optimizers leaves out",
        ),
        ({"method": "manifold"}, Images, "ManifoldMixup has no prediction rule on inputs; set rescale=False, and ask"),
        ({"method": "manifold", "network": ""}, Images, "no layers in Images but its input: name the network"),
        ({"method": "regmixup", "loss": "squared_error"}, ByHand, "RegMixup is a loss in the place of training_step"),
        ({"fit": True}, Images, "fit=True takes one validation loader"),
        ({"method": Mixup(1.0, CLASSES, partners=lambda y, _: y.argsort())}, Images, "Mixup has no prediction rule"),
        (
            {"method": Mixup(1.0, CLASSES, partners=SimilarTargets(1.0)), "rescale": False},
            Images,
            "SimilarTargets is for numbers",
        ),
    ],
)
def test_wrong_combinations_are_refused_before_anything_is_trained(tmp_path, settings, module, sentence: str) -> None:
    module = module()
    named = isinstance(settings.get("method", ""), str)
    settings = {"network": "net", **({"num_classes": CLASSES} if named else {}), **settings}
    with pytest.raises((TypeError, ValueError), match=sentence):
        trainer(tmp_path, MixupCallback(**settings), epochs=1).fit(module, loader())
    assert_same(network(), module.net)
    assert {"training_step", "forward"}.isdisjoint(module.__dict__)
    assert NAME not in dict(module.named_modules())


def test_cutmix_on_tables_and_data_without_a_length_are_refused_before_a_step(tmp_path) -> None:
    table = DataLoader(TensorDataset(data().tensors[0].flatten(1), data().tensors[1]), batch_size=8)
    module = Images()
    for rescale, sentence in (
        (True, "the rule of CutMix is for images"),
        (False, "CutMix takes floating-point images"),
    ):
        with pytest.raises(TypeError, match=sentence):
            trainer(tmp_path, callback_of("cutmix", rescale=rescale), epochs=1).fit(module, table)
    with pytest.raises(TypeError, match="gaussian refers to the means of the training data: give moments="):
        trainer(tmp_path, callback_of("gaussian"), epochs=1).fit(module, DataLoader(Endless(), batch_size=8))
    assert_same(network(), module.net)
    # With them it trains as it does when it finds them.
    moments = DataMoments.from_loader(loader(), CLASSES)
    trainer(tmp_path, callback_of("gaussian", moments=moments), epochs=1).fit(module, DataLoader(Endless(), 8))
    assert_same(written_out("gaussian", 1)[0], module.net)


def test_a_pass_for_the_means_draws_nothing_from_the_loader_nor_the_global_generator(tmp_path) -> None:
    """A shuffled loader with dropout in the network: named, and made with the same means."""

    class Dropping(Images):
        def __init__(self) -> None:
            super().__init__()
            self.net.insert(3, nn.Dropout(0.5))

    def fitted(callback: MixupCallback) -> nn.Module:
        module, shuffled = Dropping(), DataLoader(data(), 8, shuffle=True)
        torch.manual_seed(5)
        trainer(tmp_path, callback, epochs=2).fit(module, shuffled)
        return module.net

    moments = DataMoments.from_loader(loader(), CLASSES)
    own = GaussianMixup(ALPHA, moments, torch.Generator().manual_seed(3))
    assert_same(fitted(MixupCallback(method=own)), fitted(callback_of("gaussian")))


def test_adaptive_mixup_resumes_with_what_it_has_learnt(tmp_path) -> None:
    own = AdaptiveMixup(network(), num_classes=CLASSES)
    first = trainer(tmp_path, MixupCallback(method=own, network="net", rescale=False), epochs=1)
    first.fit(Images(), loader())
    first.save_checkpoint(tmp_path / "policy.ckpt")
    state = torch.load(tmp_path / "policy.ckpt", weights_only=True)
    learned = state["callbacks"]["MixupCallback"]["learned"]
    assert all(torch.equal(learned[name], weight) for name, weight in own.state_dict().items())
    assert not any(NAME in key for key in state["state_dict"])
