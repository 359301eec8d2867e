"""`AsyncEnvironmentWorker`: an environment in its own process or thread, restarted on faults.

Nothing here blocks: `service` handles arrived messages, `check_due` timeouts. Callers wait in the
mailbox, for all workers at once, so that a restart does not delay other workers.
"""

import dataclasses
import enum
import logging
import time
from typing import Any

import gymnasium

from tfrl import checks
from tfrl.envs.workers import hosts
from tfrl.envs.workers.base import EnvironmentWorker, Mailbox, check_generation
from tfrl.envs.workers.protocol import (
    Act,
    Begin,
    Failure,
    Ready,
    WorkerError,
    WorkerMode,
    WorkerState,
    environment_error,
    too_many_restarts,
)
from tfrl.envs.workers.runner import EnvFactory
from tfrl.errors import UserError


@dataclasses.dataclass(frozen=True)
class WorkerLimits:
    """Time limits in seconds, and restart counts.

    Attributes:
      start_timeout: To start a process, import, and create the environment.
      reset_timeout: For a reset of the environment.
      step_timeout: For a step of the environment.
      cleanup_time: To close the environments before they are killed.
      max_restarts: Maximum number of restarts of one worker that died or hung.
      backoff: Wait before a restart; doubles at every restart without a complete episode between.
      max_backoff: The longest wait.
    """

    start_timeout: float = 120.0
    reset_timeout: float = 60.0
    step_timeout: float = 60.0
    cleanup_time: float = 5.0
    max_restarts: int = 10
    backoff: float = 0.1
    max_backoff: float = 10.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value = f"{field.name} of the environment workers", getattr(self, field.name)
            if field.name == "max_restarts":
                checks.at_least(name, value, 0)
            else:
                checks.number(name, value, 0, closed=not field.name.endswith("_timeout"))

    def wait(self, restarts: int) -> float:
        """Returns the seconds to wait before a restart, after `restarts` others."""
        return min(self.max_backoff, self.backoff * 2.0 ** min(restarts, 60))


_LOG = logging.getLogger(__name__)


class Restarts:
    """Counts a worker's faults.

    Attributes:
      total: Restarts in all of the worker's life.
    """

    def __init__(self, worker_id: int, limits: WorkerLimits):
        """Starts without faults."""
        self.total = 0
        self._worker_id = worker_id
        self._limits = limits
        self._reasons: list[str] = []
        self._in_a_row = 0

    def fault(self, reason: str) -> float | WorkerError:
        """Counts a death or a hang.

        Args:
          reason: What happened, for the log and the final error.

        Returns:
          The seconds to wait before the restart, or the error if there are too many. The error
          resets the count, so that a caller may reset the worker again.
        """
        limits = self._limits
        self._reasons.append(reason)
        number = len(self._reasons)
        if number > limits.max_restarts:
            error = too_many_restarts(self._worker_id, limits.max_restarts, self._reasons)
            self._reasons, self._in_a_row = [], 0
            return error
        wait = limits.wait(self._in_a_row)
        message = "Environment worker %d: %s; restart %d of at most %d in %.1f s."
        _LOG.warning(message, self._worker_id, reason, number, limits.max_restarts, wait)
        self.total += 1
        self._in_a_row += 1
        return wait

    def recovered(self) -> None:
        """Resets the wait after a complete episode."""
        self._in_a_row = 0


_LOG = logging.getLogger(__name__)
# Time limit for the exit code of a process after its channel has ended.
_EXIT_SECONDS = 0.1


class _Status(enum.Enum):
    RUNNING = "running"  # a process or thread has the environment, or is starting
    WAITING = "waiting"  # before a restart
    FAILED = "failed"  # until the next reset


