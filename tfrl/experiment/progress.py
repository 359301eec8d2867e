"""Progress of a run: a live bar on a terminal, plain lines elsewhere."""

import collections
import datetime
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

import rich.console
import rich.progress
from typing_extensions import Self

from tfrl.experiment.recorders import format_cells

# The rate is computed over the last updates.
_WINDOW = 20


class Progress:
    """Shows `done / total`, the rate, the remaining time and current figures.

    On a terminal it is one live line at the bottom, above which prints and `log` messages scroll.
    Elsewhere it is a plain line at most every `every_seconds`, and a last one at `close`.
    """

    def __init__(
        self,
        total: int,
        unit: str = "env steps",
        *,
        done: int = 0,
        stream: TextIO | None = None,
        every_seconds: float = 10.0,
        console: rich.console.Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts the display.

        Args:
          total: The final value of `done`.
          unit: The unit of the count.
          done: The initial value, for a resumed run.
          stream: The output stream; by default standard error.
          every_seconds: The minimum time between two plain lines.
          console: A rich console to use instead of `stream`.
          clock: A monotonic clock in seconds.
        """
        self._total = total
        self._unit = unit
        self._done = done
        self._every_seconds = every_seconds
        self._clock = clock
        self._stream = stream or sys.stderr
        self._console = console or rich.console.Console(file=self._stream)
        self._marks = collections.deque([(clock(), done)], maxlen=_WINDOW)
        self._rate = 0.0
        self._last_line = -float("inf")
        self._pending: str | None = None
        self._figures = ""
        self._closed = False
        self._bar: rich.progress.Progress | None = None
        if self._console.is_terminal:
            self._bar = self._make_bar()
            self._task = self._bar.add_task(unit, total=total, completed=done, text="")
            self._bar.start()

    def _make_bar(self) -> rich.progress.Progress:
        # rich redirects sys.stdout and sys.stderr while the bar is shown, so prints appear above
        # it.
        return rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            # A narrow terminal has its room for the figures.
            rich.progress.BarColumn(bar_width=max(6, min(24, self._console.width - 130))),
            rich.progress.TaskProgressColumn(),
            rich.progress.TextColumn("{task.fields[text]}", markup=False),
            console=self._console,
            refresh_per_second=4,
        )

    @property
    def rate(self) -> float:
        """Units per second over the last updates; 0 before the first."""
        return self._rate

    def restart(self) -> None:
        """Excludes the time since the last update, spent on compilation, from the rate."""
        self._marks.clear()
        self._marks.append((self._clock(), self._done))

    def update(self, done: int, *, compiled: bool = False, **figures: Any) -> None:
        """Shows a new state.

        Args:
          done: The count so far, since the start of the whole run.
          compiled: Whether the time since the last update was spent on compilation.
          **figures: Current figures to show, such as `return_=312.5`; a trailing underscore is
            dropped from the name. Omitted figures are not shown.
        """
        self._done = int(done)
        if compiled:
            self.restart()
        else:
            self._marks.append((self._clock(), self._done))
            (then, before), (now, after) = self._marks[0], self._marks[-1]
            self._rate = (after - before) / (now - then) if now > then else 0.0
        self._figures = format_cells({n.rstrip("_"): v for n, v in figures.items()})
        if self._bar is not None:
            shown = min(self._done, self._total)
            self._bar.update(self._task, completed=shown, text=self._text())
            return
        line = f"{self._unit} {self._percent()} {self._text()}"
        now = self._clock()
        if now - self._last_line < self._every_seconds:
            self._pending = line
            return
        self._last_line = now
        self._pending = None
        self._print(line)

    def log(self, message: str) -> None:
        """Prints a message without disturbing the display."""
        if self._bar is not None:
            self._console.print(message, markup=False, highlight=False, soft_wrap=True)
        else:
            self._print(message)

    def close(self) -> None:
        """Shows the last state and ends the display; more calls have no effect."""
        if self._closed:
            return
        self._closed = True
        if self._bar is not None:
            self._bar.stop()
        elif self._pending is not None:
            self._print(self._pending)

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the display."""
        self.close()

    def _print(self, line: str) -> None:
        self._console.file.write(line + "\n")
        self._console.file.flush()

    def _percent(self) -> str:
        # The last iteration may exceed the total.
        return f"{min(100.0, 100 * self._done / self._total):3.0f}%" if self._total > 0 else "100%"

    def _text(self) -> str:
        rate = f"{self.rate:,.0f}/s" if self.rate else "?/s"
        parts = [f"{self._done:,}/{self._total:,}", rate, f"eta {self._eta()}"]
        return "  ".join([*parts, self._figures] if self._figures else parts)

    def _eta(self) -> str:
        left = max(0, self._total - self._done)
        if not left:
            return "0:00:00"
        if self.rate <= 0:
            return "?"
        return str(datetime.timedelta(seconds=round(left / self.rate)))
