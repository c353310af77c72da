"""The rule that a Lightning run leaves: placed by held-out data, kept in checkpoints, taken out; true accuracies."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset, default_collate

from mixreg import CutMix, DataMoments, ManifoldMixup, Mixup, Rescaled, RescaledManifold
from mixreg.calibration import Accuracy, mixed_accuracy
from mixreg.prediction import hidden_means

lightning = pytest.importorskip("lightning.pytorch")
from test_lightning import Classifier, dicts, pytestmark, trainer  # noqa: E402, F401
from test_lightning import data as plain_data  # noqa: E402
from torchmetrics import MeanSquaredError, MetricCollection  # noqa: E402
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix  # noqa: E402

from mixreg.adapters.lightning import MixupCallback  # noqa: E402
from mixreg.adapters.torchmetrics import CalibrationMetric  # noqa: E402


def data(seed: int, n: int = 120) -> TensorDataset:
    """Three overlapping classes, unequally many."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), n, True, generator=generator)
    return TensorDataset(torch.randn(n, 4, generator=generator) + 1.5 * nn.functional.one_hot(y, 4), y)


def loader(seed: int = 1) -> DataLoader:
    return DataLoader(data(seed), batch_size=40)


def expected_fit(net: nn.Module, moments: DataMoments) -> Rescaled:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Rescaled(net, 0.7, moments.x_mean, moments.y_mean).fit(loader(2))


def test_held_out_data_places_the_rule_and_checkpoints_keep_it(tmp_path) -> None:
    module, callback = Classifier(), MixupCallback(0.7, 3, seed=3, fit=True)
    run = trainer(tmp_path, callback, epochs=8)
    run.fit(module, loader(), loader(2))
    model = expected_fit(module.net, callback.moments)
    assert callback.fitted == model.fitted
    assert model.strength != 1 or model.temperature != pytest.approx(callback.rule().y_share)
    x = data(2).tensors[0]
    expected = model(x).detach()
    # In training, validation measured the rule itself.
    rule = Rescaled(module.net, rule=callback.rule())
    torch.testing.assert_close(torch.cat(module.seen[-3:]), rule(x).detach())
    torch.testing.assert_close(torch.cat(run.predict(module, loader(2))), expected)
    module.seen.clear()
    run.validate(module, loader(2), verbose=False)
    torch.testing.assert_close(torch.cat(module.seen), expected)
    # From a checkpoint: by a trainer, and without one.
    path = tmp_path / "fitted.ckpt"
    run.save_checkpoint(path)
    fresh = trainer(tmp_path, MixupCallback(0.7, 3))
    torch.testing.assert_close(torch.cat(fresh.predict(Classifier(), loader(2), ckpt_path=path)), expected)
    loaded = Classifier.load_from_checkpoint(path)
    alone = MixupCallback(0.7, 3).rescaled_model(loaded, checkpoint=path)
    assert isinstance(alone, Rescaled)
    assert not alone.training
    torch.testing.assert_close(alone(x).detach(), expected)
    torch.testing.assert_close(callback.rescaled_model()(x).detach(), expected)


def test_the_rule_is_fitted_when_asked(tmp_path) -> None:
    module, callback = Classifier(), MixupCallback(0.7, 3, seed=3)
    run = trainer(tmp_path, callback, epochs=8)
    run.fit(module, loader())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = callback.fit(loader(2))
    model = expected_fit(module.net, callback.moments)
    assert found == model.fitted == callback.fitted
    torch.testing.assert_close(torch.cat(run.predict(module, loader(2))), model(data(2).tensors[0]).detach())
    # Another training forgets it.
    run = trainer(tmp_path, callback, epochs=1)
    run.fit(module, loader())
    assert callback.fitted is None


