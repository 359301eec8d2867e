"""Calls that may block for ever, in threads that can be left behind, and errors of a lost server.

A call that is blocked in Reverb's C++ cannot be cancelled. It is left behind in its thread, and
what it uses (an iterator, a writer) is kept: the destructors of these wait for the server too, a
prefetched dataset's for more than ten seconds.
"""

import atexit
import faulthandler
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

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


T = TypeVar("T")

# Writing or reading a checkpoint may take so long; a disk that writes 100 MB/s is done with 180 GB.
CHECKPOINT_SECONDS = 1800.0


class Call:
    """A call that is under way in a thread of its own.

    The thread is a daemon, so that the interpreter does not wait for it.
    """

    def __init__(self, fn: Callable[[], Any]):
        """Holds the function; a `Callers` starts it."""
        self.fn = fn
        self._result: Any = None
        self._error: BaseException | None = None
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self) -> None:
        """Makes the call, in the thread."""
        try:
            self._result = self.fn()
        except BaseException as error:  # noqa: BLE001  (raised again where the result is asked for)
            self._error = error

    def finish(self) -> None:
        """Tells whoever waits."""
        self._done.put(None)

    def wait(self, seconds: float) -> bool:
        """Returns whether the call has come back within `seconds`; signals are served meanwhile."""
        try:
            self._done.get(timeout=seconds)
        except queue.Empty:
            return False
        return True

    def result(self) -> Any:
        """Returns what the call returned, or raises what it raised, once it has come back."""
        if self._error is not None:
            raise self._error
        return self._result


class Callers:
    """Threads that make calls; a thread that has come back is used again."""

    def __init__(self) -> None:
        """Starts no thread yet."""
        self._idle: list[queue.SimpleQueue[Call | None]] = []
        self._lock = threading.Lock()

    def start(self, fn: Callable[[], Any]) -> Call:
        """Starts a call in an idle thread, or in a new one."""
        call = Call(fn)
        with self._lock:
            line = self._idle.pop() if self._idle else self._new_thread()
        line.put(call)
        return call

    def _new_thread(self) -> "queue.SimpleQueue[Call | None]":
        line: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(line,), name="reverb-call", daemon=True).start()
        return line

    def _serve(self, line: "queue.SimpleQueue[Call | None]") -> None:
        while (call := line.get()) is not None:
            call.run()
            # Idle before anybody can know, so that the next call finds this thread.
            with self._lock:
                self._idle.append(line)
            call.finish()
            del call  # So that an idle thread keeps nothing alive.

    def close(self) -> None:
        """Ends the idle threads; those in a call end never, or become idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            line.put(None)


_CALLERS = Callers()


def within(seconds: float, fn: Callable[[], T], where: str, what: str) -> T:
    """Makes a call that ends with an error when it takes too long.

    It is made in another thread, which is left behind then.

    Args:
      seconds: The most that it may take.
      fn: The call.
      where: What is called, for the message: "Reverb server at localhost:8000".
      what: What the call does, for the message: "writing a checkpoint".

    Raises:
      ServerSilentError: It has not come back in time.
    """
    call = _CALLERS.start(fn)
    try:
        if not call.wait(seconds):
            raise too_long(seconds, where, what)
    except BaseException:  # Ctrl-C too: whatever the call uses must not be destroyed.
        leave_behind(call)
        raise
    return call.result()  # type: ignore[no-any-return]


def too_long(seconds: float, where: str, what: str) -> ServerSilentError:
    """Returns the message about a server that is there, and a call that did not come back."""
    return ServerSilentError(
        where,
        expected=f"an answer within {seconds:g} s; it was needed for {what}",
        got="silence, though the server is there",
        remedy="It may be writing a large checkpoint, or be overloaded: see to it, or raise the "
        "timeout.",
    )
