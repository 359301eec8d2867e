"""The picture of `Relay`: a row of squares for each agent."""

from collections.abc import Sequence

import numpy as np

SQUARE = 32  # pixels
GAP = 2  # pixels between squares
FLOOR, TREASURE, TRAP, SEES, FOLLOWS = (
    np.array(color, np.uint8)
    for color in ((225,) * 3, (230, 190, 60), (190, 90, 80), (40, 90, 170), (90, 150, 210))
)


def draw(side: int, cells: Sequence[int], half_length: int) -> np.ndarray:
    """Draws every lane with its ends in the colours of treasure and trap, and its agent.

    Args:
      side: Of the treasure, -1 for left or 1 for right.
      cells: The agents' cells, from -half_length to half_length.
      half_length: Steps to either end.

    Returns:
      uint8 RGB [H, W, 3].
    """
    columns = 2 * half_length + 1
    picture = np.full((len(cells) * SQUARE, columns * SQUARE, 3), 255, np.uint8)
    for row, cell in enumerate(cells):
        for column in range(columns):
            color = FLOOR
            if abs(column - half_length) == half_length:
                color = TREASURE if (column > half_length) == (side > 0) else TRAP
            _fill(picture, row, column, GAP, color)
        _fill(picture, row, cell + half_length, SQUARE // 4, SEES if row == 0 else FOLLOWS)
    return picture


def _fill(picture: np.ndarray, row: int, column: int, margin: int, color: np.ndarray) -> None:
    top, left = row * SQUARE, column * SQUARE
    picture[top + margin : top + SQUARE - margin, left + margin : left + SQUARE - margin] = color
