"""LoRA in Hugging Face's Trainer: an adapter trains with Mixup, predicts rescaled, and its checkpoint has the rule."""

import pytest
import torch
from torch import nn

from mixreg import Mixup, mixed_loss

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
peft = pytest.importorskip("peft", reason="peft is not installed")
from encoders import encoder, padded, texts, trainer  # noqa: E402
from test_huggingface import data, images  # noqa: E402
from test_huggingface import model as image_model  # noqa: E402
from test_huggingface_text import assert_same_weights, written_out  # noqa: E402

from mixreg.adapters.huggingface import RULE, MixupCallback, mixup_loss, rescale_from  # noqa: E402

pytestmark = [pytest.mark.xdist_group("huggingface")]


def with_lora(net: nn.Module, task: str | None = "SEQ_CLS") -> nn.Module:
    torch.manual_seed(1)
    config = peft.LoraConfig(
        task_type=task, r=2, lora_dropout=0.0, target_modules=["query", "value", "q_proj", "v_proj"]
    )
    if task is None:
        config.modules_to_save = ["classifier"]
    return peft.get_peft_model(net, config)


def test_an_adapter_trains_as_the_plain_loop_and_its_checkpoint_keeps_the_rule(tmp_path) -> None:
    net, callback, samples = with_lora(encoder()), MixupCallback(0.7, 3, seed=3), texts()
    run = trainer(tmp_path, net, samples, [callback], mixup_loss, save_strategy="epoch")
    run.train()
    expected = written_out(tmp_path, with_lora(encoder()), samples, mixed_loss(nn.CrossEntropyLoss()))
    assert_same_weights(net, expected)
    batch, share = padded(samples), float(Mixup(0.7).theta.mean)
    embedding = expected.get_input_embeddings()
    with torch.no_grad():
        vectors = embedding(batch["input_ids"]) * batch["attention_mask"].unsqueeze(2)
        vectors = vectors.mean(0) + share * (vectors - vectors.mean(0))
        on_shrunk = expected(inputs_embeds=vectors, attention_mask=batch["attention_mask"]).logits
    y_mean = torch.bincount(batch["labels"], minlength=3) / len(samples)
    logits = y_mean + (on_shrunk - y_mean) / share
    found = torch.from_numpy(run.predict(samples).predictions)
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-5)
    # The checkpoint is the adapter alone, and the rule.
    folder = tmp_path / "checkpoint-6"
    assert {path.name for path in folder.iterdir()} >= {"adapter_model.safetensors", RULE}
    loaded = peft.PeftModel.from_pretrained(encoder(), folder)
    handle = rescale_from(loaded, folder)
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(**batch).logits, found, rtol=1e-4, atol=1e-5)
        alone = handle.rescaled_model()(batch["input_ids"], attention_mask=batch["attention_mask"])
    torch.testing.assert_close(alone, found, rtol=1e-4, atol=1e-5)


def test_an_adapter_of_an_image_model(tmp_path) -> None:
    net, callback = with_lora(image_model(), None), MixupCallback(0.7, 3, seed=3)
    run = trainer(tmp_path, net, data(), [callback], mixup_loss)
    run.data_collator = transformers.default_data_collator
    run.train()
    callback.save(tmp_path)
    net.save_pretrained(tmp_path)
    found = torch.from_numpy(run.predict(data()).predictions)
    loaded = peft.PeftModel.from_pretrained(image_model(), tmp_path)
    handle = rescale_from(loaded, tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(pixel_values=images()).logits, found, rtol=1e-4, atol=1e-5)
        handle.remove()
        assert float((loaded(pixel_values=images()).logits - found).abs().max()) > 1e-3
