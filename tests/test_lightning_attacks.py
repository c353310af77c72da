"""What was found by attacking the Lightning callback: resumes, optimisers, averages, fits and settings."""

import math
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from mixreg import Choice, CutMix, Mixup, Rescaled, SimilarTargets
from mixreg.adapters.resume import require_same_settings, settings_of
from mixreg.adapters.timm import Mixup as TimmMixup
from mixreg.theory.moments import DataMoments

pytest.importorskip("lightning")
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from test_lightning import pytestmark  # noqa: F401

from mixreg.adapters.lightning import MixupCallback


class Module(LightningModule):
    def __init__(self, lr: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lr, self.kinds = lr, []
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, index):
        self.kinds.append("mixed" if batch[1].is_floating_point() else "plain")
        return cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, index, dataloader_idx=0):
        self(batch[0])

    def predict_step(self, batch, index):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def blobs(n: int, seed: int) -> DataLoader:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=g)
    x = torch.randn(n, 4, generator=g)
    x[:, 0] += 1.5 * y
    return DataLoader(TensorDataset(x, y), batch_size=16)


def trainer(callbacks: list, epochs: int = 3, checkpoints: bool = False, **options) -> Trainer:
    return Trainer(
        callbacks=callbacks,
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=checkpoints,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )


def loss_of(module: LightningModule, used: Trainer, loader: DataLoader) -> float:
    return float(cross_entropy(torch.cat(used.predict(module, loader)), loader.dataset.tensors[1]))


