"""The paper's equations as its PDF numbers them: the source's labels in order, each numbered environment one.

Docstrings cite equations by the label in the paper's source; pages show both, `eq. (22, testmodif)`.
"""

from __future__ import annotations

import re

_LABELS = (
    *("minrisk", "erm", "loss", "mixup", "modif", "perturbations", "mixupERM", "sigmai", "cov", "mixupQ", "taylor"),
    *("mixapprox", "Ji", "JiCE", "lrloss", "JiLR", "QmixupSE", "JiSE", "mixupOLS", "ermtild", "-", "testmodif"),
)
# The one without a label, between ermtild and testmodif, is never cited.
NUMBERS = {label: number for number, label in enumerate(_LABELS, start=1) if label != "-"}
_CITED = re.compile(rf"\b(?P<eq>[Ee]q\. )(?P<open>\()?(?P<label>{'|'.join(map(re.escape, NUMBERS))})\b(?(open)\))")


def numbered(text: str) -> str:
    """Every `eq. (label)` or `eq. label` with its number."""
    return _CITED.sub(lambda match: f"{match['eq']}({NUMBERS[match['label']]}, {match['label']})", text)
