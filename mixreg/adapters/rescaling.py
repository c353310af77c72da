"""A prediction rule on a model of Hugging Face, by hooks: whenever the model is in evaluation mode it obeys the rule.

The rule is kept in a file beside a checkpoint's weights. The loss that a model returns beside its logits is computed
again, of the stretched ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mixreg._autodiff.network import rules_apply
from mixreg.adapters.own_loss import loss_again
from mixreg.prediction.rule import Rule

RULE = "mixup.safetensors"


class Rescaling:
    """While it is on, a model in evaluation mode obeys a rule.

    Args:
        model: of Hugging Face, which returns a mapping with "logits".
        rule: to be obeyed.
        input_name: what its input is called.
        label_name: what labels are called, of which it gives a loss.
    """

    def __init__(self, model: nn.Module, rule: Rule, input_name: str, label_name: str = "labels") -> None:
        self.rule, self.input_name, self.label_name = rule, input_name, label_name
        before = model.register_forward_pre_hook(self._before, with_kwargs=True)
        self._knows_loss = False
        self._handles = [before, model.register_forward_hook(self._after, with_kwargs=True)]

    def remove(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()

    def _shrunk(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            kind = type(x).__name__
            raise TypeError(f"the network's input must be one floating-point tensor to be shrunk, got {kind}")
        return self.rule.to(x.device).shrink(x)

    def _before(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if model.training or not rules_apply():
            return None
        if given:
            return (self._shrunk(given[0]), *given[1:]), named
        if self.input_name not in named:
            raise ValueError(f"the model was called without {self.input_name!r}, got {', '.join(named) or 'nothing'}")
        return given, named | {self.input_name: self._shrunk(named[self.input_name])}

    def _after(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        if not rules_apply():
            return None
        labels: Any = named.get(self.label_name)
        has_loss = isinstance(labels, Tensor) and isinstance(output, dict) and output.get("loss") is not None
        if model.training:
            # Now, and not when hours of training have passed.
            if has_loss and not self._knows_loss:
                self._loss_again(output, output["logits"], labels)
                self._knows_loss = True
            return None
        if not isinstance(output, dict) or "logits" not in output:
            raise TypeError(f"the model must return a mapping with its logits, got {type(output).__name__}")
        logits = self.rule.to(output["logits"].device).stretch(output["logits"])
        if has_loss:
            # The model's own was that of the logits before they were stretched.
            output["loss"] = self._loss_again(output, logits, labels)
        output["logits"] = logits
        return output

    def _loss_again(self, output: Any, logits: Tensor, labels: Tensor) -> Tensor:
        loss = loss_again(output["loss"], output["logits"], logits, labels)
        if loss is None:
            raise TypeError(
                "the model's own loss is neither cross-entropy nor squared error nor binary cross-entropy of its "
                "logits, so that it cannot be given for rescaled ones: give Trainer a compute_loss_func, or set "
                "rescale=False"
            )
        return loss


def rescale_from(
    model: nn.Module, folder: str | Path, input_name: str = "pixel_values", label_name: str = "labels"
) -> Rescaling:
    """Rescale a loaded model in evaluation mode, with the rule that a checkpoint's folder holds.

    Args:
        model: loaded from that folder.
        folder: of the checkpoint.
        input_name: what the model's input is called.
        label_name: what labels are called.

    Returns:
        What `remove()` takes off again.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(folder) / RULE
    try:
        rule = Rule.from_tensors(load_file(path))
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} does not hold the rule of a Mixup run: {error}") from error
    return Rescaling(model, rule, input_name, label_name)
