"""How somebody's training step sees a method.

| method                              | the step                                                       |
|-------------------------------------|----------------------------------------------------------------|
| an augmentation (Mixup, CutMix, …)  | is given the batch that it makes                               |
| Manifold Mixup                      | is given mixed targets; the network it calls mixes at a layer  |
| a loss of the network (RegMixup, …) | is not called: the method's loss of the batch is in its place  |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from mixreg.adapters.batches import Keys, replaced, several, split_targets, taken
from mixreg.adapters.kept import KeptMethod
from mixreg.adapters.labels_of_parts import given_labels
from mixreg.methods.manifold import ManifoldMixup
from mixreg.methods.method import Augmentation


def read_batch(batch: Any, keys: tuple[Keys, Keys]) -> tuple[Any, Any]:
    """Inputs and targets of a batch, or an error that says where they were looked for."""
    at_x, at_y = keys
    try:
        return taken(batch, at_x), taken(batch, at_y)
    except (KeyError, IndexError, TypeError) as error:
        raise TypeError(
            f"MixupCallback looks for inputs at {at_x!r} and targets at {at_y!r} of a batch, which a "
            f"{type(batch).__name__} does not have; say where they are with input_key and target_key"
        ) from error


Step = Callable[[Any], Any]


def drawn_step(
    kept: KeptMethod, net: nn.Module, batch: Any, keys: tuple[Keys, Keys], metrics: Sequence[nn.Module] = ()
) -> Callable[[Step], Any]:
    """The method drawn for this batch: what carries out somebody's own step of a batch with it, and returns its result.

    That can be called again, as optimisers do that ask for a loss several times (L-BFGS): the draw is the same. Where
    the method is a loss of the network, it is the loss.

    Args:
        kept: the method, which takes note of the batch.
        net: the network that the step calls.
        batch: as the loader gave it.
        keys: where it holds inputs and targets.
        metrics: that the step updates with targets; see `given_labels`.
    """
    (x, y), method = read_batch(batch, keys), kept.method
    targets, like = kept.seen(x, y)

    def shown(step: Step, new_x: Any, new_y: Tensor) -> Any:
        mixed = new_y if like is None else split_targets(new_y, like)
        changed: dict[Any, Any] = {}
        for places, new in zip(keys, (new_x, mixed), strict=True):
            changed |= new if several(places) else {places: new}
        with given_labels(metrics, mixed, y):
            return step(replaced(batch, changed))

    if isinstance(method, Augmentation):
        mixture = method(x, targets)
        return lambda step: shown(step, *mixture)
    if isinstance(method, ManifoldMixup):
        rows = method.own_rows(x, targets)

        def inside(step: Step) -> Any:
            with method.mixing(net, rows) as mixed:
                return shown(step, x, mixed)

        return inside
    rows = method.draw(x, targets, method.generator)
    return lambda step: method.losses(net, rows).mean()
