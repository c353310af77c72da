"""Mixup for an unchanged `LightningModule`: `Trainer(callbacks=[MixupCallback(alpha=1.0, num_classes=10)])`.

In training every batch is mixed before `training_step` sees it: labels become soft labels, which
`torch.nn.functional.cross_entropy` takes as they are. The means of what was seen are gathered on the way and travel
with the checkpoints, as do the method and its α. Validation, test and prediction see the rescaled network of
eq. (testmodif); what measures a network (`mixreg.risk`) and `with callback.plain():` see the one that was trained.

Needs Lightning: `pip install 'mixreg[lightning]'`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mixreg._autodiff.network import without_rules
from mixreg._support.processes import gather_objects, rank, world_size
from mixreg._support.random import integers, seeded
from mixreg._support.structure import rebuild, shapes_of, tree_of_shapes
from mixreg.adapters.batches import Classes, Keys, joined_targets, replaced, several, split_targets, taken
from mixreg.adapters.chosen import chosen_method
from mixreg.adapters.resume import require_same_settings, settings_of
from mixreg.adapters.ruled import Ruled
from mixreg.methods.method import Augmentation
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


class MixupCallback(Callback):
    """Mixup in training, the rescaled network everywhere else.

    Args:
        alpha: in [0, ∞]; 1 by default.
        num_classes: needed when targets are integer labels, which become soft labels; of several targets one number
            for each, in their structure, such as `{"label": 10, "age": None}`.
        per_sample: draw θ for every sample, or once per batch.
        seed: of partners and shares; by default PyTorch's global random number generator.
        rescale: whether validation, test and prediction use the rescaled network.
        network: the submodule that makes the logits, by name; by default the module itself, called as `self(x)`, by
            keyword, or with a whole batch.
        input_key: where a batch holds its inputs: a position, or a key if it is a dict; or several of them.
        target_key: where it holds its targets; for several the network returns a dict by key, or outputs in this order.
        method: another augmentation than Mixup, such as `CutMix(1.0, num_classes=10)`; the first four are then its own,
            but for several targets, when it is made without `num_classes`.
        until: batches are mixed for so many epochs and then shown as they are, and predictions are then plain: the
            network last saw data as it is, for which there is no rule.

    Attributes:
        is_off: whether mixing has ended.
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
        method: Augmentation | None = None,
        until: int | None = None,
    ) -> None:
        if until is not None and (isinstance(until, bool) or not isinstance(until, int) or until < 1):
            raise ValueError(f"until must be a number of epochs, at least 1, or None, got {until!r}")
        self.until, self.is_off = until, False
        is_one = isinstance(num_classes, int) or num_classes is None
        joined = bool(several(target_key)) or not is_one
        own = num_classes if isinstance(num_classes, int) and not joined else None
        self.method = chosen_method(method, alpha, own, per_sample, seed)
        if joined and getattr(self.method, "num_classes", None) is not None:
            raise TypeError("several targets have numbers of classes of their own: give them here, and none to method")
        self.moments = DataMoments(getattr(self.method, "num_classes", None))
        self.num_classes, self.seed, self.rescale, self.network = num_classes, seed, rescale, network
        self.keys = input_key, target_key
        # What one of each of several targets looks like.
        self._targets: Any = None
        self._ruled: Ruled | None = None

    def plain(self) -> AbstractContextManager[None]:
        """Inside, the network is as it was trained, also in validation: `with callback.plain(): logits = self(x)`."""
        return without_rules()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before anything runs, in every process: find the network; from now on training steps see mixed batches."""
        names = {name for name, _ in pl_module.named_modules()}
        if self.network not in names:
            known = ", ".join(sorted(name for name in names if name))
            raise ValueError(f"the module has no submodule {self.network!r}; it has {known or 'none'}")
        if self.rescale and getattr(pl_module, "_compiler_ctx", None) is not None:
            raise ValueError(
                "MixupCallback cannot rescale a LightningModule that was compiled as a whole: compile the network "
                "inside it, or set rescale=False"
            )
        if stage != "fit":
            return
        # What an earlier fit saw says nothing of this one; a checkpoint is restored after this.
        self.moments, self._targets = DataMoments(self.moments.num_classes), None
        if self.seed is not None and trainer.global_rank > 0:
            self.method.generator = seeded(self.seed + trainer.global_rank)
        original = pl_module.training_step

        @wraps(original)
        def mixed_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self._mixed(batch), *args, **kwargs)

        pl_module.__dict__["training_step"] = mixed_step

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the module as it was."""
        pl_module.__dict__.pop("training_step", None)
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the module as it was, whatever happened."""
        self.teardown(trainer, pl_module, "fit")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mix in this epoch, or no longer."""
        self.is_off = self.until is not None and trainer.current_epoch >= self.until

    def _mixed(self, batch: Any) -> Any:
        if self.is_off:
            return batch
        at_x, at_y = self.keys
        try:
            x, y = taken(batch, at_x), taken(batch, at_y)
        except (KeyError, IndexError, TypeError) as error:
            raise TypeError(
                f"MixupCallback looks for inputs at {at_x!r} and targets at {at_y!r} of a batch, which a "
                f"{type(batch).__name__} does not have; say where they are with input_key and target_key"
            ) from error
        targets, like = (y, None) if isinstance(y, Tensor) else self._joined(x, y)
        self.moments.update(x, targets)
        self._targets = like
        mixed_x, mixed_y = self.method(x, targets)
        if like is not None:
            mixed_y = split_targets(mixed_y, like)
        changed: dict[Any, Any] = {}
        for keys, new in ((at_x, mixed_x), (at_y, mixed_y)):
            changed |= new if several(keys) else {keys: new}
        return replaced(batch, changed)

    def _joined(self, x: Any, y: Any) -> tuple[Tensor, Any]:
        if getattr(self.method, "num_classes", None) is not None:
            raise TypeError(
                f"the targets are several, a {type(y).__name__} of them: give MixupCallback num_classes for each, in "
                "the same structure (None for those that are no labels), and none to method"
            )
        return joined_targets(x, y, self.num_classes)

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.rescale or self.is_off:
            return
        # By every process, whatever it has seen itself: after a restart only the first one knows the means.
        moments = self.moments.joined()
        if moments.count == 0:
            if trainer.sanity_checking:
                return
            raise ValueError(
                "MixupCallback has seen no training data, so that it cannot rescale predictions: fit first, restore a "
                "checkpoint with ckpt_path, or set rescale=False"
            )
        rule = self.method.rule(moments)
        if rule is None:
            raise ValueError(f"{type(self.method).__name__} has no prediction rule; set rescale=False")
        weight = next(pl_module.parameters())
        rule = rule.to(weight.device, weight.dtype)
        targets = next((each for each in gather_objects(self._targets) if each is not None), None)
        if targets is not None:
            targets = split_targets(rule.y_mean, rebuild(targets, lambda part: part.to(weight.dtype)))
        # Not by hooks: a distributed strategy sends whole steps through the module's call, and they are no inputs.
        self._ruled = Ruled(pl_module.get_submodule(self.network), rule, self.keys[0], targets)

    def _stop(self) -> int | None:
        """End rescaling; how often it was applied, if it was on."""
        if self._ruled is None:
            return None
        self._ruled.remove()
        calls, self._ruled = self._ruled.calls, None
        return calls

    def _end(self) -> None:
        if self._stop() == 0:
            raise ValueError(
                f"nothing was rescaled: {self.network or 'the module itself'} was never called; name the submodule "
                "that makes the logits with network="
            )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Rescale; but not in the sanity check, before anything was seen."""
        self._begin(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to the plain network."""
        self._end()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Rescale."""
        self._begin(trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to the plain network."""
        self._end()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Rescale."""
        self._begin(trainer, pl_module)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to the plain network."""
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints keep: the method, the means of all processes so far, and the state of each one's generator.

        To be called by all processes, as Lightning does.
        """
        tensors, record = self.moments.joined().to_tensors()
        state: dict[str, Any] = {"settings": settings_of(self.method), "moments": record, "is_off": self.is_off}
        state |= {name: tensor.cpu() for name, tensor in tensors.items()}
        if self._targets is not None:
            state["targets"] = shapes_of(self._targets)
        if self.method.generator is not None:
            state["generators"] = gather_objects(self.method.generator.get_state())
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint: the first process carries the means on, and each has a generator of its own."""
        require_same_settings(self.method, state_dict.get("settings"))
        self.is_off = state_dict.get("is_off", False)
        self.moments = DataMoments(self.moments.num_classes)
        if rank() == 0:
            self.moments = _restored(state_dict, self.moments.num_classes)
        if "targets" in state_dict:
            self._targets = tree_of_shapes(state_dict["targets"])
        states = state_dict.get("generators") or [state_dict[key] for key in ("generator",) if key in state_dict]
        if self.method.generator is None or not states:
            return
        is_own = len(states) == world_size()
        state = states[rank() if is_own else 0]
        self.method.generator.set_state(torch.as_tensor(state, dtype=torch.uint8).cpu())
        if rank() > 0 and not is_own:
            self.method.generator = seeded(int(integers(2**62, (), self.method.generator)) + rank())


def _restored(state: dict[str, Any], num_classes: int | None) -> DataMoments:
    if "moments" in state:
        return DataMoments.from_tensors({"mean": state["mean"]} if "mean" in state else {}, state["moments"])
    # As checkpoints were before.
    if not state["count"]:
        return DataMoments(num_classes)
    return DataMoments.from_means(state["x_mean"], state["y_mean"], num_classes, state["count"])
