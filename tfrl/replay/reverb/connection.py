"""A connection to a Reverb server, with a heartbeat that notices a lost server.

Without a server, Reverb's own calls block forever, or return as if they had worked.
"""

import functools
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tfrl import checks
from tfrl.distribute.multi_worker import refusal
from tfrl.errors import UnavailableError, UserError
from tfrl.replay.reverb import library
from tfrl.replay.reverb.cancellable_call import Callers, ServerLostError, leave_behind, too_long
from tfrl.replay.reverb.factory import MOST_SECONDS, ReverbReplay
from tfrl.replay.reverb.tables import check_tables

reverb = library.reverb()

# Seconds that a server that accepts connections may be too busy to answer (writing a checkpoint).
_BUSY_SECONDS = 120.0
# Seconds until gRPC finds a server that is back: it polls at growing intervals after an outage.
_FOUND_SECONDS = 60.0
# Seconds between two probes of a lost server.
_AWAY_SECONDS = 0.2
# Messages of gRPC for a broken connection, the most frequent first.
_BROKEN = (
    "socket closed",
    "transport closed",
    "broken pipe",
    "connection reset",
    "connection refused",
    "failed to connect",
    "connections to all backends failing",
    "stream removed",
    "goaway",
    "unavailable",
)


def is_broken_connection(error: BaseException) -> bool:
    """Returns whether an error is gRPC's for a broken connection."""
    text = f"{type(error).__name__} {error}".lower()
    return any(sign in text for sign in _BROKEN)


