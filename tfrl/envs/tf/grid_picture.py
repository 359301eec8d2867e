"""Images of grids: one coloured square per cell."""

import numpy as np

LARGEST, SMALLEST = 32, 4  # pixels of a square's side
WIDEST = 640  # pixels of a picture whose squares are not the smallest
LINE = 1  # pixels of the margin in every square

FLOOR, WALL, AGENT, GOAL, ITEM = (
    np.array(color, np.uint8)
    for color in ((225,) * 3, (70,) * 3, (40, 90, 170), (230, 190, 60), (190, 90, 80))
)


def floor(rows: int, columns: int) -> np.ndarray:
    """Returns the colours of an empty grid, uint8 [R, C, 3]."""
    return np.tile(FLOOR, (rows, columns, 1))


def draw(colors: np.ndarray) -> np.ndarray:
    """Draws a square for every cell, with a white line around it.

    Args:
      colors: uint8 RGB [R, C, 3], the first row on top.

    Returns:
      uint8 RGB [R S, C S, 3]; the side S is even, 32 pixels where the grid is small enough.
    """
    rows, columns, _ = colors.shape
    side = min(LARGEST, max(SMALLEST, WIDEST // max(rows, columns))) // 2 * 2
    picture = np.full((rows, side, columns, side, 3), 255, np.uint8)
    inside = slice(LINE, side - LINE)
    picture[:, inside, :, inside] = colors[:, np.newaxis, :, np.newaxis]
    return picture.reshape(rows * side, columns * side, 3)
