"""Where the states of several workers arrive, in one order, and where the caller waits for them."""

import os
import selectors
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tfrl.envs.workers.errors import WorkerError
from tfrl.envs.workers.hosts import Host, shut
from tfrl.envs.workers.limits import check_timeout
from tfrl.envs.workers.protocol import NoState, WorkerState
from tfrl.errors import UserError


class MailboxWorker(Protocol):
    """What a mailbox needs of a worker."""

    @property
    def generation(self) -> int:
        """The running generation; states of others are dropped. 0 before the first reset."""

    @property
    def busy(self) -> bool:
        """Whether a state of the running generation is still to be put into the mailbox."""

    @property
    def due(self) -> float | None:
        """When `check_due` must be called, in seconds of time.monotonic."""

    def service(self) -> None:
        """Handles what the worker's channel can give or take now."""

    def check_due(self, now: float) -> None:
        """Handles that something took too long, or that a wait is over."""

    def delivered(self, state: WorkerState) -> None:
        """Hears that the caller has been given a state."""


Work = Callable[[], WorkerState | None]
Item = WorkerState | WorkerError | Work


class Mailbox:
    """An inbox, a selector over the workers' channels, and the processes and threads to end."""

    def __init__(self, owner: object, cleanup_time: float):
        """Makes an empty mailbox.

        Args:
          owner: When it is garbage, or the interpreter exits, all hosts are ended.
          cleanup_time: Seconds that closing may take.
        """
        self.hosts: set[Host] = set()
        self.closed = False
        self._workers: Sequence[MailboxWorker] = ()
        self._inbox: deque[tuple[MailboxWorker, Item]] = deque()
        self._selector = selectors.DefaultSelector()
        self._shut = weakref.finalize(owner, shut, self.hosts, cleanup_time, os.getpid())

    def serve(self, workers: Sequence[MailboxWorker]) -> None:
        """Sets the workers whose states arrive here."""
        self._workers = workers

    def put(self, worker: MailboxWorker, item: Item) -> None:
        """Appends a state, an error to raise, or work whose result is the state (None: no more)."""
        self._inbox.append((worker, item))

    def watch(self, worker: MailboxWorker, host: Host) -> None:
        """Waits for the channel of a host from now on; more than once is harmless."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE * host.channel.unsent)
        known = self._selector.get_map().get(host.channel.fileno())
        if known is None:
            self._selector.register(host.channel, events, worker)
        elif known.events != events:
            self._selector.modify(host.channel, events, worker)

    def forget(self, host: Host) -> None:
        """Waits for the channel of a host no longer; before that is closed."""
        self._selector.unregister(host.channel)

    def next(self, timeout: float | None) -> WorkerState | NoState:
        """Returns the next state, or why there is none.

        Args:
          timeout: Seconds to wait; None for as long as workers are busy, which is bounded by their
            own timeouts.

        Raises:
          WorkerError: The fault of a worker, in its turn.
          UserError: The mailbox is closed, or no episode was begun.
        """
        self.check_open()
        timeout = check_timeout(timeout)
        if not any(worker.generation for worker in self._workers):
            raise UserError(
                "get_state",
                expected="reset() to have been called",
                got="workers without an episode",
                remedy="Call reset() once after making them.",
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            state = self._pop()
            if state is not None:
                return state
            busy = any(worker.busy for worker in self._workers)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            # Where nobody is busy, this finds only who died while waiting for an action.
            self.pump(left if busy else 0.0)
            if not self._inbox and not any(worker.busy for worker in self._workers):
                return NoState.IDLE
            if not self._inbox and left == 0.0:
                return NoState.TIMED_OUT

    def _pop(self) -> WorkerState | None:
        while self._inbox:
            worker, item = self._inbox.popleft()
            if isinstance(item, WorkerError):
                raise item
            state = item if isinstance(item, WorkerState) else item()
            if state is not None and state.generation == worker.generation:
                worker.delivered(state)
                return state
        return None

    def pump(self, timeout: float | None) -> None:
        """Waits until some worker can be served or is due, at most `timeout`; serves those."""
        dues = [worker.due for worker in self._workers if worker.due is not None]
        if dues:
            first = max(0.0, min(dues) - time.monotonic())
            timeout = first if timeout is None else min(timeout, first)
        # Reads come before deadlines: a caller that was away finds answers that were in time.
        for key, _ in self._selector.select(timeout):
            key.data.service()
        if dues:
            now = time.monotonic()
            for worker in self._workers:
                if worker.due is not None and now >= worker.due:
                    worker.check_due(now)

    def raise_faults(self) -> None:
        """Raises the first error that waits to be delivered."""
        for position, (_, item) in enumerate(self._inbox):
            if isinstance(item, WorkerError):
                del self._inbox[position]
                raise item

    def check_open(self) -> None:
        """Raises a UserError where the mailbox was closed."""
        if self.closed:
            raise UserError(
                "environment workers",
                expected="to be open",
                got="workers that were closed",
                remedy="Make new ones; they cannot be opened again.",
            )

    def close(self) -> int:
        """Ends all hosts; returns how many threads could not be ended."""
        self.closed = True
        self._selector.close()
        self._inbox.clear()
        left = self._shut()
        self.hosts.clear()
        return left or 0
