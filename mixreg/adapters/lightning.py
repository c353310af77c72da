"""Mixup for an unchanged `LightningModule`: `Trainer(callbacks=[MixupCallback(alpha=1.0, num_classes=10)])`.

In training every batch is mixed before `training_step` sees it: labels become soft labels, which
`torch.nn.functional.cross_entropy` takes as they are. The means of what was seen are gathered on the way and travel
with the checkpoints. Validation, test and prediction see the rescaled network of eq. (testmodif).

Needs Lightning: `pip install 'mixreg[lightning]'`.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mixreg._support.processes import rank
from mixreg._support.random import integers, seeded
from mixreg.adapters.ruled import Ruled
from mixreg.methods.method import Augmentation
from mixreg.methods.mixup import Mixup
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
        alpha: in [0, ∞].
        num_classes: needed when targets are integer labels, which become soft labels.
        per_sample: draw θ for every sample, or once per batch.
        seed: of partners and shares; by default PyTorch's global random number generator.
        rescale: whether validation, test and prediction use the rescaled network.
        network: the submodule that makes the logits, by name; by default the module itself, called as `self(x)`.
        input_key: where a batch holds its inputs: a position, or a key if it is a dict.
        target_key: where it holds its targets.
        method: another augmentation than Mixup, such as `CutMix(1.0, num_classes=10)`; the first four are then its own.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        num_classes: int | None = None,
        per_sample: bool = True,
        seed: int | None = None,
        rescale: bool = True,
        network: str = "",
        input_key: int | str = 0,
        target_key: int | str = 1,
        method: Augmentation | None = None,
    ) -> None:
        self.method = method or Mixup(alpha, num_classes, per_sample, seeded(seed))
        self.moments = DataMoments(getattr(self.method, "num_classes", None))
        self.seed, self.rescale, self.network = seed, rescale, network
        self.keys = input_key, target_key
        self._ruled: Ruled | None = None

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
        self.moments = DataMoments(self.moments.num_classes)
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

    def _mixed(self, batch: Any) -> Any:
        at_x, at_y = self.keys
        try:
            x, y = batch[at_x], batch[at_y]
        except (KeyError, IndexError, TypeError) as error:
            raise TypeError(
                f"MixupCallback looks for inputs at {at_x!r} and targets at {at_y!r} of a batch, which a "
                f"{type(batch).__name__} does not have; say where they are with input_key and target_key"
            ) from error
        if not isinstance(x, Tensor):
            raise TypeError(f"MixupCallback mixes inputs that are one tensor, got {type(x).__name__}")
        self.moments.update(x, y)
        changed = dict(zip(self.keys, self.method(x, y), strict=True))
        if isinstance(batch, dict):
            return batch | changed
        parts = [changed.get(index, part) for index, part in enumerate(batch)]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)

    def _begin(self, pl_module: LightningModule) -> None:
        if not self.rescale:
            return
        moments = self.moments.joined()
        if moments.count == 0:
            raise ValueError(
                "MixupCallback has seen no training data, so that it cannot rescale predictions: fit first, restore a "
                "checkpoint with ckpt_path, or set rescale=False"
            )
        rule = self.method.rule(moments)
        if rule is None:
            raise ValueError(f"{type(self.method).__name__} has no prediction rule; set rescale=False")
        weight = next(pl_module.parameters())
        # Not by hooks: a distributed strategy sends whole steps through the module's call, and they are no inputs.
        self._ruled = Ruled(pl_module.get_submodule(self.network), rule.to(weight.device, weight.dtype))

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
        if not (trainer.sanity_checking and self.moments.count == 0):
            self._begin(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to the plain network."""
        self._end()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Rescale."""
        self._begin(pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to the plain network."""
        self._end()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Rescale."""
        self._begin(pl_module)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to the plain network."""
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints keep: the means of all processes so far, and the state of the first one's generator."""
        moments = self.moments.joined()
        state: dict[str, Any] = {"count": moments.count}
        if moments.count:
            state |= {"x_mean": moments.x_mean.cpu(), "y_mean": moments.y_mean.cpu()}
        if self.method.generator is not None:
            state["generator"] = self.method.generator.get_state()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint: the first process carries the means on, and each has a generator of its own."""
        self.moments = DataMoments(self.moments.num_classes)
        if state_dict["count"] and rank() == 0:
            means = state_dict["x_mean"], state_dict["y_mean"]
            self.moments = DataMoments.from_means(*means, self.moments.num_classes, state_dict["count"])
        if self.method.generator is not None and "generator" in state_dict:
            self.method.generator.set_state(torch.as_tensor(state_dict["generator"], dtype=torch.uint8).cpu())
            if rank() > 0:
                self.method.generator = seeded(int(integers(2**62, (), self.method.generator)) + rank())
