"""The short check of a task's environment before it is trained."""

from typing import Any

import gymnasium

from tfrl.envs import check_env
from tfrl.envs.workers import episode_seed
from tfrl.envs.workers.runner import checked_env
from tfrl.envs.workers.sync_worker import copied
from tfrl.tasks.task import RLTask


class _AsInWorkers(gymnasium.Wrapper):
    """Seeds every reset and copies what the environment returns, as workers do, and draws nothing.

    So resets without a seed need not work, the environment may use its buffers again, and pictures
    are left to `check_video`.
    """

    render_mode = None

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self._seed = self._episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._episode = self._episode + 1 if seed is None else 0
        self._seed = self._seed if seed is None else seed
        return copied(self.env.reset(seed=episode_seed(self._seed, 0, self._episode)))

    def step(self, action: Any) -> Any:
        return copied(self.env.step(action))


def check_environment(task: RLTask, seed: int, steps: int = 20) -> None:
    """Checks one environment of a task by `tfrl.envs.check_env`, and closes it.

    What training can live with is no error here: episodes that do not depend on the seed, resets
    that need one, observations that the next step overwrites.

    Args:
      task: The task.
      seed: As of `check_env`.
      steps: How many steps to take. They are taken twice.

    Raises:
      UserError: For the first thing that is wrong.
    """
    env = checked_env(task.get_environment(), "get_environment()")
    try:
        check_env(_AsInWorkers(env), steps, seed, stochastic=False)
    finally:
        env.close()
