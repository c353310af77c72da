"""What went wrong in Hugging Face's Trainer: embeddings that change unseen, the end of mixing, models of decoders."""

import pytest
import torch
from torch import nn

from mixreg import Mixup

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from encoders import encoder, padded, texts, trainer  # noqa: E402

from mixreg.adapters.huggingface import MixupCallback, mixup_loss  # noqa: E402
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
