"""Recorders: where rows of metrics go. All of them under one roof, and several as one."""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfrl.experiment.recorder_base import STEP, Recorder, cell
from tfrl.experiment.recorder_files import CsvRecorder, JsonlRecorder
from tfrl.experiment.recorder_tensorboard import TensorBoardRecorder
from tfrl.experiment.recorder_wandb import WandbRecorder

__all__ = [
    "STEP",
    "ConsoleRecorder",
    "CsvRecorder",
    "JsonlRecorder",
    "Recorder",
    "RecorderGroup",
    "TensorBoardRecorder",
    "WandbRecorder",
    "cell",
    "format_cells",
    "format_number",
]


def format_number(value: float | int) -> str:
    """Returns a number for the eye: integers with thousands separators, others in 4 digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def format_cells(row: Mapping[str, Any]) -> str:
    """Returns `name=value name=value`."""
    cells = {name: cell(name, value) for name, value in row.items()}
    return " ".join(
        f"{name}={value if isinstance(value, str) else format_number(value)}"
        for name, value in cells.items()
    )


def _print(line: str) -> None:
    print(line, file=sys.stdout, flush=True)


class ConsoleRecorder(Recorder):
    """Prints rows as `step  name=value name=value`, at most one per interval.

    A row within the interval is skipped; the last one is printed at `close` all the same.
    """

    def __init__(
        self,
        every_seconds: float = 10.0,
        *,
        names: Sequence[str] | None = None,
        print_line: Callable[[str], None] = _print,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Sets up the printer.

        Args:
          every_seconds: The least time between two lines; 0 prints every row.
          names: The only metrics to show, in this order, or None for all.
          print_line: Takes a line, for example `Progress.log`.
          clock: Seconds that never go back.
        """
        self._every_seconds = every_seconds
        self._names = names
        self._print_line = print_line
        self._clock = clock
        self._last = -float("inf")
        self._skipped: str | None = None

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Prints a row, unless one was printed a moment ago."""
        shown = row if self._names is None else {n: row[n] for n in self._names if n in row}
        if not shown:
            return
        line = f"{format_number(int(step))}  {format_cells(shown)}"
        now = self._clock()
        if now - self._last < self._every_seconds:
            self._skipped = line
            return
        self._last = now
        self._skipped = None
        self._print_line(line)

    def close(self) -> None:
        """Prints the last row, if it was skipped."""
        if self._skipped is not None:
            self._print_line(self._skipped)
            self._skipped = None


class RecorderGroup(Recorder):
    """Several recorders as one; they are called in the order given."""

    def __init__(self, recorders: Sequence[Recorder]):
        """Takes the recorders, which may be none."""
        self._recorders = tuple(recorders)

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Writes a row to each."""
        for recorder in self._recorders:
            recorder.write(step, row)

    def video(self, tag: str, frames: Any, step: int, fps: float = 30.0) -> None:
        """Gives uint8 frames `[T, H, W, 3]` to those that take videos."""
        for recorder in self._recorders:
            if isinstance(recorder, TensorBoardRecorder | WandbRecorder):
                recorder.video(tag, frames, step, fps)

    def truncate(self, step: int) -> None:
        """Drops the rows after a step from each."""
        for recorder in self._recorders:
            recorder.truncate(step)

    @property
    def num_rows(self) -> dict[str, int]:
        """`{file: rows}` of those that keep rows in a file."""
        counted = [r for r in self._recorders if isinstance(r, CsvRecorder | JsonlRecorder)]
        return {recorder.name: recorder.num_rows for recorder in counted}

    def flush(self) -> None:
        """Flushes each."""
        for recorder in self._recorders:
            recorder.flush()

    def close(self) -> None:
        """Closes each, also when one of them fails."""
        with contextlib.ExitStack() as stack:
            for recorder in reversed(self._recorders):
                stack.callback(recorder.close)
