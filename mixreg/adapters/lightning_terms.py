"""The terms of Theorem 3 while Lightning trains: a `TermsMonitor` as a callback.

    Trainer(callbacks=[MixupCallback(…), TermsCallback(TermsMonitor(x, y, 1.0, moments))])

After every epoch (or every `monitor.every`-th) its measures are logged as terms/base, terms/joint, …

Needs lightning: `pip install 'mixreg[lightning]'`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mixreg.training.terms_monitor import TermsMonitor

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
else:
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        try:
            from pytorch_lightning.callbacks import Callback
        except ImportError as error:
            raise ImportError("TermsCallback needs Lightning: pip install 'mixreg[lightning]'") from error


class TermsCallback(Callback):
    """See the module's head.

    Args:
        monitor: what to measure, and on which samples.
        network: the submodule that makes the logits, by name; by default the module itself, called as `self(x)`.
    """

    def __init__(self, monitor: TermsMonitor, network: str = "") -> None:
        self.monitor, self.network = monitor, network

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure, and log what was found."""
        found = self.monitor(pl_module.get_submodule(self.network), trainer.current_epoch + 1)
        if found is not None:
            values = {f"terms/{name}": value for name, value in found.items() if math.isfinite(value) and name != "at"}
            pl_module.log_dict(values, rank_zero_only=True)
