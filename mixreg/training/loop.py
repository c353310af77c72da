"""The training loop: on Lightning Fabric, resumable at every step, with the means of what the network saw.

Epoch, step and the run's seed determine every batch, so a run goes on from any checkpoint as if nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mixreg.distributed import sum_over_processes, world_size
from mixreg.manifold import hidden_means
from mixreg.streams import stream_seed
from mixreg.training.batches import Batches
from mixreg.training.checkpoint import CheckpointError, flat_state, restore_state, save_tensors
from mixreg.training.config import Config
from mixreg.training.measures import Measures, predict
from mixreg.training.methods import keeper, make_method, mixed_layers, seen_labels
from mixreg.training.prediction import rescaled_network


class Watcher(Protocol):
    """Is told how training goes, a few times a second."""

    def step(self, epoch: int, step: int, loss: float, accuracy: float | None) -> None:
        """After a step; `loss` and `accuracy` are those of the epoch so far."""


class Unwatched:
    """Nobody looks."""

    def step(self, epoch: int, step: int, loss: float, accuracy: float | None) -> None:
        """Nothing to show."""


@dataclass
class State:
    """Where a run is and what it has gathered.

    Attributes:
        epoch, step: the next step to make.
        seen, x_sum, y_sum: how many samples the network saw, and their sums before mixing.
        sums: of this epoch so far: losses, samples, hits, samples whose prediction was at hand.
        log: one record per finished epoch.
    """

    epoch: int
    step: int
    seen: int
    x_sum: Tensor
    y_sum: Tensor
    sums: Tensor = field(default_factory=lambda: torch.zeros(4, dtype=torch.float64))
    log: list[dict[str, Any]] = field(default_factory=list)

    def take(self, x: Tensor, y: Tensor) -> None:
        """Add a batch to the means; x: n × …, y: n class indices."""
        self.seen += len(y)
        self.x_sum += x.sum(0)
        self.y_sum += torch.bincount(y, minlength=len(self.y_sum))

    def means(self, is_whole: bool) -> tuple[Tensor, Tensor]:
        """x̄ and ȳ of what the network saw, in all processes."""
        if is_whole or world_size() == 1:
            return self.x_sum / self.seen, self.y_sum / self.seen
        seen = float(sum_over_processes(torch.tensor(float(self.seen))))
        return sum_over_processes(self.x_sum) / seen, sum_over_processes(self.y_sum) / seen


class Trainer:
    """One run.

    Args:
        config: what to do.
        batches: the data.
        net: the network, on the CPU.
        fabric: Lightning's, launched.
        checkpoint: the file to save to and go on from.
    """

    def __init__(self, config: Config, batches: Batches, net: nn.Module, fabric: Any, checkpoint: Path) -> None:
        self.config, self.batches, self.fabric, self.checkpoint = config, batches, fabric, checkpoint
        self.bare = net
        self.method = make_method(config, batches.num_classes, batches.means, net)
        self.parseval = keeper(config, net)
        optimizer = torch.optim.SGD(
            net.parameters(),
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
        )
        self.net, self.optimizer = fabric.setup(net, optimizer)
        self.state = State(
            0,
            0,
            0,
            torch.zeros(batches.shape, dtype=torch.float64),
            torch.zeros(batches.num_classes, dtype=torch.float64),
        )

    def resume(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Go on from a checkpoint's content."""
        if "step" not in record or Config.from_json(record.get("config", {})) != self.config:
            raise CheckpointError(f"{self.checkpoint} belongs to another run")
        if record["data"] != self.batches.fingerprint:
            raise CheckpointError(f"{self.config.data} has changed since {self.checkpoint} was written")
        restore_state(self.checkpoint, tensors, self.bare, self.optimizer)
        s = self.state
        s.epoch, s.step, s.seen, s.log = (record[key] for key in ("epoch", "step", "seen", "log"))
        s.x_sum, s.y_sum, s.sums = tensors["x_sum"], tensors["y_sum"], tensors["sums"]
        if not self.batches.is_whole and self.fabric.global_rank > 0:
            # The saved sums are those of all processes; the first one carries them on.
            s.seen = 0
            s.x_sum.zero_(), s.y_sum.zero_()
        if self.fabric.global_rank > 0:
            s.sums.zero_()

    def save(self) -> None:
        """Write a checkpoint; every process must call it."""
        s = self.state
        x_sum, y_sum, seen = s.x_sum, s.y_sum, s.seen
        if not self.batches.is_whole and world_size() > 1:
            x_sum, y_sum = sum_over_processes(x_sum), sum_over_processes(y_sum)
            seen = int(sum_over_processes(torch.tensor(float(seen))))
        sums = sum_over_processes(s.sums)
        if self.fabric.global_rank == 0:
            tensors = flat_state(self.bare, self.optimizer) | {"x_sum": x_sum, "y_sum": y_sum, "sums": sums}
            record = {"epoch": s.epoch, "step": s.step, "seen": seen, "log": s.log, "config": self.config.to_json()}
            record["data"] = self.batches.fingerprint
            save_tensors(self.checkpoint, tensors, record)

    def run(
        self,
        watcher: Watcher,
        evaluate: Callable[[int], dict[str, Any]],
        finished: Callable[[dict[str, Any]], None],
        checkpoint_seconds: float,
    ) -> None:
        """Train to the end.

        Args:
            watcher: shows progress.
            evaluate: measures the network after an epoch.
            finished: is given the record of every finished epoch.
            checkpoint_seconds: a checkpoint is written at the first step after so many seconds.
        """
        config, s, method, parseval = self.config, self.state, self.method, self.parseval
        generator = torch.Generator()
        last_save = last_look = time.monotonic()
        self.net.train()
        for epoch in range(s.epoch, config.epochs):
            begun = time.monotonic()
            for group in self.optimizer.param_groups:
                group["lr"] = config.lr_at(epoch)
            for step, batch in enumerate(self.batches.epoch(epoch, s.step), start=s.step):
                s.take(batch.x, batch.y)
                generator.manual_seed(stream_seed(config.seed, "method", epoch, step, self._row_stream()))
                rows = method.prepare(batch.x, batch.y, generator)
                rows = tuple(row[batch.own].to(self.fabric.device) for row in rows)
                # Dropout and its like draw from PyTorch's own stream.
                self._seed_network(stream_seed(config.seed, "network", epoch, step, self.fabric.global_rank))
                losses, logits = method.losses(self.net, rows)
                self.optimizer.zero_grad()
                # The mean over the whole batch, whatever the processes' shares of it: gradients are averaged over them.
                self.fabric.backward(losses.sum() * (self.fabric.world_size / batch.total))
                self.optimizer.step()
                if parseval is not None:
                    parseval.step()
                self._count(losses.detach(), logits, batch.y[batch.own])
                s.epoch, s.step = epoch, step + 1
                now = time.monotonic()
                if now - last_look > 0.2 or step == 0:
                    last_look = now
                    watcher.step(epoch, step + 1, *self._epoch_means(s.sums))
                    self._refuse_divergence(epoch)
                if step + 1 < self.batches.steps and self._agree(now - last_save > checkpoint_seconds):
                    self.save()
                    last_save = time.monotonic()
            self._finish(epoch, begun, evaluate, finished)
            if epoch + 1 == config.epochs or self._agree(time.monotonic() - last_save > checkpoint_seconds):
                self.save()
                last_save = time.monotonic()

    def _seed_network(self, seed: int) -> None:
        # Not torch.manual_seed: without a GPU that notes every call, with its stack, for the day there is one.
        torch.default_generator.manual_seed(seed)
        if self.fabric.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _row_stream(self) -> int:
        """Processes that see whole batches share one stream; others have their own."""
        return 0 if self.batches.is_whole else self.fabric.global_rank

    def _agree(self, wish: bool) -> bool:
        """The first process's wish, which all follow."""
        return bool(self.fabric.broadcast(wish)) if self.fabric.world_size > 1 else wish

    def _count(self, losses: Tensor, logits: Tensor | None, y: Tensor) -> None:
        hits, judged = 0.0, 0
        if logits is not None:
            hits, judged = float((logits.argmax(1).cpu() == y).sum()), len(y)
        self.state.sums += torch.tensor([float(losses.sum()), len(y), hits, judged], dtype=torch.float64)

    @staticmethod
    def _epoch_means(sums: Tensor) -> tuple[float, float | None]:
        losses, samples, hits, judged = sums.tolist()
        return losses / max(samples, 1), hits / judged if judged else None

    def _refuse_divergence(self, epoch: int) -> None:
        if not bool(torch.isfinite(self.state.sums).all()):
            raise ValueError(f"training diverged in epoch {epoch + 1}: the loss is not finite; lower the learning rate")

    def _finish(
        self,
        epoch: int,
        begun: float,
        evaluate: Callable[[int], dict[str, Any]],
        finished: Callable[[dict[str, Any]], None],
    ) -> None:
        s = self.state
        self._refuse_divergence(epoch)
        loss, accuracy = self._epoch_means(sum_over_processes(s.sums))
        record = {"epoch": epoch + 1, "lr": self.config.lr_at(epoch), "train_loss": loss, "train_accuracy": accuracy}
        record |= {"seconds": round(time.monotonic() - begun, 3)} | evaluate(epoch)
        s.log.append(record)
        s.epoch, s.step, s.sums = epoch + 1, 0, torch.zeros_like(s.sums)
        finished(record)

    def means(self) -> dict[str, Tensor]:
        """What prediction needs of the data seen so far; every process must call it."""
        x_mean, y_mean = self.state.means(self.batches.is_whole)
        found = {"x_mean": x_mean.float(), "y_mean": seen_labels(y_mean, self.config).float()}
        if self.config.method != "manifold":
            return found
        weight = next(self.bare.parameters())
        epoch = max(0, self.state.epoch - 1)
        shown = ((b.x[b.own].to(weight.device, weight.dtype), b.y) for b in self.batches.epoch(epoch, 0))
        layers = mixed_layers(self.config, self.bare)
        hidden = hidden_means(self.bare, layers, shown, across_processes=world_size() > 1)
        return found | {f"hidden.{layer}": mean.float().cpu() for layer, mean in hidden.items()}


def evaluate_on(trainer: Trainer, test: Any) -> dict[str, dict[str, float]]:
    """The measures of the plain and the rescaled network on batches of (x, y)."""
    weight = next(trainer.bare.parameters())
    rescaled = rescaled_network(trainer.config, trainer.bare, trainer.means()).to(weight.device, weight.dtype)
    models: dict[str, nn.Module] = {"plain": trainer.bare, "rescaled": rescaled}
    measures = {name: Measures() for name in models}
    predict(models, test, lambda name, logits, y: measures[name].update(logits, y), trainer.fabric.device)
    return {name: measure.compute() for name, measure in measures.items()}
