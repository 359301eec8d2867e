"""A connection to a Reverb server that notices when the server is gone.

Reverb's own calls then block for ever, or return as if they had worked.
"""

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tfrl.errors import UserError
from tfrl.replay.numeric import SECONDS, is_seconds
from tfrl.replay.reverb import library
from tfrl.replay.reverb.calls import Callers, await_server, check_address, too_long
from tfrl.replay.reverb.heartbeat import Heartbeat, is_broken_connection
from tfrl.replay.reverb.lost import ServerLostError, leave_behind

reverb = library.reverb()

T = TypeVar("T")

# How often a guarded call that does not come back looks for the server's state.
_LOOK_SECONDS = 0.25
_RETRY_SECONDS = 0.2


class Connection:
    """The client of one server, with a heartbeat.

    Attributes:
      address: `host:port`.
      client: The `reverb.Client`. Calls that may block belong into `guard`.
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
          heartbeat: Seconds between two questions whether the server is there. With up to 3, a
            death is noticed within 10 s, even that of the whole machine.
          reconnect_seconds: How long a lost server may take to come back; None ends in an error at
            once.

        Raises:
          UserError: A malformed address, a number out of bounds, or nobody answers in time.
        """
        check_address(address)
        _check_positive("timeout", timeout)
        _check_positive("heartbeat", heartbeat)
        if reconnect_seconds is not None:
            _check_positive("reconnect_seconds", reconnect_seconds)
        self.address = address
        self.client = reverb.Client(address)
        self._timeout, self._reconnect_seconds = timeout, reconnect_seconds
        await_server(address, self.client, timeout)
        self._callers = Callers()
        self._kept: list[Any] = []
        self._heartbeat = Heartbeat(address, heartbeat, reconnect_seconds)

    @property
    def lost(self) -> bool:
        """Whether the server is lost for good. Then do not touch writers and iterators of it."""
        return self._heartbeat.given_up

    @property
    def reconnections(self) -> int:
        """How often the server was away and came back.

        Reverb's writers then send again what was not confirmed: that may be there twice.
        """
        return self._heartbeat.reconnections

    def server_info(self) -> dict[str, Any]:
        """Returns `{table: reverb TableInfo}`.

        Raises:
          ServerLostError: The server is gone.
          ServerSilentError: It is there and does not answer in time.
        """
        seconds = math.ceil(self._timeout)
        try:
            return self.guard(lambda: self.client.server_info(timeout=seconds), "asking for tables")
        except reverb.errors.DeadlineExceededError as error:
            raise too_long(seconds, self._name, "asking for tables") from error

    def check(self, what: str = "using it") -> None:
        """Returns at once if the server is there; waits for one that may come back.

        Args:
          what: What the server is wanted for, for the message.

        Raises:
          ServerLostError: It is lost.
        """
        while self._heartbeat.lost and not self._heartbeat.given_up:
            self._heartbeat.wait_while_lost(_LOOK_SECONDS)
        if self._heartbeat.given_up:
            raise self._lost_error(what)

    def guard(
        self, fn: Callable[[], T], what: str, timeout: float | None = None, again: bool = True
    ) -> T:
        """Makes a call that ends with an error if the server is lost, however it blocks.

        The call is made in another thread: a strategy's scope or a device's that the caller is in
        does not hold there. When the server was away and came back, Reverb goes on by itself with
        most calls; one that failed meanwhile is made again.

        Args:
          fn: The call. It must bear being made twice if the connection may reconnect.
          what: What it does, for the message, for example "sampling from table 'replay'".
          timeout: Seconds that it may take while the server answers the heartbeat; None for a call
            that has a deadline of its own.
          again: Whether a call that has failed may be made again.

        Returns:
          What `fn` returned.

        Raises:
          ServerLostError: The server is lost. The call is left behind in its thread.
          ServerSilentError: It takes longer than `timeout`; it is left behind likewise.
        """
        patience = time.monotonic() + (self._reconnect_seconds or 0.0)
        while True:
            self.check(what)
            outages = self.reconnections
            call = self._callers.start(fn)
            began = time.monotonic()
            try:
                while not call.wait(min(_LOOK_SECONDS, timeout or _LOOK_SECONDS)):
                    if self._heartbeat.given_up:
                        raise self._lost_error(what)
                    if self._heartbeat.lost or self._heartbeat.busy:
                        began = time.monotonic()
                    elif timeout is not None and time.monotonic() - began > timeout:
                        raise too_long(timeout, self._name, what)
            except BaseException:  # Ctrl-C too: whatever the call uses must not be destroyed.
                leave_behind(call)
                raise
            try:
                return call.result()
            except (StopIteration, UserError):
                raise
            except Exception as error:
                if not self._was_lost(error, outages, what):
                    raise
                if not again:
                    raise self._lost_error(what, reason=str(error)) from error
                if self.reconnections != outages:
                    patience = time.monotonic() + (self._reconnect_seconds or 0.0)
                elif time.monotonic() > patience:  # the server was there all the time
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
        """Takes back `keep`, when the object is done with; without effect once all is lost."""
        if not self.lost:
            self._kept = [kept for kept in self._kept if kept is not thing]

    def close(self) -> None:
        """Ends the threads; more calls have no effect. Calls under way are left alone."""
        self._heartbeat.close()
        self._callers.close()

    def _was_lost(self, error: Exception, outages: int, what: str) -> bool:
        """Whether a call failed because the server was away; it is back when this returns.

        Raises:
          ServerLostError: The server is away for good.
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
            expected=f"a server that is there until the end; it was needed for {what}",
            got=f"{reason or self._heartbeat.reason or 'a lost connection'}"
            + (f" for {waited:g} s" if waited is not None else ""),
            remedy="Start the server again with its own command (it restores its last checkpoint), "
            "then this program with the same command.",
        )


def _check_positive(name: str, value: float) -> None:
    if not is_seconds(value):
        raise UserError(
            f"Connection's {name}",
            expected=SECONDS,
            got=repr(value),
            remedy="None is allowed for reconnect_seconds alone.",
        )
