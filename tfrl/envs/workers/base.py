"""The base of synchronous and asynchronous workers: the caller's side of one environment."""

import abc
import os
import selectors
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from tfrl import checks
from tfrl.envs.workers.hosts import Host, shut
from tfrl.envs.workers.protocol import NoState, RunnerSettings, WorkerError, WorkerState
from tfrl.envs.workers.runner import EnvFactory, check_factory, check_max_episode_steps, check_seed
from tfrl.errors import UserError


class EpisodeProtocol:
    """The caller's view of one worker.

    Attributes:
      generation: The current generation, from 1; 0 before the first reset.
      next_episode: The number of the next reset's episode. It follows the last episode that
        delivered a state to the caller or ended in a fault, so that a run's seeds do not depend on
        how far workers were ahead at a reset or stop.
    """

    def __init__(self, worker_id: int, first_episode: int):
        """Starts before the first reset."""
        self.worker_id = worker_id
        self.generation = 0
        self.next_episode = first_episode
        self._awaiting: WorkerState | None = None

    def begin(self, generation: int) -> None:
        """Starts a generation, of which the caller has no state yet."""
        self.generation = generation
        self._awaiting = None

    def delivered(self, state: WorkerState) -> None:
        """Hears that the caller has been given a state."""
        self.next_episode = max(self.next_episode, state.episode + 1)
        self._awaiting = None if state.last else state

    def failed(self, episode: int) -> None:
        """Records that an episode ended in a fault; its seed is not tried again."""
        self.next_episode = max(self.next_episode, episode + 1)

    def stop(self) -> None:
        """Records that no action is expected any more."""
        self._awaiting = None

    def take(self, generation: int | None) -> WorkerState | None:
        """Returns the state that an action answers; None for an old generation.

        Args:
          generation: The generation of the answered state, or None.

        Raises:
          UserError: The worker awaits no action.
        """
        if generation is not None and generation != self.generation:
            return None
        state, self._awaiting = self._awaiting, None
        if state is None:
            raise UserError(
                f"send_action to environment worker {self.worker_id}",
                expected="one action for each state from get_state",
                got="an action for a worker without a pending state",
                remedy="Call get_state first; the last state of an episode takes no action, since "
                "the next episode starts automatically.",
            )
        return state


def asks_for_reset(action: Any) -> bool:
    """Whether an action is the word "reset", which starts a new episode.

    Raises:
      UserError: For "close", which is not supported.
    """
    if isinstance(action, str) and action == "close":
        raise UserError(
            "send_action",
            expected="an action, or 'reset'",
            got="'close'",
            remedy="Call close() of the worker or the pool.",
        )
    return isinstance(action, str) and action == "reset"


def check_generation(generation: int | None, current: int) -> int:
    """Returns the number of a new generation, by default the current one plus 1."""
    if generation is None:
        return current + 1
    if generation <= current:
        raise UserError(
            "generation of a reset",
            expected=f"a number above the current generation, {current}",
            got=str(generation),
        )
    return generation


