"""Mixup as scikit-learn estimators: `MixupClassifier().fit(X, y).predict_proba(X)` and `MixupRegressor`.

Both train a network of their own (a multilayer perceptron, or any `torch.nn.Module` you give) with Mixup and predict
with the rescaled network (eq. testmodif). They work in pipelines, cross-validation and grid search, and can be pickled.

    GridSearchCV(MixupClassifier(random_state=0), {"alpha": [0.0, 0.5, 1.0, 4.0]})

Inputs are standardised with the training set's mean and spread, as are a regressor's targets: both are linear maps,
under which Mixup's prediction rule does not change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from mixreg._support.random import integers, permutation
from mixreg.methods.mixup import Mixup
from mixreg.prediction.rescaled import Rescaled
from mixreg.theory.moments import DataMoments
from mixreg.theory.theta import scalar_forms

try:
    from sklearn.utils.validation import validate_data
except ImportError as error:
    raise ImportError("these estimators need scikit-learn 1.6 or newer: pip install 'mixreg[sklearn]'") from error

# Called with the number of features and of outputs.
Factory = Callable[[int, int], nn.Module]
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class _MixupEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: the network and its training."""

    def __init__(
        self,
        module: nn.Module | Factory | None = None,
        *,
        alpha: float = 1.0,
        hidden: tuple[int, ...] = (100,),
        epochs: int = 100,
        batch_size: int = 64,
        lr: float = 3e-3,
        weight_decay: float = 1e-4,
        rescale: bool = True,
        dtype: str = "float64",
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.module = module
        self.alpha = alpha
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.rescale = rescale
        self.dtype = dtype
        self.device = device
        self.random_state = random_state

    def _check_settings(self) -> None:
        """Settings are checked when they are used, as scikit-learn asks."""
        scalar_forms(self.alpha, type(self).__name__)
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if not self.lr > 0 or not self.weight_decay >= 0:
            raise ValueError(f"lr must be above 0 and weight_decay at least 0, got {self.lr!r}, {self.weight_decay!r}")
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {self.dtype!r}")
        if self.module is not None and not callable(self.module):
            raise TypeError(f"module must be a torch.nn.Module or make one, got {type(self.module).__name__}")

    def _build(self, features: int, outputs: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return copy.deepcopy(self.module)
        if self.module is not None:
            net = self.module(features, outputs)
            if not isinstance(net, nn.Module):
                raise TypeError(f"module must return a torch.nn.Module, got {type(net).__name__}")
            return net
        widths = [self.hidden] if isinstance(self.hidden, Integral) else list(self.hidden)
        layers: list[nn.Module] = []
        for inside, outside in zip([features, *widths], widths, strict=False):
            layers += [nn.Linear(int(inside), int(outside)), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(int([features, *widths][-1]), outputs))

    def _train(self, x: np.ndarray, y: np.ndarray, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Fit the network to y: n × outputs, with x: n × features as they come."""
        self._check_settings()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.x_center_, self.x_spread_ = x.mean(0), _spread(x)
        inputs, targets = self._standardised(x), torch.from_numpy(y).to(self.device, _DTYPES[self.dtype])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module_ = self._build(x.shape[1], y.shape[1]).to(self.device, _DTYPES[self.dtype])
            self._check_module(inputs, y.shape[1])
            self.loss_curve_ = self._descend(inputs, targets, loss)
        moments = DataMoments()
        moments.update(inputs, targets)
        alpha = self.alpha if self.rescale else 0.0
        self.rescaled_ = Rescaled(self.module_, alpha, moments.x_mean, moments.y_mean).eval()

    def _check_module(self, x: Tensor, outputs: int) -> None:
        with torch.no_grad():
            shape = tuple(self.module_.eval()(x[:1]).shape)
        if shape != (1, outputs):
            raise ValueError(f"the module gives outputs of shape {shape[1:]}, the targets need ({outputs},)")

    def _descend(self, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> list[float]:
        """Minimise the loss by Adam on mixed batches; the mean loss of each epoch."""
        generator = torch.Generator().manual_seed(int(integers(2**62, ())))
        mixup = Mixup(float(self.alpha), generator=generator)
        optimizer = torch.optim.Adam(self.module_.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        self.module_.train()
        curve = []
        for _ in range(self.epochs):
            total = 0.0
            for chosen in _parts(permutation(len(x), generator), int(self.batch_size)):
                mixed_x, mixed_y = mixup(x[chosen], y[chosen])
                value = loss(self.module_(mixed_x), mixed_y)
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                total += float(value.detach()) * len(chosen)
            curve.append(total / len(x))
        self.module_.eval()
        return curve

    def _standardised(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy((x - self.x_center_) / self.x_spread_).to(self.device, _DTYPES[self.dtype])

    def _outputs(self, given: ArrayLike) -> np.ndarray:
        """What the rescaled network makes of samples: n × outputs."""
        check_is_fitted(self, "module_")
        x = validate_data(self, given, dtype=np.float64, reset=False)
        with torch.no_grad():
            return self.rescaled_(self._standardised(x)).cpu().double().numpy()


def _parts(order: Tensor, size: int) -> list[Tensor]:
    """Batches; a single sample at the end, which batch normalisation could not use, joins the one before."""
    parts = list(order.split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def _spread(values: np.ndarray) -> np.ndarray:
    """Standard deviation per column; 1 where a column is constant, up to rounding."""
    spread = values.std(0)
    rounding = 10 * np.finfo(values.dtype).eps * np.abs(values.mean(0)) * np.sqrt(len(values))
    return np.where(spread > rounding, spread, 1.0)


class MixupClassifier(ClassifierMixin, _MixupEstimator):  # type: ignore[misc]
    """A neural network classifier that is trained with Mixup and predicts rescaled.

    Args:
        module: a network that maps n × features to n × classes logits, or a factory called with the numbers of
            features and classes; by default a multilayer perceptron.
        alpha: of Mixup; 0 trains without it.
        hidden: widths of the default network's hidden layers.
        epochs: passes over the data.
        batch_size: samples that are mixed with each other.
        lr: the learning rate of Adam.
        weight_decay: its weight decay.
        rescale: whether to predict with the rescaled network.
        dtype: "float64", or "float32", which is quicker and rounds more.
        device: where to compute.
        random_state: of initial weights, order and mixing.

    Attributes:
        classes_: the labels.
        module_: the trained network; rescaled_: with its prediction rule.
        loss_curve_: the training loss of each epoch.
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> MixupClassifier:
        """Train on X: n × features and y: n labels of any kind."""
        x, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, index = np.unique(labels, return_inverse=True)
        # A single class is predicted with certainty, which takes an output all the same.
        self._train(x, np.eye(len(self.classes_))[index], nn.functional.cross_entropy)
        return self

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """The rescaled logits, n × classes; of two classes their difference, n."""
        logits = self._outputs(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities, n × classes."""
        from scipy.special import softmax

        return softmax(self._outputs(X), axis=1)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable label of each sample, n."""
        chosen = self._outputs(X).argmax(1)
        return self.classes_[chosen]


class MixupRegressor(RegressorMixin, _MixupEstimator):  # type: ignore[misc]
    """A neural network regressor that is trained with Mixup and predicts rescaled.

    Args:
        module: a network that maps n × features to n × outputs, or a factory called with the numbers of features and
            outputs; by default a multilayer perceptron.
        alpha: of Mixup; 0 trains without it.
        hidden: widths of the default network's hidden layers.
        epochs: passes over the data.
        batch_size: samples that are mixed with each other.
        lr: the learning rate of Adam.
        weight_decay: its weight decay.
        rescale: whether to predict with the rescaled network.
        dtype: "float64", or "float32", which is quicker and rounds more.
        device: where to compute.
        random_state: of initial weights, order and mixing.

    Attributes:
        module_: the trained network, for standardised inputs and targets; rescaled_: with its prediction rule.
        loss_curve_: the training loss of each epoch.
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> MixupRegressor:
        """Train on X: n × features and y: n, or n × outputs."""
        x, targets = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self._is_flat = targets.ndim == 1
        targets = targets.reshape(len(targets), -1).astype(np.float64)
        self.y_center_, self.y_spread_ = targets.mean(0), _spread(targets)
        self._train(x, (targets - self.y_center_) / self.y_spread_, nn.functional.mse_loss)
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Predicted targets, of the shape they were trained with."""
        values = self._outputs(X) * self.y_spread_ + self.y_center_
        return values.ravel() if self._is_flat else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
