"""Every method for an unchanged `LightningModule`: `Trainer(callbacks=[MixupCallback(alpha=1.0, num_classes=10)])`.

    MixupCallback(method=Choice([Mixup(0.2, 10), CutMix(1.0, 10)]))
    MixupCallback(method="regmixup", alpha=10.0, num_classes=10, loss="cross_entropy")

In training a method changes the batch before `training_step` sees it (labels become soft labels, which
`torch.nn.functional.cross_entropy` takes as they are), or what goes into a layer while the step calls the network
(Manifold Mixup), or it is a loss of the network and stands in the step's place. The means of what was seen are gathered
on the way and travel with the checkpoints, as do the method, its α and its rule. Validation, test and prediction see
the rescaled network of eq. (testmodif), where held-out data placed it; what measures a network (`mixreg.risk`) and
`with callback.plain():` see the one that was trained.

Needs Lightning: `pip install 'mixreg[lightning]'`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from mixreg._autodiff.network import without_rules
from mixreg._support.processes import world_size
from mixreg._support.random import seeded
from mixreg.adapters.batches import Classes, Keys, is_several
from mixreg.adapters.chosen import any_method, is_own_loss
from mixreg.adapters.evaluation import InEvaluation
from mixreg.adapters.kept import KeptMethod
from mixreg.adapters.labels_of_parts import metrics_of_classes
from mixreg.adapters.learned import put_beside, require_trained, take_away
from mixreg.adapters.lightning_checks import require_before_averaging, require_fitted_loss, require_loaders
from mixreg.adapters.reading import Pairs, in_order, mean_of_pairs
from mixreg.adapters.resume import state_in_checkpoint
from mixreg.adapters.steps import Step, drawn_step, read_batch
from mixreg.losses import AnyLoss
from mixreg.methods.method import Method
from mixreg.prediction.family import RuleFamily
from mixreg.prediction.family_fit import FamilyFit
from mixreg.theory.moments import DataMoments

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
            raise ImportError("MixupCallback needs Lightning: pip install 'mixreg[lightning]'") from error


class _NoDataYet(Exception):
    """A method refers to the training data, which is not there before training begins."""


class MixupCallback(InEvaluation, Callback):
    """A method in training, the rescaled network everywhere else.

    Args:
        alpha: in [0, ∞]; by default the method's own, 1 for Mixup.
        num_classes: needed when targets are integer labels, which become soft labels; of several targets one number
            for each, in their structure, such as `{"label": 10, "age": None}`.
        per_sample: draw θ for every sample, or once per batch.
        seed: of partners and shares; by default PyTorch's global random number generator.
        rescale: whether validation, test and prediction use the rescaled network.
        network: the submodule that makes the logits, by name; by default the module itself, called as `self(x)`, by
            keyword, or with a whole batch.
        input_key: where a batch holds its inputs: a position, or a key if it is a dict; or several of them.
        target_key: where it holds its targets; for several the network returns a dict by key, or outputs in this order.
        method: another one than Mixup: made, such as `CutMix(1.0, num_classes=10)`, which then brings its own α, number
            of classes and generator; or by its name, as `mixreg train --method` has it.
        until: batches are mixed for so many epochs and then shown as they are, and predictions are then plain: the
            network last saw data as it is, for which there is no rule.
        loss: what a method by its name puts on outputs, if it is a loss of the network: "cross_entropy", "logistic",
            "squared_error" or a callable loss(y, u) on one sample. And by which of the three names `fit` measures.
        moments: of the training data, for a method by its name that refers to them; by default a pass over it.
        fit: after each validation place the rule in its family by the validation data.
        options: of a method by its name.

    Attributes:
        is_off: whether mixing has ended.
        fitted: what held-out data said of strength and temperature.
    """

    def __init__(
        self,
        alpha: float | None = None,
        num_classes: Classes = None,
        per_sample: bool = True,
        seed: int | None = None,
        rescale: bool = True,
        network: str = "",
        input_key: Keys = 0,
        target_key: Keys = 1,
        method: Method | str | None = None,
        until: int | None = None,
        loss: AnyLoss | None = None,
        moments: DataMoments | None = None,
        fit: bool = False,
        **options: Any,
    ) -> None:
        if until is not None and (isinstance(until, bool) or not isinstance(until, int) or until < 1):
            raise ValueError(f"until must be a number of epochs, at least 1, or None, got {until!r}")
        if fit and not rescale:
            raise ValueError("fit=True places the rule that predictions obey, and rescale=False says they obey none")
        joined = is_several(num_classes, target_key)
        own = num_classes if isinstance(num_classes, int) and not joined else None
        chosen = any_method(method, alpha, own, per_sample, seed, loss, options)
        if joined and getattr(chosen, "num_classes", None) is not None:
            raise TypeError("several targets have numbers of classes of their own: give them here, and none to method")
        super().__init__(chosen, num_classes, moments)
        self.num_classes, self.seed, self.rescale, self.network = num_classes, seed, rescale, network
        self.keys, self.until, self.loss, self.fits = (input_key, target_key), until, loss, fit
        if fit:
            require_fitted_loss(self._fitted_loss() if isinstance(chosen, Method) else loss, joined)
        self._module: LightningModule | None = None
        self._metrics: list[nn.Module] = []
        # What is drawn for the batch at hand.
        self._drawn: Callable[[Step], Any] | None = None

    def plain(self) -> AbstractContextManager[None]:
        """Inside, the network is as it was trained, also in validation: `with callback.plain(): logits = self(x)`."""
        return without_rules()

    def rescaled_model(
        self,
        module: LightningModule | None = None,
        *,
        checkpoint: str | Path | None = None,
        training_loader: Iterable[Any] | None = None,
    ) -> RuleFamily:
        """The trained network with its rule, in evaluation mode, to be used without Lightning.

        Args:
            module: that was trained; by default the last one this callback saw.
            checkpoint: of Lightning, with what this callback had seen; by default what it has.
            training_loader: for a rule on hidden layers (Manifold Mixup's), whose means are those of this network.
        """
        net, kept = self._network(module), cast(KeptMethod, self)
        if checkpoint is not None:
            kept = self.restored_aside(state_in_checkpoint(Path(checkpoint), self.state_key))
        pairs = None if training_loader is None else Pairs(training_loader, self._read, lambda batch: batch)
        return kept.network_with_rule(net, pairs).eval()

    def fit(self, held_out: Iterable[Any], module: LightningModule | None = None) -> FamilyFit:
        """Place the rule by held-out data: validation, test and prediction use it from now on, and checkpoints keep it.

        Args:
            held_out: a loader of batches that were not trained on, which can be gone through again.
            module: that was trained; by default the last one this callback saw.
        """
        return self._fit(Pairs(held_out, self._read, lambda batch: batch), self._network(module))

    def _fit(self, pairs: Any, net: nn.Module) -> FamilyFit:
        loss, self.fitted = self._fitted_loss(), None
        model = self.network_with_rule(net).fit(pairs, loss=loss, across_processes=world_size() > 1)
        self.fitted = model.fitted
        assert self.fitted is not None
        return self.fitted

    def _fitted_loss(self) -> Any:
        """What a fit measures by: what was said, else the loss that the method itself puts on outputs."""
        own = getattr(self.method, "loss", None) if is_own_loss(self.kind) else None
        return self.loss or own or "cross_entropy"

    def _network(self, module: LightningModule | None) -> nn.Module:
        module = module or self._module
        if module is None:
            raise ValueError("this callback has seen no module yet: give the one that was trained")
        if self._ruled is not None:
            raise ValueError("the network obeys its rule now: ask for it when validation is over")
        return module.get_submodule(self.network)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before anything runs, in every process: find the network; from now on training steps see the method."""
        names = {name for name, _ in pl_module.named_modules()}
        if self.network not in names:
            known = ", ".join(sorted(name for name in names if name))
            raise ValueError(f"the module has no submodule {self.network!r}; it has {known or 'none'}")
        if self.rescale and getattr(pl_module, "_compiler_ctx", None) is not None:
            raise ValueError(
                "MixupCallback cannot rescale a LightningModule that was compiled as a whole: compile the network "
                "inside it, or set rescale=False"
            )
        self._module = pl_module
        if stage != "fit":
            return
        # What an earlier fit saw says nothing of this one; a checkpoint is restored after this.
        self.begin()
        if self.fits:
            require_before_averaging(self, trainer)
        self._prepare(trainer, pl_module)
        self._metrics = metrics_of_classes(pl_module)
        original = pl_module.training_step

        @wraps(original)
        def mixed_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            return self._step(pl_module, batch, lambda batch: original(batch, *args, **kwargs))

        pl_module.__dict__["training_step"] = mixed_step

    def _prepare(self, trainer: Trainer, module: LightningModule) -> None:
        """Make the method, as far as it can be made before there is data."""
        if not module.automatic_optimization and is_own_loss(self.kind):
            raise ValueError(
                f"{self.kind.__name__} is a loss in the place of training_step, which optimises by itself here: a "
                "module with automatic_optimization=False takes methods that change what the step sees"
            )
        rank, net = trainer.global_rank, module.get_submodule(self.network)
        if self.seed is not None and not self.is_named:
            # Anew in every fit, as a method by its name is.
            self.method.generator = seeded(self.seed + rank)
        self.require_layers(net)
        with suppress(_NoDataYet):
            put_beside(module, self.made(net, _no_data_yet, self._seed_of(rank)))

    def _seed_of(self, rank: int) -> int | None:
        return None if self.seed is None else self.seed + rank

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the module as it was."""
        pl_module.__dict__.pop("training_step", None)
        take_away(pl_module)
        self._stop()
        self._drawn = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the module as it was, whatever happened."""
        self.teardown(trainer, pl_module, "fit")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make a method that refers to the data, which is there now; what is missing is said before any step."""
        require_loaders(trainer, self.fits)

        def moments() -> DataMoments:
            why = f"method {self.kind.name} refers to the means of the training data: give moments=, or let it be read"
            read = Pairs(in_order(trainer.train_dataloader, why), self._read, trainer.strategy.batch_to_device)
            return mean_of_pairs(self.as_targets(read), self.moments.num_classes)

        self.made(pl_module.get_submodule(self.network), moments, self._seed_of(trainer.global_rank))
        require_trained(self.method, trainer.optimizers)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Mix in this epoch, or no longer; asked at every batch, as an epoch that is resumed does not say it begins."""
        was_off, self._drawn = self.is_off, None
        self.is_off = self.until is not None and trainer.current_epoch >= self.until
        if self.is_off and not was_off:
            # It was fitted to a network that was trained otherwise.
            self.fitted = None

    def _read(self, batch: Any) -> tuple[Any, Any]:
        return read_batch(batch, self.keys)

    def _step(self, module: LightningModule, batch: Any, step: Step) -> Any:
        if self.is_off:
            return step(batch)
        if self._drawn is None:
            self._drawn = drawn_step(self, module.get_submodule(self.network), batch, self.keys, self._metrics)
        found = self._drawn(step)
        if is_own_loss(self.kind):
            module.log("train_loss", found.detach(), batch_size=len(self._read(batch)[1]))
        return found

    def _first(self, targets: Tensor) -> None:
        if self.rescale:
            self._rule_of(self.moments)
        if self.fits:
            require_fitted_loss(self._fitted_loss(), self._targets is not None, targets)

    def _validated(self, trainer: Trainer, module: LightningModule) -> None:
        if self.fits and trainer.state.fn == "fit" and not trainer.sanity_checking and not self.is_off:
            with warnings.catch_warnings():
                # What a fit has to say is kept with it.
                warnings.simplefilter("ignore", UserWarning)
                loader: Any = trainer.val_dataloaders
                (batches,) = trainer.num_val_batches
                most = int(batches) if math.isfinite(batches) else None
                held_out = Pairs(loader, self._read, trainer.strategy.batch_to_device, most)
                self._fit(held_out, module.get_submodule(self.network))

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints keep, see `KeptMethod.state`; to be called by all processes, as Lightning does."""
        return self.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.restore(state_dict)


def _no_data_yet() -> DataMoments:
    raise _NoDataYet
