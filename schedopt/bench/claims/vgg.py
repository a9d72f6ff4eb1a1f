"""VGG-16 with its sixteen weighted layers, for images of any size (Simonyan and Zisserman 2015)."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import nn

from schedopt.chain import Chain
from schedopt.profiling import Model, estimate

CHANNELS: Final = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Of the convolutions; a pool behind each group."""
WIDTH: Final = 4096
POOLED: Final = 7
FLOPS: Final = 10**13
"""The rate at which times are worked out, floating-point operations a second."""


def vgg16(classes: int) -> nn.Sequential:
    """Return VGG-16 as a layer for each of its weights, with what follows it."""
    layers: list[nn.Module] = []
    before = 3
    for group in CHANNELS:
        for number, channels in enumerate(group, start=1):
            pool = [nn.MaxPool2d(2)] if number == len(group) else []
            convolution = nn.Conv2d(before, channels, 3, padding=1)
            layers.append(nn.Sequential(convolution, nn.ReLU(inplace=True), *pool))
            before = channels
    size = before * POOLED**2
    for first in (True, False):
        flat = [nn.AdaptiveAvgPool2d(POOLED), nn.Flatten()] if first else []
        linear = nn.Linear(size if first else WIDTH, WIDTH)
        layers.append(nn.Sequential(*flat, linear, nn.ReLU(inplace=True), nn.Dropout()))
    layers.append(nn.Linear(WIDTH, classes))
    return nn.Sequential(*layers)


@cache
def vgg16_chain(images: int, side: int, classes: int) -> Chain:
    """Return its chain for so many images, trained by plain gradient descent, without a run."""
    return estimate(
        lambda: Model(module=vgg16(classes), inputs=torch.randn(images, 3, side, side)),
        flops=FLOPS,
        optimizer="sgd",
        min_share=0,
    )