class TwoTargets(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 4)

    def training_step(self, batch, index):
        self.kinds.append("step")
        u = self.model(batch["x"])
        return cross_entropy(u[:, :3], batch["label"]) + mse_loss(u[:, 3:], batch["age"])


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Mixup(1.0, label_smoothing=0.3), "label_smoothing of a method is for one label"),
        (Mixup(1.0, partners="balanced"), "balanced partners are drawn by one label"),
        (Choice([Mixup(1.0, label_smoothing=0.1)] * 2), "label_smoothing of a method is for one label"),
    ],
)
def test_several_targets_take_no_method_that_looks_at_single_labels(method, words: str) -> None:
    samples = [{"x": torch.randn(4), "label": torch.tensor(k % 3), "age": torch.ones(1)} for k in range(8)]
    keys = {"num_classes": {"label": 3, "age": None}, "input_key": "x", "target_key": ("label", "age")}
    module = TwoTargets()
    with pytest.raises(TypeError, match=words):
        trainer([MixupCallback(method=method, rescale=False, **keys)]).fit(module, DataLoader(samples, batch_size=4))
    assert module.kinds == []


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_mixing_ends_when_it_is_to_end_also_after_a_resume_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    def run(checkpoint: Path | None = None) -> tuple[Module, MixupCallback]:
        module, callback = Module(), MixupCallback(num_classes=3, seed=0, until=2)
        kept = ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1, filename="{step}")
        trainer([callback, kept], checkpoints=True).fit(module, blobs(48, 1), ckpt_path=checkpoint)
        return module, callback

    whole, callback = run()
    again, resumed = run(tmp_path / "step=6.ckpt")
    assert whole.kinds == ["mixed"] * 6 + ["plain"] * 3
    assert again.kinds == ["plain"] * 3
    assert callback.is_off
    assert resumed.is_off
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("method", [None, "manifold", "regmixup"])
def test_an_optimiser_that_asks_several_times_sees_one_mixture(method: str | None) -> None:
    losses: list[float] = []

    class Asked(Module):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)

        def backward(self, loss):
            losses.append(float(loss.detach()))
            loss.backward()

    loader, module = blobs(40, 1), Asked()
    given = {"loss": "cross_entropy"} if method == "regmixup" else {}
    callback = MixupCallback(1.0, 3, seed=0, method=method, rescale=False, network="model", **given)
    trainer([callback], 1).fit(module, loader)
    assert callback.moments.count == 40
    assert len(losses) > 3 * 2
    if method is not None:
        return
    own = Asked()
    optimizer = own.configure_optimizers()
    mix = Mixup(1.0, 3, generator=torch.Generator().manual_seed(0))
    for batch in loader:
        x, y = mix(*batch)

        def closure(x=x, y=y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(own.model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    for a, b in zip(module.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_repeated_evaluations_of_hidden_and_own_losses_are_equal() -> None:
    for method in ("manifold", "regmixup"):
        module, seen = Module(), []
        given = {"loss": "cross_entropy"} if method == "regmixup" else {}
        callback = MixupCallback(1.0, 3, seed=0, method=method, rescale=False, network="model", **given)

        class Twice(torch.optim.SGD):
            def step(self, closure=None):
                for _ in range(3):
                    seen.append(float(closure().detach()))  # noqa: B023

        module.configure_optimizers = lambda kind=Twice, module=module: kind(module.parameters(), lr=0.1)
        trainer([callback], 1).fit(module, blobs(32, 1))
        assert len(seen) == 6
        assert seen[0] == seen[1] == seen[2] != seen[3]
        assert seen[3] == seen[4] == seen[5]


def test_a_rule_is_fitted_to_the_averaged_weights_that_are_kept() -> None:
    held, module = blobs(400, 7), Module()
    callback, average = MixupCallback(num_classes=3, seed=0, fit=True), EMAWeightAveraging(decay=0.95)
    used = trainer([callback, average])
    used.fit(module, blobs(160, 1), held)
    said = callback.fitted
    assert loss_of(module, used, held) == pytest.approx(min(point.loss for point in said.points), abs=1e-5)
    again = callback.fit(held)
    assert (said.strength, said.temperature) == (again.strength, pytest.approx(again.temperature, rel=1e-5))
    with pytest.raises(ValueError, match="list MixupCallback before EMAWeightAveraging"):
        trainer([EMAWeightAveraging(), MixupCallback(num_classes=3, fit=True)]).fit(Module(), blobs(48, 1), held)


def test_a_fit_after_mixing_has_ended_is_used() -> None:
    held, module = blobs(200, 7), Module(2.0)
    callback = MixupCallback(num_classes=3, seed=0, until=1, fit=True)
    used = trainer([callback], 60)
    used.fit(module, blobs(60, 1), held)
    # What was fitted while it mixed is not that of the network there is now.
    assert callback.is_off
    assert callback.fitted is None
    before, fitted = loss_of(module, used, held), callback.fit(held)
    best = fitted.mean_loss
    assert best <= min(point.loss for point in fitted.points) < before - 0.1
    assert loss_of(module, used, held) == pytest.approx(best, abs=1e-5)
    x, y = held.dataset.tensors
    assert float(cross_entropy(callback.rescaled_model()(x).detach(), y)) == pytest.approx(best, abs=1e-5)


def test_a_fit_sees_as_many_batches_as_validation() -> None:
    seen = []

    class Counted(Module):
        def forward(self, x):
            if not self.training:
                seen.append(len(x))
            return self.model(x)

    trainer([MixupCallback(num_classes=3, seed=0, fit=True)], 1, limit_val_batches=2).fit(
        Counted(), blobs(48, 1), blobs(400, 7)
    )
    assert set(seen) == {16}
    assert len(seen) % 2 == 0
    assert len(seen) <= 2 * (1 + 12)


def test_another_method_is_not_taken_for_the_checkpoint_s() -> None:
    def box(y, generator=None):
        return torch.arange(len(y))

    for before, now in (
        (Mixup(1.0, 3, partners="balanced"), Mixup(1.0, 3)),
        (Mixup(1.0, partners=SimilarTargets(0.5)), Mixup(1.0, partners=SimilarTargets(0.4))),
        (Mixup(1.0, 3), Mixup(1.0, 3, partners=box)),
        (Mixup(1.0, 3), Mixup(1.0, 3, ignore_index=0)),
        (Choice([Mixup(1.0, 3, partners="balanced"), CutMix(1.0, 3)]), Choice([Mixup(1.0, 3), CutMix(1.0, 3)])),
        (TimmMixup(0.0, 1.0, num_classes=3), TimmMixup(0.0, 1.0, cutmix_minmax=(0.2, 0.9), num_classes=3)),
    ):
        require_same_settings(before, settings_of(before))
        for one, other in ((before, now), (now, before)):
            with pytest.raises(ValueError, match="give it the same"):
                require_same_settings(other, settings_of(one))
    # What earlier checkpoints did not know is not asked of them.
    require_same_settings(Mixup(1.0, 3, ignore_index=0), {"method": "Mixup", "alpha": 1.0})
    earlier = {"method": "Choice", "methods": [{"method": "Mixup", "alpha": 1.0}, {"method": "CutMix"}]}
    require_same_settings(Choice([Mixup(1.0, 3), CutMix(1.0, 3)]), earlier)


def test_timm_s_place_stays_switched_off_in_a_checkpoint(tmp_path: Path) -> None:
    loader, module, method = blobs(48, 1), Module(), TimmMixup(1.0, num_classes=3)
    callback = MixupCallback(method=method)
    used = trainer([callback])
    used.fit(module, loader)
    method.mixup_enabled = False
    used.save_checkpoint(tmp_path / "a.ckpt")
    own = torch.cat(used.predict(module, loader))
    other = trainer([MixupCallback(method=TimmMixup(1.0, num_classes=3))])
    assert torch.equal(own, torch.cat(other.predict(Module(), loader, ckpt_path=tmp_path / "a.ckpt")))


def test_the_rule_of_timm_s_place_on_vectors() -> None:
    (x, y), moments = blobs(64, 1).dataset.tensors, DataMoments(3)
    moments.update(x, y)
    mix, net = TimmMixup(1.0, num_classes=3, prob=0.6, label_smoothing=0.0), nn.Linear(4, 3)
    found = Rescaled(net, rule=mix.rule(moments))(x)
    share = 1 - 0.6 * 0.25
    y_mean = torch.bincount(y, minlength=3) / len(y)
    by_hand = y_mean + (net(x.mean(0) + share * (x - x.mean(0))) - y_mean) / share
    torch.testing.assert_close(found, by_hand)
    for wrong in ({"mixup_alpha": "1"}, {"prob": None}, {"cutmix_minmax": ("a", "b")}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} (must|is)"):
            TimmMixup(num_classes=3, **wrong)


def test_another_checkpoint_s_network_leaves_the_callback_as_it_is(tmp_path: Path) -> None:
    module, callback = Module(), MixupCallback(num_classes=3, seed=0)
    kept = ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1, filename="{step}")
    trainer([callback, kept], 2, checkpoints=True).fit(module, blobs(48, 1))
    count, state = callback.moments.count, callback.method.generator.get_state()
    older = callback.rescaled_model(module, checkpoint=tmp_path / "step=3.ckpt")
    assert callback.moments.count == count == 96
    assert torch.equal(callback.method.generator.get_state(), state)
    torch.testing.assert_close(older.x_mean, blobs(48, 1).dataset.tensors[0].mean(0))


def test_a_second_fit_draws_as_the_first() -> None:
    weights = []
    callback = MixupCallback(num_classes=3, seed=0)
    for _ in range(2):
        module = Module()
        trainer([callback], 1).fit(module, blobs(48, 1))
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*weights)
    # Nothing of the last batch is left that could not be sent to another process.
    assert pickle.loads(pickle.dumps(callback)).moments.count == callback.moments.count == 48


class Regression(Module):
    def training_step(self, batch, index):
        self.kinds.append("step")
        return mse_loss(self(batch[0]), batch[1])


NUMBERS = DataLoader(TensorDataset(torch.zeros(32, 4), torch.arange(96.0).reshape(32, 3)), batch_size=16)
EMPTY = DataLoader(TensorDataset(torch.zeros(0, 4), torch.zeros(0).long()))


@pytest.mark.filterwarnings("ignore:Total length of `DataLoader` across ranks is zero")
@pytest.mark.parametrize(
    ("module", "given", "training", "validation", "words"),
    [
        (Module, {"num_classes": 3}, blobs(48, 1), [blobs(48, 2), blobs(48, 3)], "one validation loader.*got 2"),
        (Module, {"num_classes": 3}, blobs(48, 1), EMPTY, "there is not one batch"),
        (Module, {"num_classes": 3}, blobs(48, 1), None, "and there is none"),
        (Regression, {}, NUMBERS, NUMBERS, "these targets are no probabilities"),
        (
            Module,
            {"num_classes": 3},
            [blobs(48, 1), blobs(48, 2)],
            blobs(48, 3),
            "training loader, got a list of 2",
        ),
    ],
)
def test_what_cannot_be_fitted_is_said_before_the_first_step(module, given, training, validation, words: str) -> None:
    used, net = trainer([MixupCallback(fit=True, **given)]), module()
    with pytest.raises((ValueError, TypeError), match=words):
        used.fit(net, training, validation)
    assert net.kinds == []


def test_what_cannot_be_fitted_is_said_when_it_is_asked_for() -> None:
    with pytest.raises(ValueError, match="measures by"):
        MixupCallback(fit=True, loss=lambda y, u: ((y - u) ** 2).sum())
    with pytest.raises(TypeError, match="places the rule of one target"):
        MixupCallback(num_classes={"y": 3, "z": None}, target_key=("y", "z"), fit=True)
    callback = MixupCallback(fit=True, loss="squared_error")
    trainer([callback], 1).fit(Regression(1e-5), NUMBERS, NUMBERS)
    assert callback.fitted is not None
    assert math.isfinite(callback.fitted.strength)
