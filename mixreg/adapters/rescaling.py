"""A prediction rule on a model of Hugging Face, by hooks: whenever the model is in evaluation mode it obeys the rule.

The rule is kept in a file beside a checkpoint's weights, with the strength and the temperature that held-out data gave
it if it was fitted. The loss that a model returns beside its logits is computed again, of the stretched ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mixreg._autodiff.network import rules_apply
from mixreg._support.processes import gather_objects, rank
from mixreg.adapters.embeddings import by_name, logits_of, main_input
from mixreg.adapters.own_loss import loss_again
from mixreg.adapters.rescaled_calls import Pairs, PlacedRule, rescaled_network
from mixreg.prediction.rescaled import Rescaled
from mixreg.prediction.rule import Rule

RULE = "mixup.safetensors"
Owner = TypeVar("Owner")


def hook_owners(model: nn.Module, kind: type[Owner]) -> list[Owner]:
    """Objects of a kind that have hooks before calls of the model, or of a module in it."""
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    found = [getattr(hook, "__self__", None) for hook in hooks]
    return [each for each in found if isinstance(each, kind)]


class Rescaling:
    """While it is on, a model in evaluation mode obeys a rule, in place of any other that it obeyed.

    Args:
        model: of Hugging Face, which returns a mapping with "logits".
        rule: to be obeyed; or what gives it, None for as long as there is none.
        input_name: what its input is called; by default as the model says.
        label_name: what labels are called, of which it gives a loss.
        strength, temperature: of the rule's family, κ and T, as of `mixreg.Rescaled`.
        is_after: whether the temperature is one after the rule (`mixreg.prediction.tempering`).
    """

    def __init__(
        self,
        model: nn.Module,
        rule: Rule | Callable[[], Rule | None],
        input_name: str | None = None,
        label_name: str = "labels",
        strength: float = 1.0,
        temperature: float | Tensor | None = None,
        is_after: bool = False,
    ) -> None:
        self.model, self._rule = model, rule
        self.input_name, self.label_name = input_name or main_input(model), label_name
        self.strength, self.temperature = strength, temperature
        self.is_after = is_after
        for earlier in hook_owners(model, Rescaling):
            earlier.remove()
        before = model.register_forward_pre_hook(self._before, with_kwargs=True)
        self._knows_loss = False
        # What the input of the call that is under way was shrunk by.
        self._obeyed: PlacedRule | None = None
        self._handles = [before, model.register_forward_hook(self._after, with_kwargs=True)]

    def remove(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()

    @property
    def placed(self) -> PlacedRule | None:
        """The rule of now with strength and temperature, if there is one."""
        rule = self._rule if isinstance(self._rule, Rule) else self._rule()
        return None if rule is None else PlacedRule(rule, self.strength, self.temperature, self.is_after)

    def _require_placed(self) -> PlacedRule:
        placed = self.placed
        if placed is None:
            raise ValueError("there are no means to rescale with: train first, with rescale=True, or give moments=")
        return placed

    def rescaled_model(self) -> Rescaled:
        """The model with its rule as a network of its own, which returns logits, whatever becomes of the hooks."""
        return rescaled_network(self.model, self.input_name, self._require_placed())

    def fit(self, loader: Iterable[Any], loss: str = "cross_entropy") -> Rescaled:
        """Set strength and temperature to what makes held-out data most likely, and give the fitted network.

        Args:
            loader: of batches of the model, dicts with labels, that were neither trained nor tested on.
            loss: "cross_entropy", "logistic" (several labels at once) or "squared_error" (no temperature).
        """
        if isinstance(loader, Iterator):
            raise TypeError("held-out data is gone through several times: give a loader or a list, not an iterator")
        if self._require_placed().rule.y_mean.ndim > 1:
            raise ValueError("the rule for labels of tokens has a share for every position, and cannot be fitted")
        network = self.rescaled_model()
        network.strength, network.temperature = 1.0, None
        network.fit(Pairs(loader, self.input_name, self.label_name), loss=loss)
        self.strength, self.temperature = network.strength, network.temperature
        self.is_after = network.tempers_after
        return network

    @property
    def strength(self) -> float:
        """κ; whoever sets it, or T, has a temperature about m_y again."""
        return self._strength

    @strength.setter
    def strength(self, strength: float) -> None:
        self._strength, self.is_after = strength, False

    @property
    def temperature(self) -> float | Tensor | None:
        """T, or None for that of the strength."""
        return self._temperature

    @temperature.setter
    def temperature(self, temperature: float | Tensor | None) -> None:
        self._temperature, self.is_after = temperature, False

    def save(self, folder: str | Path) -> None:
        """Write the rule, its strength and its temperature into a model's folder, for `rescale_from`."""
        from safetensors.torch import save

        from mixreg._support.files import write_bytes

        tensors = self._require_placed().rule.to_tensors()
        tensors["strength"] = torch.tensor(self.strength, dtype=torch.float64)
        if self.temperature is not None:
            tensors["temperature"] = torch.as_tensor(self.temperature, dtype=torch.float64).cpu()
        if self.is_after:
            tensors["is_after"] = torch.tensor(1.0, dtype=torch.float64)
        write_bytes(Path(folder) / RULE, save(tensors))

    def _before(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._obeyed = None if model.training or not rules_apply() else self.placed
        if self._obeyed is None:
            return None
        return (), self._obeyed.shrunk(model, self.input_name, by_name(model, given, named))

    def _after(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        if not rules_apply():
            return None
        labels: Any = named.get(self.label_name)
        has_loss = isinstance(labels, Tensor) and isinstance(output, dict) and output.get("loss") is not None
        if model.training:
            # Now, and not when hours of training have passed.
            logits_of(output)
            if has_loss and not self._knows_loss:
                self._loss_again(output, output["logits"], labels)
                self._knows_loss = True
            return None
        if self._obeyed is None:
            return None
        logits = self._obeyed.stretched(logits_of(output))
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
    model: nn.Module, folder: str | Path, input_name: str | None = None, label_name: str = "labels"
) -> Rescaling:
    """Rescale a loaded model in evaluation mode, with the rule that a checkpoint's folder holds.

    Args:
        model: loaded from that folder, or with an adapter of PEFT from it.
        folder: of the checkpoint.
        input_name: what the model's input is called; by default as the model says.
        label_name: what labels are called.

    Returns:
        What `remove()` takes off again.
    """
    placed = _read(Path(folder) / RULE)
    return Rescaling(model, placed.rule, input_name, label_name, placed.strength, placed.temperature, placed.is_after)


def placed_beside(folder: str | Path | None) -> PlacedRule | None:
    """The rule that the first process finds in a checkpoint's folder, if there is one; all processes must call this."""
    path = None if folder is None else Path(folder) / RULE
    found: PlacedRule | None = gather_objects(_read(path) if rank() == 0 and path and path.is_file() else None)[0]
    return found


def _read(path: Path) -> PlacedRule:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        rule = Rule.from_tensors(tensors)
        # Files of earlier versions have neither.
        strength, found = float(tensors.get("strength", torch.tensor(1.0))), tensors.get("temperature")
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} does not hold the rule of a Mixup run: {error}") from error
    return PlacedRule(rule, strength, found if found is None or found.ndim else float(found), "is_after" in tensors)
