"""How Lightning modules are written: calls by keyword, dict batches, several targets, terms asked for in validation."""

import copy
from collections import UserDict

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, default_collate

from mixreg import CutMix, Mixup, Rescaled

pytest.importorskip("lightning.pytorch")
from test_lightning import Classifier, data, loader, pytestmark, trainer  # noqa: F401

from mixreg.adapters.lightning import MixupCallback


class ByKeyword(Classifier):
    def forward(self, features, scale=1.0):
        return scale * self.net(features)

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(features=batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.seen += [self(features=batch[0]), self(scale=1.0, features=batch[0])]


def rescaled(module: Classifier, callback: MixupCallback) -> Rescaled:
    means = callback.moments.x_mean.float(), callback.moments.y_mean.float()
    return Rescaled(module.net, callback.method.alpha, *means)


def test_modules_may_be_called_by_keyword(tmp_path) -> None:
    module, callback = ByKeyword(), MixupCallback(0.7, 3, seed=3)
    trainer(tmp_path, callback, epochs=1).fit(module, loader(), DataLoader(data(), batch_size=50))
    expected = rescaled(module, callback)(data().tensors[0])
    for found in module.seen[-2:]:
        torch.testing.assert_close(found, expected)


class WholeBatches(Classifier):
    """Takes dicts whole."""

    def forward(self, batch):
        return self.net(batch["image"])

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch), batch["label"])

    def validation_step(self, batch, batch_idx):
        self.seen += [self(batch), self(batch=batch)]


def dicts(batches: type = dict, **more) -> DataLoader:
    x, y = data().tensors
    named = {"image": x, "label": y, **more}
    samples = [dict(zip(named, values, strict=True)) for values in zip(*named.values(), strict=True)]
    return DataLoader(samples, batch_size=50, collate_fn=lambda parts: batches(default_collate(parts)))


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_modules_may_take_whole_batches(tmp_path, kind) -> None:
    # Hugging Face's batches are dicts of the second kind.
    module, callback = WholeBatches(), MixupCallback(1.0, 3, input_key="image", target_key="label")
    trainer(tmp_path, callback, epochs=1).fit(module, dicts(kind), dicts(kind))
    expected = rescaled(module, callback)(data().tensors[0])
    for found in module.seen[-2:]:
        torch.testing.assert_close(found, expected)


class TwoInputs(Classifier):
    def forward(self, left, right):
        return self.net(torch.cat([left, right], 1))

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch["left"], batch["right"]), batch["label"])

    def validation_step(self, batch, batch_idx):
        left, right = batch["left"], batch["right"]
        self.seen += [self(left, right), self(left, right=right), self(right=right, left=left)]


def test_several_inputs_are_mixed_and_shrunk_alike(tmp_path) -> None:
    x = data().tensors[0]
    module, callback = TwoInputs(), MixupCallback(0.7, 3, input_key=("left", "right"), target_key="label", seed=3)
    halves = {"left": x[:, :2], "right": x[:, 2:]}
    trainer(tmp_path, callback, epochs=1).fit(module, dicts(**halves), dicts(**halves))
    reference = copy.deepcopy(Classifier().net)
    mixed_x, mixed_y = Mixup(0.7, 3, generator=torch.Generator().manual_seed(3))(*data().tensors)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    cross_entropy(reference(mixed_x), mixed_y).backward()
    optimizer.step()
    torch.testing.assert_close(module.net[0].weight, reference[0].weight)
    y_mean = torch.bincount(data().tensors[1], minlength=3) / 50
    expected = Rescaled(module.net, 0.7, x.mean(0), y_mean)(x)
    for found in module.seen[-3:]:
        torch.testing.assert_close(found, expected)


class SeveralTargets(Classifier):
    """A class, another one of five, and a number."""

    def __init__(self, structure: str) -> None:
        super().__init__()
        self.kind, self.age = torch.nn.Linear(3, 5), torch.nn.Linear(3, 1)
        self.structure, self.given = structure, []

    def forward(self, x):
        hidden = self.net(x)
        outputs = {"label": hidden, "kind": self.kind(hidden), "age": self.age(hidden).squeeze(1)}
        return outputs if self.structure == "dict" else tuple(outputs.values())

    def training_step(self, batch, batch_idx):
        if self.structure == "dict":
            x, targets, found = batch["image"], batch, self(batch["image"])
        else:
            (x, targets), names = batch, ("label", "kind", "age")
            found, targets = (dict(zip(names, each, strict=True)) for each in (self(x), targets))
        self.given.append((x, {name: targets[name] for name in ("label", "kind", "age")}))
        loss = mse_loss(found["age"], targets["age"].float())
        return loss + sum(cross_entropy(found[name], targets[name]) for name in ("label", "kind"))

    def validation_step(self, batch, batch_idx):
        found = self(batch["image"] if self.structure == "dict" else batch[0])
        self.seen.append(torch.column_stack(tuple(found.values()) if isinstance(found, dict) else found))


def several_targets(structure: str) -> DataLoader:
    generator = torch.Generator().manual_seed(5)
    kind, age = torch.randint(5, (50,), generator=generator), torch.randn(50, generator=generator).double()
    if structure == "dict":
        return dicts(kind=kind, age=age)
    x, y = data().tensors
    samples = [(image, tuple(targets)) for image, *targets in zip(x, y, kind, age, strict=True)]
    return DataLoader(samples, batch_size=50)


