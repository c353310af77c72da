"""The training loop: on Lightning Fabric, resumable at every step, with the means of what the network saw.

Epoch, step and the run's seed determine every batch, so a run resumes from any checkpoint as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._support.processes import share_buffers, sum_over_processes
from mixreg._support.random import stream_seed
from mixreg._support.tensor_files import save_tensors
from mixreg.data.fingerprints import is_unchanged
from mixreg.methods.erm import EmpiricalRisk
from mixreg.methods.method import Method
from mixreg.theory.moments import DataMoments
from mixreg.training.batches import Batch, Batches
from mixreg.training.build import balanced_means, build_optimizer, build_parseval, kept_moments, smoothed_mean
from mixreg.training.checkpoint import CheckpointError, flat_state, restore_state
from mixreg.training.config import Config
from mixreg.training.held_out_fit import Again, HeldOutFit, fit_on
from mixreg.training.kept_weights import HELD_OUT_LOSS, BestWeights, WeightAverage
from mixreg.training.measures import MAIN_MEASURE, measure_models, training_hits
from mixreg.training.observer import Observer
from mixreg.training.run_state import RunState
from mixreg.training.step import Step, draw_rows

_MOMENTS, _AVERAGE, _BEST = "moments.", "average.", "best."


class Trainer:
    """One run.

    Args:
        config: what to do.
        batches: the data.
        net: the network, on the CPU.
        method: how to train it.
        fabric: Lightning's, launched, or what stands for it.
        checkpoint: the file to save to and resume from.
        prepare: what to call in training steps, made of a network and its device; by default the network as it is.
    """

    def __init__(
        self,
        config: Config,
        batches: Batches,
        net: nn.Module,
        method: Method,
        fabric: Any,
        checkpoint: Path,
        prepare: Callable[[nn.Module, torch.device], nn.Module] = lambda net, device: net,
    ) -> None:
        self.config, self.batches, self.fabric, self.checkpoint = config, batches, fabric, checkpoint
        self.net, self.method = net, method
        self.trained = method.extended(net)
        if batches.preparation.pixels is not None:
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if config.until and self.trained is not net:
            raise ValueError(f"method {config.method} learns beside the network and cannot be switched off: until = 0")
        parseval = build_parseval(config, net)
        called = prepare(self.trained, fabric.device)
        wrapped, self.optimizer = fabric.setup(called, build_optimizer(config, self.trained))
        self.step = Step(method, wrapped, self.optimizer, parseval, config.clip, fabric.backward)
        # What follows a method that is switched off: the data as it is.
        self.plain = EmpiricalRisk(config.alpha, batches.num_classes)
        self.plain.loss = method.loss
        self.average = WeightAverage(self.trained, config.ema) if config.ema else None
        self.best = BestWeights(config.patience) if config.patience else None
        self.state = RunState(0, 0, DataMoments(batches.num_classes, by_class=method.needs_class_means))
        self._generator = torch.Generator()
        # Raises where the run's folder is no longer its own; asked before anything is written.
        self.require_place: Callable[[], None] = lambda: None

    def resume(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Continue from a checkpoint's content."""
        if "step" not in record or Config.from_json(record.get("config", {})) != self.config:
            raise CheckpointError(f"{self.checkpoint} belongs to another run")
        if not is_unchanged(record["data"], self.batches.fingerprint):
            raise CheckpointError(f"{self.config.data} has changed since {self.checkpoint} was written")
        restore_state(self.checkpoint, tensors, self.trained, self.optimizer)
        s, is_first = self.state, self.fabric.global_rank == 0
        s.epoch, s.step, s.log = (record[key] for key in ("epoch", "step", "log"))
        # What was saved is of all processes together; the first one carries it on.
        if self.batches.is_whole or is_first:
            s.moments = DataMoments.from_tensors(_without_prefix(tensors, _MOMENTS), record["moments"])
        if is_first:
            s.sums = tensors["sums"]
        device = next(self.net.parameters()).device
        for prefix, kept_weights in ((_AVERAGE, self.average), (_BEST, self.best)):
            if kept_weights is not None:
                kept_weights.tensors = {k: v.to(device) for k, v in _without_prefix(tensors, prefix).items()}

    def save(self) -> None:
        """Write a checkpoint; every process must call it."""
        s, moments, sums = self.state, self._joined_moments(), sum_over_processes(self.state.sums)
        if self.fabric.global_rank > 0:
            return
        self.require_place()
        kept, described = moments.to_tensors()
        tensors = flat_state(self.trained, self.optimizer) | {_MOMENTS + key: value for key, value in kept.items()}
        for prefix, kept_weights in ((_AVERAGE, self.average), (_BEST, self.best)):
            if kept_weights is not None:
                tensors |= {prefix + key: value for key, value in kept_weights.tensors.items()}
        record = {"epoch": s.epoch, "step": s.step, "moments": described, "log": s.log}
        record |= {"config": self.config.to_json(), "data": self.batches.fingerprint}
        save_tensors(self.checkpoint, tensors | {"sums": sums}, record)

    def run(self, observer: Observer, checkpoint_seconds: float, evaluate_every: int = 1) -> None:
        """Train to the end.

        Args:
            observer: is told how it goes.
            checkpoint_seconds: a checkpoint is written at the first step after so many seconds.
            evaluate_every: epochs between evaluations on the test set; the last one always has one.
        """
        config, s = self.config, self.state
        shown = observer if self.fabric.is_global_zero else Observer()
        last_save = last_shown = time.monotonic()
        self.step.net.train()
        for epoch in range(s.epoch, config.epochs):
            if self.is_stopped:
                break
            begun = time.monotonic()
            self.step.method = self.plain if config.is_off(epoch) else self.method
            for step, batch in enumerate(self.batches.epoch(epoch, s.step), start=s.step):
                for group in self.optimizer.param_groups:
                    group["lr"] = config.lr_at(epoch, (step + 0.5) / self.batches.steps)
                self._take_step(epoch, step, batch)
                now = time.monotonic()
                if now - last_shown > 0.2 or step == 0:
                    last_shown = now
                    shown.on_step(epoch, step + 1, *s.epoch_means())
                    self._refuse_divergence(epoch)
                if step + 1 < self.batches.steps and self._agree(now - last_save > checkpoint_seconds):
                    self.save()
                    last_save = time.monotonic()
            record = self._record(epoch, begun)
            s.epoch, s.step, s.sums = epoch + 1, 0, torch.zeros_like(s.sums)
            is_tested = (epoch + 1) % evaluate_every == 0 or epoch + 1 == config.epochs
            with self.averaged_weights():
                measured = observer.measure(self, epoch + 1)
                if is_tested:
                    record["test"] = self.evaluate()
                record |= measured
                if self.best is not None:
                    record[HELD_OUT_LOSS] = self.held_out_loss()
                    self.best.take([*s.log, record], self.trained)
            s.log.append(record)
            shown.on_epoch(record)
            if (
                epoch + 1 == config.epochs
                or self.is_stopped
                or self._agree(time.monotonic() - last_save > checkpoint_seconds)
            ):
                self.save()
                last_save = time.monotonic()

    def _take_step(self, epoch: int, step: int, batch: Batch) -> None:
        s, fabric, seed = self.state, self.fabric, self.config.seed
        batch.add_to(s.moments)
        # Processes that see whole batches share one stream; others have their own.
        rank = 0 if self.batches.is_whole else fabric.global_rank
        self._generator.manual_seed(stream_seed(seed, "method", epoch, step, rank))
        drawn = draw_rows(
            self.step.method, batch, self.batches.num_classes, self.config.label_smoothing, self._generator
        )
        rows = tuple(row[batch.own].to(fabric.device) for row in drawn)
        # Dropout and its like draw from PyTorch's own stream.
        self._seed_network(stream_seed(seed, "network", epoch, step, fabric.global_rank))
        # The mean over the whole batch, whatever the processes' shares of it: gradients are averaged over them.
        losses, logits = self.step(rows, fabric.world_size / batch.total)
        if self.average is not None:
            self.average.update()
        y = batch.y[batch.own]
        hits, judged = (0.0, 0) if logits is None else training_hits(logits.cpu(), y, self.batches.targets.task)
        s.sums += torch.tensor([float(losses.sum()), len(y), hits, judged], dtype=torch.float64)
        s.epoch, s.step = epoch, step + 1

    @property
    def is_stopped(self) -> bool:
        """Whether the run ends here, before its last epoch."""
        return self.best is not None and self.best.is_over(self.state.log)

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Inside, the network has the weights that are evaluated: their average, if the run keeps one."""
        with contextlib.nullcontext() if self.average is None else self.average.in_place():
            yield

    def take_final_weights(self) -> None:
        """Give the network the weights that the run results in: the best, their average, or the last."""
        kept = self.best or self.average
        if kept is not None and kept.tensors:
            self.trained.load_state_dict(kept.tensors)

    def _seed_network(self, seed: int) -> None:
        # Not torch.manual_seed: without a GPU that notes every call, with its stack, for the day there is one.
        torch.default_generator.manual_seed(seed)
        if self.fabric.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _agree(self, wish: bool) -> bool:
        """The first process's wish, which all follow."""
        return bool(self.fabric.broadcast(wish)) if self.fabric.world_size > 1 else wish

    def _refuse_divergence(self, epoch: int) -> None:
        if not bool(torch.isfinite(self.state.sums).all()):
            raise ValueError(f"training diverged in epoch {epoch + 1}: the loss is not finite; lower the learning rate")

    def _record(self, epoch: int, begun: float) -> dict[str, Any]:
        """What training itself says of an epoch."""
        self._refuse_divergence(epoch)
        if not all(bool(torch.isfinite(weight).all()) for weight in self.net.parameters()):
            raise ValueError(f"training diverged in epoch {epoch + 1}: weights are not finite; lower the learning rate")
        self.state.sums = sum_over_processes(self.state.sums)
        loss, accuracy = self.state.epoch_means()
        record: dict[str, Any] = {"epoch": epoch + 1, "lr": self.optimizer.param_groups[0]["lr"]}
        return record | {
            "train_loss": loss,
            "train_accuracy": accuracy,
            "seconds": round(time.monotonic() - begun, 3),
        }

    def _joined_moments(self) -> DataMoments:
        """Of what the network saw in all processes; every process must call it."""
        return self.state.moments if self.batches.is_whole else self.state.moments.joined()

    def means(self) -> dict[str, Tensor]:
        """What prediction needs of the data seen so far; every process must call it."""
        share_buffers(self.trained)
        seen = self._joined_moments()
        means = {"x_mean": seen.x_mean.float(), "y_mean": smoothed_mean(seen.y_mean, self.config).float()}
        if self.method.needs_class_means:
            means |= balanced_means(seen, self.config)
        weight = next(self.net.parameters())
        shown = (
            (b.x[b.own].to(weight.device, weight.dtype), b.y[b.own])
            for b in self.batches.epoch(max(0, self.state.epoch - 1), 0)
        )
        further = self.method.further_means(self.net, shown)
        return means | {name: mean.float().cpu() for name, mean in further.items()}

    def evaluate(self) -> dict[str, dict[str, float]]:
        """The measures of the plain and the rescaled network on the test set; every process must call it."""
        share_buffers(self.trained)
        models = {"plain": self.net, "rescaled": self._with_rule(self.method.compared)}
        return self._measured(models, self.batches.test_batches())

    def held_out_loss(self) -> float:
        """The loss of what the run would predict with, on what is held out; every process must call it."""
        share_buffers(self.trained)
        model = self.net if self.config.is_off(self.state.epoch - 1) else self._with_rule(self.method.predictor)
        return self._measured({"": model}, self.batches.held_out_batches())[""][MAIN_MEASURE[self.batches.targets.task]]

    def _measured(
        self, models: dict[str, nn.Module], batches: Iterator[tuple[Tensor, Tensor]]
    ) -> dict[str, dict[str, float]]:
        try:
            found = measure_models(models, batches, self.fabric.device, self.batches.targets)
            # Files hold no NaN: of targets that do not vary there is no R².
            return {
                name: {measure: value for measure, value in row.items() if not math.isnan(value)}
                for name, row in found.items()
            }
        except ValueError as error:
            if "not finite" not in str(error):
                raise
            raise ValueError(
                f"training diverged in epoch {self.state.epoch}: what it makes of data is not finite; lower the "
                "learning rate"
            ) from error

    def fit_on_held_out(self, means: dict[str, Tensor]) -> HeldOutFit | None:
        """What held-out data says of the network's predictors, if there is any; by one process alone."""
        batches, place = self.batches, self.fabric.device
        if next(iter(batches.held_out_batches()), None) is None:
            return None
        again = Again(batches.held_out_batches)
        return fit_on(self.net, lambda: self._with_rule(self.method.compared, means), again, batches.targets, place)

    def _with_rule(self, predictor: Callable[..., nn.Module], means: dict[str, Tensor] | None = None) -> nn.Module:
        """What `predictor` makes of the network and the means (by default, of what it has seen so far)."""
        means = self.means() if means is None else means
        moments = kept_moments(means, self.batches.num_classes)
        weight = next(self.net.parameters())
        return predictor(self.net, moments, means).to(weight.device, weight.dtype)


def _without_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin so, under the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
