"""Mixup for Hugging Face's `Trainer`.

    Trainer(model, …, callbacks=[MixupCallback(alpha=1.0, num_classes=10)], compute_loss_func=mixup_loss)

When training begins the callback puts a `MixupCollator` around the training loader's collate function (evaluation has
its own loader, which stays as it is) and averages the training data once, for x̄ and ȳ. Whenever the model is in
evaluation mode, its inputs are shrunk and its logits stretched (eq. testmodif). Checkpoints get the means beside the
weights (a final model by `MixupCallback.save`), so that `rescale_from` can do the same for a model that was loaded.

Mixed labels are probabilities, which the losses inside Hugging Face's models take for those of several labels at once;
`mixup_loss` takes them for what they are, and training without it is refused.

Needs transformers: `pip install 'mixreg[huggingface]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from mixreg._support.random import seeded
from mixreg.methods.method import Augmentation
from mixreg.methods.mixup import Mixup
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError("MixupCallback needs transformers: pip install 'mixreg[huggingface]'") from error

RULE = "mixup.safetensors"
Collate = Callable[[list[Any]], dict[str, Any]]


class MixupCollator:
    """Mixes what another collate function makes of samples.

    Args:
        method: how to mix.
        collate: makes a dict of tensors of a list of samples; by default Hugging Face's.
        input_name: of the inputs, which are mixed.
        label_name: of the labels, which are mixed alike.
    """

    def __init__(
        self,
        method: Augmentation,
        collate: Collate | None = None,
        input_name: str = "pixel_values",
        label_name: str = "labels",
    ) -> None:
        from transformers import default_data_collator

        self.method, self.collate = method, collate or default_data_collator
        self.input_name, self.label_name = input_name, label_name

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        """One mixed batch."""
        batch = self.collate(samples)
        x, y = self.method(*self.inputs_and_labels(batch))
        return {**batch, self.input_name: x, self.label_name: y}

    def inputs_and_labels(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The two entries of a batch that matter here."""
        for name in (self.input_name, self.label_name):
            if name not in batch:
                held = ", ".join(batch)
                raise ValueError(f"a batch has no {name!r}, it has {held}; name what to mix: input_name, label_name")
        return batch[self.input_name], batch[self.label_name]


def mixup_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of class indices (n) or of mixed labels (n × c), as `Trainer(compute_loss_func=…)` calls it."""
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
    if num_items_in_batch is None:
        return cross_entropy(logits, labels)
    # Trainer counts the entries of labels: c of them for every mixed sample.
    entries = labels.shape[1] if labels.is_floating_point() else 1
    return cross_entropy(logits, labels, reduction="sum") * entries / num_items_in_batch


class MixupCallback(TrainerCallback):
    """Mixup in training, the rescaled network in evaluation.

    Args:
        alpha: in [0, ∞].
        num_classes: needed when labels are integers, which become soft labels.
        per_sample: draw θ for every sample, or once per batch.
        seed: of partners and shares; by default PyTorch's global random number generator.
        rescale: whether evaluation uses the rescaled network.
        moments: x̄ and ȳ of the training data, if they are known; otherwise they are found by a pass over it.
        input_name: what the model's input is called.
        label_name: what the labels are called.
        method: another augmentation than Mixup, such as `CutMix(1.0, num_classes=10)`; the first four are then its own.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        num_classes: int | None = None,
        per_sample: bool = True,
        seed: int | None = None,
        rescale: bool = True,
        moments: DataMoments | None = None,
        input_name: str = "pixel_values",
        label_name: str = "labels",
        method: Augmentation | None = None,
    ) -> None:
        self.method = method or Mixup(alpha, num_classes, per_sample, seeded(seed))
        self.num_classes: int | None = getattr(self.method, "num_classes", None)
        self.rescale, self.moments, self._given = rescale, moments, moments
        self.input_name, self.label_name = input_name, label_name
        self._rescaling: Rescaling | None = None
        self._guard: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the collator into the training loader, find the means, and rescale the model in evaluation."""
        loader, model = given["train_dataloader"], given["model"]
        collator = loader.collate_fn
        if isinstance(collator, MixupCollator):
            # Trained a second time with the same loader.
            collator = collator.collate
        mixing = MixupCollator(self.method, collator, self.input_name, self.label_name)
        self.release()
        if self.rescale:
            # What was averaged for an earlier training says nothing of this one.
            self.moments = self._given or _moments_of(loader, mixing, self.num_classes)
            self._rescaling = Rescaling(model, self._rule(), self.input_name)
        self._guard = model.register_forward_pre_hook(self._refuse_mixed_labels, with_kwargs=True)
        for layer in _layers(loader):
            layer.collate_fn = mixing

    def _rule(self) -> Rule:
        if self.moments is None:
            raise ValueError("there are no means to rescale with: train first, with rescale=True, or give moments=")
        rule = self.method.rule(self.moments)
        if rule is None:
            raise ValueError(f"{type(self.method).__name__} has no prediction rule; set rescale=False")
        return rule.to("cpu", torch.float32)

    def _refuse_mixed_labels(self, module: nn.Module, given: Any, named: dict[str, Any]) -> None:
        labels = named.get(self.label_name)
        if module.training and isinstance(labels, Tensor) and labels.is_floating_point() and self.num_classes:
            raise ValueError(
                "mixed labels reached the model, whose own loss takes them for several labels at once: give Trainer "
                "compute_loss_func=mixup_loss"
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The model may be given any labels again."""
        if self._guard is not None:
            self._guard.remove()

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Write the means beside a checkpoint's weights."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.moments is not None and state.is_world_process_zero and folder.is_dir():
            self.save(folder)

    def save(self, folder: str | Path) -> None:
        """Write the prediction rule into a model's folder, for `rescale_from`."""
        from safetensors.torch import save

        from mixreg._support.files import write_bytes

        write_bytes(Path(folder) / RULE, save(self._rule().to_tensors()))

    def release(self) -> None:
        """Leave the model as it was: evaluation sees the plain network again."""
        if self._rescaling is not None:
            self._rescaling.remove()
            self._rescaling = None


