"""SIGTERM and Ctrl-C: a request to save and end during training, else an exit.

Python runs a signal handler only between two bytecode instructions. An environment that hangs in C
never lets it run, and one that hangs in Python never ends its rollout. So a thread reads each
signal from a pipe (`signal.set_wakeup_fd`) and ends the process if the training cannot.
"""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tfrl.envs.env_calls import RunningCall

_NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
GRACE = 8.0  # seconds that one call of an environment may take after a signal
# Seconds in which several signals are one request: they come from a process group, a parent that
# passes them on, or from Linux at the end of each thread of a parent.
ONE_REQUEST = 1.0
_LOOK = 0.1  # seconds between two checks of the running call


class Termination:
    """Records the signal that requested the end of the run.

    Inside `deferred()` a signal only sets `requested`, so that the caller can save; a second
    signal, a SIGTERM after at least `ONE_REQUEST`, ends the process at once. Outside of it the
    process ends with the signal's code. The process also ends if one call of an environment lasts
    longer than `GRACE` after a signal: only the steps after the last checkpoint are lost. Other
    calls, for example a save or a compiled function, have no time limit.

    Attributes:
      last_saved: One sentence for the user about the last checkpoint.
      before_exit: Called before the process ends at once, from any thread.
    """

    def __init__(self, end: Callable[[int], Any] = os._exit):
        """Installs nothing yet.

        Args:
          end: Ends the process with an exit code, from any thread.
        """
        self.last_saved = "Nothing was trained."
        self.before_exit: Callable[[], Any] = lambda: None
        self._end = end
        self._signal: int | None = None
        self._deferred = False

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self._signal is not None

    @property
    def name(self) -> str:
        """The user's name of the signal."""
        return _NAMES[signal.Signals(self._signal or signal.SIGTERM)]

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM, 130 for Ctrl-C, as in shells."""
        return 128 + (self._signal or signal.SIGTERM)

    def install(self) -> None:
        """Installs the handlers of SIGTERM and SIGINT."""
        for number in _NAMES:
            signal.signal(number, self._handle)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(
            target=self._watch, args=[reader], daemon=True, name="tfrl-termination"
        ).start()

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Turns signals into requests within the context."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _handle(self, number: int, _: Any) -> None:
        again = self.requested and number == signal.SIGINT
        self._signal = number
        _drop_unread_output()
        if self._deferred and not again:
            return
        # Not print: the handler may interrupt another print.
        _write(f"Stopped by {self.name}.\n")
        raise SystemExit(self.exit_code)

    def _watch(self, reader: int) -> None:
        """Reads signals; ends the process at a second SIGTERM, or if an environment hangs."""
        number, since = 0, 0.0
        while True:
            ready, _, _ = select.select([reader], [], [], _LOOK if number else None)
            signals = os.read(reader, 64) if ready else b""
            if ready and not signals:  # another owner of the wake-up closed the pipe
                os.close(reader)
                return
            for came in signals:
                if came not in tuple(_NAMES):
                    continue  # another handler of the process takes this signal
                again = number and time.monotonic() - since >= ONE_REQUEST
                if again and came == signal.SIGTERM:
                    self._exit(came, "Stopped by a second SIGTERM.")
                    return
                number, since = came, since if number else time.monotonic()
            call = RunningCall.current
            if number and call and time.monotonic() - max(since, call[1]) > GRACE:
                hangs = f"{call[0]} did not come back within {GRACE:g} s"
                self._exit(number, f"Stopped by {_NAMES[signal.Signals(number)]}: {hangs}.")
                return

    def _exit(self, number: int, line: str) -> None:
        _write(f"{line} {self.last_saved}\n")
        self.before_exit()
        self._end(128 + number)


def _drop_unread_output() -> None:
    """Discards further output to a pipe without readers, since a print would fail before the save.

    The pipe of a killed launcher is one.
    """
    poll = select.poll()
    for stream in (1, 2):
        poll.register(stream, 0)
    for stream, event in poll.poll(0):
        if event & select.POLLERR:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def _write(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
