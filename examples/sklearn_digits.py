"""Mixup as a scikit-learn estimator: a grid search over α, on scikit-learn's digits with a fifth of the labels wrong.

python examples/sklearn_digits.py            # a quarter of a minute
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split

from mixreg.adapters.sklearn import MixupClassifier


def main(epochs: int) -> None:
    """Choose α by cross-validated log-likelihood, and see what it is worth on held-out images."""
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images, labels, train_size=600, random_state=0, stratify=labels)
    chance = np.random.default_rng(0)
    wrong = chance.random(len(y)) < 0.2
    y = np.where(wrong, (y + chance.integers(1, 10, len(y))) % 10, y)
    classifier = MixupClassifier(epochs=epochs, lr=3e-3, random_state=0)
    search = GridSearchCV(classifier, {"alpha": [0.0, 0.5, 2.0]}, scoring="neg_log_loss", cv=3).fit(x, y)
    for alpha, value in zip(search.cv_results_["param_alpha"], search.cv_results_["mean_test_score"], strict=True):
        print(f"α = {alpha:<4} cross-validated cross-entropy {-value:.3f}")
    print(
        f"chosen: α = {search.best_params_['alpha']}; test accuracy {search.best_estimator_.score(x_test, y_test):.3f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    main(parser.parse_args().epochs)
