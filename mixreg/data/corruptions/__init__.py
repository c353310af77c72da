"""The 19 corruptions of CIFAR-10-C at 5 severities, for any set of images (Hendrycks and Dietterich, 2019).

For data whose corrupted version nobody has published. Operations and constants are those of the published generator for
32 × 32 images, lengths in pixels growing with the side of the image; whole batches are corrupted at once. Four
things differ, so that numbers are close to the published sets' but not equal to them:

* frost overlays a generated texture, because the published photographs are not free to ship;
* the drops of spatter are embossed along the edge of the water instead of along Canny's edges;
* elastic transforms interpolate once instead of twice;
* constants that do not damage images more at every step are replaced: of glass and motion blur, elastic transform,
  spatter and saturation, of which the published severities 1 and 2 take colour away and 3 to 5 add it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from mixreg._support.near_misses import unknown
from mixreg.data.arrays import DataError, Split
from mixreg.data.corruptions import blurs, colours, noises, weather

Corruption = Callable[..., Tensor]

CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": noises.gaussian_noise,
    "shot_noise": noises.shot_noise,
    "impulse_noise": noises.impulse_noise,
    "defocus_blur": blurs.defocus_blur,
    "glass_blur": blurs.glass_blur,
    "motion_blur": blurs.motion_blur,
    "zoom_blur": blurs.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": colours.brightness,
    "contrast": colours.contrast,
    "elastic_transform": blurs.elastic_transform,
    "pixelate": colours.pixelate,
    "jpeg_compression": colours.jpeg_compression,
    "speckle_noise": noises.speckle_noise,
    "gaussian_blur": blurs.gaussian_blur,
    "spatter": weather.spatter,
    "saturate": colours.saturate,
}
# The first 15 make the mean corruption error; the last 4 were published for validation.
BENCHMARK = tuple(CORRUPTIONS)[:15]

# The arguments of every corruption at severities 1 to 5.
SEVERITIES: dict[str, tuple[tuple[float, ...], ...]] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.4, 1), (0.25, 1), (0.6, 2), (0.4, 2), (0.25, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2.25), (9, 2.5)),
    "zoom_blur": ((1.06,), (1.11,), (1.15,), (1.20,), (1.25,)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.15), (1, 0.22), (0.9, 0.32), (0.85, 0.4), (0.75, 0.48)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": (
        (0, 0, 0.03),
        (0.05, 0.2, 0.04),
        (0.08, 0.06, 0.05),
        (0.1, 0.04, 0.06),
        (0.1, 0.03, 0.08),
    ),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
    "speckle_noise": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    "gaussian_blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1.0,)),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.2, 1, 0.69, 0.5, 0),
        (0.67, 0.1, 0.7, 0.69, 0.6, 1),
        (0.68, 0.1, 0.7, 0.69, 0.6, 1),
    ),
    "saturate": ((1.5, 0), (2, 0), (2, 0.1), (2.5, 0.2), (3, 0.3)),
}

# Images at once: the working set of one corruption stays in the cache of a core or two.
CHUNK = 500


def corrupt(images: np.ndarray, name: str, severity: int, generator: torch.Generator | None = None) -> np.ndarray:
    """Corrupted copies of images.

    Args:
        images: n × height × width × channels (1 or 3) bytes, height = width.
        name: one of `CORRUPTIONS`.
        severity: from 1 to 5.
        generator: random number generator; by default PyTorch's global one.

    Returns:
        The shape and dtype of `images`.
    """
    if name not in CORRUPTIONS:
        raise ValueError(unknown("corruption", name, CORRUPTIONS))
    if severity not in (1, 2, 3, 4, 5):
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}")
    is_batch = images.dtype == np.uint8 and images.ndim == 4
    if not is_batch or images.shape[3] not in (1, 3) or images.shape[1] != images.shape[2]:
        raise DataError(
            f"corruptions take square images as n × side × side × 1 or 3 bytes, got {images.dtype} {images.shape}"
        )
    parts = []
    for start in range(0, len(images), CHUNK):
        x = torch.from_numpy(images[start : start + CHUNK]).permute(0, 3, 1, 2).float() / 255
        grey = x.shape[1] == 1
        result = CORRUPTIONS[name](x.expand(-1, 3, -1, -1), generator, *SEVERITIES[name][severity - 1])
        result = result.mean(1, keepdim=True) if grey else result
        # As published, bytes are cut off and not rounded; a small push keeps unchanged values where they are.
        bytes_ = (result.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)
        parts.append(bytes_.permute(0, 2, 3, 1).contiguous().numpy())
    return np.concatenate(parts) if parts else images.copy()


def corrupted_splits(split: Split, seed: int = 0) -> Iterator[tuple[str, int, Split]]:
    """Every corruption at every severity of a test set: (name, severity, split)."""
    for index, name in enumerate(CORRUPTIONS):
        for severity in range(1, 6):
            generator = torch.Generator().manual_seed(1000 * seed + 10 * index + severity)
            yield name, severity, Split(corrupt(split.x, name, severity, generator), split.y)
