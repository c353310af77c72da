"""The prediction rule: shares and means, a network that obeys them, and the same on hidden representations."""

from mixreg.prediction.hidden import RescaledManifold, hidden_means
from mixreg.prediction.rescaled import Rescaled, RescaledCutMix
from mixreg.prediction.rule import Rule

__all__ = ["Rescaled", "RescaledCutMix", "RescaledManifold", "Rule", "hidden_means"]