def test_dicts_have_a_fitted_rule_too(tmp_path) -> None:
    class Named(Classifier):
        def training_step(self, batch, batch_idx):
            return cross_entropy(self.net(batch["image"]), batch["label"])

        def validation_step(self, batch, batch_idx):
            self.seen.append(self.net(batch["image"]))

    named = {"input_key": "image", "target_key": "label", "network": "net"}
    module, callback = Named(), MixupCallback(0.7, 3, seed=3, fit=True, **named)
    trainer(tmp_path, callback, epochs=2).fit(module, dicts(), dicts())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = Rescaled(module.net, rule=callback.rule()).fit(*plain_data().tensors)
    assert callback.fitted is not None
    assert callback.fitted.strength == pytest.approx(model.strength, abs=1e-6)
    torch.testing.assert_close(callback.rescaled_model()(plain_data().tensors[0]), model(plain_data().tensors[0]))


def test_a_model_can_be_taken_out_for_every_kind_of_rule(tmp_path) -> None:
    # Hidden layers: their means are those of the trained network.
    module = Classifier()
    own = ManifoldMixup(["", "2"], 1.0, 3, torch.Generator().manual_seed(0))
    callback = MixupCallback(method=own, network="net", rescale=False)
    trainer(tmp_path, callback, epochs=1).fit(module, loader())
    with pytest.raises(ValueError, match="rule on inputs, or one on hidden layers: give batches"):
        callback.rescaled_model()
    means = hidden_means(module.net, ["", "2"], loader())
    expected = RescaledManifold(module.net, 1.0, means, callback.moments.y_mean).eval()
    x = data(2).tensors[0]
    torch.testing.assert_close(callback.rescaled_model(training_loader=loader())(x), expected(x))
    # After mixing has ended predictions are plain.
    module, callback = Classifier(), MixupCallback(0.7, 3, until=1)
    trainer(tmp_path, callback, epochs=2).fit(module, loader())
    assert torch.equal(callback.rescaled_model()(x), module.net(x))


def test_what_cannot_be_taken_out_says_why(tmp_path) -> None:
    with pytest.raises(ValueError, match="has seen no module yet"):
        MixupCallback(0.7, 3).rescaled_model()
    with pytest.raises(ValueError, match="no training data was seen: train first"):
        MixupCallback(0.7, 3).rescaled_model(Classifier())
    (tmp_path / "none.ckpt").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be opened as a checkpoint of numbers and text"):
        MixupCallback(0.7, 3).rescaled_model(Classifier(), checkpoint=tmp_path / "none.ckpt")
    run = trainer(tmp_path, None, epochs=1)
    run.fit(Classifier(), loader())
    run.save_checkpoint(tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="holds no state of MixupCallback"):
        MixupCallback(0.7, 3).rescaled_model(Classifier(), checkpoint=tmp_path / "other.ckpt")


def test_balanced_partners_keep_their_rule_in_a_checkpoint(tmp_path) -> None:
    def balanced() -> MixupCallback:
        own = Mixup(0.7, 3, partners="balanced", generator=torch.Generator().manual_seed(0))
        return MixupCallback(method=own)

    module, callback = Classifier(), balanced()
    run = trainer(tmp_path, callback, epochs=1)
    run.fit(module, loader())
    run.save_checkpoint(tmp_path / "balanced.ckpt")
    expected = torch.cat(run.predict(module, loader(2)))
    assert not torch.allclose(callback.rule().x_mean, callback.moments.x_mean, atol=1e-2)
    found = trainer(tmp_path, balanced()).predict(Classifier(), loader(2), ckpt_path=tmp_path / "balanced.ckpt")
    torch.testing.assert_close(torch.cat(found), expected)


