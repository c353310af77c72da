"""Text in Hugging Face's Trainer: mixed after the embedding, against a loop written out; the rule against its mean."""

import math
import shutil
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from mixreg import Mixup, Rescaled, mixed_loss
from mixreg._support.random import seeded
from mixreg.losses.targets import to_values

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from encoders import CONFIGS, encoder, padded, tagged, texts, trainer  # noqa: E402

from mixreg.adapters.embeddings import EmbeddingMixing, embedded  # noqa: E402
from mixreg.adapters.huggingface import MixupCallback, MixupCollator, mixup_loss, rescale_from  # noqa: E402
from mixreg.adapters.token_moments import TokenMoments  # noqa: E402

pytestmark = [pytest.mark.xdist_group("huggingface")]


def written_out(folder, net, samples, loss, epochs: int = 2, num_classes: int | None = None):
    """The same training as a loop: Mixup of (embedding, mask) with its parts, as any loop has it."""
    mix, embedding = Mixup(0.7, generator=seeded(3)), net.get_input_embeddings()
    batches = trainer(folder, net, samples).get_train_dataloader()
    optimizer = torch.optim.SGD(net.train().parameters(), lr=0.1)
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for batch in batches:
            ids, mask = batch["input_ids"], batch["attention_mask"].bool()
            vectors = embedding(ids) * mask.unsqueeze(2)
            (vectors, mask), mixed = mix((vectors, mask), batch["labels"], parts=True)
            optimizer.zero_grad()
            loss(net(inputs_embeds=vectors, attention_mask=mask.long()).logits, mixed).backward()
            optimizer.step()
    return net.eval()


def assert_same_weights(found: nn.Module, expected: nn.Module) -> None:
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[key], value, rtol=1e-5, atol=1e-6, msg=key)


def x_mean_of(net: nn.Module, batch: dict) -> torch.Tensor:
    return embedded(net, batch["input_ids"], batch["attention_mask"]).detach().double().mean(0)


def shrunk(net: nn.Module, batch: dict, x_mean: torch.Tensor, share: float) -> torch.Tensor:
    vectors = embedded(net, batch["input_ids"], batch["attention_mask"])
    return (x_mean + share * (vectors - x_mean)).float()


@pytest.mark.parametrize("kind", CONFIGS)
def test_encoders_end_with_the_weights_of_the_plain_loop_and_are_evaluated_rescaled(tmp_path, kind) -> None:
    net, callback, samples = encoder(kind), MixupCallback(0.7, 3, seed=3), texts()
    run = trainer(tmp_path, net, samples, [callback], mixup_loss)
    run.train()
    expected = written_out(tmp_path, encoder(kind), samples, mixed_loss(nn.CrossEntropyLoss()))
    assert_same_weights(net, expected)
    batch, share = padded(samples), float(Mixup(0.7).theta.mean)
    labels = batch["labels"]
    y_mean = torch.bincount(labels, minlength=3) / len(labels)
    with torch.no_grad():
        vectors = shrunk(expected, batch, x_mean_of(expected, batch), share)
        on_shrunk = expected(inputs_embeds=vectors, attention_mask=batch["attention_mask"]).logits
        plain = expected(batch["input_ids"], batch["attention_mask"]).logits
    logits = y_mean + (on_shrunk - y_mean) / share
    found = torch.from_numpy(run.predict(samples).predictions)
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-5)
    assert float((found - plain).abs().max()) > 1e-3
    assert run.evaluate()["eval_loss"] == pytest.approx(float(cross_entropy(found, labels)), rel=1e-4)
    # By position or by name, and as a network of its own.
    with torch.no_grad():
        torch.testing.assert_close(net(batch["input_ids"], batch["attention_mask"]).logits, found)
        alone = callback.rescaled_model()
        assert isinstance(alone, Rescaled)
        torch.testing.assert_close(alone(batch["input_ids"], attention_mask=batch["attention_mask"]), found)
        with callback.plain():
            torch.testing.assert_close(net(**batch).logits, plain)
        callback.release()
        torch.testing.assert_close(net(**batch).logits, plain)
        torch.testing.assert_close(alone(batch["input_ids"], attention_mask=batch["attention_mask"]), found)


