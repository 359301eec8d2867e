"""The picture of a MinAtar board: one colour for each channel, from the palette cubehelix."""

import math

import numpy as np

SQUARE = 32  # pixels of a cell's side
# What the rotation around the grey diagonal adds to red, green and blue: for cosine and for sine.
_COS = np.array([-0.14861, -0.29227, 1.97294])
_SIN = np.array([1.78277, -0.90649, 0.0])
_START, _ROTATIONS = 0.5, -1.5


def cubehelix(number: int) -> np.ndarray:
    """Returns colours of rising brightness that go around the colour wheel.

      rgb = x + x (1 - x) / 2 (c cos phi + s sin phi),  phi = 2 pi (start / 3 + rotations x)

    at `number` brightnesses x, equally spaced within (0, 1).

    Source: Green 2011, "A colour scheme for the display of astronomical intensity images",
    https://arxiv.org/abs/1108.5083.

    Args:
      number: How many colours.

    Returns:
      uint8 RGB [number, 3].
    """
    x = np.linspace(0, 1, number + 2)[1:-1, np.newaxis]
    phi = 2 * math.pi * (_START / 3 + _ROTATIONS * x)
    rgb = x + x * (1 - x) / 2 * (_COS * np.cos(phi) + _SIN * np.sin(phi))
    return np.round(255 * np.clip(rgb, 0, 1)).astype(np.uint8)


def draw(board: np.ndarray) -> np.ndarray:
    """Draws a board; where a cell has several things, the one of the last channel is seen.

    Args:
      board: bool [H, W, C].

    Returns:
      uint8 RGB [32 H, 32 W, 3].
    """
    number = board.shape[-1]
    colors = np.concatenate([np.zeros([1, 3], np.uint8), cubehelix(number)])  # 0 is empty
    seen = (board * np.arange(1, number + 1)).max(axis=-1)
    return colors[seen].repeat(SQUARE, axis=0).repeat(SQUARE, axis=1)
