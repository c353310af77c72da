"""The means of padded text, for Mixup of embeddings: of what a network sees at each position.

Let m_it ∈ {0, 1} say whether text i has a token at position t, and w_it which; a padded place is a zero vector. With a
partner j drawn uniformly and its share s, the network is shown at position t

    x̂_t = (1 − s) m_it e(w_it) + s m_jt e(w_jt),        E[x̂_t | i] = (1 − s̄) m_it e(w_it) + s̄ x̄_t,
    x̄_t = mean_j m_jt e(w_jt) = Σ_w (how often w stands at t / n) e(w).

So a text is shrunk towards the mean *at each position over all texts*, those that have ended counting as zeros; a mean
over real tokens alone would forget that a partner that has ended adds nothing. Beyond the longest text x̄_t = 0. The
embedding e is trained, which is why tokens are counted and not averaged: x̄ follows for the embedding of any moment.

**Labels of tokens.** Let l_it say whether the token has a label (not −100), and q_t = mean_j l_jt. Its loss is that of
own and partner's label with weights (1 − s) l_it and s l_jt; where l_it = 1 the mean target, of weight
(1 − s̄) + s̄ q_t, is

    t̄_t y_it + (1 − t̄_t) ȳ_t,        t̄_t = (1 − s̄) / ((1 − s̄) + s̄ q_t),        ȳ_t = mean of y_jt over l_jt = 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mixreg._support.processes import gather_objects
from mixreg.losses.pair_cross_entropy import IGNORED
from mixreg.losses.targets import require_labels_in_range
from mixreg.methods.method import Method
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments

Embed = Callable[[Tensor], Tensor]
_TOKEN_BITS = 32


def at_length(values: Tensor, length: int, beyond: float = 0.0) -> Tensor:
    """`values` (T × …) cut or continued to `length` positions."""
    missing = length - len(values)
    if missing <= 0:
        return values[:length]
    return torch.cat([values, values.new_full((missing, *values.shape[1:]), beyond)])


class TokenMoments:
    """How often each token stands at each position, and the mean of targets.

    Args:
        num_classes: c; needed when targets are integer labels, of texts or of tokens.

    Attributes:
        count: texts that were seen.
    """

    def __init__(self, num_classes: int | None = None) -> None:
        self.num_classes, self.count = num_classes, 0
        self._targets = DataMoments(num_classes)
        # Position and token in one number, and how often; some are still to be added up.
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._length = 0
        # T × c; none where targets are those of texts.
        self._labels: Tensor | None = None

    def update(self, ids: Tensor, mask: Tensor, y: Tensor) -> None:
        """Take in one batch; ids, mask: n × T, y: n labels, n × … numbers, or n × T labels of tokens."""
        ids, mask, y = ids.cpu(), mask.cpu().bool(), y.detach().cpu()
        position = torch.arange(ids.shape[1]).expand_as(ids)
        keys, counts = ((position << _TOKEN_BITS) | ids.long())[mask].unique(return_counts=True)
        if is_of_tokens(y, ids):
            self._add_labels(self._label_counts(y))
        else:
            self._targets.update(torch.zeros(len(ids), 1), y)
        self._add(keys, counts, ids.shape[1], len(ids))

    def _label_counts(self, y: Tensor) -> Tensor:
        if self.num_classes is None:
            raise ValueError("labels of tokens need num_classes")
        known = y != IGNORED
        require_labels_in_range(y[known], self.num_classes)
        one_hot = torch.zeros(*y.shape, self.num_classes, dtype=torch.float64)
        return one_hot.scatter_(2, y.masked_fill(~known, 0).long().unsqueeze(2), known.double().unsqueeze(2)).sum(0)

    def _add_labels(self, counts: Tensor) -> None:
        length = max(len(counts), 0 if self._labels is None else len(self._labels))
        before = counts.new_zeros(length, counts.shape[1]) if self._labels is None else at_length(self._labels, length)
        self._labels = before + at_length(counts, length)

    def _add(self, keys: Tensor, counts: Tensor, length: int, texts: int) -> None:
        self._seen.append((keys, counts))
        self._length, self.count = max(self._length, length), self.count + texts
        # As much is added up as was before: each count is touched a few times only, however many batches there are.
        if sum(len(keys) for keys, _ in self._seen[1:]) > len(self._seen[0][0]):
            self._seen = [self._added_up()]

    def _added_up(self) -> tuple[Tensor, Tensor]:
        keys, place = torch.cat([keys for keys, _ in self._seen]).unique(return_inverse=True)
        return keys, torch.zeros_like(keys).index_add_(0, place, torch.cat([counts for _, counts in self._seen]))

    def merge(self, other: TokenMoments) -> TokenMoments:
        """Join `other` into this one (and return it)."""
        if other.count:
            self._add(*other._added_up(), other._length, other.count)
            self._targets.merge(other._targets)
            if other._labels is not None:
                self._add_labels(other._labels)
        return self

    def joined(self) -> TokenMoments:
        """Those of all processes, leaving this one as it is."""
        total = TokenMoments(self.num_classes)
        for each in gather_objects(self):
            total.merge(each)
        return total

    def tokens(self) -> Tensor:
        """Those that were seen, each once, in order."""
        return (self._added_up()[0] & (2**_TOKEN_BITS - 1)).unique()

    @torch.no_grad()
    def x_mean(self, embed: Embed) -> Tensor:
        """x̄, T × d in float64, where `embed` gives the vectors of tokens, k × d."""
        keys, counts = self._added_up()
        tokens, place = (keys & (2**_TOKEN_BITS - 1)).unique(return_inverse=True)
        vectors = embed(tokens).cpu().double()
        at = torch.stack([keys >> _TOKEN_BITS, place])
        size = (self._length, len(tokens))
        frequencies = torch.sparse_coo_tensor(at, counts.double() / self.count, size, check_invariants=False)
        return torch.sparse.mm(frequencies, vectors)

    def rule(self, method: Method, embed: Embed) -> Rule | None:
        """The rule of a method, on embeddings: of texts, or of tokens with a share and a mean for every position."""
        x_mean = self.x_mean(embed)
        if self._labels is None:
            means = DataMoments.from_means(x_mean, self._targets.y_mean, self.num_classes, self.count)
            return method.rule(means)
        rule = method.rule(DataMoments.from_means(x_mean, self._labels.new_zeros(1)))
        if rule is None or isinstance(rule.y_share, Tensor):
            return None
        labelled = self._labels.sum(1, keepdim=True)
        own, other = rule.y_share, (1 - rule.y_share) * labelled / self.count
        return Rule(rule.x_share, own / (own + other), x_mean, self._labels / labelled.clamp(min=1))


def is_of_tokens(y: Tensor, ids: Tensor) -> bool:
    """Whether targets are labels of tokens: integers, one for each of n × T."""
    return not y.is_floating_point() and y.dtype != torch.bool and y.ndim == 2 and y.shape == ids.shape