class Rescaling:
    """While it is on, a model in evaluation mode obeys a rule.

    Args:
        model: of Hugging Face, which returns a mapping with "logits".
        rule: to be obeyed.
        input_name: what its input is called.
    """

    def __init__(self, model: nn.Module, rule: Rule, input_name: str) -> None:
        self.rule, self.input_name = rule, input_name
        before = model.register_forward_pre_hook(self._before, with_kwargs=True)
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
        if model.training:
            return None
        if given:
            return (self._shrunk(given[0]), *given[1:]), named
        if self.input_name not in named:
            raise ValueError(f"the model was called without {self.input_name!r}, got {', '.join(named) or 'nothing'}")
        return given, named | {self.input_name: self._shrunk(named[self.input_name])}

    def _after(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        if model.training:
            return None
        if not isinstance(output, dict) or "logits" not in output:
            raise TypeError(f"the model must return a mapping with its logits, got {type(output).__name__}")
        logits = output["logits"] = self.rule.to(output["logits"].device).stretch(output["logits"])
        labels = named.get("labels")
        if isinstance(labels, Tensor) and "loss" in output:
            if labels.is_floating_point() or labels.shape != logits.shape[:1]:
                raise TypeError("a rescaled model gives the loss of class indices only; compute others from its logits")
            # The model's own was that of the logits before they were stretched.
            output["loss"] = cross_entropy(logits, labels)
        return output


def _layers(loader: Any) -> Iterator[Any]:
    """A loader and the ones inside it: accelerate wraps loaders, and reads now from the one, now from the other."""
    while loader is not None:
        yield loader
        loader = getattr(loader, "base_dataloader", None)


def _moments_of(loader: Any, mixing: MixupCollator, num_classes: int | None) -> DataMoments:
    """The means of a loader's dataset, in order and without touching PyTorch's random number generators."""
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError("an iterable dataset cannot be averaged beforehand: give MixupCallback its moments=")
    plain = DataLoader(loader.dataset, batch_size=128, collate_fn=mixing.collate, num_workers=loader.num_workers)
    with torch.random.fork_rng(devices=[]):
        return DataMoments.from_loader((mixing.inputs_and_labels(batch) for batch in plain), num_classes)


def rescale_from(model: nn.Module, folder: str | Path, input_name: str = "pixel_values") -> Rescaling:
    """Rescale a loaded model in evaluation mode, with the rule that a checkpoint's folder holds.

    Args:
        model: loaded from that folder.
        folder: of the checkpoint.
        input_name: what the model's input is called.

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
    return Rescaling(model, rule, input_name)
