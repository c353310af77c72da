"""Mixup for Hugging Face's `Trainer`.

    Trainer(model, …, callbacks=[MixupCallback(alpha=1.0, num_classes=10)], compute_loss_func=mixup_loss)

When training begins the callback puts a `MixupCollator` around the training loader's collate function (evaluation has
its own loader, which stays as it is). Images and other numbers are mixed there; text is mixed after the embedding of
the model (`mixreg.adapters.embeddings`). The means x̄ and ȳ are gathered on the way, as batches are used; the data is
only gone through beforehand, once, where that cannot be seen (batches that worker processes make), where training is
resumed, and where a method needs the means itself.

Whenever the model is in evaluation mode and there are means, its inputs are shrunk and its logits stretched
(eq. testmodif), but for what measures a network (`mixreg.risk`) and inside `with callback.plain():`. Checkpoints get
the rule beside the weights (a final model by `MixupCallback.save`), so that `rescale_from` can do the same for a model
that was loaded; and the method with its α and the state of its random number generator, so that a resumed run draws
what it would have drawn.

Mixed labels are probabilities, which the losses inside Hugging Face's models take for those of several labels at once;
`mixup_loss` takes them for what they are, and training without it is refused. Targets that are numbers, or several
labels at once, are mixed as they are without `num_classes`, and the model's own loss takes them.

Needs transformers: `pip install 'mixreg[huggingface]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mixreg._autodiff.network import without_rules
from mixreg._support.random import seeded
from mixreg.adapters.chosen import NamedMethod
from mixreg.adapters.embeddings import EmbeddingMixing, main_input, require_pairing, require_pairs
from mixreg.adapters.huggingface_batches import Entries, MixupCollator, Moments
from mixreg.adapters.huggingface_checks import outputs_required, require_possible
from mixreg.adapters.huggingface_loss import mixup_loss
from mixreg.adapters.huggingface_methods import batch_method, layers_of, pass_over
from mixreg.adapters.huggingface_rule import CurrentRule
from mixreg.adapters.huggingface_state import keep, resume
from mixreg.adapters.rescaling import RULE, Rescaling, hook_owners, placed_beside, rescale_from
from mixreg.methods import load_method
from mixreg.methods.method import Method
from mixreg.prediction.rescaled import Rescaled

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError("MixupCallback needs transformers: pip install 'mixreg[huggingface]'") from error

__all__ = ["RULE", "MixupCallback", "MixupCollator", "Rescaling", "mixup_loss", "rescale_from"]


class MixupCallback(TrainerCallback):
    """Mixup in training, the rescaled network in evaluation.

    Args:
        alpha: in [0, ∞]; 1 by default, or the method's own default.
        num_classes: needed when labels are integers, of samples or of tokens; without it targets are mixed as they are
            (numbers, or several labels at once).
        per_sample: draw θ for every sample, or once per batch.
        seed: of partners and shares; by default PyTorch's global random number generator.
        rescale: whether evaluation uses the rescaled network.
        moments: x̄ and ȳ of the training data, if they are known: `DataMoments`, or `TokenMoments` of text.
        input_name: what the model's input is called; by default as the model says.
        label_name: what the labels are called.
        method: another way to mix than Mixup: its name, as `mixreg train --method` has it, or one that is made, such as
            `CutMix(1.0, num_classes=10)`, to which the first four then belong.
        until: batches are mixed for so many epochs and then shown as they are, and predictions are then plain: the
            network last saw data as it is, for which there is no rule.
        **options: of a method by name.

    Attributes:
        method: what mixes; one by its name is made when training begins.
        moments: of what was trained on so far, or over the pass.
    """

    method: Method

    def __init__(
        self,
        alpha: float | None = None,
        num_classes: int | None = None,
        per_sample: bool = True,
        seed: int | None = None,
        rescale: bool = True,
        moments: Moments | None = None,
        input_name: str | None = None,
        label_name: str = "labels",
        method: Method | str | None = None,
        until: int | None = None,
        **options: Any,
    ) -> None:
        if until is not None and (isinstance(until, bool) or not isinstance(until, int) or until < 1):
            raise ValueError(f"until must be a number of epochs, at least 1, or None, got {until!r}")
        self.until, self.seed = until, seed
        self._chosen = batch_method(method, alpha, num_classes, per_sample, seed, options)
        if isinstance(self._chosen, Method):
            self.method = self._chosen
        self.rescale, self.moments, self._given = rescale, moments, moments
        self.input_name, self.label_name = input_name, label_name
        self._rule: CurrentRule | None = None
        self._rescaling: Rescaling | None = None
        self._hooks: list[Any] = []
        self._mixing: MixupCollator | None = None
        # As it was after the batch that was used last.
        self._generator: Tensor | None = None
        # The state of the training that this is part of, and which epoch is to begin, from 0.
        self._training: Any = None
        self._epoch = 0

    @property
    def num_classes(self) -> int | None:
        """c, if labels are integers."""
        return getattr(self._chosen, "num_classes", None)

    def plain(self) -> AbstractContextManager[None]:
        """Inside, the model is as it was trained, also in evaluation mode: `with callback.plain(): model(x)`."""
        return without_rules()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the collator into the training loader, and be ready to rescale the model in evaluation."""
        loader, model = given["train_dataloader"], given["model"]
        entries = Entries(self.input_name or main_input(model), self.label_name, self.num_classes)
        require_possible(args, model, entries, self._given)
        self._take_over(model, state)
        collate = loader.collate_fn
        if isinstance(collate, MixupCollator):
            # Trained a second time with the same loader.
            collate = collate.collate
        # What was averaged for an earlier training says nothing of this one.
        self.moments = self._given

        def found_moments() -> Any:
            if self.moments is None:
                self.moments = pass_over(loader, collate, entries)
            return self.moments

        self._make_method(model, entries, found_moments, args.process_index)
        is_resumed = resume(state, self.method, loader)
        # An epoch that was begun is resumed; whatever it was, the network is as it was trained last.
        self._epoch, is_off = floor(state.epoch or 0), self.until is not None and (state.epoch or 0) > self.until
        if self.rescale and not is_off:
            if is_resumed or loader.num_workers > 0:
                found_moments()
            self._rule = CurrentRule(self.method, model, self.moments, entries.moments([]))
            self._rule.require()
            self._rescaling = Rescaling(model, self._rule, *entries[:2])
        gathers = self.rescale and self.moments is None
        self._mixing = MixupCollator(self.method, collate, *entries[:2], gathers)
        self._mixing.is_off = is_off
        self._hooks = [model.register_forward_pre_hook(self._refuse_mixed_labels, with_kwargs=True)]
        if self._rule is not None and entries.num_classes:
            self._hooks.append(model.register_forward_hook(outputs_required(entries)))
        if entries.are_text:
            self._hooks.append(EmbeddingMixing(model, self.label_name))
        for layer in layers_of(loader):
            layer.collate_fn = self._mixing

    def _make_method(self, model: nn.Module, entries: Entries, moments: Callable[[], Any], process: int) -> None:
        """One by its name is made, and text needs one that mixes pairs."""
        if isinstance(self._chosen, NamedMethod):
            if entries.are_text:
                require_pairing(load_method(self._chosen.name))
            self.method = self._chosen.made(model, moments)
        if entries.are_text:
            require_pairs(self.method, self.rescale)
        if self.seed is not None and process > 0:
            # Each process has batches of its own, and partners of its own in them.
            self.method.generator = seeded(self.seed + process)

    def _take_over(self, model: nn.Module, state: Any) -> None:
        """Take off what an earlier training left on the model; another callback of this one is refused."""
        for other in {self, *hook_owners(model, MixupCallback)}:
            if other._training is state:
                raise ValueError("Trainer was given several MixupCallbacks, and a batch is mixed once: give it one")
            other._remove_hooks()
        self.release()
        for rescaling in hook_owners(model, Rescaling):
            rescaling.remove()
        self._training, self._rule, self._rescaling, self._generator = state, None, None, None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """What was fetched for the last epoch and not used is of no use; mixing may be over."""
        if self._mixing is None:
            return
        self._mixing.seen.clear()
        if self.until is not None and self._epoch >= self.until:
            self._mixing.is_off = True
            # What the network sees from now on is what it predicts: there is nothing to undo.
            self.release()
            self._rescaling = None
        self._epoch += 1

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Before the first step: whether there will be a rule."""
        if self._rule is not None and self._mixing is not None and self._mixing.seen:
            self._rule.require(self._mixing.seen[0].moments)

    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """A batch was used."""
        self._used(state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """A batch was used."""
        self._used(state, control)

    def _used(self, state: Any, control: Any) -> None:
        """Take in what is known of the batch, and be ready for a checkpoint or an evaluation."""
        if self._mixing is not None and self._mixing.seen:
            self._generator, moments = self._mixing.seen.popleft()
            if self._rule is not None:
                self._rule.take(moments)
        keep(state, self.method, self._generator)
        if control.should_evaluate or control.should_save:
            self._join(state)

    def _join(self, state: Any) -> None:
        """What all processes know, which must call this together."""
        keep(state, self.method, self._generator, together=True)
        if self._rule is not None:
            self._rule.join()
            self.moments = self._rule.moments

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """From now on there are means."""
        self._join(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The model may be given any labels again; of the best weights, if they were loaded, the rule is theirs."""
        self._join(state)
        self._remove_hooks()
        if self.rescale and args.load_best_model_at_end and self._mixing is not None:
            placed = placed_beside(state.best_model_checkpoint)
            if placed is not None:
                names = self._mixing.entries[:2]
                place = placed.strength, placed.temperature, placed.is_after
                self._rescaling = Rescaling(given["model"], placed.rule, names[0], names[1], *place)

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _refuse_mixed_labels(self, module: nn.Module, given: Any, named: dict[str, Any]) -> None:
        labels = named.get(self.label_name)
        if module.training and isinstance(labels, Tensor) and labels.is_floating_point() and self.num_classes:
            raise ValueError(
                "mixed labels reached the model, whose own loss takes them for several labels at once: give Trainer "
                "compute_loss_func=mixup_loss"
            )

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Write the rule beside a checkpoint's weights."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if not state.is_world_process_zero or not folder.is_dir():
            return
        if self._rescaling is not None and self._rescaling.placed is not None:
            self.save(folder)
        else:
            # That of an earlier run with the same folder.
            (folder / RULE).unlink(missing_ok=True)

    def save(self, folder: str | Path) -> None:
        """Write the prediction rule, fitted if it was, into a model's folder, for `rescale_from`."""
        self._known_rescaling().save(folder)

    def fit(self, loader: Iterable[Any], loss: str = "cross_entropy") -> Rescaled:
        """Make the rule as strong as held-out data says (`Rescaled.fit`), and give the fitted network.

        The model obeys it from now on in evaluation, and `save` writes it beside the weights.

        Args:
            loader: of the model's batches with labels, such as `trainer.get_eval_dataloader()`, not to be tested on.
            loss: "cross_entropy", "logistic" (several labels at once) or "squared_error" (no temperature).
        """
        return self._known_rescaling().fit(loader, loss)

    def rescaled_model(self) -> Rescaled:
        """The trained model with its rule as a network of its own: it gives logits, and needs no callback."""
        return self._known_rescaling().rescaled_model()

    def _known_rescaling(self) -> Rescaling:
        if self._rescaling is None:
            raise ValueError("there are no means to rescale with: train first, with rescale=True, or give moments=")
        return self._rescaling

    def release(self) -> None:
        """Leave the model as it was: evaluation sees the plain network again."""
        if self._rescaling is not None:
            self._rescaling.remove()
