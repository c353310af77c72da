"""Every augmentation on images, in Hugging Face's Trainer: made or by its name, against a loop written out."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from mixreg import Choice, CutMix, DataMoments, GaussianMixup, ManifoldMixup, Mixup, RegMixup, Rescaled
from mixreg._support.random import seeded
from mixreg.methods.inputs import InputMixup

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from test_huggingface import data, images, model, trainer  # noqa: E402

from mixreg.adapters.huggingface import MixupCallback, rescale_from  # noqa: E402

pytestmark = [pytest.mark.xdist_group("huggingface")]


def moments() -> DataMoments:
    found = DataMoments(3)
    found.update(images(), torch.tensor([sample["labels"] for sample in data()]))
    return found


# What is made, and the same by its name.
METHODS = {
    "cutmix": (lambda g: CutMix(0.7, 3, g, probability=0.5), {"alpha": 0.7, "probability": 0.5}),
    "inputs": (lambda g: InputMixup(0.7, 3, g), {"alpha": 0.7}),
    "gaussian": (lambda g: GaussianMixup(0.7, moments(), g), {"alpha": 0.7}),
    "choice": (
        lambda g: Choice([Mixup(0.7, 3), CutMix(1.0, 3)], [0.25, 0.75], generator=g),
        {"alpha": 0.7, "methods": ("mixup", "cutmix:1.0"), "probabilities": (0.25, 0.75)},
    ),
    "regmixup": (lambda g: RegMixup(0.7, num_classes=3, generator=g), {"alpha": 0.7}),
}


def written_out(folder, method) -> torch.nn.Module:
    net, batches = model(), trainer(folder).get_train_dataloader()
    optimizer = torch.optim.SGD(net.train().parameters(), lr=0.1)
    logits = lambda x: net(pixel_values=x).logits  # noqa: E731
    for epoch in range(2):
        batches.set_epoch(epoch)
        for batch in batches:
            x, y = batch["pixel_values"], batch["labels"]
            optimizer.zero_grad()
            if isinstance(method, RegMixup):
                (method(logits, x, y) / 2).backward()
            else:
                x, y = method(x, y)
                cross_entropy(logits(x), y).backward()
            optimizer.step()
    return net.eval()


class Logits(torch.nn.Module):
    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(pixel_values=x).logits


@pytest.mark.parametrize("is_named", [False, True], ids=["made", "named"])
@pytest.mark.parametrize("name", METHODS)
def test_every_augmentation_ends_with_the_weights_of_the_plain_loop(tmp_path, name, is_named) -> None:
    make, options = METHODS[name]
    callback = MixupCallback(method=make(seeded(3)))
    if is_named:
        callback = MixupCallback(num_classes=3, seed=3, method=name, **options)
    run = trainer(tmp_path, [callback])
    run.train()
    method = make(seeded(3))
    expected = written_out(tmp_path, method)
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(run.model.state_dict()[key], value, rtol=1e-5, atol=1e-6, msg=key)
    with torch.no_grad():
        logits = Rescaled(Logits(expected), rule=method.rule(moments()))(images())
        alone = callback.rescaled_model()(images())
    found = torch.from_numpy(run.predict(data()).predictions)
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone, logits, rtol=1e-4, atol=1e-5)


def test_a_fitted_rule_with_a_map_is_stored_beside_the_model(tmp_path) -> None:
    callback = MixupCallback(method=CutMix(1.0, 3, seeded(3)))
    run = trainer(tmp_path, [callback])
    run.train()
    fitted = callback.fit(run.get_eval_dataloader())
    assert (fitted.strength, fitted.temperature) != (1, None)
    callback.save(tmp_path)
    again = model()
    again.load_state_dict(run.model.state_dict())
    rescale_from(again, tmp_path)
    found = torch.from_numpy(run.predict(data()).predictions)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(pixel_values=images()).logits, found)
        torch.testing.assert_close(fitted(images()), found)


def test_other_methods_and_wrong_options_are_refused_when_they_are_given() -> None:
    with pytest.raises(TypeError, match="ManifoldMixup is a loss of the network, or mixes inside of it"):
        MixupCallback(method=ManifoldMixup())
    with pytest.raises(TypeError, match="MixupE is a loss of the network"):
        MixupCallback(method="mixupe", num_classes=3)
    with pytest.raises(ValueError, match="weight must be 1, got 2"):
        MixupCallback(method="regmixup", num_classes=3, weight=2.0)
    with pytest.raises(ValueError, match="method cutmix has no option 'weight'"):
        MixupCallback(method="cutmix", num_classes=3, weight=2.0)
    with pytest.raises(ValueError, match="cutmixx"):
        MixupCallback(method="cutmixx")
    with pytest.raises(TypeError, match="alpha beside a method would not be used"):
        MixupCallback(0.5, method=CutMix(1.0, 3))


def test_labels_of_tokens_are_refused_with_images(tmp_path) -> None:
    run = trainer(tmp_path, [MixupCallback(0.7, 3)])
    run.train_dataset = [{**sample, "labels": [2, 0, -100]} for sample in data()]
    with pytest.raises(ValueError, match=r"labels of shape \(16, 3\) are those of tokens, of which 'pixel_values' has"):
        run.train()
    assert run.state.global_step == 0
