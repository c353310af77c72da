"""Mixup for an unchanged LightningModule, on scikit-learn's digits.

pip install -c constraints.txt ".[lightning]"
python examples/lightning_digits.py            # a few seconds
"""

from __future__ import annotations

import argparse

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mixreg import calibration
from mixreg.adapters.lightning import MixupCallback


class Digits(pl.LightningModule):
    """As anybody would write it: it knows nothing of Mixup."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy, of labels or of what Mixup makes of them."""
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Logits."""
        return self(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main(epochs: int) -> None:
    """Train once; predict with and without the rescaling."""
    pl.seed_everything(0, verbose=False)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)
    train = DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True)
    test = DataLoader(TensorDataset(x[1000:], y[1000:]), batch_size=797)
    module, mixup = Digits(), MixupCallback(alpha=1.0, num_classes=10)
    trainer = pl.Trainer(max_epochs=epochs, callbacks=[mixup], logger=False, enable_checkpointing=False)
    trainer.fit(module, train)
    for name, rescale in (("plain", False), ("rescaled", True)):
        mixup.rescale = rescale
        logits = torch.cat(trainer.predict(module, test))  # type: ignore[arg-type]
        accuracy = calibration.accuracy(logits, y[1000:])
        error = calibration.expected_calibration_error(logits, y[1000:])
        print(f"{name:9} accuracy {100 * float(accuracy):.1f} %   ECE {100 * float(error):.1f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    main(parser.parse_args().epochs)
