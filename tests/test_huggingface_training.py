"""Hugging Face's Trainer beyond one training of classes: regression, several labels at once, resuming bit by bit."""

import json
import shutil

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from mixreg import DataMoments, Mixup, Rescaled, risk

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from test_huggingface import data, images, model  # noqa: E402

from mixreg.adapters.huggingface import MixupCallback, mixup_loss, rescale_from  # noqa: E402

pytestmark = [pytest.mark.xdist_group("huggingface")]


def other_model(outputs: int, problem: str | None = None) -> torch.nn.Module:
    config = model().config
    config.num_labels, config.problem_type = outputs, problem
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(config)


def with_labels(labels: torch.Tensor) -> list[dict]:
    return [{"pixel_values": image, "labels": label.tolist()} for image, label in zip(images(), labels, strict=True)]


def trainer(folder, net, samples, callbacks=(), loss=None, **settings):
    defaults = {"num_train_epochs": 2, "per_device_train_batch_size": 16, "save_strategy": "no"}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        learning_rate=0.01,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        seed=5,
        **{**defaults, **settings},
    )
    return transformers.Trainer(
        net, arguments, train_dataset=samples, eval_dataset=samples, callbacks=list(callbacks), compute_loss_func=loss
    )


class Logits(torch.nn.Module):
    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(pixel_values=x).logits


TARGETS = {
    "regression": (1, torch.randn(40, generator=torch.Generator().manual_seed(2))),
    "several numbers": (2, torch.randn(40, 2, generator=torch.Generator().manual_seed(2))),
    "several labels": (4, torch.randint(2, (40, 4), generator=torch.Generator().manual_seed(2)).float()),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_regression_and_several_labels_are_evaluated_rescaled(tmp_path, kind) -> None:
    outputs, targets = TARGETS[kind]
    net = other_model(outputs, "regression" if kind == "several numbers" else None)
    callback = MixupCallback(0.7, seed=3)
    run = trainer(tmp_path, net, with_labels(targets), [callback], eval_strategy="epoch")
    run.train()
    found = run.evaluate()["eval_loss"]
    with callback.plain(), torch.no_grad():
        logits = Rescaled(Logits(net.eval()), 0.7, images().mean(0), targets.mean(0))(images())
        plain = net(pixel_values=images()).logits
    loss = binary_cross_entropy_with_logits if kind == "several labels" else mse_loss
    assert found == pytest.approx(float(loss(logits.reshape(targets.shape), targets)), rel=1e-4)
    assert abs(found - float(loss(plain.reshape(targets.shape), targets))) > 1e-4
    torch.testing.assert_close(torch.from_numpy(run.predict(with_labels(targets)).predictions), logits)


def test_regression_trains_as_the_plain_loop(tmp_path) -> None:
    targets = TARGETS["regression"][1]
    net, samples = other_model(1), with_labels(targets)
    settings = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    trainer(tmp_path, net, samples, [MixupCallback(0.7, seed=3)], **settings).train()
    expected, mix = other_model(1), Mixup(0.7, generator=torch.Generator().manual_seed(3))
    batches = trainer(tmp_path, other_model(1), samples).get_train_dataloader()
    optimizer = torch.optim.SGD(expected.train().parameters(), lr=0.01)
    for epoch in range(2):
        batches.set_epoch(epoch)
        for batch in batches:
            x, y = mix(batch["pixel_values"], batch["labels"])
            optimizer.zero_grad()
            mse_loss(expected(pixel_values=x).logits.squeeze(1), y).backward()
            optimizer.step()
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(net.state_dict()[key], value, rtol=1e-5, atol=1e-7, msg=key)


def test_a_loss_that_cannot_be_computed_again_is_refused_at_the_first_step(tmp_path) -> None:
    net = other_model(1)
    net.loss_function = lambda labels, logits, config, **more: (logits.squeeze(1) - labels).abs().mean()
    run = trainer(tmp_path, net, with_labels(TARGETS["regression"][1]), [MixupCallback(0.7)], eval_strategy="epoch")
    with pytest.raises(TypeError, match="give Trainer a compute_loss_func, or set rescale=False"):
        run.train()
    assert run.state.global_step == 0
    absolute = lambda outputs, labels, **more: (outputs.logits.squeeze(1) - labels).abs().mean()  # noqa: E731
    run = trainer(tmp_path, net, with_labels(TARGETS["regression"][1]), [MixupCallback(0.7)], absolute)
    run.train()
    assert run.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("kind", TARGETS)
def test_cross_entropy_of_what_is_no_class_is_refused(tmp_path, kind) -> None:
    outputs, targets = TARGETS[kind]
    run = trainer(tmp_path, other_model(outputs), with_labels(targets), [MixupCallback(0.7)], mixup_loss)
    with pytest.raises(ValueError, match="leave compute_loss_func and num_classes out"):
        run.train()


def test_label_smoothing_beside_mixup_is_refused_before_training(tmp_path) -> None:
    run = trainer(tmp_path, model(), data(), [MixupCallback(0.7, 3)], mixup_loss, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match=r"label_smoothing_factor=0\.1 has no effect on mixed labels"):
        run.train()
    assert run.state.global_step == 0


class Small(transformers.PreTrainedModel):
    """With dropout, so that PyTorch's random numbers have to come back, too.

    Not a vision transformer: transformers 5.22 saves those under names that its Trainer does not load again.
    """

    config_class = transformers.PretrainedConfig

    def __init__(self, config) -> None:
        super().__init__(config)
        self.first, self.last = torch.nn.Linear(64, 16), torch.nn.Linear(16, 3)
        self.dropout = torch.nn.Dropout(0.3)
        self.post_init()

    def forward(self, pixel_values, labels=None):
        hidden = self.dropout(torch.tanh(self.first(pixel_values.flatten(1))))
        return transformers.modeling_outputs.ImageClassifierOutput(logits=self.last(hidden))


def small() -> Small:
    torch.manual_seed(0)
    return Small(transformers.PretrainedConfig())


# 40 samples: 3 batches an epoch at 16, 10 at 4 (5 steps of two).
RESUMED = {
    "between epochs": (3, {}),
    "within an epoch": (4, {}),
    "within an accumulated epoch": (7, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}),
    "with an evaluation": (4, {"eval_strategy": "steps", "eval_steps": 2}),
}