def test_a_text_is_predicted_alike_however_much_it_is_padded(tmp_path) -> None:
    net, callback = encoder(), MixupCallback(0.7, 3, seed=3)
    trainer(tmp_path, net, texts(), [callback], mixup_loss).train()
    batch = padded(texts())
    longer = {
        name: torch.cat([batch[name], batch[name].new_zeros(36, 8)], 1) for name in ("input_ids", "attention_mask")
    }
    short = [sample for sample in texts() if len(sample["input_ids"]) < 7]
    with torch.no_grad():
        logits = net.eval()(batch["input_ids"], batch["attention_mask"]).logits
        torch.testing.assert_close(net(**longer).logits, logits)
        places = [i for i, sample in enumerate(texts()) if len(sample["input_ids"]) < 7]
        torch.testing.assert_close(net(**padded(short)).logits, logits[places])


def test_labels_of_tokens_train_as_the_plain_loop(tmp_path) -> None:
    net, callback, samples = encoder(task="TokenClassification"), MixupCallback(0.7, 3, seed=3), tagged()
    run = trainer(tmp_path, net, samples, [callback], mixup_loss)
    run.train()

    def loss(logits, mixed):
        total = mixed_loss(nn.CrossEntropyLoss(reduction="sum"))(logits.transpose(1, 2), mixed)
        return total / (mixed.y != -100).sum()

    expected = written_out(tmp_path, encoder(task="TokenClassification"), samples, loss)
    assert_same_weights(net, expected)
    batch = padded(samples)
    labels = batch["labels"]
    found = run.predict(samples)
    logits = torch.from_numpy(found.predictions)
    plain = expected(batch["input_ids"], batch["attention_mask"]).logits.detach()
    assert float((logits - plain)[labels != -100].abs().max()) > 1e-3
    assert found.metrics["test_loss"] > 0
    with torch.no_grad():
        alone = callback.rescaled_model()(batch["input_ids"], attention_mask=batch["attention_mask"])
        own = net(**batch)
    torch.testing.assert_close(alone[labels != -100], logits[labels != -100])
    torch.testing.assert_close(own.loss, cross_entropy(logits.transpose(1, 2), labels))
    with pytest.raises(ValueError, match="share for every position, and cannot be fitted"):
        callback.fit([batch])
    callback.save(tmp_path)
    again = encoder(task="TokenClassification")
    again.load_state_dict(net.state_dict())
    rescale_from(again, tmp_path)
    torch.testing.assert_close(again.eval()(**batch).logits[labels != -100], logits[labels != -100])


def test_accumulated_batches_of_tokens_weigh_tokens_alike(tmp_path) -> None:
    nets = []
    for size, steps in ((6, 2), (12, 1)):
        net = encoder(task="TokenClassification")
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, "num_train_epochs": 1}
        trainer(tmp_path, net, tagged(), [MixupCallback(0.0, 3)], mixup_loss, **settings).train()
        nets.append(net)
    assert_same_weights(*nets)


