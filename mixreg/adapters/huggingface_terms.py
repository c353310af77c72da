"""The terms of Theorem 3 while Hugging Face's `Trainer` trains: a `TermsMonitor` as a callback.

    Trainer(model, …, callbacks=[MixupCallback(…), TermsCallback(TermsMonitor(x, y, 1.0, moments))])

After every epoch (or every `monitor.every`-th) its measures are in the trainer's log history, as terms_base and so on.

Needs transformers: `pip install 'mixreg[huggingface]'`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mixreg.training.terms_monitor import TermsMonitor

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError("TermsCallback needs transformers: pip install 'mixreg[huggingface]'") from error


class _Logits(nn.Module):
    """A model as a function of its inputs to its logits."""

    def __init__(self, model: nn.Module, input_name: str) -> None:
        super().__init__()
        self.model, self.input_name = model, input_name

    def forward(self, x: Tensor) -> Tensor:
        """Logits, n × c."""
        logits: Tensor = self.model(**{self.input_name: x}).logits
        return logits


class TermsCallback(TrainerCallback):
    """See the module's head.

    Args:
        monitor: what to measure, and on which samples.
        input_name: of the inputs.
    """

    def __init__(self, monitor: TermsMonitor, input_name: str = "pixel_values") -> None:
        self.monitor, self.input_name = monitor, input_name

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure, and add what was found to the log."""
        found = self.monitor(_Logits(given["model"], self.input_name), state.epoch)
        if found is not None and state.is_world_process_zero:
            values = {f"terms_{name}": value for name, value in found.items() if math.isfinite(value) and name != "at"}
            state.log_history.append(values | {"epoch": state.epoch, "step": state.global_step})