class MailboxWorker(Protocol):
    """The worker interface that a mailbox uses."""

    @property
    def generation(self) -> int:
        """The current generation, 0 before the first reset; states of others are dropped."""

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
    """An inbox with a selector over the workers' channels; owns their processes and threads."""

    def __init__(self, owner: object, cleanup_time: float):
        """Creates an empty mailbox.

        Args:
          owner: Its garbage collection, or the interpreter's exit, ends all hosts.
          cleanup_time: Time limit of closing, in seconds.
        """
        self.hosts: set[Host] = set()
        self.closed = False
        self._workers: Sequence[MailboxWorker] = ()
        self._inbox: deque[tuple[MailboxWorker, Item]] = deque()
        self._selector = selectors.DefaultSelector()
        self._shut = weakref.finalize(owner, shut, self.hosts, cleanup_time, os.getpid())

    def serve(self, workers: Sequence[MailboxWorker]) -> None:
        """Sets the workers of this mailbox."""
        self._workers = workers

    def put(self, worker: MailboxWorker, item: Item) -> None:
        """Appends a state, an error to raise, or a function that returns the state (or None)."""
        self._inbox.append((worker, item))

    def absorb(self, worker: "EnvironmentWorker", other: "Mailbox") -> None:
        """Takes over the mailbox of a worker outside a pool.

        Raises:
          UserError: The worker belongs to a pool already, or is closed.
        """
        other.check_open()
        if list(other._workers) != [worker]:
            raise UserError(
                f"environment worker {worker.worker_id} of a WorkerPool",
                expected="a worker without a pool",
                got="a worker of a different pool",
                remedy="Create separate workers for each pool.",
            )
        for key in other._selector.get_map().values():
            self._selector.register(key.fileobj, key.events, key.data)
        self.hosts.update(other.hosts)
        self._inbox.extend(other._inbox)
        other._shut.detach()
        other.hosts.clear()
        other.close()

    def watch(self, worker: MailboxWorker, host: Host) -> None:
        """Starts to wait for the channel of a host; idempotent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE * host.channel.unsent)
        known = self._selector.get_map().get(host.channel.fileno())
        if known is None:
            self._selector.register(host.channel, events, worker)
        elif known.events != events:
            self._selector.modify(host.channel, events, worker)

    def forget(self, host: Host) -> None:
        """Stops waiting for the channel of a host, before it is closed."""
        self._selector.unregister(host.channel)

    def next(self, timeout: float | None) -> WorkerState | NoState:
        """Returns the next state, or why there is none.

        Args:
          timeout: Seconds to wait; None waits while workers are busy, up to their own timeouts.

        Raises:
          WorkerError: The fault of a worker, in order of arrival.
          UserError: The mailbox is closed, or no episode was started.
        """
        self.check_open()
        remedy = "Pass 0 to return only available states, or None to wait."
        checks.number("timeout of get_state", timeout, 0, optional=True, remedy=remedy)
        if not any(worker.generation for worker in self._workers):
            raise UserError(
                "get_state",
                expected="workers with an episode",
                got="workers that were not reset",
                remedy="Call reset() first.",
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            state = self._pop()
            if state is not None:
                return state
            busy = any(worker.busy for worker in self._workers)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            # If no worker is busy, this only detects deaths while waiting for an action.
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
        """Waits up to `timeout` for workers with messages or deadlines; serves them."""
        dues = [worker.due for worker in self._workers if worker.due is not None]
        if dues:
            first = max(0.0, min(dues) - time.monotonic())
            timeout = first if timeout is None else min(timeout, first)
        # Reads precede deadlines, so that a late caller still finds timely answers.
        for key, _ in self._selector.select(timeout):
            key.data.service()
        if dues:
            now = time.monotonic()
            for worker in self._workers:
                if worker.due is not None and now >= worker.due:
                    worker.check_due(now)

    def raise_faults(self) -> None:
        """Raises the first pending error."""
        for position, (_, item) in enumerate(self._inbox):
            if isinstance(item, WorkerError):
                del self._inbox[position]
                raise item

    def check_open(self) -> None:
        """Raises a UserError if the mailbox is closed."""
        if self.closed:
            raise UserError("environment workers", expected="open workers", got="closed workers")

    def close(self) -> int:
        """Ends all hosts; returns the number of threads that did not end."""
        self.closed = True
        self._selector.close()
        self._inbox.clear()
        left = self._shut()
        self.hosts.clear()
        return left or 0


W = TypeVar("W", bound="EnvironmentWorker")


class EnvironmentWorker(abc.ABC):
    """One environment that messages reset and step; see the two derived classes."""

    def __init__(
        self,
        env_factory: EnvFactory,
        worker_id: int,
        seed: int,
        max_episode_steps: int | None,
        first_episode: int,
        mailbox: Mailbox | None,
        cleanup_time: float,
    ):
        """Checks the arguments; see the derived classes for them."""
        limit = check_max_episode_steps(max_episode_steps)
        self._factory = check_factory(env_factory)
        self._settings = RunnerSettings(worker_id, check_seed(seed), limit)
        self._protocol = EpisodeProtocol(worker_id, first_episode)
        self.cleanup_time = cleanup_time
        self._mailbox = mailbox or Mailbox(self, cleanup_time)
        if mailbox is None:
            self._mailbox.serve([self])

    @abc.abstractmethod
    def reset(self, generation: int | None = None) -> None:
        """Starts a new generation with a new episode; drops all earlier states.

        Args:
          generation: Its number; by default the current one plus 1.

        Raises:
          WorkerError: A fault not raised before; the reset has not started.
          UserError: The worker is closed.
        """

    def get_state(self, timeout: float | None = None) -> WorkerState | NoState:
        """Returns the next state, or why there is none.

        Args:
          timeout: Seconds to wait. None waits up to the worker's own time limits.

        Returns:
          A `WorkerState`; `NoState.TIMED_OUT`; or at once `NoState.IDLE` if the worker waits for an
          action.

        Raises:
          WorkerError: The environment raised or returned an invalid value, or it died or hung more
            than `max_restarts` times.
          UserError: `reset` was not called, or the worker is closed.
        """
        return self._mailbox.next(timeout)

    def join(self, mailbox: Mailbox) -> None:
        """Redirects the states to the mailbox of a pool.

        Raises:
          UserError: The worker belongs to a pool already, or is closed.
        """
        mailbox.absorb(self, self._mailbox)
        self._mailbox = mailbox

    def send_action(self, action: Any, generation: int | None = None) -> bool:
        """Sends the action for the state that `get_state` returned last.

        Args:
          action: An element of the action space; it is copied. The word "reset" calls `reset()`
            instead, at any time.
          generation: The generation of the answered state, by default the current one. An action of
            an older generation is dropped.

        Returns:
          Whether it was sent: not if its episode was lost with the environment, or belongs to an
          older generation.

        Raises:
          UserError: The worker expects no action or is closed, or the action is the word "close".
        """
        if not asks_for_reset(action):
            return self._take_action(action, generation)
        if generation is not None and generation != self.generation:
            return False
        self.reset()
        return True

    @abc.abstractmethod
    def _take_action(self, action: Any, generation: int | None) -> bool:
        """Sends an action of the action space; see `send_action`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the environment and its process or thread; idempotent."""

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def worker_id(self) -> int:
        """The worker's number."""
        return self._settings.worker_id

    @property
    def next_episode(self) -> int:
        """The number of the first episode without delivered states, for resuming.

        Set it to change the episode of the next reset.
        """
        return self._protocol.next_episode

    @next_episode.setter
    def next_episode(self, episode: int) -> None:
        self._protocol.next_episode = checks.at_least("next_episode", episode, 0)

    @property
    def generation(self) -> int:
        """The current generation; 0 before the first reset."""
        return self._protocol.generation

    # The mailbox's interface, besides the generation.

    due: float | None

    @property
    @abc.abstractmethod
    def busy(self) -> bool:
        """Whether a state of the running generation is still to be put into the mailbox."""

    @abc.abstractmethod
    def service(self) -> None:
        """Handles what the channel can give or take now."""

    @abc.abstractmethod
    def check_due(self, now: float) -> None:
        """Handles that something took too long, or that a wait is over."""

    def delivered(self, state: WorkerState) -> None:
        """Hears that the caller has been given a state."""
        self._protocol.delivered(state)
