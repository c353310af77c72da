"""Training: what a run is, its batches, its step, its loop and its folder, on Lightning Fabric."""

from mixreg.training.config import PRESETS, Config, preset

__all__ = ["PRESETS", "Config", "preset"]
