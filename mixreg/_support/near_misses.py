"""Names that nobody knows: what was given, what is known, and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

# Longer words are no slips of the pen, and comparing them takes time.
_LONGEST = 60
_SHORTEST_PART = 3
_MOST = 3
_ALIKE = 0.7


def unknown(kind: str, given: object, known: Iterable[str], others: str = "") -> str:
    """A sentence for an error: what is known, and what was probably meant.

    Args:
        kind: of what was named: "dataset", "method", …
        given: the name.
        known: the names that there are.
        others: what else could have been given.

    >>> unknown("dataset", "mnist", ["digits", "fashion-mnist"], "or a file")
    "unknown dataset 'mnist'; known are digits, fashion-mnist, or a file; did you mean fashion-mnist?"
    >>> unknown("scale", "huge", ["smoke", "laptop"])
    "unknown scale 'huge'; known are smoke, laptop"
    """
    names = list(known)
    listed = ", ".join([*names, others] if others else names)
    return f"unknown {kind} {given!r}; known are {listed}{meant(str(given), names)}"


def meant(given: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name: what was probably meant, or nothing.

    >>> meant("epoch", ["epochs", "samples"])
    '; did you mean epochs?'
    """
    near = " or ".join(nearest(given, known))
    return f"; did you mean {near}?" if near else ""


def nearest(given: str, known: Iterable[str]) -> list[str]:
    """The names most like a given one, nearest first; none if none is.

    >>> nearest("CIFAR-10", ["cifar10", "cifar100"])
    ['cifar10']
    >>> nearest("resnet", ["lenet", "resnet34", "resnet9"])
    ['resnet9', 'resnet34']
    >>> nearest("mpl", ["lenet", "mlp"]) + nearest("minst", ["digits", "fashion-mnist"])
    ['mlp', 'fashion-mnist']
    """
    word = _letters(given)
    if not word or len(given) > _LONGEST:
        return []
    spelt: dict[str, list[str]] = {}
    for name in known:
        spelt.setdefault(_letters(name), []).append(name)
    if word in spelt:
        found = [word]
    else:
        parts = [s for s in spelt if (word in s or s in word) and min(len(s), len(word)) >= _SHORTEST_PART]
        parts.sort(key=lambda s: abs(len(s) - len(word)))
        swapped = [s for s in spelt if sorted(s) == sorted(word)]
        found = parts or swapped or get_close_matches(word, list(spelt), _MOST, cutoff=_ALIKE)
        found = found or [s for s, names in spelt.items() if any(_is_partly(word, name) for name in names)]
    return [name for s in found for name in spelt[s]][:_MOST]


def _is_partly(word: str, name: str) -> bool:
    """Whether one of the words of a name is like it."""
    words = [_letters(part) for part in re.split(r"[\W_]+", name)]
    return bool(get_close_matches(word, words, 1, cutoff=_ALIKE))


def _letters(name: str) -> str:
    """A name without what people leave out or spell otherwise."""
    return re.sub(r"[\W_]", "", name.lower())
