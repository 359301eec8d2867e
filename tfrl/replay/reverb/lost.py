"""The error of a server that is gone, and how a process with calls left behind in Reverb ends.

A call that is blocked in Reverb's C++ cannot be cancelled. It is left behind in its thread, and
what it uses (an iterator, a writer) is kept: the destructors of these wait for the server too, a
prefetched dataset's for more than ten seconds.
"""

import atexit
import faulthandler
import os
import sys
import threading
from typing import Any, NoReturn

from tfrl.errors import UserError

# Seconds that the interpreter may take to end by itself once calls were left behind.
ORDERLY_EXIT_SECONDS = 2.5

_lock = threading.Lock()
_left_behind: list[Any] = []


class ServerLostError(UserError):
    """A Reverb server does not answer any more, so this process cannot go on.

    Binaries print it like any `UserError`: one paragraph, exit code 2. They then end by
    `end_process`, since an orderly end could wait for the server again.
    """

    exit_at_once = True


class ServerSilentError(UserError):
    """A Reverb server is there, and a call of it did not come back in time: it was left behind.

    Binaries end as with `ServerLostError`.
    """

    exit_at_once = True


def leave_behind(*things: Any) -> None:
    """Keeps what waits for a lost server until the process ends, and bounds the time of that end.

    Args:
      *things: Functions and objects whose destructors may block.
    """
    with _lock:
        if not _left_behind:
            atexit.register(_bound_exit)
        _left_behind.extend(things)


def _bound_exit() -> None:
    """Ends this process with code 1 if its orderly end takes too long.

    The clock is a thread of C: what blocks may hold the interpreter's lock.
    """
    _flush()
    # Its traceback would only show the interpreter's own end. The file stays open until then.
    silent = open(os.devnull, "w")  # noqa: SIM115
    faulthandler.dump_traceback_later(ORDERLY_EXIT_SECONDS, exit=True, file=silent)
    _left_behind.append(silent)


def end_process(code: int) -> NoReturn:
    """Ends this process now, without waiting for anything but its own output.

    Args:
      code: The exit code.
    """
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # A closed pipe or file: nobody reads it.
            continue