def test_ignored_tokens_have_no_gradient_and_others_their_share() -> None:
    batch = MixupCollator(Mixup(0.7, 3, generator=seeded(0)), padded, "input_ids")(tagged())
    own, other = batch["labels"], batch["mixup_labels"]
    logits = torch.randn(*own.shape, 3, generator=seeded(1), requires_grad=True)
    outputs = {"logits": logits, "mixup_labels": other, "mixup_share": batch["mixup_share"]}
    mixup_loss(outputs, own).backward()
    is_free = (own == -100) & (other == -100)
    assert bool((logits.grad[is_free] == 0).all())
    assert bool((logits.grad[~is_free].abs().sum(1) > 0).all())
    # Own and partner's label at one position, each as much as its share.
    weight = (own != -100) * (1 - batch["mixup_share"].unsqueeze(1)) + (other != -100) * batch["mixup_share"].unsqueeze(
        1
    )
    target = logits.softmax(2) * weight.unsqueeze(2) - logits.grad * (own != -100).sum()
    torch.testing.assert_close(target.sum(2), weight)
    is_own = (own != -100) & (other == -100)
    picked = target[is_own].gather(1, own[is_own].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(picked, weight[is_own])


def shown(samples, net, draws: int, copies: int = 500):
    """What the collator and the model's embedding make of texts, again and again: draws × n × ….

    Copies of the texts in one batch: a partner is then each text, and itself, alike.
    """
    collator, mixing = MixupCollator(Mixup(0.7, 3, generator=seeded(11)), padded, "input_ids"), EmbeddingMixing(net)
    seen: dict[str, list] = {name: [] for name in ("inputs_embeds", "labels", "mixup_labels", "mixup_share")}

    def keep(_, given, named) -> None:
        seen["inputs_embeds"].append(named.get("inputs_embeds"))

    handle = net.bert.register_forward_pre_hook(keep, with_kwargs=True)
    for _ in range(draws // copies):
        batch = collator(samples * copies)
        for name in ("labels", "mixup_labels", "mixup_share"):
            seen[name].append(batch.get(name))
        batch.pop("labels")
        with torch.no_grad():
            net.train()(**batch)
    handle.remove()
    mixing.remove()
    # The first two calls compared tokens with embeddings.
    seen["inputs_embeds"] = seen["inputs_embeds"][2:]
    return {
        name: torch.cat([part.reshape(copies, len(samples), *part.shape[1:]) for part in parts])
        for name, parts in seen.items()
        if parts[0] is not None
    }


def assert_mean(values: torch.Tensor, expected: torch.Tensor) -> None:
    error = values.std(0) / math.sqrt(len(values))
    assert bool(((values.mean(0) - expected).abs() <= 4 * error + 1e-6).all())


def test_the_rule_is_the_mean_of_what_is_shown_of_a_text() -> None:
    net, samples = encoder(), texts(8)
    batch = padded(samples)
    moments = TokenMoments(3)
    moments.update(batch["input_ids"], batch["attention_mask"], batch["labels"])
    rule = moments.rule(Mixup(0.7, 3), net.get_input_embeddings())
    torch.testing.assert_close(rule.x_mean, x_mean_of(net, batch))
    drawn = shown(samples, net, 3000)
    own = embedded(net, batch["input_ids"], batch["attention_mask"]).detach().double()
    # At padded places, too: zeros, as the method shows them.
    assert_mean(drawn["inputs_embeds"].double(), rule.shrink(own))
    values = to_values(batch["labels"], 3, torch.float64)
    assert_mean(drawn["labels"].double(), rule.y_mean + rule.y_share * (values - rule.y_mean))
    # A mean over real tokens alone would be another one.
    tokens = batch["attention_mask"].sum(0).clamp(min=1).unsqueeze(1)
    wrong = own.sum(0) / tokens
    assert float((wrong - rule.x_mean).abs().max()) > 0.01


def test_the_rule_is_the_mean_of_what_is_shown_of_a_token() -> None:
    net, samples = encoder(task="TokenClassification"), tagged(8)
    batch = padded(samples)
    moments = TokenMoments(3)
    moments.update(batch["input_ids"], batch["attention_mask"], batch["labels"])
    rule = moments.rule(Mixup(0.7, 3), net.get_input_embeddings())
    drawn = shown(samples, net, 3000)
    own = embedded(net, batch["input_ids"], batch["attention_mask"]).detach().double()
    assert_mean(drawn["inputs_embeds"].double(), rule.shrink(own))

    def soft(labels: torch.Tensor) -> torch.Tensor:
        known = labels != -100
        return nn.functional.one_hot(labels.masked_fill(~known, 0), 3).double() * known.unsqueeze(-1)

    labels = batch["labels"]
    share, partner = drawn["mixup_share"].double()[..., None, None], soft(drawn["mixup_labels"])
    # A ratio of means: the target, of the weight that it has on average.
    target = (1 - share) * soft(labels) + share * partner
    expected = rule.y_mean + rule.y_share * (soft(labels) - rule.y_mean)
    known = labels != -100
    assert_mean((target - target.sum(3, keepdim=True) * expected)[:, known], torch.zeros(()))


def test_moments_do_not_depend_on_batches_and_follow_the_embedding() -> None:
    net, samples = encoder(), texts()
    whole, pieces = TokenMoments(3), TokenMoments(3)
    batch = padded(samples)
    whole.update(batch["input_ids"], batch["attention_mask"], batch["labels"])
    for start in range(0, 36, 5):
        one, part = TokenMoments(3), padded(samples[start : start + 5])
        one.update(part["input_ids"], part["attention_mask"], part["labels"])
        pieces.merge(one)
    embedding = net.get_input_embeddings()
    for _ in range(2):
        torch.testing.assert_close(pieces.x_mean(embedding), whole.x_mean(embedding))
        torch.testing.assert_close(whole.x_mean(embedding), x_mean_of(net, batch))
        nn.init.normal_(embedding.weight)


TARGETS = {
    "regression": (1, torch.randn(36, generator=seeded(2)), mse_loss, "squared_error"),
    "several labels": (
        4,
        torch.randint(2, (36, 4), generator=seeded(2)).float(),
        binary_cross_entropy_with_logits,
        "logistic",
    ),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_regression_and_several_labels_of_texts(tmp_path, kind) -> None:
    outputs, targets, loss, name = TARGETS[kind]
    samples = [{**sample, "labels": y.tolist()} for sample, y in zip(texts(), targets, strict=True)]
    problem = {"problem_type": "multi_label_classification"} if kind == "several labels" else {}
    net, callback = encoder(labels=outputs, **problem), MixupCallback(0.7, seed=3)
    run = trainer(tmp_path, net, samples, [callback])
    run.train()
    expected = written_out(
        tmp_path, encoder(labels=outputs), samples, lambda u, mixed: loss(u.reshape(mixed.y.shape), mixed.values())
    )
    assert_same_weights(net, expected)
    predicted = torch.from_numpy(run.predict(samples).predictions).reshape(targets.shape)
    assert run.evaluate()["eval_loss"] == pytest.approx(float(loss(predicted, targets)), rel=1e-4)
    with warnings.catch_warnings():
        # That so few texts tell little.
        warnings.simplefilter("ignore")
        fitted = callback.fit(run.get_eval_dataloader(), loss=name)
    assert fitted.fitted.loss == name
    predicted = torch.from_numpy(run.predict(samples).predictions).reshape(targets.shape)
    scale = 0.5 if kind == "regression" else targets.shape[1]
    assert scale * float(loss(predicted, targets)) == pytest.approx(fitted.fitted.mean_loss, rel=1e-3)


def test_a_fitted_rule_is_obeyed_and_stored_beside_the_model(tmp_path) -> None:
    net, callback = encoder(), MixupCallback(0.7, 3, seed=3)
    samples = [{**sample, "labels": sample["input_ids"][1] % 3} for sample in texts(200)]
    settings = {"num_train_epochs": 6, "optim": "adamw_torch", "learning_rate": 0.01}
    run = trainer(tmp_path, net, samples, [callback], mixup_loss, **settings)
    run.train()
    held_out = [{**sample, "labels": sample["input_ids"][1] % 3} for sample in texts(100, seed=9)]
    before = run.evaluate(held_out)["eval_loss"]
    fitted = callback.fit([padded(held_out[:50]), padded(held_out[50:])])
    after = run.evaluate(held_out)["eval_loss"]
    assert after == pytest.approx(fitted.fitted.best.loss, rel=1e-3)
    assert after < before
    callback.save(tmp_path)
    again = encoder()
    again.load_state_dict(net.state_dict())
    handle = rescale_from(again, tmp_path)
    batch = padded(held_out)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(**batch).logits, net.eval()(**batch).logits)
        torch.testing.assert_close(handle.rescaled_model()(batch), fitted(batch))
    with pytest.raises(TypeError, match="not an iterator"):
        callback.fit(iter([batch]))
    # A second training begins with the rule itself.
    run.train()
    assert callback.rescaled_model().strength == 1


def test_text_is_resumed_with_the_same_bits(tmp_path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3}
    whole, callback = encoder(), MixupCallback(0.7, 3, seed=3)
    run = trainer(tmp_path / "whole", whole, texts(), [callback], mixup_loss, **settings)
    run.train()
    shutil.copytree(tmp_path / "whole" / "checkpoint-4", tmp_path / "kept")
    resumed = encoder()
    again = trainer(tmp_path / "resumed", resumed, texts(), [MixupCallback(0.7, 3, seed=99)], mixup_loss, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "kept"))
    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key
    first, second = (torch.from_numpy(each.predict(texts()).predictions) for each in (run, again))
    torch.testing.assert_close(first, second)
