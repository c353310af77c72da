"""Mixup for Hugging Face's `Trainer`.

    Trainer(model, …, callbacks=[MixupCallback(alpha=1.0, num_classes=10)], compute_loss_func=mixup_loss)

When training begins the callback puts a `MixupCollator` around the training loader's collate function (evaluation has
its own loader, which stays as it is) and averages the training data once, for x̄ and ȳ. Whenever the model is in
evaluation mode, its inputs are shrunk and its logits stretched (eq. testmodif). Checkpoints get the means beside the
weights, so that `rescale_from` can do the same for a model that was loaded.

Mixed labels are probabilities, which the losses inside Hugging Face's models do not take; `mixup_loss` does.

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

from mixreg.adapters.rule import RuleAround, seeded
from mixreg.mixing import Mixup
from mixreg.moments import DataMoments

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError("MixupCallback needs transformers: pip install 'mixreg[huggingface]'") from error

MEANS = "mixup.safetensors"
Collate = Callable[[list[Any]], dict[str, Any]]


class MixupCollator:
    """Mixes what another collate function makes of samples.

    Args:
        mixup: how to mix.
        collate: makes a dict of tensors of a list of samples; by default Hugging Face's.
        input_name: of the inputs, which are mixed.
        label_name: of the labels, which are mixed alike.
    """

    def __init__(
        self,
        mixup: Mixup,
        collate: Collate | None = None,
        input_name: str = "pixel_values",
        label_name: str = "labels",
    ) -> None:
        from transformers import default_data_collator

        self.mixup, self.collate = mixup, collate or default_data_collator
        self.input_name, self.label_name = input_name, label_name

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        """One mixed batch."""
        batch = self.collate(samples)
        x, y = self.mixup(*self.inputs_and_labels(batch))
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
        seed: of partners and shares; by default PyTorch's global stream.
        rescale: whether evaluation uses the rescaled network.
        moments: x̄ and ȳ of the training data, if they are known; otherwise they are found by a pass over it.
        input_name: what the model's input is called.
        label_name: what the labels are called.
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
    ) -> None:
        self.mixup = Mixup(alpha, num_classes, per_sample, seeded(seed))
        self.rescale, self.moments = rescale, moments
        self.input_name, self.label_name = input_name, label_name
        self._rule: RuleAround | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the collator into the training loader, find the means, and rescale the model in evaluation."""
        loader, model = given["train_dataloader"], given["model"]
        collator = loader.collate_fn
        if isinstance(collator, MixupCollator):
            # Trained a second time with the same loader.
            collator = collator.collate
        mixing = MixupCollator(self.mixup, collator, self.input_name, self.label_name)
        if self.rescale:
            if self.moments is None:
                self.moments = _moments_of(loader, mixing, self.mixup.num_classes)
            self.release()
            self._rule = _rescale(model, self.mixup.alpha, self.moments.x_mean, self.moments.y_mean, self.input_name)
        for layer in _layers(loader):
            layer.collate_fn = mixing

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Write the means beside a checkpoint's weights."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.moments is not None and state.is_world_process_zero and folder.is_dir():
            save_means(folder, self.mixup.alpha, self.moments)

    def release(self) -> None:
        """Leave the model as it was: evaluation sees the plain network again."""
        if self._rule is not None:
            self._rule.remove()
            self._rule = None


def _layers(loader: Any) -> Iterator[Any]:
    """A loader and the ones inside it: accelerate wraps loaders, and reads now from the one, now from the other."""
    while loader is not None:
        yield loader
        loader = getattr(loader, "base_dataloader", None)


def _moments_of(loader: Any, mixing: MixupCollator, num_classes: int | None) -> DataMoments:
    """The means of a loader's dataset, in order and without touching PyTorch's streams of chance."""
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError("an iterable dataset cannot be averaged beforehand: give MixupCallback its moments=")
    plain = DataLoader(loader.dataset, batch_size=128, collate_fn=mixing.collate, num_workers=loader.num_workers)
    with torch.random.fork_rng(devices=[]):
        return DataMoments.from_loader((mixing.inputs_and_labels(batch) for batch in plain), num_classes)


def _is_evaluating(module: nn.Module) -> bool:
    return not module.training


def _rescale(model: nn.Module, alpha: float, x_mean: Tensor, y_mean: Tensor, input_name: str) -> RuleAround:
    return RuleAround(model, alpha, x_mean.float(), y_mean.float(), input_name, _is_evaluating)


def save_means(folder: Path, alpha: float, moments: DataMoments) -> None:
    """Write x̄, ȳ and α into a model's folder."""
    from safetensors.torch import save

    from mixreg.files import write_bytes

    tensors = {"x_mean": moments.x_mean.cpu(), "y_mean": moments.y_mean.cpu()}
    write_bytes(folder / MEANS, save({**tensors, "alpha": torch.tensor(alpha, dtype=torch.float64)}))


def rescale_from(model: nn.Module, folder: str | Path, input_name: str = "pixel_values") -> RuleAround:
    """Rescale a loaded model in evaluation mode, with the means that a checkpoint's folder holds.

    Args:
        model: loaded from that folder.
        folder: of the checkpoint.
        input_name: what the model's input is called.

    Returns:
        The rule, which `remove()` takes off again.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(folder) / MEANS
    try:
        tensors = load_file(path)
        alpha, x_mean, y_mean = float(tensors["alpha"]), tensors["x_mean"], tensors["y_mean"]
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} does not hold the means of a Mixup run: {error}") from error
    return _rescale(model, alpha, x_mean, y_mean, input_name)
