"""What the synchronous and the asynchronous worker share: the caller's side of one environment."""

import abc
from typing import Any, TypeVar

from tfrl.envs.workers.mailbox import Mailbox
from tfrl.envs.workers.protocol import NoState, RunnerSettings, WorkerState
from tfrl.envs.workers.runner import EnvFactory, check_factory, check_max_episode_steps
from tfrl.envs.workers.seeds import check_seed
from tfrl.envs.workers.turns import Turns

W = TypeVar("W", bound="EnvironmentWorker")


class EnvironmentWorker(abc.ABC):
    """One environment that is reset and stepped by messages; see the two classes that derive."""

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
        self._turns = Turns(worker_id, first_episode)
        self._mailbox = mailbox or Mailbox(self, cleanup_time)
        if mailbox is None:
            self._mailbox.serve([self])

    @abc.abstractmethod
    def reset(self, generation: int | None = None) -> None:
        """Begins a new generation: a new episode, and nothing from before it arrives any more.

        Args:
          generation: Its number; one more than the running one if None.

        Raises:
          WorkerError: A fault that had not been told yet; the reset has not begun.
          UserError: The worker is closed.
        """

    def get_state(self, timeout: float | None = None) -> WorkerState | NoState:
        """Returns the next state, or why there is none.

        Args:
          timeout: Seconds to wait. None waits as long as the worker's limits let it take.

        Returns:
          A `WorkerState`; `NoState.TIMED_OUT`; or at once `NoState.IDLE` if the worker awaits an
          action, so that no state can arrive.

        Raises:
          WorkerError: The environment raised or returned something wrong; or it died or hung more
            than `max_restarts` times.
          UserError: `reset` was not called, or the worker is closed.
        """
        return self._mailbox.next(timeout)

    @abc.abstractmethod
    def send_action(self, action: Any, generation: int | None = None) -> bool:
        """Sends the action for the state that `get_state` returned last.

        Args:
          action: Of the environment's action space; it is copied.
          generation: That of the state for which it was chosen. An action of an older generation
            is dropped. None: of the running one.

        Returns:
          Whether it was sent. It is not where its episode is over: lost with the environment, or
          of an older generation.

        Raises:
          UserError: The worker awaits no action, or is closed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the environment, and its process or thread. Twice is harmless."""

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
        """The number of the next episode that the caller has seen nothing of, for resuming."""
        return self._turns.next_episode

    @property
    def generation(self) -> int:
        """The running generation; 0 before the first reset."""
        return self._turns.generation

    # What the mailbox uses beside the generation.

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
        self._turns.delivered(state)
