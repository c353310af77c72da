"""What the targets of a dataset are, and the loss that belongs to them. Nothing here needs PyTorch.

classes    one of c classes: indices, n; cross-entropy
labels     several labels at once, each there or not: zeros and ones, n × c; logistic loss of each
numbers    regression: n × c numbers; squared error
"""

from __future__ import annotations

CLASSES, LABELS, NUMBERS = "classes", "labels", "numbers"
LOSS_OF = {CLASSES: "cross_entropy", LABELS: "logistic", NUMBERS: "squared_error"}
