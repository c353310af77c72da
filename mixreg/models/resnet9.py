"""ResNet-9: a residual network that a CPU trains to the end within minutes.

Blocks of a 3 × 3 convolution, batch normalisation and a rectifier, from `width` to four times as many channels, a
max-pooling after each change of width:

    width, pool → 2 width, pool → residual pair → 4 width, pool → residual pair → global max-pooling → linear.

At width 32 and 32 × 32 pixels that is 0.46 million parameters and 19.8 million multiplications for one image.
"""

from __future__ import annotations

from torch import Tensor, nn


def _block(inputs: int, outputs: int, pools: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pools else []))


class Residual(nn.Module):
    """Two blocks around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(_block(channels, channels), _block(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Of the shape of x: n × channels × h × w."""
        return x + self.blocks(x)


class ResNet9(nn.Module):
    """See the module's head.

    Args:
        num_classes: c.
        channels: of the images, which are at least 8 × 8.
        width: channels after the first block.
    """

    def __init__(self, num_classes: int = 10, channels: int = 3, width: int = 32) -> None:
        super().__init__()
        self.stem = _block(channels, width, pools=True)
        self.layer1 = nn.Sequential(_block(width, 2 * width, pools=True), Residual(2 * width))
        self.layer2 = nn.Sequential(_block(2 * width, 4 * width, pools=True), Residual(4 * width))
        self.fc = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, n × c, for x: n × channels × height × width."""
        return self.fc(self.layer2(self.layer1(self.stem(x))).amax((2, 3)))