class AsyncEnvironmentWorker(EnvironmentWorker):
    """Runs one environment in a process or thread, and replaces it after a crash or hang.

    `reset` starts an episode, `get_state` waits for the next `WorkerState`, `send_action` answers
    it. After an episode's last state the worker resets by itself.

    A process that dies or times out is killed and replaced after a wait. Its episode ends with a
    state with `truncated` and `lost`. Threads cannot be killed: a hanging thread is abandoned (it
    ends when its environment returns, and `abandoned_threads` counts it), and a native crash of a
    thread's environment ends the whole program. An exception of the environment causes no restart:
    `get_state` raises it, and the worker stops until the next `reset`, which creates a new
    environment.
    """

    def __init__(
        self,
        env_factory: EnvFactory,
        *,
        worker_id: int = 0,
        mode: WorkerMode | str = WorkerMode.PROCESS,
        seed: int = 1337,
        max_episode_steps: int | None = None,
        first_episode: int = 0,
        limits: WorkerLimits | None = None,
        mailbox: Mailbox | None = None,
    ):
        """Starts the process or thread, which creates the environment.

        Args:
          env_factory: Returns a gymnasium.Env. It may be a lambda or a local function.
          worker_id: Part of the seeds.
          mode: `process` (a fresh Python without TensorFlow, unless the factory's own module
            imports it) or `thread`.
          seed: The seed of an episode is `episode_seed(seed, worker_id, episode)`.
          max_episode_steps: Time limit in steps, besides the environment's own.
          first_episode: The number of the first episode; a resumed run's `next_episode`.
          limits: Timeouts and restarts.
          mailbox: Receives the states; a new one if None. A pool's workers share one.

        Raises:
          UserError: For invalid arguments, or a factory that cannot be pickled.
        """
        self.limits = limits or WorkerLimits()
        self.abandoned_threads = 0
        self._mode = WorkerMode.of(mode)
        common = (env_factory, worker_id, seed, max_episode_steps, first_episode, mailbox)
        super().__init__(*common, self.limits.cleanup_time)
        process = self._mode is WorkerMode.PROCESS
        self._payload = hosts.pickled(env_factory) if process else b""
        self._restarts = Restarts(worker_id, self.limits)
        # The running or starting episode, and its newest state.
        self._episode = first_episode
        self._newest: WorkerState | None = None
        self._ready: Ready | None = None  # of the running process or thread
        self._owes = False
        self._allowed = 0.0
        self.due: float | None = None
        self._start()

    # The caller's interface.

    def reset(self, generation: int | None = None) -> None:
        """See the base class; restarts a worker that stopped after an error."""
        self._mailbox.check_open()
        self._mailbox.raise_faults()
        self._protocol.begin(check_generation(generation, self.generation))
        self._newest = None
        if self._status is _Status.FAILED:
            # Its environment is still closing after the failure.
            self._host.join(self.limits.cleanup_time)
            self._end_host()
            self._start()
        elif self._status is _Status.RUNNING:
            self._begin()
        self._owes = True

    def _take_action(self, action: Any, generation: int | None) -> bool:
        """See the base class."""
        self._mailbox.check_open()
        state = self._protocol.take(generation)
        if state is None or state is not self._newest:
            return False
        self._owes = True
        self._expect(self.limits.step_timeout)
        self._post(Act(self.generation, action))
        return True

    def close(self) -> None:
        """Ends the process or thread, by force after `cleanup_time`; idempotent."""
        self.abandoned_threads += self._mailbox.close()

    @property
    def restarts(self) -> int:
        """Number of replacements after a crash or hang."""
        return self._restarts.total

    @property
    def pid(self) -> int | None:
        """The environment's current process id; None for a thread, or between processes."""
        running = self._status is _Status.RUNNING and not self._mailbox.closed
        return self._host.pid if running else None

    @property
    def observation_space(self) -> gymnasium.Space:
        """The environment's; waits until it is made."""
        return self._wait_until_ready().observation_space

    @property
    def action_space(self) -> gymnasium.Space:
        """The environment's; waits until it is made."""
        return self._wait_until_ready().action_space

    # The mailbox's interface.

    @property
    def busy(self) -> bool:
        """Whether a state is pending."""
        return self._owes

    def service(self) -> None:
        """Reads from and writes to the channel without blocking."""
        channel = self._host.channel
        channel.flush()
        for message in channel.read():
            self._handle(message)
        if self._status is _Status.FAILED:
            self._mailbox.forget(self._host)
        elif channel.broken:
            self._host.join(_EXIT_SECONDS)
            self._lose(None)
        else:
            if self.due is not None:
                # Received bytes, even part of a message, prove that it is alive.
                self.due = time.monotonic() + self._allowed
            self._mailbox.watch(self, self._host)

    def check_due(self, now: float) -> None:
        """Restarts after the wait, or gives up a worker that timed out."""
        if self.due is None or now < self.due:
            return
        if self._status is _Status.RUNNING:
            what = "start" if self._ready is None else "step" if self._newest else "reset"
            self._lose(f"hung in {what} for more than {self._allowed:g} s ({what}_timeout)")
            return
        try:
            self._start()
        except OSError as error:
            self._retry(f"failed to start: {error}")

    # The worker's life cycle.

    def _start(self) -> None:
        self._host = hosts.start(self._mode, self._factory, self._payload, self._settings)
        self._mailbox.hosts.add(self._host)
        self._status, self._ready = _Status.RUNNING, None
        self._expect(self.limits.start_timeout)
        self._mailbox.watch(self, self._host)
        if self.generation:
            self._begin()

    def _begin(self) -> None:
        """Starts the next episode."""
        self._episode = self._protocol.next_episode
        if self._ready is not None:
            limits = self.limits
            # It first completes its work for an older generation.
            more = max(limits.step_timeout, limits.reset_timeout) if self._owes else 0.0
            self._expect(limits.reset_timeout + more)
        self._post(Begin(self.generation, self._episode))

    def _post(self, message: Begin | Act) -> None:
        self._host.channel.post(message)
        if self._host.channel.unsent:
            self._mailbox.watch(self, self._host)

    def _expect(self, seconds: float | None) -> None:
        """Sets the time limit of the next message; None if none is expected."""
        self._allowed = seconds or 0.0
        self.due = None if seconds is None else time.monotonic() + seconds

    def _handle(self, message: Any) -> None:
        if isinstance(message, WorkerState):
            if message.generation == self.generation:
                self._arrived(message)
        elif isinstance(message, Ready):
            self._ready = message
            self._expect(self.limits.reset_timeout if self.generation else None)
            if message.imported_tensorflow and self._mode is WorkerMode.PROCESS:
                self._warn_of_tensorflow()
        elif isinstance(message, Failure):
            self._protocol.failed(message.episode)
            self._fail(environment_error(message))

    def _arrived(self, state: WorkerState) -> None:
        self._mailbox.put(self, state)
        if state.last:
            # The worker starts its next episode by itself.
            self._newest, self._episode = None, state.episode + 1
            self._restarts.recovered()
            self._expect(self.limits.reset_timeout)
        else:
            self._newest, self._owes = state, False
            self._expect(None)

    def _lose(self, hang: str | None) -> None:
        """Ends a worker that died or hangs in `hang`, and its episode."""
        self._mailbox.forget(self._host)
        self._end_host()
        pid = "" if self._host.pid is None else f" {self._host.pid}"
        if self._newest is not None:
            lost = self._newest._replace(reward=0.0, truncated=True, info={}, lost=True)
            self._mailbox.put(self, lost)
        if self.generation:
            self._protocol.failed(self._episode)
        self._retry(f"{self._mode.value}{pid} {hang or self._host.end}")

    def _retry(self, reason: str) -> None:
        """Schedules the worker's restart, or gives it up."""
        self._newest = None
        wait = self._restarts.fault(reason)
        if isinstance(wait, WorkerError):
            self._fail(wait)
            return
        self._status, self._owes = _Status.WAITING, self.generation > 0
        self._expect(wait)

    def _fail(self, error: WorkerError) -> None:
        """Stops until the next reset, and reports the error to the caller."""
        self._protocol.stop()
        self._status, self._newest, self._owes = _Status.FAILED, None, False
        self._expect(None)
        self._mailbox.put(self, error)

    def _end_host(self) -> None:
        self._host.kill()
        if self._host in self._mailbox.hosts:
            self._mailbox.hosts.remove(self._host)
            self.abandoned_threads += self._host.leaves_threads

    def _wait_until_ready(self) -> Ready:
        while self._ready is None:
            self._mailbox.check_open()
            self._mailbox.raise_faults()
            if self._status is _Status.FAILED:
                raise UserError(
                    f"environment of worker {self.worker_id}",
                    expected="a running environment",
                    got="a worker that stopped after an error",
                    remedy="Call reset(), which creates a new environment.",
                )
            self._mailbox.pump(None)
        return self._ready

    def _warn_of_tensorflow(self) -> None:
        if self.worker_id == 0 and self.restarts == 0:
            _LOG.warning(
                "Each environment worker imports TensorFlow, which takes seconds and hundreds of "
                "MB, since the module of env_factory imports it. Move the environment and its "
                "factory to a module without TensorFlow."
            )
