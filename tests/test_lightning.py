"""The Lightning callback with the real library, against a loop written out."""

import copy
import logging
import sys

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from mixreg import DataMoments, Mixup, Rescaled, TermsMonitor, risk

lightning = pytest.importorskip("lightning.pytorch")
from mixreg.adapters.lightning import MixupCallback  # noqa: E402
from mixreg.adapters.lightning_terms import TermsCallback  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = [
    pytest.mark.xdist_group("lightning"),
    # What Lightning itself uses of PyTorch, and what it thinks of small examples.
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*sampler has shuffling enabled"),
    pytest.mark.filterwarnings("ignore:.*in eval mode at the start of training"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
]


class Classifier(lightning.LightningModule):
    """As anybody would write it: it knows nothing of Mixup."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        self.seen.append(self(batch[0]))

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(50, 4, generator=generator) + 1, torch.randint(3, (50,), generator=generator))


def loader() -> DataLoader:
    return DataLoader(data(), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(2))


def trainer(tmp_path, callback=None, epochs: int = 3, **settings):
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[callback] if callback is not None else [],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **{"enable_checkpointing": False, **settings},
    )


def written_out(epochs: int, until: int | None = None) -> tuple[torch.nn.Module, DataMoments]:
    """The same training as a loop, mixing for the first epochs only if told."""
    net, moments = Classifier().net, DataMoments(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    mix, batches = Mixup(0.7, 3, generator=torch.Generator().manual_seed(3)), loader()
    for epoch in range(epochs):
        for x, y in batches:
            moments.update(x, y)
            mixed_x, mixed_y = mix(x, y) if until is None or epoch < until else (x, y)
            optimizer.zero_grad()
            cross_entropy(net(mixed_x), mixed_y).backward()
            optimizer.step()
    return net, moments


def assert_same_weights(first: torch.nn.Module, second: torch.nn.Module) -> None:
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key


def test_an_unchanged_module_ends_with_the_weights_of_the_plain_loop(tmp_path) -> None:
    module = Classifier()
    trainer(tmp_path, MixupCallback(0.7, 3, seed=3)).fit(module, loader())
    assert_same_weights(module.net, written_out(3)[0])
    assert "training_step" not in module.__dict__


def test_watching_terms_changes_nothing_and_is_logged(tmp_path) -> None:
    x, y = data().tensors
    monitor = TermsMonitor(x, y, 0.7, every=2, tangents=4, pairs=100)
    callback = MixupCallback(0.7, 3, seed=3)
    watched, module = trainer(tmp_path, callback), Classifier()
    watched.callbacks.append(TermsCallback(monitor))
    watched.fit(module, loader())
    assert_same_weights(written_out(3)[0], module.net)
    assert [record["at"] for record in monitor.history] == [1, 3]
    logged = float(watched.callback_metrics["terms/total"])
    assert logged == pytest.approx(
        float(risk.quadratic(module.net, x, y, 0.7).total), abs=5 * monitor.history[-1]["total_stderr"]
    )


def test_mixing_ends_when_it_is_told_and_predictions_are_plain_then(tmp_path) -> None:
    module, callback = Classifier(), MixupCallback(0.7, 3, seed=3, until=2)
    run = trainer(tmp_path, callback)
    samples = DataLoader(data(), batch_size=50)
    run.fit(module, loader(), samples)
    net, moments = written_out(3, until=2)
    assert_same_weights(module.net, net)
    x = data().tensors[0]
    # After the sanity check: rescaled twice, then plain.
    assert torch.equal(module.seen[-1], module.net(x))
    torch.testing.assert_close(run.predict(module, samples)[0], net(x).detach())
    # A checkpoint knows that it is off.
    path = tmp_path / "late.ckpt"
    run.save_checkpoint(path)
    later = trainer(tmp_path, MixupCallback(0.7, 3, seed=3, until=2))
    torch.testing.assert_close(later.predict(Classifier(), samples, ckpt_path=path)[0], net(x).detach())
    assert moments.count == 150
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="until must be a number of epochs"):
            MixupCallback(0.7, 3, until=wrong)


def test_validation_test_and_prediction_see_the_rescaled_network(tmp_path) -> None:
    module, callback = Classifier(), MixupCallback(0.7, 3, seed=3)
    run = trainer(tmp_path, callback)
    samples = DataLoader(data(), batch_size=50)
    run.fit(module, loader(), samples)
    net, moments = written_out(3)
    rescaled = Rescaled(net, 0.7, moments.x_mean, moments.y_mean)
    expected = rescaled(data().tensors[0]).detach()
    assert float((expected - net(data().tensors[0])).detach().abs().max()) > 0.1
    torch.testing.assert_close(module.seen[-1].detach(), expected)
    module.seen.clear()
    run.test(module, samples, verbose=False)
    torch.testing.assert_close(module.seen[0].detach(), expected)
    torch.testing.assert_close(run.predict(module, samples)[0].detach(), expected)
    # Outside of the trainer, and with rescale=False, it is the network that it was.
    torch.testing.assert_close(module(data().tensors[0]), net(data().tensors[0]))
    plain = MixupCallback(0.7, 3, rescale=False)
    found = trainer(tmp_path, plain).predict(module, samples)[0]
    torch.testing.assert_close(found, net(data().tensors[0]).detach())


def test_the_sanity_check_before_training_is_plain(tmp_path) -> None:
    module = Classifier()
    before = copy.deepcopy(module.net)
    run = trainer(tmp_path, MixupCallback(0.7, 3), epochs=1, num_sanity_val_steps=1)
    run.fit(module, loader(), DataLoader(data(), batch_size=50))
    torch.testing.assert_close(module.seen[0].detach(), before(data().tensors[0]).detach())


def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path) -> None:
    def shuffled() -> DataLoader:
        # In order: Lightning does not restore the stream of a loader.
        return DataLoader(data(), batch_size=16)

    whole = Classifier()
    last = MixupCallback(0.7, 3, seed=3)
    trainer(tmp_path, last, epochs=4).fit(whole, shuffled())
    first = trainer(tmp_path, MixupCallback(0.7, 3, seed=3), epochs=2)
    first.fit(Classifier(), shuffled())
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed, callback = Classifier(), MixupCallback(0.7, 3, seed=99)
    trainer(tmp_path, callback, epochs=4).fit(resumed, shuffled(), ckpt_path=tmp_path / "half.ckpt")
    assert_same_weights(whole.net, resumed.net)
    assert callback.moments.count == last.moments.count == 200
    torch.testing.assert_close(callback.moments.x_mean, last.moments.x_mean)
    # A fresh callback predicts rescaled with what the checkpoint knows.
    fresh = trainer(tmp_path, MixupCallback(0.7, 3))
    found = fresh.predict(Classifier(), DataLoader(data(), batch_size=50), ckpt_path=tmp_path / "half.ckpt")[0]
    assert bool(torch.isfinite(found).all())


class InParts(Classifier):
    """Calls a submodule, and takes dicts."""

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.net(batch["image"]), batch["label"])

    def validation_step(self, batch, batch_idx):
        self.seen.append(self.net(batch["image"]))


def dicts(shuffle: bool = False) -> DataLoader:
    samples = [{"image": x, "label": y} for x, y in zip(*data().tensors, strict=True)]
    return DataLoader(samples, batch_size=25, shuffle=shuffle)


def test_submodules_and_dicts_can_be_named(tmp_path) -> None:
    module = InParts()
    callback = MixupCallback(1.0, 3, network="net", input_key="image", target_key="label")
    trainer(tmp_path, callback, epochs=1).fit(module, dicts(), dicts())
    moments = callback.moments
    expected = Rescaled(module.net, 1.0, moments.x_mean, moments.y_mean)(data().tensors[0])
    torch.testing.assert_close(torch.cat(module.seen[-2:]), expected)


def test_mistakes_are_explained_and_leave_the_module_as_it_was(tmp_path) -> None:
    module = InParts()
    named = {"input_key": "image", "target_key": "label"}
    with pytest.raises(ValueError, match="was never called; name the submodule"):
        trainer(tmp_path, MixupCallback(1.0, 3, **named), epochs=1).fit(module, dicts(), dicts())
    assert "training_step" not in module.__dict__
    with pytest.raises(ValueError, match=r"no submodule 'head'; it has net, net\.0"):
        trainer(tmp_path, MixupCallback(1.0, 3, network="head")).fit(Classifier(), loader())
    with pytest.raises(TypeError, match="inputs at 0 and targets at 1"):
        trainer(tmp_path, MixupCallback(1.0, 3)).fit(module, dicts())
    with pytest.raises(ValueError, match="has seen no training data"):
        trainer(tmp_path, MixupCallback(1.0, 3)).predict(Classifier(), loader())
    assert "forward" not in module.__dict__


def test_a_second_fit_forgets_the_first_one_s_data(tmp_path) -> None:
    callback, module = MixupCallback(1.0, 3), Classifier()
    trainer(tmp_path, callback, epochs=1).fit(module, loader())
    x, y = data().tensors
    trainer(tmp_path, callback, epochs=1).fit(module, DataLoader(TensorDataset(x + 10, y), batch_size=25))
    torch.testing.assert_close(callback.moments.x_mean, (x + 10).double().mean(0), rtol=1e-6, atol=1e-6)


def test_a_module_compiled_as_a_whole_is_refused(tmp_path) -> None:
    module = torch.compile(Classifier(), backend="eager")
    with pytest.raises(ValueError, match="compile the network inside it, or set rescale=False"):
        trainer(tmp_path, MixupCallback(1.0, 3)).fit(module, loader())


def test_without_lightning_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "mixreg.adapters.lightning")
    for name in ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'mixreg\[lightning\]'"):
        import mixreg.adapters.lightning  # noqa: F401
