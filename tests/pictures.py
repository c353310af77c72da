"""Small pictures for tests that read image files."""

import numpy as np
from PIL import Image


def picture(label: int, seed: int, size: tuple[int, int] = (40, 32)) -> Image.Image:
    """Noise around a colour that tells the class."""
    colour = np.array([(200, 40, 40), (40, 200, 40), (40, 40, 200)][label % 3])
    noise = np.random.default_rng(seed).integers(-30, 30, (size[1], size[0], 3))
    return Image.fromarray(np.clip(colour + noise, 0, 255).astype(np.uint8))
