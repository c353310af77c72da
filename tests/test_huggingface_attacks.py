"""What went wrong in Hugging Face's Trainer: embeddings that change unseen, the end of mixing, models of decoders."""

import pytest
import torch
from torch import nn

from mixreg import Choice, Mixup

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from encoders import encoder, padded, tagged, texts, trainer  # noqa: E402

from mixreg.adapters.embeddings import EmbeddingMixing  # noqa: E402
from mixreg.adapters.huggingface import MixupCallback, MixupCollator, mixup_loss  # noqa: E402
from mixreg.adapters.token_moments import TokenMoments  # noqa: E402

pytestmark = [pytest.mark.xdist_group("huggingface")]
# What Trainer takes by itself; a step of it does not raise the version of a weight.
FUSED = {"optim": "adamw_torch_fused", "learning_rate": 0.02}


def by_hand(net: nn.Module, callback: MixupCallback, samples: list[dict]) -> torch.Tensor:
    """eq. (testmodif) with the mean of the embedding of now."""
    batch, share = padded(samples), float(Mixup(0.7).theta.mean)
    y_mean = torch.bincount(batch["labels"], minlength=3) / len(samples)
    with torch.no_grad(), callback.plain():
        vectors = net.get_input_embeddings()(batch["input_ids"]) * batch["attention_mask"].unsqueeze(2)
        vectors = vectors.mean(0) + share * (vectors - vectors.mean(0))
        outputs = net.eval()(inputs_embeds=vectors, attention_mask=batch["attention_mask"]).logits
    return y_mean + (outputs - y_mean) / share


def assert_obeyed(net: nn.Module, callback: MixupCallback, samples: list[dict]) -> None:
    with torch.no_grad():
        found = net.eval()(**{name: value for name, value in padded(samples).items() if name != "labels"}).logits
    torch.testing.assert_close(found, by_hand(net, callback, samples), rtol=1e-4, atol=1e-5)


def known_moments(samples: list[dict]) -> TokenMoments:
    batch, moments = padded(samples), TokenMoments(3)
    moments.update(batch["input_ids"], batch["attention_mask"], batch["labels"])
    return moments


@pytest.mark.parametrize("kind", ["gathered", "of worker processes", "given", "resumed"])
def test_the_rule_follows_an_embedding_that_a_fused_optimiser_changes(tmp_path, kind) -> None:
    samples, net = texts(), encoder()
    moments = known_moments(samples) if kind == "given" else None
    settings = FUSED | {"eval_strategy": "epoch", "save_strategy": "epoch"}
    if kind == "of worker processes":
        settings["dataloader_num_workers"] = 1
    if kind == "resumed":
        trainer(tmp_path, encoder(), samples, [MixupCallback(0.7, 3, seed=3)], mixup_loss, **settings).train()
        settings["num_train_epochs"] = 4
    callback = MixupCallback(0.7, 3, seed=3, moments=moments)
    run = trainer(tmp_path, net, samples, [callback], mixup_loss, **settings)
    run.train(resume_from_checkpoint=kind == "resumed")
    assert_obeyed(net, callback, samples)


def test_the_rule_follows_weights_that_are_put_in_between_predictions(tmp_path) -> None:
    samples, net, callback = texts(), encoder(), MixupCallback(0.7, 3, seed=3)
    trainer(tmp_path, net, samples, [callback], mixup_loss, **FUSED).train()
    assert_obeyed(net, callback, samples)
    # As averages of weights are put in; tensors do not tell.
    weight = net.get_input_embeddings().weight
    weight.data.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(4)))
    assert_obeyed(net, callback, samples)
    net.load_state_dict(encoder().state_dict())
    assert_obeyed(net, callback, samples)


def test_the_rule_follows_an_adapter_of_the_embedding(tmp_path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(1)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["word_embeddings"], init_lora_weights=False)
    samples, net = texts(), peft.get_peft_model(encoder(), config)
    callback = MixupCallback(0.7, 3, seed=3, moments=known_moments(samples))
    trainer(tmp_path, net, samples, [callback], mixup_loss, eval_strategy="epoch", **FUSED).train()
    assert_obeyed(net, callback, samples)
    with net.disable_adapter():
        assert_obeyed(net, callback, samples)
    assert_obeyed(net, callback, samples)


def decoder(task: str = "SequenceClassification") -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 24}
    return getattr(transformers, f"LlamaFor{task}")(transformers.LlamaConfig(**sizes, num_labels=3, pad_token_id=0))


def of_length(length: int, samples: list[dict]) -> list[dict]:
    return [
        {**sample, "input_ids": (sample["input_ids"] * length)[:length], "attention_mask": [1] * length}
        for sample in samples
    ]