@pytest.mark.parametrize("kind", RESUMED)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, kind) -> None:
    step, settings = RESUMED[kind]
    settings = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3, **settings}
    whole, callback = small(), MixupCallback(0.7, 3, seed=3)
    trainer(tmp_path / "whole", whole, data(), [callback], mixup_loss, **settings).train()
    # From a folder of another name, by a callback that was seeded otherwise.
    shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", tmp_path / "kept")
    resumed, again = small(), MixupCallback(0.7, 3, seed=99)
    run = trainer(tmp_path / "resumed", resumed, data(), [again], mixup_loss, **settings)
    run.train(resume_from_checkpoint=str(tmp_path / "kept"))
    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key
    assert torch.equal(callback.method.generator.get_state(), again.method.generator.get_state())


def test_resuming_with_another_alpha_is_refused(tmp_path) -> None:
    settings = {"save_strategy": "epoch", "num_train_epochs": 1}
    trainer(tmp_path, small(), data(), [MixupCallback(0.7, 3)], mixup_loss, **settings).train()
    settings["num_train_epochs"] = 2
    run = trainer(tmp_path, small(), data(), [MixupCallback(0.3, 3)], mixup_loss, **settings)
    with pytest.raises(ValueError, match=r"was trained with .*alpha=0\.7.* is to be used with .*alpha=0\.3"):
        run.train(resume_from_checkpoint=True)
    run = trainer(tmp_path, small(), data(), [MixupCallback(0.7, 3)], mixup_loss, **settings)
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == 6


def test_what_cannot_be_resumed_exactly_says_so(tmp_path) -> None:
    settings = {"save_strategy": "epoch", "num_train_epochs": 1}
    trainer(tmp_path, small(), data(), [MixupCallback(0.7, 3, seed=3)], mixup_loss, **settings).train()
    (folder,) = tmp_path.glob("checkpoint-*")
    state = json.loads((folder / "trainer_state.json").read_text())
    del state["stateful_callbacks"]["mixreg"]["generators"]
    (folder / "trainer_state.json").write_text(json.dumps(state))
    settings["num_train_epochs"] = 2
    run = trainer(tmp_path, small(), data(), [MixupCallback(0.7, 3, seed=3)], mixup_loss, **settings)
    with pytest.warns(UserWarning, match="this one draws other partners"):
        run.train(resume_from_checkpoint=str(folder))


def test_terms_of_a_rescaled_model_are_those_of_the_network(tmp_path) -> None:
    net, callback = small(), MixupCallback(0.7, 3, seed=3)
    trainer(tmp_path, net, data(), [callback], mixup_loss, num_train_epochs=4).train()
    x, y = images(), torch.tensor([sample["labels"] for sample in data()])
    moments = DataMoments(3, covariance=True)
    moments.update(x, y)

    def total(network) -> float:
        return float(risk.quadratic(network, x, y, 0.7, moments=moments).total)

    # In training mode, as a callback finds it; with its hooks and through a function.
    net.train()
    found = [total(Logits(net)), total(lambda x: net(pixel_values=x).logits)]
    empirical = risk.empirical(lambda x: net(pixel_values=x).logits, x, y)
    assert net.training
    callback.release()
    expected = total(Logits(net.eval()))
    assert found == pytest.approx([expected] * 2, rel=1e-4)
    torch.testing.assert_close(empirical, risk.empirical(Logits(net), x, y))
    rescaled = total(Rescaled(Logits(net), 0.7, moments.x_mean, moments.y_mean))
    assert abs(rescaled - expected) > 1e-3
    # And of a model that was loaded.
    callback.save(tmp_path)
    rescale_from(net, tmp_path)
    assert total(Logits(net)) == pytest.approx(expected, rel=1e-4)
