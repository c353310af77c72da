"""What classifier and regressor share: their arguments, reading X, y and weights, training and predicting."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import nn

from mixreg._support.random import stream
from mixreg.adapters.tables.choosing import choose_alpha
from mixreg.adapters.tables.columns import Columns, Inputs, categorical_columns
from mixreg.adapters.tables.fitting import (
    Fitted,
    build_method,
    build_network,
    fit_table,
    moments_of,
    new_moments,
    train_further,
)
from mixreg.adapters.tables.samples import Table
from mixreg.adapters.tables.settings import AUTO, DTYPES, Settings
from mixreg.adapters.tables.training import outputs_of
from mixreg.adapters.tables.weights import distinct_rows, scaled_weights
from mixreg.methods.method import Method

if TYPE_CHECKING:
    from typing_extensions import Self


class TableEstimator(BaseEstimator):  # type: ignore[misc]
    """A network for tables, trained with Mixup or a relative of it; targets are those of a subclass."""

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
        warm_start: bool = False,
        categorical_features: Any = "from_dtype",
        verbose: bool | int = False,
        dtype: str = "float32",
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.module = module
        self.alpha = alpha
        self.method = method
        self.method_options = method_options
        self.rule = rule
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.optimizer_options = optimizer_options
        self.schedule = schedule
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.categorical_features = categorical_features
        self.verbose = verbose
        self.dtype = dtype
        self.device = device
        self.random_state = random_state

    def _settings(self) -> Settings:
        return Settings(**{name: getattr(self, name) for name in Settings.__dataclass_fields__})

    def _target_kind(self, y: np.ndarray, weights: np.ndarray) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say what its targets are")

    def _checked_targets(self, y: np.ndarray) -> np.ndarray:
        raise NotImplementedError(f"{type(self).__name__} does not check its targets")

    def _weighted(self, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return weights

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train.

        Args:
            X: n × features, an array, a sparse matrix or a data frame.
            y: targets.
            sample_weight: n numbers of at least 0, how often samples are shown.
        """
        settings = self._settings()
        earlier = self._fitted if self.warm_start and hasattr(self, "_fitted") else None
        columns, rows, targets = self._read(X, y, None if earlier is None else earlier.columns)
        rows, targets, weights = self._distinct(rows, targets, sample_weight)
        kind = self._target_kind(targets, weights) if earlier is None else self._kind
        table = self._table(columns, rows, targets, weights, kind)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        alpha, losses = None, None
        if self.alpha == AUTO:
            losses = choose_alpha(settings, table, seed)
            alpha = min(losses, key=lambda each: losses[each])
        fitted = fit_table(settings, table, seed, alpha, earlier)
        if earlier is not None:
            fitted.history.losses[:0] = earlier.history.losses
            fitted.history.held_out[:0] = earlier.history.held_out
        self._keep(fitted, kind)
        if losses is not None:
            self.alpha_losses_ = losses
        return self

    def _partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, kind: Any = None) -> Self:
        """One more epoch, on these samples; the first call is what scales and categories are learnt from."""
        settings = self._settings()
        if settings.needs_held_out or self.alpha == AUTO:
            raise ValueError(
                "partial_fit has no samples to hold out: early_stopping, rule='fitted' and alpha='auto' need fit"
            )
        fitted: Fitted | None = getattr(self, "_fitted", None)
        columns, rows, targets = self._read(X, y, None if fitted is None else fitted.columns)
        # As they are: what one call has is not relative to what another has.
        rows, targets, weights = self._distinct(rows, targets, sample_weight, is_relative=False)
        kind = self._kind if fitted is not None else kind or self._target_kind(targets, weights)
        table = self._table(columns, rows, targets, weights, kind)
        if fitted is None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            table = table.learn_scales()
            net = build_network(settings, table.columns, kind.outputs, seed)
            fitted, generator = Fitted(net, table.columns, new_moments(settings, table)), stream(seed, "batches")
        else:
            fitted = copy.deepcopy(fitted)
            seed, generator = fitted.state["seed"], torch.Generator()
            generator.set_state(torch.from_numpy(fitted.state["generator"].copy()))
        data = table.data(settings)
        moments_of(data, fitted.moments)
        fitted.method = build_method(settings, None, table, fitted.net, fitted.moments)
        if fitted.method.extended(fitted.net) is not fitted.net:
            raise ValueError(
                f"{type(fitted.method).__name__} learns beside the network, which partial_fit does not keep: use fit"
            )
        train_further(settings, fitted, table.loss, data, None, generator, seed, epochs=1)
        self._keep(fitted, kind)
        return self

    def _read(self, X: ArrayLike, y: ArrayLike, columns: Columns | None) -> tuple[Columns, Any, np.ndarray]:
        """Columns, rows (n × columns) and targets; with `columns`, as they were learnt before."""
        is_first = columns is None
        categorical = categorical_columns(X, self.categorical_features) if columns is None else columns.categorical
        if not categorical:
            rows, targets = validate_data(
                self,
                X,
                y,
                accept_sparse="csr",
                dtype=np.float64,
                multi_output=True,
                y_numeric=self._is_numeric,
                reset=is_first,
            )
        else:
            if sparse.issparse(X):
                raise TypeError("a sparse X holds numbers: give categorical columns as an array or a data frame")
            validate_data(self, X, skip_check_array=True, reset=is_first)
            if y is None:
                raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
            targets = check_array(
                y, ensure_2d=False, accept_sparse="csr", dtype="numeric" if self._is_numeric else None, input_name="y"
            )
            check_consistent_length(X, targets)
        if columns is None:
            columns = Columns(self.n_features_in_, categorical)
            columns.learn_categories(X)
        if categorical:
            rows = columns.coded(X)
        if sparse.issparse(targets):
            targets = targets.toarray()
        return columns, rows, self._checked_targets(targets)

    _is_numeric = False

    def _distinct(
        self, rows: Any, targets: np.ndarray, sample_weight: ArrayLike | None, is_relative: bool = True
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """Distinct rows and targets, and how often each is shown."""
        given = np.ones(rows.shape[0])
        if sample_weight is not None:
            given = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
        weights = self._weighted(targets, given)
        if weights is not given or sample_weight is not None:
            weights = scaled_weights(weights, is_relative)
        index, weights = distinct_rows(rows, targets, weights)
        return rows[index], targets[index], weights

    def _table(self, columns: Columns, rows: Any, targets: np.ndarray, weights: np.ndarray, kind: Any) -> Table:
        strata = targets if targets.ndim == 1 and not self._is_numeric else None
        in_units = getattr(kind, "in_units", None)
        return Table(columns, rows, kind.values(targets), weights, strata, kind.loss, kind.loss_name, in_units)

    def _keep(self, fitted: Fitted, kind: Any) -> None:
        self._fitted, self._kind = fitted, kind
        self.module_: nn.Module = fitted.net
        self.rescaled_ = fitted.predictor
        self.method_ = fitted.method
        self.alpha_ = getattr(fitted.method, "alpha", None)
        self.n_outputs_ = kind.outputs
        self.loss_curve_ = list(fitted.history.losses)
        self.n_iter_ = len(self.loss_curve_)
        if fitted.history.held_out:
            self.validation_losses_ = list(fitted.history.held_out)

    def _outputs(self, given: ArrayLike) -> np.ndarray:
        """What the network makes of samples with its rule: n × outputs."""
        check_is_fitted(self, "module_")
        columns = self._fitted.columns
        if columns.categorical:
            validate_data(self, given, skip_check_array=True, reset=False)
            rows = columns.coded(given)
        else:
            rows = validate_data(self, given, accept_sparse="csr", dtype=np.float64, reset=False)
        # What was fitted counts, not what was set since.
        like = next(self.rescaled_.parameters(), None)
        dtype = DTYPES[self.dtype] if like is None else like.dtype
        device = self.device if like is None else str(like.device)
        return outputs_of(self.rescaled_, Inputs(columns, rows, dtype, device)).cpu().double().numpy()

    def _kind_of_fit(self) -> Any:
        check_is_fitted(self, "module_")
        return self._kind

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        return tags
