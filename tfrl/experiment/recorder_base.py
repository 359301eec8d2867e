"""What a recorder is, and what a cell of a row may be."""

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np

STEP = "env_steps"


def cell(name: str, value: Any) -> float | int | str:
    """Returns a value of a row as a Python number or a one-line string.

    float32 values become the shortest decimal that reads back as the same float32, so that a
    stored 0.1 is written as 0.1. Line breaks in strings become spaces: a row is one line.

    Args:
      name: Name of the column, for the error.
      value: A Python or NumPy scalar, a scalar tensor, or a string.

    Raises:
      TypeError: It is neither a scalar nor a string.
    """
    if isinstance(value, str):
        return " ".join(value.splitlines())
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, np.floating) and value.dtype.itemsize < 8:
        return float(str(value))
    if isinstance(value, float | np.floating):
        return float(value)
    raise TypeError(f"metric {name!r}: expected a number or a string, got {value!r}")


class Recorder(abc.ABC):
    """Takes rows of metrics.

    Rows of one step may be several; their steps do not decrease. Write and `flush` all rows of a
    step before its checkpoint is saved, and call `truncate` with the checkpoint's step at resume:
    then no row is lost and none is double.
    """

    @abc.abstractmethod
    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Takes one row.

        Args:
          step: The step of the row.
          row: `{name: number or string}`; a NaN or an infinity is a number too.
        """

    def truncate(self, step: int) -> None:
        """Drops the rows whose step is greater than `step`; nothing to do where none are kept."""
        return

    def flush(self) -> None:
        """Returns when every row written so far is safe; nothing to do where none wait."""
        return

    def close(self) -> None:
        """Flushes and lets go of files; more calls have no effect."""
        self.flush()


def split_row(step: int, row: Mapping[str, Any], step_name: str) -> dict[str, float | int | str]:
    """Returns the cells of a row without the step, which the row may repeat but not contradict.

    Raises:
      ValueError: The row has another value under the step's name.
    """
    cells = {str(n): cell(n, v) for n, v in row.items()}
    if cells.pop(step_name, step) != step:
        raise ValueError(f"row of step {step}: {step_name} is {row[step_name]}")
    return cells
