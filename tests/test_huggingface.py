"""The Trainer's collator and callback with the real library, against a loop written out."""

import sys

import pytest
import torch
from torch.nn.functional import cross_entropy

from mixreg import DataMoments, Mixup, Rescaled, TermsMonitor

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from mixreg.adapters.huggingface import (  # noqa: E402
    RULE,
    MixupCallback,
    MixupCollator,
    mixup_loss,
    rescale_from,
)
from mixreg.adapters.huggingface_terms import TermsCallback  # noqa: E402

pytestmark = [pytest.mark.xdist_group("huggingface")]


def model() -> torch.nn.Module:
    """A vision transformer as small as it can be, without dropout."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=3,
    )
    return transformers.ViTForImageClassification(config)


def data() -> list[dict]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 1, 8, 8, generator=generator) + 0.5, torch.randint(3, (40,), generator=generator)
    return [{"pixel_values": image, "labels": int(label)} for image, label in zip(x, y, strict=True)]


def images() -> torch.Tensor:
    return torch.stack([sample["pixel_values"] for sample in data()])


def trainer(tmp_path, callbacks=(), net=None, **settings):
    defaults = {"num_train_epochs": 2, "per_device_train_batch_size": 16, "save_strategy": "no"}
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        seed=5,
        **{**defaults, **settings},
    )
    return transformers.Trainer(
        net or model(),
        arguments,
        train_dataset=data(),
        eval_dataset=data(),
        callbacks=list(callbacks),
        compute_loss_func=mixup_loss,
    )


def written_out(tmp_path, epochs: int = 2, until: int = 99) -> torch.nn.Module:
    """The same training as a loop over the batches that Trainer would show; mixing ends when it is told."""
    net, mix = model(), Mixup(0.7, 3, generator=torch.Generator().manual_seed(3))
    batches = trainer(tmp_path).get_train_dataloader()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for batch in batches:
            x, y = batch["pixel_values"], batch["labels"]
            if epoch < until:
                x, y = mix(x, y)
            optimizer.zero_grad()
            cross_entropy(net(pixel_values=x).logits, y).backward()
            optimizer.step()
    return net.eval()


def rescaled(net: torch.nn.Module) -> torch.Tensor:
    """The logits of eq. (testmodif), with the means written out."""

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(pixel_values=x).logits

    labels = torch.tensor([sample["labels"] for sample in data()])
    y_mean = torch.bincount(labels, minlength=3) / len(labels)
    return Rescaled(Logits(), 0.7, images().mean(0), y_mean)(images()).detach()


def test_trainer_ends_with_the_weights_of_the_plain_loop_and_evaluates_rescaled(tmp_path) -> None:
    net, callback = model(), MixupCallback(0.7, 3, seed=3)
    run = trainer(tmp_path, [callback], net)
    run.train()
    expected = written_out(tmp_path)
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(net.state_dict()[key], value, rtol=1e-6, atol=1e-7, msg=key)
    found = torch.from_numpy(run.predict(data()).predictions)
    torch.testing.assert_close(found, rescaled(expected), rtol=1e-4, atol=1e-5)
    assert float((found - expected(pixel_values=images()).logits.detach()).abs().max()) > 1e-2
    labels = torch.tensor([sample["labels"] for sample in data()])
    assert run.evaluate()["eval_loss"] == pytest.approx(float(cross_entropy(found, labels)), rel=1e-4)
    callback.release()
    plain = net.eval()(pixel_values=images()).logits
    torch.testing.assert_close(plain, expected(pixel_values=images()).logits, rtol=1e-5, atol=1e-6)


def test_watching_terms_changes_nothing_and_is_in_the_log(tmp_path) -> None:
    labels = torch.tensor([sample["labels"] for sample in data()])
    monitor = TermsMonitor(images(), labels, 0.7, tangents=2, pairs=40)
    mixing = MixupCallback(0.7, 3, seed=3)
    watched = trainer(tmp_path, [mixing, TermsCallback(monitor)])
    watched.train()
    expected = written_out(tmp_path).state_dict()
    for name, value in watched.model.state_dict().items():
        assert torch.equal(value, expected[name])
    kept = [record for record in watched.state.log_history if "terms_total" in record]
    assert [record["epoch"] for record in kept] == [1, 2]
    assert [record["terms_base"] for record in kept] == [record["base"] for record in monitor.history]
    assert kept[-1]["terms_r2_stderr"] > 0


def test_mixing_ends_when_it_is_told_and_predictions_are_plain_then(tmp_path) -> None:
    net, callback = model(), MixupCallback(0.7, 3, seed=3, until=1)
    run = trainer(tmp_path, [callback], net, num_train_epochs=2)
    run.train()
    expected = written_out(tmp_path, 2, until=1)
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(net.state_dict()[key], value, rtol=1e-6, atol=1e-7, msg=key)
    found = torch.from_numpy(run.predict(data()).predictions)
    torch.testing.assert_close(found, expected(pixel_values=images()).logits.detach(), rtol=1e-5, atol=1e-6)


def test_evaluation_during_training_does_not_mix(tmp_path) -> None:
    run = trainer(tmp_path, [MixupCallback(0.7, 3, seed=3)], eval_strategy="epoch", save_strategy="no")
    seen = []
    inner = run.compute_loss_func
    run.compute_loss_func = lambda outputs, labels, **more: seen.append(labels) or inner(outputs, labels, **more)
    run.train()
    mixed = [labels for labels in seen if labels.is_floating_point()]
    assert sum(len(labels) for labels in mixed) == 80
    assert sum(len(labels) for labels in seen if not labels.is_floating_point()) == 80
    assert all(float(((labels > 0) & (labels < 1)).float().mean()) > 0 for labels in mixed)


def test_gradient_accumulation_gives_the_same_weights(tmp_path) -> None:
    # One batch of 20 mixed in two halves of 10: the mean loss is that of all rows.
    nets = []
    for size, steps in ((10, 2), (20, 1)):
        net = model()
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}
        trainer(tmp_path, [MixupCallback(0.0, 3)], net, num_train_epochs=1, **settings).train()
        nets.append(net)
    for first, second in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)


def test_checkpoints_carry_the_means(tmp_path) -> None:
    net = model()
    run = trainer(tmp_path, [MixupCallback(0.7, 3, seed=3)], net, save_strategy="epoch")
    run.train()
    folder = sorted(tmp_path.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))[-1]
    loaded = transformers.ViTForImageClassification.from_pretrained(folder)
    rule = rescale_from(loaded, folder)
    expected = torch.from_numpy(run.predict(data()).predictions)
    torch.testing.assert_close(loaded.eval()(pixel_values=images()).logits, expected, rtol=1e-4, atol=1e-5)
    rule.remove()
    assert float((loaded(pixel_values=images()).logits.detach() - expected).abs().max()) > 1e-3
    (folder / RULE).write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"mixup\.safetensors does not hold the rule"):
        rescale_from(loaded, folder)


def test_the_collator_mixes_what_another_one_makes() -> None:
    mix = Mixup(1.0, 3, generator=torch.Generator().manual_seed(0))
    batch = MixupCollator(mix)(data()[:8])
    x, y = Mixup(1.0, 3, generator=torch.Generator().manual_seed(0))(
        images()[:8], torch.tensor([sample["labels"] for sample in data()[:8]])
    )
    torch.testing.assert_close(batch["pixel_values"], x)
    torch.testing.assert_close(batch["labels"], y)
    with pytest.raises(ValueError, match="a batch has no 'input_values', it has"):
        MixupCollator(mix, input_name="input_values")(data()[:8])


class Counted(torch.utils.data.Dataset):
    """Knows how often each sample was read."""

    def __init__(self) -> None:
        self.samples, self.reads = data(), [0] * 40

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict:
        self.reads[index] += 1
        return self.samples[index]


def test_means_are_gathered_while_training_and_cost_no_read(tmp_path) -> None:
    callback, samples = MixupCallback(0.7, 3, seed=3), Counted()
    run = trainer(tmp_path, [callback], eval_strategy="epoch", eval_on_start=True, save_strategy="epoch")
    run.train_dataset = samples
    run.train()
    assert samples.reads == [2] * 40
    torch.testing.assert_close(callback.moments.x_mean, images().double().mean(0))
    # Resumed, they are found by one pass: what was seen before is not kept. Then an epoch is trained, on as many reads.
    again, samples = MixupCallback(0.7, 3, seed=3), Counted()
    run = trainer(tmp_path, [again], num_train_epochs=3)
    run.train_dataset = samples
    run.train(resume_from_checkpoint=True)
    assert samples.reads == [2] * 40
    torch.testing.assert_close(again.moments.x_mean, callback.moments.x_mean)


def test_worker_processes_and_methods_with_means_take_one_pass(tmp_path) -> None:
    moments = DataMoments(3)
    moments.update(images(), torch.tensor([sample["labels"] for sample in data()]))
    # Reads of worker processes are not seen here, but those of the pass are theirs, too.
    callback = MixupCallback(0.7, 3)
    trainer(tmp_path, [callback], max_steps=1, dataloader_num_workers=1).train()
    torch.testing.assert_close(callback.moments.x_mean, moments.x_mean)
    callback, samples = MixupCallback(0.7, 3, method="gaussian"), Counted()
    run = trainer(tmp_path, [callback], num_train_epochs=1)
    run.train_dataset = samples
    run.train()
    assert samples.reads == [2] * 40
    torch.testing.assert_close(callback.method.moments.x_mean, moments.x_mean)
    callback, samples = MixupCallback(0.7, 3, moments=moments), Counted()
    run = trainer(tmp_path, [callback], num_train_epochs=1, dataloader_num_workers=0)
    run.train_dataset = samples
    run.train()
    assert samples.reads == [1] * 40


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(data())


def test_iterable_data_is_averaged_on_the_way_and_otherwise_needs_moments(tmp_path) -> None:
    moments = DataMoments(3)
    moments.update(images(), torch.tensor([sample["labels"] for sample in data()]))

    def run(callback, **settings):
        run = trainer(tmp_path, [callback], max_steps=3, **settings)
        run.train_dataset = Stream()
        run.train()
        return callback

    torch.testing.assert_close(run(MixupCallback(0.7, 3)).moments.x_mean, moments.x_mean)
    with pytest.raises(ValueError, match="give MixupCallback its moments="):
        run(MixupCallback(0.7, 3), dataloader_num_workers=1)
    found = run(MixupCallback(0.7, 3, moments=moments), dataloader_num_workers=1)
    assert found.moments is moments


def test_a_second_training_averages_its_own_data(tmp_path) -> None:
    callback = MixupCallback(0.7, 3)
    trainer(tmp_path, [callback], max_steps=1).train()
    run = trainer(tmp_path, [callback], num_train_epochs=1)
    run.train_dataset = [{**sample, "pixel_values": sample["pixel_values"] + 10} for sample in data()]
    run.train()
    torch.testing.assert_close(callback.moments.x_mean, (images() + 10).double().mean(0), rtol=1e-5, atol=1e-5)


def test_training_with_the_model_s_own_loss_is_refused(tmp_path) -> None:
    net = model()
    run = trainer(tmp_path, [MixupCallback(0.7, 3)], net)
    run.compute_loss_func = None
    with pytest.raises(ValueError, match="give Trainer compute_loss_func=mixup_loss"):
        run.train()
    assert net.config.problem_type is None


def test_the_loss_of_a_rescaled_model_is_that_of_its_logits(tmp_path) -> None:
    net, callback = model(), MixupCallback(0.7, 3)
    trainer(tmp_path, [callback], net, max_steps=2).train()
    labels = torch.tensor([sample["labels"] for sample in data()])
    with torch.no_grad():
        found = net.eval()(pixel_values=images(), labels=labels)
    torch.testing.assert_close(found.loss, cross_entropy(found.logits, labels))
    callback.save(tmp_path)
    again = model()
    again.load_state_dict(net.state_dict())
    rescale_from(again, tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(images()).logits, found.logits)
    with pytest.raises(ValueError, match="there are no means to rescale with"):
        MixupCallback(0.7, 3).save(tmp_path)


def test_without_transformers_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "mixreg.adapters.huggingface")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'mixreg\[huggingface\]'"):
        import mixreg.adapters.huggingface  # noqa: F401