class WithMetrics(Classifier):
    """Metrics as anybody would log them, and what they should have counted."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy, self.square = MulticlassAccuracy(3, average="micro"), MeanSquaredError()
        self.several = MetricCollection([MulticlassConfusionMatrix(3), CalibrationMetric(Accuracy())])
        self.hits: list[torch.Tensor] = []
        self.shown: list[tuple[torch.Tensor, torch.Tensor]] = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("accuracy", self.accuracy(logits, y), on_step=False, on_epoch=True)
        self.several.update(preds=logits, target=y)
        self.square(logits.softmax(1), y)
        self.shown.append((logits.detach(), y))
        return cross_entropy(logits, y)


@pytest.mark.parametrize("kind", ["mixup", "manifold"])
def test_an_unchanged_module_counts_hits_of_the_larger_part(tmp_path, kind: str) -> None:
    torch.manual_seed(0)
    module = WithMetrics()
    callback = MixupCallback(0.7, 3, method=kind, network="net", seed=3, rescale=False)
    run = trainer(tmp_path, callback, epochs=1)
    run.fit(module, loader())
    labels = data(1).tensors[1]
    logits, soft = (torch.cat(parts) for parts in zip(*module.shown, strict=True))
    # The label of the larger part is that of the sample itself, and the larger part of the soft one.
    assert torch.equal(soft.argmax(1), labels)
    assert bool((soft.amax(1) < 1).any())
    hits = (logits.argmax(1) == labels).float().mean()
    torch.testing.assert_close(run.callback_metrics["accuracy"], hits)
    torch.testing.assert_close(module.several["CalibrationMetric"].compute().float(), hits)
    assert int(module.several["MulticlassConfusionMatrix"].compute().sum()) == len(labels)
    # What takes soft labels gets them.
    torch.testing.assert_close(module.square.compute(), mse_loss(logits.softmax(1), soft))
    # By their shares, of soft labels or of their parts alike.
    found = logits.argmax(1, keepdim=True)
    torch.testing.assert_close(mixed_accuracy(logits, soft), soft.gather(1, found).mean())
    assert float(mixed_accuracy(logits, soft)) != pytest.approx(float(hits), abs=1e-3)


def test_accuracy_of_soft_labels_is_that_of_their_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 1, 4, 4, generator=generator), torch.randint(5, (50,), generator=generator)
    logits = torch.randn(50, 5, generator=generator)
    for method in (Mixup, CutMix):
        _, soft = method(1.0, 5, generator=torch.Generator().manual_seed(1))(x, y)
        _, mixed = method(1.0, 5, generator=torch.Generator().manual_seed(1))(x, y, parts=True)
        torch.testing.assert_close(mixed_accuracy(logits, soft), mixed_accuracy(logits, mixed))
    # Class indices, and dense ones with some that are ignored.
    assert float(mixed_accuracy(logits, y)) == float((logits.argmax(1) == y).float().mean())
    maps, dense = torch.randn(6, 5, 3, 2, generator=generator), torch.randint(5, (6, 3, 2), generator=generator)
    dense[0] = -100
    hits = (maps.argmax(1) == dense)[1:].float().mean()
    torch.testing.assert_close(mixed_accuracy(maps, dense), hits)
    one_hot = nn.functional.one_hot(dense.clamp(min=0), 5).movedim(-1, 1) * (dense >= 0).unsqueeze(1)
    torch.testing.assert_close(mixed_accuracy(maps, one_hot.float()), hits)


def test_metrics_of_several_targets_get_the_labels_of_each(tmp_path) -> None:
    class Two(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(4, 2)
            self.first, self.second = MulticlassAccuracy(3, average="micro"), MulticlassAccuracy(2, average="micro")
            self.found: list[torch.Tensor] = []

        def training_step(self, batch, batch_idx):
            u, v = self.net(batch["image"]), self.other(batch["image"])
            self.first(u, batch["label"])
            self.second(v, batch["side"])
            self.found += [u.argmax(1), v.argmax(1)]
            return cross_entropy(u, batch["label"]) + cross_entropy(v, batch["side"])

    x, y = plain_data().tensors
    samples = [{"image": a, "label": b, "side": c} for a, b, c in zip(x, y, (x[:, 0] > 1).long(), strict=True)]
    module = Two()
    callback = MixupCallback(
        input_key="image", target_key=("label", "side"), num_classes={"label": 3, "side": 2}, seed=0, rescale=False
    )
    trainer(tmp_path, callback, epochs=1).fit(module, DataLoader(samples, 50, collate_fn=default_collate))
    for metric, found, labels in zip(
        (module.first, module.second), module.found, (y, (x[:, 0] > 1).long()), strict=True
    ):
        torch.testing.assert_close(metric.compute(), (found == labels).float().mean())
