"""Asks a server, every few seconds, whether it is still there."""

import functools
import threading
import time

from tfrl.distribute.multi_worker import refusal
from tfrl.replay.reverb import library

reverb = library.reverb()

# What takes connections but does not answer may be busy (writing a checkpoint) for so long.
_BUSY_SECONDS = 120.0
# After an outage gRPC asks ever more seldom: so long it may take to find a server that is back.
_FOUND_SECONDS = 60.0
# Between two questions to a server that is away.
_AWAY_SECONDS = 0.2
# Texts by which gRPC says that a connection broke, in the order of their frequency.
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
    """Returns whether an error tells of a connection that broke, out of gRPC."""
    text = f"{type(error).__name__} {error}".lower()
    return any(sign in text for sign in _BROKEN)


class Heartbeat:
    """A thread that knows whether a server answers.

    A question is a connection that is closed again, and `server_info`: together less than a
    millisecond on one machine. Where nobody accepts connections at the address, the server is lost.
    """

    def __init__(self, address: str, seconds: float, reconnect_seconds: float | None):
        """Starts the thread.

        Args:
          address: `host:port` of a server that has answered.
          seconds: Between two questions.
          reconnect_seconds: How long a lost server may take to come back; None for not at all.
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
        self._listening_since: float | None = None
        self._given_up = False
        self._silent = False
        threading.Thread(target=self._run, name="reverb-heartbeat", daemon=True).start()

    @property
    def lost(self) -> bool:
        """Whether the server was away at the last question."""
        return self._lost_since is not None

    @property
    def busy(self) -> bool:
        """Whether it took the connection and did not answer, at the last question."""
        return self._silent

    @property
    def given_up(self) -> bool:
        """Whether the server is lost for good; one that comes later is another."""
        return self._given_up

    def ask(self) -> None:
        """Asks now and returns when the answer, or the lack of one, is known."""
        for _ in range(2):  # The first may have been under way already.
            with self._changed:
                before = self._questions
                self._awake.set()
                self._changed.wait_for(
                    functools.partial(self._over, before), timeout=3.0 * self._timeout
                )

    def wait_while_lost(self, seconds: float) -> None:
        """Returns when the server is there, or given up, or after `seconds`."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self.lost or self._given_up or self._closed, timeout=seconds
            )

    def close(self) -> None:
        """Ends the thread, within the time-out of a question."""
        self._closed = True
        self._awake.set()

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
        """Returns None if the server is there, else why it seems to be away."""
        # First, since Reverb waits out its time where nobody listens.
        refused = refusal(self._address, timeout=self._timeout)
        if refused is not None:
            self._listening_since = None
            return refused
        now = time.monotonic()
        try:
            self._client.server_info(timeout=self._timeout)
        except (RuntimeError, reverb.errors.ReverbError) as error:
            self._listening_since = self._listening_since or now
            busy = now - self._answered < _BUSY_SECONDS and not is_broken_connection(error)
            self._silent = busy
            return None if busy and not self.lost else "no answer, though somebody listens there"
        self._answered = time.monotonic()
        self._silent = False
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
            self._lost_since = now
        self._given_up = now >= self._deadline(self._lost_since)

    def _deadline(self, lost_since: float) -> float:
        """When a lost server is given up: later if somebody listens at its address in time."""
        deadline = lost_since + (self._reconnect_seconds or 0.0)
        since = self._listening_since
        if since is None or since > deadline:
            return deadline
        return max(deadline, since + _FOUND_SECONDS)