@pytest.mark.parametrize("structure", ["dict", "tuple"])
def test_several_targets_are_mixed_with_the_same_partners_and_stretched_each(tmp_path, structure) -> None:
    where = {
        "dict": {
            "input_key": "image",
            "target_key": ("label", "kind", "age"),
            "num_classes": {"label": 3, "kind": 5, "age": None},
        },
        "tuple": {"num_classes": (3, 5, None)},
    }[structure]
    module, callback = SeveralTargets(structure), MixupCallback(0.7, seed=3, **where)
    run = trainer(tmp_path, callback, epochs=1)
    run.fit(module, several_targets(structure), several_targets(structure))
    x, y = data().tensors
    batch = next(iter(several_targets("dict")))
    kind, age = batch["kind"], batch["age"]
    given_x, given = module.given[0]
    for targets, classes, name in ((y, 3, "label"), (kind, 5, "kind"), (age, None, "age")):
        mix = Mixup(0.7, classes, generator=torch.Generator().manual_seed(3))
        expected_x, expected = mix(x, targets)
        torch.testing.assert_close(given_x, expected_x)
        torch.testing.assert_close(given[name], expected)
    # Outputs are one vector of 3 + 5 + 1, which Rescaled takes as it is.
    y_mean = torch.cat([torch.bincount(y, minlength=3) / 50, torch.bincount(kind, minlength=5) / 50, age.mean()[None]])

    class Flat(torch.nn.Module):
        def forward(self, x):
            found = module(x)
            return torch.column_stack(tuple(found.values()) if isinstance(found, dict) else found)

    expected = Rescaled(Flat(), 0.7, x.mean(0), y_mean.float())(x)
    torch.testing.assert_close(module.seen[-1], expected, rtol=1e-5, atol=1e-5)
    # A checkpoint knows them apart, too.
    run.save_checkpoint(tmp_path / "several.ckpt")
    fresh = SeveralTargets(structure)
    trainer(tmp_path, MixupCallback(0.7, **where)).validate(
        fresh, several_targets(structure), ckpt_path=tmp_path / "several.ckpt", verbose=False
    )
    torch.testing.assert_close(fresh.seen[-1], expected, rtol=1e-5, atol=1e-5)


def test_mistakes_with_several_targets_are_explained(tmp_path) -> None:
    with pytest.raises(TypeError, match="give them here, and none to method"):
        MixupCallback(target_key=("a", "b"), method=CutMix(1.0, num_classes=3))
    cases = [
        ({"num_classes": 3}, "the targets are several, a list of them: give MixupCallback num_classes for each"),
        ({"num_classes": (3, 5)}, r"num_classes=\(3, 5\) does not have one entry for each of the targets \[0, 1, 2\]"),
    ]
    for settings, sentence in cases:
        with pytest.raises(TypeError, match=sentence):
            trainer(tmp_path, MixupCallback(0.7, **settings)).fit(SeveralTargets("tuple"), several_targets("tuple"))

    class OneOutput(SeveralTargets):
        def validation_step(self, batch, batch_idx):
            self.net(batch[0])

    callback = MixupCallback(0.7, num_classes=(3, 5, None), network="net")
    with pytest.raises(TypeError, match="with several targets the network must return a dict with 0, 1, 2, or as many"):
        trainer(tmp_path, callback, epochs=1).fit(
            OneOutput("tuple"), several_targets("tuple"), several_targets("tuple")
        )


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (MixupCallback(0.3, 3), "alpha=0.7.*alpha=0.3"),
        (MixupCallback(float("inf"), 3), "alpha=0.7.*alpha=inf"),
        (MixupCallback(method=CutMix(0.7, 3)), "method=Mixup.*method=CutMix"),
    ],
)
def test_a_checkpoint_refuses_another_method_or_alpha(tmp_path, other, difference) -> None:
    first = trainer(tmp_path, MixupCallback(0.7, 3), epochs=1)
    first.fit(Classifier(), loader())
    first.save_checkpoint(tmp_path / "one.ckpt")
    module = Classifier()
    with pytest.raises(ValueError, match=f"the checkpoint was trained with .*{difference}"):
        trainer(tmp_path, copy.deepcopy(other), epochs=2).fit(module, loader(), ckpt_path=tmp_path / "one.ckpt")
    with pytest.raises(ValueError, match="the checkpoint was trained with"):
        trainer(tmp_path, copy.deepcopy(other)).predict(module, loader(), ckpt_path=tmp_path / "one.ckpt")
    assert "training_step" not in module.__dict__


def test_checkpoints_from_before_say_that_they_do_not_know_alpha() -> None:
    callback = MixupCallback(0.7, 3, seed=1)
    generator = torch.Generator().manual_seed(8).get_state()
    old = {"count": 5, "x_mean": torch.arange(4.0), "y_mean": torch.ones(3) / 3, "generator": generator}
    with pytest.warns(UserWarning, match="does not say which method and α"):
        callback.load_state_dict(old)
    assert callback.moments.count == 5
    torch.testing.assert_close(callback.moments.x_mean, torch.arange(4.0).double())
    assert torch.equal(callback.method.generator.get_state(), generator)
