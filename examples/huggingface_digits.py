"""Mixup for Hugging Face's Trainer: a small vision transformer on scikit-learn's digits.

pip install -c constraints.txt ".[huggingface]"
python examples/huggingface_digits.py            # half a minute
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

from mixreg import calibration
from mixreg.adapters.huggingface import MixupCallback, mixup_loss


def main(epochs: int, out: str) -> None:
    """Train once; evaluate with and without the rescaling."""
    set_seed(0)
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    samples = [{"pixel_values": image, "labels": int(label)} for image, label in zip(x, labels, strict=True)]
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,  # type: ignore[call-arg]
    )
    mixup = MixupCallback(alpha=1.0, num_classes=10)
    trainer = Trainer(
        ViTForImageClassification(config),
        TrainingArguments(
            out,
            num_train_epochs=epochs,
            per_device_train_batch_size=50,
            per_device_eval_batch_size=797,
            learning_rate=2e-3,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=samples[:1000],
        callbacks=[mixup],
        compute_loss_func=mixup_loss,
    )
    trainer.train()
    for name in ("rescaled", "plain"):
        logits = torch.as_tensor(trainer.predict(samples[1000:]).predictions)  # type: ignore[arg-type]
        truth = torch.tensor(labels[1000:])
        accuracy, error = calibration.accuracy(logits, truth), calibration.expected_calibration_error(logits, truth)
        print(f"{name:9} accuracy {100 * float(accuracy):.1f} %   ECE {100 * float(error):.1f} %")
        mixup.release()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args().epochs, folder)