class Heartbeat:
    """A thread that probes whether a server answers.

    A probe opens and closes a connection, then asks for the tables' counts: together less than a
    millisecond on one machine. If no process accepts connections at the address, the server is
    lost.
    """

    def __init__(self, address: str, seconds: float, reconnect_seconds: float | None):
        """Starts the thread.

        Args:
          address: `host:port` of a server that has answered.
          seconds: Seconds between two probes.
          reconnect_seconds: Seconds since its last answer that a server may take to answer again;
            None to give up at once if no process accepts connections.
        """
        self.reason = ""
        self.reconnections = 0
        self._address, self._seconds, self._reconnect_seconds = address, seconds, reconnect_seconds
        # Reverb takes whole seconds.
        self._timeout = max(1, round(seconds))
        self._client = reverb.Client(address)
        self._changed = threading.Condition()
        self._awake = threading.Event()
        self._closed = False
        self._questions = 0
        self._answered = time.monotonic()
        self._lost_since: float | None = None
        # Since the last answer: whether connections were refused, and since when no longer.
        self._refused = False
        self._listening_since: float | None = None
        self._busy_seconds = min(_BUSY_SECONDS, reconnect_seconds or _BUSY_SECONDS)
        self._given_up = False
        self._silent = False
        self._thread = threading.Thread(target=self._run, name="reverb-heartbeat", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether the server was lost at the last probe."""
        return self._lost_since is not None

    @property
    def busy(self) -> bool:
        """Whether the server accepted the last probe's connection but did not answer."""
        return self._silent

    @property
    def age(self) -> float:
        """Seconds since the server has answered."""
        return time.monotonic() - self._answered

    @property
    def given_up(self) -> bool:
        """Whether the server is lost for good; a later server at the address does not count."""
        return self._given_up

    def ask(self) -> None:
        """Probes at once; returns when the result is known."""
        for _ in range(2):  # The first probe may have been under way already.
            with self._changed:
                before = self._questions
                self._awake.set()
                self._changed.wait_for(
                    functools.partial(self._over, before), timeout=3.0 * self._timeout
                )

    def wait_while_lost(self, seconds: float) -> None:
        """Returns when the server answers or is given up, or after `seconds`."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self.lost or self._given_up or self._closed, timeout=seconds
            )

    def close(self) -> None:
        """Ends the thread, within the timeout of a probe.

        A probe that returned at the end of the interpreter would abort the process.
        """
        self._closed = True
        self._awake.set()
        if self._thread is not threading.current_thread():  # a garbage collection may call this
            self._thread.join(timeout=3.0 * self._timeout)

    def _over(self, questions: int) -> bool:
        return self._questions > questions or self._given_up or self._closed

    def _run(self) -> None:
        while not self._closed and not self._given_up:
            self._awake.wait(_AWAY_SECONDS if self.lost else self._seconds)
            self._awake.clear()
            if self._closed:
                break
            reason = self._question()
            with self._changed:
                self._note(reason)
                self._questions += 1
                self._changed.notify_all()

    def _question(self) -> str | None:
        """Returns None if the server answers, else the reason why it seems lost."""
        # First, since Reverb waits for its whole timeout if no process listens.
        refused = refusal(self._address, timeout=self._timeout)
        if refused is not None:
            self._refused, self._listening_since = True, None
            return refused
        now = time.monotonic()
        try:
            library.table_counts(self._client, self._timeout)
        except (RuntimeError, reverb.errors.ReverbError) as error:
            if self._refused:
                self._listening_since = self._listening_since or now
            busy = now - self._answered < self._busy_seconds and not is_broken_connection(error)
            self._silent = busy
            return None if busy and not self.lost else "no answer, though somebody listens there"
        self._answered = time.monotonic()
        self._silent = self._refused = False
        self._listening_since = None
        return None

    def _note(self, reason: str | None) -> None:
        if reason is None:
            if self.lost:
                self.reconnections += 1
                self._lost_since = None
            return
        self.reason = reason
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = self._answered
        self._given_up = now >= self._deadline(self._lost_since)

    def _deadline(self, lost_since: float) -> float:
        """Returns when to give up a lost server: later if its address accepts connections again."""
        deadline = lost_since + (self._reconnect_seconds or 0.0)
        since = self._listening_since
        if since is None or since > deadline:
            return deadline
        return max(deadline, since + _FOUND_SECONDS)


T = TypeVar("T")

# Seconds between two looks of a waiting guarded call at the server's state.
_LOOK_SECONDS = 0.25
_RETRY_SECONDS = 0.2
# Seconds that a server that accepts connections has to answer before a line is logged; also the
# longest call in C++, during which no signal is handled.
_ANSWER_SECONDS = 2.0


def await_server(
    address: str, client: Any, seconds: float, log: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Waits until a server answers.

    Args:
      address: `host:port`.
      client: The `reverb.Client` of this address.
      seconds: Seconds to wait.
      log: Takes a line if the server does not answer at once, with the reason and the wait.

    Returns:
      `{table: reverb TableInfo}`.

    Raises:
      UserError: A malformed address.
      UnavailableError: No answer in time.
    """
    checks.address(address)
    errors = (RuntimeError, reverb.errors.ReverbError)
    deadline = time.monotonic() + seconds
    while True:
        # First, since Reverb waits for its whole timeout if no process listens.
        reason = refusal(address, timeout=1.0)
        left = deadline - time.monotonic()
        if reason is None:
            try:
                return client.server_info(timeout=max(1, math.ceil(min(left, _ANSWER_SECONDS))))
            except errors:
                reason = "a process at this address that does not answer like Reverb"
                proxy = next((name for name in checks.PROXIES if os.environ.get(name)), None)
                if proxy is not None:
                    host = address.rpartition(":")[0]
                    reason += f", or the proxy of {proxy}, which no_proxy={host} goes around"
        if log is not None:
            log(f"Waiting up to {seconds:g} s for the replay server at {address}: {reason}.")
            log = None
        if time.monotonic() + _RETRY_SECONDS >= deadline:
            raise UnavailableError(
                f"Reverb server at {address}",
                expected=f"a server that answers within {seconds:g} s",
                got=reason,
                remedy="Start tfrl-reverb-server with the same gin file, and pass the address "
                "that it prints.",
            )
        time.sleep(_RETRY_SECONDS)


def await_tables(replay: ReverbReplay, log: Callable[[str], None]) -> None:
    """Waits until the servers of a factory answer, and checks their tables.

    Args:
      replay: A factory with the address of each server.
      log: See `await_server`.

    Raises:
      UserError: See `await_server`; and for tables that differ from the factory's.
    """
    for address in replay.addresses:
        checks.address(address)
        info = await_server(address, reverb.Client(address), replay.timeout, log)
        check_tables(info, replay.of_one_server)


class Connection:
    """The client of one server, with a heartbeat.

    Attributes:
      address: `host:port`.
      client: The `reverb.Client`. Make calls that may block through `guard`.
      on_wait: Called repeatedly while the server is lost, in calls that wait for a server that
        accepts connections and does not answer, and in calls of `guard` with `may_wait`. If it
        raises, the call is abandoned.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 10.0,
        heartbeat: float = 2.0,
        reconnect_seconds: float | None = None,
    ):
        """Connects.

        Args:
          address: `host:port` of a server.
          timeout: Seconds for the first answer, and for each `server_info`.
          heartbeat: Seconds between two probes of the server. With up to 3, the loss of a server,
            even of its whole machine, is noticed within 10 s.
          reconnect_seconds: Seconds that a lost server may take to come back; None to raise at
            once.

        Raises:
          UserError: A malformed address, a number out of bounds, or no answer in time.
        """
        checks.address(address)
        bound = (0, MOST_SECONDS, False)
        checks.number("Connection's timeout", timeout, *bound)
        checks.number("Connection's heartbeat", heartbeat, *bound)
        checks.number("Connection's reconnect_seconds", reconnect_seconds, *bound, True)
        self.address = address
        self.client = reverb.Client(address)
        self.on_wait: Callable[[], None] = lambda: None
        self._timeout, self._reconnect_seconds = timeout, reconnect_seconds
        await_server(address, self.client, timeout)
        self._callers = Callers()
        self._kept: list[Any] = []
        self._heartbeat = Heartbeat(address, heartbeat, reconnect_seconds)

    @property
    def lost(self) -> bool:
        """Whether the server is lost for good. Its writers and iterators must not be used then."""
        return self._heartbeat.given_up

    @property
    def away(self) -> bool:
        """Whether the server was lost at the last probe; it may come back."""
        return self._heartbeat.lost

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the server has answered the heartbeat."""
        return self._heartbeat.age

    @property
    def reconnections(self) -> int:
        """The number of outages after which the server came back.

        Reverb's writers then resend unconfirmed items, which may be inserted twice.
        """
        return self._heartbeat.reconnections

    def probe(self) -> None:
        """Asks the server at once, and waits for a lost one; `reconnections` then has the outage.

        Raises:
          ServerLostError: The server is lost.
        """
        self._heartbeat.ask()
        self.check()

    def server_info(self) -> dict[str, Any]:
        """Returns `{table: reverb TableInfo}`.

        Raises:
          ServerLostError: The server is lost.
          ServerSilentError: It accepts connections but does not answer in time.
        """
        return self._asked(lambda seconds: self.client.server_info(timeout=seconds))

    def table_counts(self) -> dict[str, Any]:
        """Returns sizes and counts, see `library.table_counts`; raises as `server_info`."""
        return self._asked(lambda seconds: library.table_counts(self.client, seconds))

    def _asked(self, question: Callable[[int], T]) -> T:
        seconds = math.ceil(self._timeout)
        try:
            return self.guard(lambda: question(seconds), "asking for tables")
        except reverb.errors.DeadlineExceededError as error:
            raise too_long(seconds, self._name, "asking for tables") from error

    def check(self, what: str = "using it") -> None:
        """Returns at once if the server answers; waits for a lost server that may come back.

        Args:
          what: The purpose of the call, for the message.

        Raises:
          ServerLostError: The server is lost.
        """
        while self._heartbeat.lost and not self._heartbeat.given_up:
            self.on_wait()
            self._heartbeat.wait_while_lost(_LOOK_SECONDS)
        if self._heartbeat.given_up:
            raise self._lost_error(what)

    def guard(
        self,
        fn: Callable[[], T],
        what: str,
        timeout: float | None = None,
        again: bool = True,
        on_reconnect: Callable[[], None] | None = None,
        may_wait: bool = False,
    ) -> T:
        """Calls a function that may block; a lost server raises an error.

        The function runs in another thread, outside of the caller's strategy and device scopes.
        After an outage Reverb continues most calls by itself; a call that failed is repeated.

        Args:
          fn: The function. It must be safe to repeat if the connection may reconnect.
          what: The action of the call, for the message: "sampling from table 'replay'".
          timeout: Seconds that it may take while the server answers the heartbeat; None for a call
            with its own deadline.
          again: Whether a failed call may be repeated.
          on_reconnect: Called after each outage during the call, for example to send again what
            the server may have lost.
          may_wait: Whether the call may wait for other processes, so that `on_wait` may end it.

        Returns:
          The result of `fn`.

        Raises:
          ServerLostError: The server is lost. The call is abandoned in its thread.
          ServerSilentError: The call takes longer than `timeout` and is abandoned.
        """
        patience = time.monotonic() + (self._reconnect_seconds or 0.0)
        handled = self.reconnections
        while True:
            self.check(what)
            outages = self.reconnections
            call = self._callers.start(fn)
            began = time.monotonic()
            try:
                while not call.wait(min(_LOOK_SECONDS, timeout or _LOOK_SECONDS)):
                    if self._heartbeat.given_up:
                        raise self._lost_error(what)
                    silent = self._heartbeat.lost or self._heartbeat.busy
                    if may_wait or silent:
                        self.on_wait()
                    if silent:
                        began = time.monotonic()
                    elif on_reconnect is not None and self.reconnections != handled:
                        handled = self.reconnections
                        on_reconnect()
                    elif timeout is not None and time.monotonic() - began > timeout:
                        raise too_long(timeout, self._name, what)
            except BaseException:  # Ctrl-C too: the call's objects must stay alive.
                leave_behind(call)
                raise
            try:
                result = call.result()
                if on_reconnect is not None and self.reconnections != handled:
                    on_reconnect()
                return result
            except (StopIteration, UserError):
                raise
            except Exception as error:
                if not self._was_lost(error, outages, what):
                    raise
                if not again:
                    raise self._lost_error(what, reason=str(error)) from error
                if self.reconnections != outages:
                    patience = time.monotonic() + (self._reconnect_seconds or 0.0)
                elif time.monotonic() > patience:  # without any outage of the server
                    raise self._lost_error(what, reason=str(error)) from error
                time.sleep(_RETRY_SECONDS)

    def keep(self, thing: T) -> T:
        """Keeps an iterator or writer of this server alive if the server is lost.

        Its destructor would wait for the server. Every `keep` needs a `release`.

        Returns:
          The same object.
        """
        self._kept.append(thing)
        return thing

    def release(self, thing: Any) -> None:
        """Undoes `keep` when the object is no longer used; no effect once the server is lost."""
        if not self.lost:
            self._kept = [kept for kept in self._kept if kept is not thing]

    def close(self) -> None:
        """Ends the threads; further `close` calls have no effect. Running calls are left alone."""
        self._heartbeat.close()
        self._callers.close()

    def _was_lost(self, error: Exception, outages: int, what: str) -> bool:
        """Whether a call failed because of an outage; waits until the server is back.

        Raises:
          ServerLostError: The server is lost for good.
        """
        broken = is_broken_connection(error)
        self._heartbeat.ask()
        if not broken and not self._heartbeat.lost and self.reconnections == outages:
            return False
        self.check(what)
        if self._reconnect_seconds is None:
            raise self._lost_error(what, reason=str(error)) from error
        return True

    @property
    def _name(self) -> str:
        return f"Reverb server at {self.address}"

    def _lost_error(self, what: str, reason: str = "") -> ServerLostError:
        waited = self._reconnect_seconds
        leave_behind(self._kept)
        return ServerLostError(
            self._name,
            expected=f"a running server, needed for {what}",
            got=f"{reason or self._heartbeat.reason or 'a lost connection'}"
            + (f" for {waited:g} s" if waited is not None else ""),
            remedy="Restart the server with its own command (it restores its last checkpoint), "
            "then this program with the same command.",
        )
