"""Mixup for text in Hugging Face's Trainer: a small encoder, mixed after its embedding.

pip install -c constraints.txt ".[huggingface]"
python examples/huggingface_text.py            # some seconds

Texts are made here: of 3 topics, with words of other topics among them, and some labels of the training set wrong.
Predictions are those of the plain network, of the rescaled one, and of one that is as rescaled as held-out texts say.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from mixreg import calibration
from mixreg.adapters.huggingface import MixupCallback, mixup_loss

WORDS, TOPICS, PADDING, START = 200, 3, 0, 1


def texts(n: int, seed: int, wrong: float = 0.0) -> list[dict[str, Any]]:
    """Tokens of 6 to 24 words with a topic each, of which a share is wrong."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for length in torch.randint(6, 25, (n,), generator=generator).tolist():
        topic = int(torch.randint(TOPICS, (), generator=generator))
        words = torch.randint(2, WORDS, (length,), generator=generator)
        is_on_topic = torch.rand(length, generator=generator) < 0.35
        words = torch.where(is_on_topic, 2 + topic + TOPICS * (words % 60), words)
        if float(torch.rand((), generator=generator)) < wrong:
            topic = int(torch.randint(TOPICS, (), generator=generator))
        found.append({"input_ids": [START, *words.tolist()], "labels": topic})
    return found


def padded(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch, padded at the end: tokens and their mask n × T, labels n."""
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"input_ids": ids, "attention_mask": (ids != PADDING).long(), "labels": labels}


def main(epochs: int, out: str) -> dict[str, tuple[float, float]]:
    """Train once; accuracy and cross-entropy of plain, rescaled and fitted predictions on new texts."""
    set_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=TOPICS,  # type: ignore[call-arg]
    )
    mixup = MixupCallback(alpha=1.0, num_classes=TOPICS, seed=0)
    trainer = Trainer(
        BertForSequenceClassification(config),  # type: ignore[no-untyped-call]
        TrainingArguments(
            out,
            num_train_epochs=epochs,
            per_device_train_batch_size=50,
            per_device_eval_batch_size=500,
            learning_rate=3e-3,
            save_strategy="no",
            report_to="none",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=texts(1000, seed=0, wrong=0.2),
        eval_dataset=texts(500, seed=1),
        data_collator=padded,
        callbacks=[mixup],
        compute_loss_func=mixup_loss,
    )
    trainer.train()
    new = texts(1000, seed=2)
    truth = torch.tensor([sample["labels"] for sample in new])

    def scores() -> tuple[float, float]:
        logits = torch.as_tensor(trainer.predict(new).predictions)  # type: ignore[arg-type]
        return float(calibration.accuracy(logits, truth)), float(cross_entropy(logits, truth))

    with mixup.plain():
        found = {"plain": scores()}
    found["rescaled"] = scores()
    mixup.fit(trainer.get_eval_dataloader())
    found["fitted"] = scores()
    for name, (accuracy, entropy) in found.items():
        print(f"{name:9} accuracy {100 * accuracy:.1f} %   cross-entropy {entropy:.3f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args().epochs, folder)
