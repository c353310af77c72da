"""Means of each class, for partners that are drawn balanced over classes.

Partners of which each class is as likely as any other have the means

    m_x = mean_c x̄_c        m_y = mean_c 1_c        over the classes c that there are,

in place of x̄ and ȳ. Sums in float64 and counts are kept, c × d numbers, and joined by adding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mixreg._support.processes import gather_objects, sum_over_processes
from mixreg.losses.targets import is_class_index, require_labels_in_range
from mixreg.theory.scatter import checked_tensor

# Without being asked, class means are kept up to so many numbers (32 MB).
KEPT_UNASKED = 1 << 22


class ClassMeans:
    """Σ of the samples of each class, and how many they are; joined, never changed.

    Args:
        num_classes: c; None if targets are not labels.
        is_kept: whether to keep them; by default where they are few numbers.
        seen: sums, c × d, and counts, c, of what was seen so far.
        known: m_x, of a sample's shape, and m_y, c, where nothing but these is known and nothing can be joined to them.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        is_kept: bool | None = None,
        seen: tuple[Tensor, Tensor] | None = None,
        known: Sequence[Tensor] | None = None,
    ) -> None:
        if is_kept and num_classes is None:
            raise ValueError("means of every class need num_classes")
        self.num_classes, self.is_kept, self.seen, self.known = num_classes, is_kept, seen, known

    def with_batch(self, parts: Sequence[Tensor], labels: Tensor, weights: Tensor | None = None) -> ClassMeans:
        """With a batch.

        Args:
            parts: n × … each.
            labels: n class indices; where means were asked for also n × c soft labels, of which the largest counts, as
                for partners. With others none are kept.
            weights: n.
        """
        if self.is_kept and labels.is_floating_point() and labels.ndim == 2:
            labels = labels.argmax(1)
        c, width = self.num_classes, sum(part[0].numel() for part in parts)
        is_kept = c is not None and c * width <= KEPT_UNASKED if self.is_kept is None else self.is_kept
        if c is None or not is_kept or not is_class_index(labels) or labels.ndim != 1:
            return ClassMeans(c, False)
        require_labels_in_range(labels, c)
        device = parts[0].device
        x = torch.cat([part.reshape(len(part), -1).to(device, torch.float64) for part in parts], 1)
        each = torch.ones_like(x[:, 0]) if weights is None else weights.to(device, torch.float64)
        index = labels.to(device).long()
        sums = torch.zeros(c, width, dtype=torch.float64, device=device).index_add_(0, index, x * each.unsqueeze(1))
        counts = torch.zeros_like(sums[:, 0]).index_add_(0, index, each)
        return self.joined(ClassMeans(c, True, (sums, counts)))

    def joined(self, other: ClassMeans) -> ClassMeans:
        """Of both together; none where one of them keeps none."""
        if self.is_kept is False or other.is_kept is False:
            return ClassMeans(self.num_classes, False)
        if self.seen is None or other.seen is None:
            return ClassMeans(self.num_classes, True, self.seen or other.seen)
        both = (mine + theirs.to(mine.device) for mine, theirs in zip(self.seen, other.seen, strict=True))
        return ClassMeans(self.num_classes, True, tuple(both))  # type: ignore[arg-type]

    def of_processes(self) -> ClassMeans:
        """Of all processes together, all of which must call it."""
        widths = gather_objects((self.is_kept, None if self.seen is None else self.seen[0].shape[1]))
        width = max((wide for _, wide in widths if wide is not None), default=None)
        if width is None or self.num_classes is None or any(kept is False for kept, _ in widths):
            return ClassMeans(self.num_classes, False)
        none = torch.zeros(self.num_classes, width, dtype=torch.float64)
        sums, counts = (none, none[:, 0].clone()) if self.seen is None else self.seen
        return ClassMeans(self.num_classes, True, (sum_over_processes(sums), sum_over_processes(counts)))

    def tensors(self) -> dict[str, Tensor]:
        """For a file: nothing where none were seen."""
        return {} if self.seen is None else dict(zip(("class_sums", "class_counts"), self.seen, strict=True))

    def from_tensors(self, tensors: Mapping[str, Tensor], width: int) -> ClassMeans:
        """What `tensors` gave, where means are kept; width: d."""
        if self.num_classes is None or not self.is_kept or "class_sums" not in tensors:
            return self
        shapes = {"class_sums": (self.num_classes, width), "class_counts": (self.num_classes,)}
        sums, counts = (checked_tensor(tensors, name, shape) for name, shape in shapes.items())
        return ClassMeans(self.num_classes, True, (sums, counts))

    def balanced(self) -> Tensor:
        """m_x and m_y in one vector (d + c): each class that was seen counts alike."""
        if self.known is not None:
            return torch.cat([mean.reshape(-1).double() for mean in self.known])
        if self.seen is None:
            raise ValueError(
                "balanced partners need the means of every class: take labels in with "
                "DataMoments(num_classes, by_class=True)"
            )
        sums, counts = self.seen
        is_seen = counts > 0
        means = sums[is_seen] / counts[is_seen].unsqueeze(1)
        return torch.cat([means.mean(0), is_seen.double() / is_seen.sum()])