# Also as long as the model can read, so that there is no room for more.
@pytest.mark.parametrize("length", [2, 8, 24])
def test_decoders_that_read_the_last_token_are_refused_though_the_first_batch_has_no_padding(tmp_path, length) -> None:
    net, samples = decoder(), of_length(length, texts(12))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run = trainer(tmp_path, net, samples, [MixupCallback(0.7, 3)], mixup_loss)
    with pytest.raises(ValueError, match="LlamaForSequenceClassification does not read inputs_embeds as it reads"):
        run.train()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_decoders_are_refused_by_the_first_batch_that_has_room_for_padding() -> None:
    net, collator = decoder(), MixupCollator(Mixup(0.7, 3), padded, "input_ids")
    mixing = EmbeddingMixing(net.train())
    one, two = (collator(of_length(length, texts(12))) for length in (1, 2))
    for batch in (one, two):
        batch.pop("labels")
    net(**one)
    with pytest.raises(ValueError, match="does not read inputs_embeds as it reads"):
        net(**two)
    mixing.remove()


def test_what_reads_both_alike_is_trained_at_full_length_of_one_token_and_by_decoders(tmp_path) -> None:
    for length in (24, 1):
        net, callback, samples = encoder(), MixupCallback(0.7, 3), of_length(length, texts())
        trainer(tmp_path, net, samples, [callback], mixup_loss).train()
        assert_obeyed(net, callback, samples)
    run = trainer(tmp_path, decoder("TokenClassification"), tagged(), [MixupCallback(0.7, 3)], mixup_loss)
    run.train()
    assert run.state.global_step == 6


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("rescale", [True, False])
def test_another_number_of_classes_than_the_model_has_is_refused_before_training(tmp_path, classes, rescale) -> None:
    samples = [{**sample, "labels": sample["labels"] % 2} for sample in texts()]
    run = trainer(tmp_path, encoder(), samples, [MixupCallback(0.7, classes, rescale=rescale)], mixup_loss)
    with pytest.raises(ValueError, match=r"of MixupCallback must be the model's num_labels"):
        run.train()
    assert run.state.global_step == 0


def test_another_number_of_classes_of_tokens_is_refused_before_training(tmp_path) -> None:
    net = encoder(task="TokenClassification", labels=4)
    run = trainer(tmp_path, net, tagged(), [MixupCallback(0.7, 3)], mixup_loss)
    with pytest.raises(ValueError, match=r"num_classes=3 of MixupCallback must .* num_labels, which gives 4 outputs"):
        run.train()
    assert run.state.global_step == 0


@pytest.mark.parametrize("rescale", [True, False])
def test_models_that_return_tuples_are_refused_before_training(tmp_path, rescale) -> None:
    run = trainer(tmp_path, encoder(return_dict=False), texts(), [MixupCallback(0.7, 3, rescale=rescale)], mixup_loss)
    with pytest.raises(TypeError, match=r"a mapping with its logits \(return_dict=True\), got tuple"):
        run.train()
    assert run.state.global_step == 0


def smoothed(samples: list[dict], by: float) -> list[dict]:
    labels = torch.eye(3)[[sample["labels"] for sample in samples]] * (1 - by) + by / 3
    return [{**sample, "labels": y.tolist()} for sample, y in zip(samples, labels, strict=True)]


def test_smoothing_in_the_method_is_refused_for_text_and_smoothed_labels_are_mixed(tmp_path) -> None:
    method = Mixup(0.7, 3, label_smoothing=0.2)
    for each in (method, Choice([method])):
        run = trainer(tmp_path, encoder(), texts(), [MixupCallback(method=each)], mixup_loss)
        with pytest.raises(
            ValueError, match=r"label_smoothing=0\.2\) is not for text: .* smooth the labels of the tra"
        ):
            run.train()
        assert run.state.global_step == 0
    # As the sentence says, against cross-entropy with smoothing of its own: both are linear in labels.
    nets = [encoder(), encoder()]

    def loss(outputs, labels, **further):
        return nn.functional.cross_entropy(outputs.logits, labels, label_smoothing=0.2)

    trainer(tmp_path, nets[0], smoothed(texts(), 0.2), [MixupCallback(0.7, 3, seed=3)], mixup_loss).train()
    trainer(tmp_path, nets[1], texts(), [MixupCallback(0.7, 3, seed=3)], loss).train()
    for key, value in nets[1].state_dict().items():
        torch.testing.assert_close(nets[0].state_dict()[key], value, rtol=1e-5, atol=1e-6, msg=key)


def test_several_labels_of_texts_may_be_integers_and_by_chance_as_many_as_tokens(tmp_path) -> None:
    targets = torch.randint(2, (36, 8), generator=torch.Generator().manual_seed(2))
    nets = []
    for labels in (targets, targets.float()):
        samples = [{**each, "labels": y.tolist()} for each, y in zip(of_length(8, texts()), labels, strict=True)]
        nets.append(encoder(labels=8, problem_type="multi_label_classification"))
        trainer(tmp_path, nets[-1], samples, [MixupCallback(0.7, seed=3)]).train()
    for key, value in nets[1].state_dict().items():
        assert torch.equal(nets[0].state_dict()[key], value), key
    samples = [{**each, "labels": [3] * 8} for each in of_length(8, texts())]
    with pytest.raises(ValueError, match=r"tokens are classes: .* several numbers of a text, .* must be floating"):
        trainer(tmp_path, encoder(labels=8), samples, [MixupCallback(0.7)]).train()
