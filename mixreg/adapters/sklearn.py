"""Mixup as scikit-learn estimators: `MixupClassifier().fit(X, y).predict_proba(X)` and `MixupRegressor`.

Both train a network of their own (a multilayer perceptron, or any `torch.nn.Module` you give) with Mixup or a relative
of it, and predict with the rule that belongs to it (eq. testmodif). They work in pipelines, cross-validation and grid
search, and can be pickled.

    GridSearchCV(MixupClassifier(random_state=0), {"alpha": [0.0, 0.5, 1.0, 4.0]})

Columns of numbers are standardised, as are a regressor's targets: linear maps, under which Mixup's prediction rule does
not change. Categories are embedded, and mixed there (`mixreg.adapters.tables.columns`); weights say how often samples
are shown (`mixreg.adapters.tables.weights`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

try:
    from sklearn.base import ClassifierMixin, RegressorMixin
    from sklearn.utils import check_consistent_length, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import validate_data as _validate_data  # noqa: F401
except ImportError as error:
    raise ImportError("these estimators need scikit-learn 1.6 or newer: pip install 'mixreg[sklearn]'") from error

from mixreg.adapters.tables.estimator import TableEstimator
from mixreg.adapters.tables.targets import Classes, Labels, Numbers, SeveralClasses
from mixreg.adapters.tables.weights import class_weights
from mixreg.methods.method import Method

if TYPE_CHECKING:
    from typing_extensions import Self


class MixupClassifier(ClassifierMixin, TableEstimator):  # type: ignore[misc]
    """A neural network classifier that is trained with Mixup and predicts rescaled.

    Args:
        module: a network that maps n × inputs to n × outputs logits, or a factory called with the numbers of inputs and
            outputs; by default a multilayer perceptron. Inputs are the columns of numbers and then the one-hot columns
            of each category; outputs are classes, or labels.
        alpha: of Mixup; 0 trains without it. "auto" chooses by cross-validation.
        method: the name of another way to train (`mixreg train --help` lists them), or a method of your own making,
            such as `Mixup(0.5, probability=0.8)`, which brings its own α.
        method_options: of a method by name.
        rule: how to predict: "plain" as the network is, "rescaled" with the rule of its method, "fitted" with a
            strength and temperature fitted on held-out samples.
        hidden: widths of the default network's hidden layers.
        epochs: passes over the data, at most.
        batch_size: samples of a step.
        optimizer: "adam", "adamw", "sgd", or a callable such as `torch.optim.NAdam`.
        lr: its learning rate.
        weight_decay: its weight decay.
        optimizer_options: what else it is called with, such as {"momentum": 0.9}.
        schedule: of the learning rate: "constant", "cosine" or "one-cycle".
        early_stopping: stop when the loss of held-out samples has not improved by `tol` for `n_iter_no_change` epochs,
            and keep the weights of the best epoch.
        validation_fraction: of the samples, held out for early stopping and for a fitted rule.
        n_iter_no_change: epochs to wait.
        tol: what counts as better.
        class_weight: None, "balanced", a dict from class to weight, or of several targets a list of dicts.
        warm_start: whether `fit` continues from the weights that are there.
        categorical_features: columns of categories: indices, names or a mask; by default those of a data frame whose
            dtype is a category. None for no such column.
        verbose: print the loss of every epoch.
        dtype: "float32", or "float64", which is slower and rounds less.
        device: where to compute.
        random_state: of initial weights, order and mixing.

    Attributes:
        classes_: the labels; of several targets a list.
        module_: the trained network.
        rescaled_: with its prediction rule.
        method_: what it was trained with.
        alpha_: that was used.
        alpha_losses_: what "auto" found, the validation loss of each α.
        n_iter_: epochs.
        loss_curve_: their training losses.
        validation_losses_: those of held-out samples.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> MixupClassifier(epochs=20, random_state=0).fit(x, y).predict_proba(x[:2]).shape
    (2, 3)
    """

    def __init__(
        self,
        module: Any = None,
        *,
        alpha: float | str = 0.2,
        method: str | Method = "mixup",
        method_options: dict[str, Any] | None = None,
        rule: str = "rescaled",
        hidden: Any = (100,),
        epochs: int = 100,
        batch_size: int = 64,
        optimizer: Any = "adam",
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        optimizer_options: dict[str, Any] | None = None,
        schedule: str = "constant",
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        class_weight: Any = None,
        warm_start: bool = False,
        categorical_features: Any = "from_dtype",
        verbose: bool | int = False,
        dtype: str = "float32",
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            module,
            alpha=alpha,
            method=method,
            method_options=method_options,
            rule=rule,
            hidden=hidden,
            epochs=epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            lr=lr,
            weight_decay=weight_decay,
            optimizer_options=optimizer_options,
            schedule=schedule,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            tol=tol,
            warm_start=warm_start,
            categorical_features=categorical_features,
            verbose=verbose,
            dtype=dtype,
            device=device,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def _checked_targets(self, y: np.ndarray) -> np.ndarray:
        check_classification_targets(y)
        return column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y

    def _weighted(self, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return class_weights(self.class_weight, y, weights)

    def _target_kind(self, y: np.ndarray, weights: np.ndarray) -> Classes | Labels | SeveralClasses:
        if y.ndim == 1:
            return Classes(np.unique(y))
        if type_of_target(y) == "multilabel-indicator":
            return Labels(y.shape[1])
        return SeveralClasses([np.unique(column) for column in y.T])

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: Any = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train for one epoch on these samples.

        The first call learns from its samples how columns are scaled and which categories there are; x̄ and ȳ of the
        prediction rule are those of all samples of all calls.

        Args:
            X: n × features.
            y: targets.
            classes: all there are, in the first call; of several targets a list; of several labels none.
            sample_weight: n numbers of at least 0.
        """
        kind: Any = getattr(self, "_kind", None)
        if kind is None:
            if classes is None and type_of_target(y) == "multilabel-indicator":
                kind = Labels(np.shape(y)[1])
            elif classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit")
            else:
                kind = _first_kind(classes, 1 if np.ndim(y) < 2 else np.shape(y)[1])
        elif isinstance(kind, Classes) and classes is not None and not np.array_equal(np.unique(classes), kind.classes):
            raise ValueError(f"classes={classes!r} is not the same as on the first call: {kind.classes!r}")
        return self._partial_fit(X, y, sample_weight, kind)

    @property
    def classes_(self) -> Any:
        """The classes, sorted; of several targets a list of them."""
        if not hasattr(self, "_kind"):
            raise AttributeError(f"this {type(self).__name__} has no classes yet: call fit")
        return self._kind.classes

    def decision_function(self, X: ArrayLike) -> Any:
        """The rescaled logits, n × classes; of two classes their difference, n; of several targets a list."""
        return self._kind_of_fit().decision(self._outputs(X))

    def predict_log_proba(self, X: ArrayLike) -> Any:
        """Logarithms of `predict_proba`, exact also where a probability rounds to 0 or 1."""
        return self._kind_of_fit().log_probabilities(self._outputs(X))

    def predict_proba(self, X: ArrayLike) -> Any:
        """Probabilities, n × classes; of several labels n × labels; of several targets a list of n × classes."""
        found = self.predict_log_proba(X)
        return [np.exp(each) for each in found] if isinstance(found, list) else np.exp(found)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each sample, n; of several targets n × targets; of labels those above ½."""
        return self._kind_of_fit().predicted(self._outputs(X))

    def score(self, X: ArrayLike, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """The accuracy; of several targets or labels, how often all are right."""
        found = self.predict(X)
        given = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        right = y.toarray() if sparse.issparse(y) else np.asarray(y)
        check_consistent_length(found, right)
        is_right = found == right.reshape(found.shape)
        return float(np.average(is_right if is_right.ndim == 1 else is_right.all(1), weights=given))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _first_kind(classes: Any, targets: int) -> Classes | SeveralClasses:
    """What the first call to `partial_fit` says of classes, of so many targets."""
    if targets == 1:
        return Classes(np.unique(classes))
    if len(classes) != targets or not all(np.ndim(each) == 1 for each in classes):
        raise ValueError(
            f"classes must be a list of the classes of each of {targets} targets (none for labels), got {classes!r}"
        )
    return SeveralClasses([np.unique(each) for each in classes])


class MixupRegressor(RegressorMixin, TableEstimator):  # type: ignore[misc]
    """A neural network regressor that is trained with Mixup and predicts rescaled.

    Args:
        module: a network that maps n × inputs to n × outputs, or a factory called with the numbers of inputs and
            outputs; by default a multilayer perceptron.
        alpha: of Mixup; 0 trains without it. "auto" chooses by cross-validation.
        method: the name of another way to train, or a method of your own making, which brings its own α.
        method_options: of a method by name.
        rule: how to predict: "plain" as the network is, "rescaled" with the rule of its method, "fitted" with a
            strength fitted on held-out samples.
        hidden: widths of the default network's hidden layers.
        epochs: passes over the data, at most.
        batch_size: samples of a step.
        optimizer: "adam", "adamw", "sgd", or a callable such as `torch.optim.NAdam`.
        lr: its learning rate.
        weight_decay: its weight decay.
        optimizer_options: what else it is called with.
        schedule: of the learning rate: "constant", "cosine" or "one-cycle".
        early_stopping: stop when the loss of held-out samples no longer improves; see `MixupClassifier`.
        validation_fraction: of the samples, held out for early stopping and for a fitted rule.
        n_iter_no_change: epochs to wait.
        tol: what counts as better, of a loss of standardised targets.
        warm_start: whether `fit` continues from the weights that are there.
        categorical_features: columns of categories; see `MixupClassifier`.
        verbose: print the loss of every epoch.
        dtype: "float32", or "float64", which is slower and rounds less.
        device: where to compute.
        random_state: of initial weights, order and mixing.

    Attributes:
        module_: the trained network, for standardised inputs and targets.
        rescaled_: with its prediction rule.
        alpha_: that was used.
        alpha_losses_: what "auto" found, the validation loss of each α.
        n_iter_: epochs.
        loss_curve_: their training losses.
        validation_losses_: those of held-out samples.

    >>> from sklearn.datasets import load_diabetes
    >>> x, y = load_diabetes(return_X_y=True)
    >>> MixupRegressor(epochs=20, random_state=0).fit(x, y).predict(x[:2]).shape
    (2,)
    """

    _is_numeric = True

    def _checked_targets(self, y: np.ndarray) -> np.ndarray:
        return y.astype(np.float64)

    def _target_kind(self, y: np.ndarray, weights: np.ndarray) -> Numbers:
        return Numbers(y, weights)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train for one epoch on these samples; the first call learns scales from its own."""
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Predicted targets, of the shape they were trained with."""
        return self._kind_of_fit().predicted(self._outputs(X))
