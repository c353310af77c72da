"""Mixup for Hugging Face's `Trainer`.

    Trainer(model, …, callbacks=[MixupCallback(alpha=1.0, num_classes=10)], compute_loss_func=mixup_loss)

When training begins the callback puts a `MixupCollator` around the training loader's collate function (evaluation has
its own loader, which stays as it is) and averages the training data once, for x̄ and ȳ. Whenever the model is in
evaluation mode, its inputs are shrunk and its logits stretched (eq. testmodif), but for what measures a network
(`mixreg.risk`) and inside `with callback.plain():`. Checkpoints get the means beside the weights (a final model by
`MixupCallback.save`), so that `rescale_from` can do the same for a model that was loaded; and the method with its α and
the state of its random number generator, so that a resumed run draws what it would have drawn.

Mixed labels are probabilities, which the losses inside Hugging Face's models take for those of several labels at once;
`mixup_loss` takes them for what they are, and training without it is refused. Targets that are numbers, or several
labels at once, are mixed as they are without `num_classes`, and the model's own loss takes them.

Needs transformers: `pip install 'mixreg[huggingface]'`.
"""

from __future__ import annotations

import base64
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from mixreg._autodiff.network import without_rules
from mixreg.adapters.chosen import chosen_method
from mixreg.adapters.rescaling import RULE, Rescaling, rescale_from
from mixreg.adapters.resume import require_same_settings, settings_of
from mixreg.losses.targets import require_probabilities
from mixreg.methods.method import Augmentation
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError("MixupCallback needs transformers: pip install 'mixreg[huggingface]'") from error

__all__ = ["RULE", "MixupCallback", "MixupCollator", "Rescaling", "mixup_loss", "rescale_from"]
# Under which a checkpoint's trainer_state.json keeps what resuming takes.
STATE = "mixreg"
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
        self.is_off = False
        # The generator after each batch that is not trained on yet: loaders fetch ahead.
        self.states: deque[Tensor] = deque()

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        """One mixed batch."""
        batch: dict[str, Any] = self.collate(samples)
        if self.is_off:
            return batch
        x, y = self.method(*self.inputs_and_labels(batch))
        if self.method.generator is not None:
            self.states.append(self.method.generator.get_state())
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
    if labels.is_floating_point():
        _require_soft_labels(labels)
    if num_items_in_batch is None:
        return cross_entropy(logits, labels)
    # Trainer counts the entries of labels: c of them for every mixed sample.
    entries = labels.shape[1] if labels.is_floating_point() else 1
    return cross_entropy(logits, labels, reduction="sum") * entries / num_items_in_batch


def _require_soft_labels(labels: Tensor) -> None:
    try:
        if labels.ndim < 2:
            raise ValueError(f"labels of shape {tuple(labels.shape)}")
        require_probabilities(labels)
    except ValueError as error:
        raise ValueError(
            "mixup_loss is the cross-entropy of class indices, or of labels that sum to 1; for a regression or several "
            "labels at once leave compute_loss_func and num_classes out: the model's own loss takes mixed targets"
        ) from error


