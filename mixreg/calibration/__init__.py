"""Calibration: does a prediction made with confidence p come true a share p of the time?

Pure functions of (logits, labels), streaming classes with the same definitions, and temperature scaling:

* `expected_calibration_error`, `maximum_calibration_error`, `classwise_calibration_error`;
* `accuracy`, `negative_log_likelihood`, `brier_score`; `mixed_accuracy` while labels are mixed;
* `reliability`, `confidence_histogram`: the numbers behind the diagrams;
* `fit_temperature`, `TemperatureScaling`.

Functions take logits: n × c, or n for two classes and one logit. Whoever holds probabilities says so with
`probabilities=True`; nothing is guessed. Labels are n integers.
"""

from mixreg.calibration.bins import (
    Reliability,
    classwise_calibration_error,
    confidence_histogram,
    expected_calibration_error,
    maximum_calibration_error,
    reliability,
)
from mixreg.calibration.mixed import mixed_accuracy
from mixreg.calibration.scores import accuracy, brier_score, negative_log_likelihood
from mixreg.calibration.streaming import (
    Accuracy,
    BrierScore,
    ClasswiseCalibrationError,
    ConfidenceHistogram,
    ExpectedCalibrationError,
    MaximumCalibrationError,
    NegativeLogLikelihood,
    ReliabilityHistogram,
    StreamingMetric,
)
from mixreg.calibration.temperature import TemperatureScaling, fit_temperature

__all__ = [
    # functions
    "accuracy",
    "brier_score",
    "classwise_calibration_error",
    "confidence_histogram",
    "expected_calibration_error",
    "fit_temperature",
    "maximum_calibration_error",
    "mixed_accuracy",
    "negative_log_likelihood",
    "reliability",
    # classes
    "Accuracy",
    "BrierScore",
    "ClasswiseCalibrationError",
    "ConfidenceHistogram",
    "ExpectedCalibrationError",
    "MaximumCalibrationError",
    "NegativeLogLikelihood",
    "Reliability",
    "ReliabilityHistogram",
    "StreamingMetric",
    "TemperatureScaling",
]
