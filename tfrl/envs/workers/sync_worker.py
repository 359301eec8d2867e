"""`SyncEnvironmentWorker`: a worker that runs in the caller's thread."""

import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from tfrl.envs.workers.base import EnvironmentWorker, Mailbox, check_generation
from tfrl.envs.workers.protocol import WorkerState, environment_error
from tfrl.envs.workers.runner import (
    EnvFactory,
    EnvironmentFailed,
    EpisodeRunner,
)

_LOG = logging.getLogger(__name__)


def copied(nest: Any) -> Any:
    """Returns a nest of dicts, tuples and lists with its arrays copied.

    Environments commonly return a buffer that their next step overwrites.
    """
    if isinstance(nest, np.ndarray):
        return nest.copy()
    if type(nest) is dict:
        return {key: copied(value) for key, value in nest.items()}
    if type(nest) in (tuple, list):
        return type(nest)(copied(value) for value in nest)
    return nest


class SyncEnvironmentWorker(EnvironmentWorker):
    """Runs one environment inside `get_state`, for debugging and for very fast environments.

    It returns the same states as an `AsyncEnvironmentWorker` with the same seed and actions. It has
    no timeouts, and a crash or hang of the environment affects the caller.
    """

    restarts = 0
    abandoned_threads = 0
    pid = None
    due = None

    def __init__(
        self,
        env_factory: EnvFactory,
        *,
        worker_id: int = 0,
        seed: int = 1337,
        max_episode_steps: int | None = None,
        first_episode: int = 0,
        mailbox: Mailbox | None = None,
    ):
        """Stores the arguments: the first `get_state` creates the environment.

        Args:
          env_factory: Returns a gymnasium.Env.
          worker_id: Part of the seeds.
          seed: The seed of an episode is `episode_seed(seed, worker_id, episode)`.
          max_episode_steps: Time limit in steps, besides the environment's own.
          first_episode: The number of the first episode; a resumed run's `next_episode`.
          mailbox: Receives the states; a new one if None. A pool's workers share one.

        Raises:
          UserError: For invalid arguments.
        """
        common = (env_factory, worker_id, seed, max_episode_steps, first_episode, mailbox)
        super().__init__(*common, 0.0)
        self._runner: EpisodeRunner | None = None

    def reset(self, generation: int | None = None) -> None:
        """See the base class; the next `get_state` resets the environment."""
        self._mailbox.check_open()
        self._protocol.begin(check_generation(generation, self.generation))
        self._work(lambda runner: runner.reset(self.generation, self._protocol.next_episode))

    def _take_action(self, action: Any, generation: int | None) -> bool:
        """See the base class; the next `get_state` steps the environment."""
        self._mailbox.check_open()
        if self._protocol.take(generation) is None:
            return False
        action = copied(action)
        self._work(lambda runner: runner.step(action))
        return True

    def close(self) -> None:
        """Closes the environment; idempotent."""
        self._mailbox.close()
        self._close_environment()

    @property
    def observation_space(self) -> gymnasium.Space:
        """The environment's; makes the environment if there is none yet."""
        return self._ensure_runner().env.observation_space

    @property
    def action_space(self) -> gymnasium.Space:
        """The environment's; makes the environment if there is none yet."""
        return self._ensure_runner().env.action_space

    # The mailbox's interface.

    @property
    def busy(self) -> bool:
        """False: the mailbox holds all work."""
        return False

    def delivered(self, state: WorkerState) -> None:
        """Hears that the caller has been given a state; the next episode follows its end."""
        super().delivered(state)
        if state.last:
            self._work(lambda runner: runner.reset(state.generation, state.episode + 1))

    def service(self) -> None:
        """There is no channel to serve."""

    def check_due(self, now: float) -> None:
        """Nothing is ever due."""

    def _work(self, run: Callable[[EpisodeRunner], WorkerState]) -> None:
        generation = self.generation

        def work() -> WorkerState | None:
            # A reset came between.
            if generation != self.generation:
                return None
            return self._guarded(run)

        self._mailbox.put(self, work)

    def _guarded(self, run: Callable[[EpisodeRunner], WorkerState]) -> WorkerState:
        runner = self._ensure_runner()
        try:
            state = run(runner)
        except EnvironmentFailed as failed:
            self._protocol.failed(failed.failure.episode)
            self._close_environment()
            raise environment_error(failed.failure) from failed.__cause__
        return state._replace(obs=copied(state.obs), info=copied(state.info))

    def _ensure_runner(self) -> EpisodeRunner:
        if self._runner is None:
            self._mailbox.check_open()
            try:
                self._runner = EpisodeRunner(self._factory, self._settings)
            except EnvironmentFailed as failed:
                raise environment_error(failed.failure) from failed.__cause__
        return self._runner

    def _close_environment(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                runner.close()
            except Exception:
                message = "env.close() of environment worker %d raised."
                _LOG.warning(message, self.worker_id, exc_info=True)