class MixupCallback(TrainerCallback):
    """Mixup in training, the rescaled network in evaluation.

    Args:
        alpha: in [0, ∞]; 1 by default.
        num_classes: needed when labels are integers, which become soft labels; without it targets are mixed as they
            are (numbers, or several labels at once).
        per_sample: draw θ for every sample, or once per batch.
        seed: of partners and shares; by default PyTorch's global random number generator.
        rescale: whether evaluation uses the rescaled network.
        moments: x̄ and ȳ of the training data, if they are known; otherwise they are found by a pass over it.
        input_name: what the model's input is called.
        label_name: what the labels are called.
        method: another augmentation than Mixup, such as `CutMix(1.0, num_classes=10)`; the first four are then its own.
        until: batches are mixed for so many epochs and then shown as they are, and predictions are then plain: the
            network last saw data as it is, for which there is no rule.
    """

    def __init__(
        self,
        alpha: float | None = None,
        num_classes: int | None = None,
        per_sample: bool = True,
        seed: int | None = None,
        rescale: bool = True,
        moments: DataMoments | None = None,
        input_name: str = "pixel_values",
        label_name: str = "labels",
        method: Augmentation | None = None,
        until: int | None = None,
    ) -> None:
        if until is not None and (isinstance(until, bool) or not isinstance(until, int) or until < 1):
            raise ValueError(f"until must be a number of epochs, at least 1, or None, got {until!r}")
        self.until = until
        self.method = chosen_method(method, alpha, num_classes, per_sample, seed)
        self.num_classes: int | None = getattr(self.method, "num_classes", None)
        self.rescale, self.moments, self._given = rescale, moments, moments
        self.input_name, self.label_name = input_name, label_name
        self._rescaling: Rescaling | None = None
        self._guard: Any = None
        self._mixing: MixupCollator | None = None

    def plain(self) -> AbstractContextManager[None]:
        """Inside, the model is as it was trained, also in evaluation mode: `with callback.plain(): model(x)`."""
        return without_rules()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the collator into the training loader, find the means, and rescale the model in evaluation."""
        if args.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor={args.label_smoothing_factor} has no effect on mixed labels: leave it out and "
                "smooth the labels of the training data instead (n × c floating labels are mixed as they are)"
            )
        loader, model = given["train_dataloader"], given["model"]
        self._resume(state, loader)
        collator = loader.collate_fn
        if isinstance(collator, MixupCollator):
            # Trained a second time with the same loader.
            collator = collator.collate
        mixing = MixupCollator(self.method, collator, self.input_name, self.label_name)
        self.release()
        if self.rescale:
            # What was averaged for an earlier training says nothing of this one.
            self.moments = self._given or _moments_of(loader, mixing, self.num_classes)
            self._rescaling = Rescaling(model, self._rule(), self.input_name, self.label_name)
        self._guard = model.register_forward_pre_hook(self._refuse_mixed_labels, with_kwargs=True)
        for layer in _layers(loader):
            layer.collate_fn = mixing
        self._mixing = mixing

    def _resume(self, state: Any, loader: Any) -> None:
        """Take up what a checkpoint knows of the method, if there is one."""
        if not state.global_step:
            return
        stored = (state.stateful_callbacks or {}).get(STATE, {})
        require_same_settings(self.method, stored.get("settings"))
        if self.method.generator is None:
            return
        in_order = loader.num_workers == 0 and not isinstance(loader.dataset, IterableDataset)
        if "generator" not in stored or not in_order:
            warnings.warn(
                "a run with a seeded method is resumed exactly only from a checkpoint that knows its generator, with "
                "dataloader_num_workers=0 and a dataset that is not iterable: this one draws other partners",
                stacklevel=2,
            )
        else:
            content = bytearray(base64.b64decode(stored["generator"]))
            self.method.generator.set_state(torch.frombuffer(content, dtype=torch.uint8))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """What was fetched for the last epoch and not used is of no use."""
        if self._mixing is not None:
            self._mixing.states.clear()
            self._mixing.is_off = self.until is not None and round(state.epoch or 0) >= self.until
            if self._mixing.is_off:
                # What the network sees from now on is what it predicts: there is nothing to undo.
                self.release()

    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """A batch was used."""
        self._used(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """A batch was used."""
        self._used(state)

    def _used(self, state: Any) -> None:
        """Keep, for the next checkpoint, the generator as it was after the batch that was used."""
        stored = state.stateful_callbacks.setdefault(STATE, {})
        stored["settings"] = settings_of(self.method)
        if self._mixing is not None and self._mixing.states:
            content = self._mixing.states.popleft().numpy().tobytes()
            stored["generator"] = base64.b64encode(content).decode()

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
