"""Data: known datasets, one's own, published shifted test sets, and corruptions of any test set."""

from mixreg.data.arrays import DataError, Dataset, Split, cache_folder
from mixreg.data.loading import load
from mixreg.data.registry import EMBEDDED, RECIPES, digits, two_moons

__all__ = ["EMBEDDED", "RECIPES", "DataError", "Dataset", "Split", "cache_folder", "digits", "load", "two_moons"]
