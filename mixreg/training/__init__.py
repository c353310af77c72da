"""Training: configurations and presets, batches, methods, checkpoints and the loop, on Lightning Fabric."""

from mixreg.training.config import METHODS, PRESETS, Config, preset

__all__ = ["METHODS", "PRESETS", "Config", "preset"]
