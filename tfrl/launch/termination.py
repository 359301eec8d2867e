"""SIGTERM and Ctrl-C: a request to save and end while training, an exit at any other time."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}


class Termination:
    """Remembers the signal that asked the run to end.

    Inside `deferred()` the signal only sets `requested`, so that the caller can save; a second
    Ctrl-C there ends the process at once. Outside of it the process ends with the signal's code.
    """

    def __init__(self) -> None:
        """Installs nothing yet."""
        self._signal: int | None = None
        self._deferred = False

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self._signal is not None

    @property
    def name(self) -> str:
        """The signal as users know it."""
        return _NAMES[signal.Signals(self._signal or signal.SIGTERM)]

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM, 130 for Ctrl-C, as shells count."""
        return 128 + (self._signal or signal.SIGTERM)

    def install(self) -> None:
        """Takes over SIGTERM and SIGINT."""
        for number in _NAMES:
            signal.signal(number, self._handle)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Turns signals into requests for as long as the context lasts."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _handle(self, number: int, _: Any) -> None:
        again = self.requested and number == signal.SIGINT
        self._signal = number
        if self._deferred and not again:
            return
        # Not print: the handler may run in the middle of another print.
        os.write(2, f"Stopped by {self.name}.\n".encode())
        raise SystemExit(self.exit_code)
