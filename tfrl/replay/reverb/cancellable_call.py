"""Runs calls that may block forever in threads that can be abandoned; errors of a lost server.

A call that blocks in Reverb's C++ cannot be cancelled. It is abandoned in its thread, and the
objects that it uses (an iterator, a writer) stay referenced: their destructors would also wait for
the server, a prefetched dataset's for more than ten seconds.
"""

import atexit
import faulthandler
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from tfrl.errors import UnavailableError

# Seconds that the interpreter may take to exit after calls were abandoned.
ORDERLY_EXIT_SECONDS = 2.5

_lock = threading.Lock()
_left_behind: list[Any] = []


class ServerLostError(UnavailableError):
    """A Reverb server no longer answers, so this process cannot continue.

    Binaries print the paragraph and call `end_process`, since an orderly exit could wait for the
    server again.
    """

    exit_at_once = True


class ServerSilentError(UnavailableError):
    """A Reverb server accepts connections, but a call timed out and was abandoned.

    Binaries exit as with `ServerLostError`.
    """

    exit_at_once = True


def leave_behind(*things: Any) -> None:
    """Keeps objects that wait for a lost server alive until exit, and bounds the time of the exit.

    Args:
      *things: Functions and objects whose destructors may block; none changes nothing.
    """
    if not things:
        return
    with _lock:
        if not _left_behind:
            atexit.register(_bound_exit)
        _left_behind.extend(things)


def has_left_behind() -> bool:
    """Returns whether the exit may wait for a server; use `end_process` then."""
    return bool(_left_behind)


def _bound_exit() -> None:
    """Ends this process with code 1 if its orderly exit takes too long.

    A C thread keeps the time, since the blocked code may hold Python's global lock.
    """
    _flush()
    # The traceback would only show the interpreter's exit. The file stays open until then.
    silent = open(os.devnull, "w")  # noqa: SIM115
    faulthandler.dump_traceback_later(ORDERLY_EXIT_SECONDS, exit=True, file=silent)
    _left_behind.append(silent)


def end_process(code: int) -> NoReturn:
    """Ends this process at once; waits only for its output.

    Args:
      code: The exit code.
    """
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # A closed pipe or file has no reader.
            continue


T = TypeVar("T")

# Timeout of writing or reading a checkpoint: a disk of 100 MB/s writes 180 GB in this time.
CHECKPOINT_SECONDS = 1800.0


class Call:
    """A call that runs in another thread.

    The thread is a daemon, so that the interpreter does not wait for it.
    """

    def __init__(self, fn: Callable[[], Any]):
        """Stores the function; a `Callers` starts it."""
        self.fn = fn
        self._result: Any = None
        self._error: BaseException | None = None
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self) -> None:
        """Runs the function; called in the thread."""
        try:
            self._result = self.fn()
        except BaseException as error:  # noqa: BLE001  (raised again where the result is asked for)
            self._error = error

    def finish(self) -> None:
        """Wakes the waiting thread."""
        self._done.put(None)

    def wait(self, seconds: float) -> bool:
        """Returns whether the call returned within `seconds`; handles signals meanwhile."""
        try:
            self._done.get(timeout=seconds)
        except queue.Empty:
            return False
        return True

    def result(self) -> Any:
        """Returns the call's result, or raises its error; to use once the call has returned."""
        if self._error is not None:
            raise self._error
        return self._result


class Callers:
    """A pool of threads for calls; a thread is reused once its call returns."""

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
            # Idle before `finish`, so that the next call finds this thread.
            with self._lock:
                self._idle.append(line)
            call.finish()
            del call  # So that an idle thread keeps nothing alive.

    def close(self) -> None:
        """Ends the idle threads; threads in a call are left alone."""
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            line.put(None)


_CALLERS = Callers()


def within(seconds: float, fn: Callable[[], T], where: str, what: str) -> T:
    """Calls a function with a timeout.

    The call runs in another thread, which is abandoned after a timeout.

    Args:
      seconds: The timeout.
      fn: The function.
      where: The called service, for the message: "Reverb server at localhost:8000".
      what: The action of the call, for the message: "writing a checkpoint".

    Raises:
      ServerSilentError: The call has not returned in time.
    """
    call = _CALLERS.start(fn)
    try:
        if not call.wait(seconds):
            raise too_long(seconds, where, what)
    except BaseException:  # Ctrl-C too: the call's objects must stay alive.
        leave_behind(call)
        raise
    return call.result()


def too_long(seconds: float, where: str, what: str) -> ServerSilentError:
    """Returns the error for a server that accepts connections and a call that timed out."""
    return ServerSilentError(
        where,
        expected=f"an answer within {seconds:g} s, needed for {what}",
        got="no answer from a running server",
        remedy="Check whether it writes a large checkpoint or is overloaded, or raise the timeout.",
    )
