"""Calls that may block for ever, made in threads that can be left behind."""

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tfrl.distribute.multi_worker import refusal
from tfrl.errors import UserError
from tfrl.replay.reverb import library
from tfrl.replay.reverb.lost import ServerSilentError, leave_behind
from tfrl.replay.reverb.tables import check_tables

if TYPE_CHECKING:
    from tfrl.replay.reverb.maker import ReverbReplay


_RETRY_SECONDS = 0.2
# How long a server that takes connections has to answer before a line says that it is waited for.
_ANSWER_SECONDS = 2.0
T = TypeVar("T")

# Writing or reading a checkpoint may take so long; a disk that writes 100 MB/s is done with 180 GB.
CHECKPOINT_SECONDS = 1800.0


def await_server(
    address: str, client: Any, seconds: float, log: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Returns once a server has answered.

    Args:
      address: `host:port`.
      client: The `reverb.Client` of this address.
      seconds: How long to wait.
      log: Takes a line where the server is not there at once; why, and how long it is waited for.

    Returns:
      `{table: reverb TableInfo}`.

    Raises:
      UserError: A malformed address, or nobody answers in time.
    """
    check_address(address)
    errors = (RuntimeError, library.reverb().errors.ReverbError)
    deadline = time.monotonic() + seconds
    while True:
        # First, since Reverb waits out its time where nobody listens.
        reason = refusal(address, timeout=1.0)
        left = deadline - time.monotonic()
        if reason is None:
            most = left if log is None else min(left, _ANSWER_SECONDS)
            try:
                return client.server_info(timeout=max(1, math.ceil(most)))  # type: ignore[no-any-return]
            except errors:
                reason = "somebody who listens there but does not answer as Reverb does"
        if log is not None:
            log(f"Waiting up to {seconds:g} s for the replay server at {address}: {reason}.")
            log = None
        if time.monotonic() + _RETRY_SECONDS >= deadline:
            raise UserError(
                f"Reverb server at {address}",
                expected=f"a server that answers within {seconds:g} s",
                got=reason,
                remedy="Start bin/reverb_server.py with the same gin file, and give the address "
                "that it prints.",
            )
        time.sleep(_RETRY_SECONDS)


def await_tables(replay: "ReverbReplay", log: Callable[[str], None]) -> None:
    """Returns once the server of a maker has answered, and has the maker's tables.

    Args:
      replay: A maker with an address.
      log: As of `await_server`.

    Raises:
      UserError: As of `await_server`; and about tables that are others.
    """
    address = str(replay.address)
    check_address(address)
    client = library.reverb().Client(address)
    check_tables(await_server(address, client, replay.timeout, log), replay)


def check_address(address: str) -> None:
    """Checks the form of an address.

    Args:
      address: Should be `host:port`.

    Raises:
      UserError: It is not.
    """
    host, colon, port = str(address).rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(
            "The address of a Reverb server",
            expected="host:port, for example localhost:8000",
            got=repr(address),
            remedy="bin/reverb_server.py prints it when it serves.",
        )


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
