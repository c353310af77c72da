"""While Lightning validates, tests or predicts, the network obeys its rule; otherwise it is as it was trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixreg._autodiff.network import without_rules
from mixreg.adapters.batches import Keys
from mixreg.adapters.kept import KeptMethod
from mixreg.adapters.ruled import Ruled

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class InEvaluation(KeptMethod):
    """Hooks of a callback around validation, test and prediction.

    Attributes:
        rescale: whether the rule is obeyed at all.
        network: the submodule that makes the outputs, by name.
        keys: where a batch holds inputs and targets.
    """

    rescale: bool
    network: str
    keys: tuple[Keys, Keys]
    _ruled: Ruled | None = None

    def _validated(self, trainer: Trainer, module: LightningModule) -> None:
        """Called after each validation, with the weights that were validated; asked for plainly, so is the network."""

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # While it trains, validation measures the rule itself, not what the last validation placed.
        fitted = None if trainer.state.fn == "fit" else self.fitted
        if not self.rescale or (self.is_off and fitted is None):
            return
        # By every process, whatever it has seen itself: after a restart only the first one knows the means.
        if self.moments.joined().count == 0:
            if trainer.sanity_checking:
                return
            raise ValueError(
                "MixupCallback has seen no training data, so that it cannot rescale predictions: fit first, restore a "
                "checkpoint with ckpt_path, or set rescale=False"
            )
        net = pl_module.get_submodule(self.network)
        self.made(net, self.moments.joined)
        # Not by hooks: a distributed strategy sends whole steps through the module's call, and they are no inputs.
        self._ruled = self.put_on(net, self.keys[0], fitted)

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

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """While weights that others keep an average of are still in their place."""
        if self._ruled is None or self._ruled.calls:
            with without_rules():
                self._validated(trainer, pl_module)

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
