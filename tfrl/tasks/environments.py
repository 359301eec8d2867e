"""The environments of a task: their workers, episodes played for an evaluation, a short check."""

import contextlib
import copy
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np

from tfrl import checks
from tfrl.envs import check_env
from tfrl.envs.workers import WorkerPool, episode_seed
from tfrl.envs.workers.runner import checked_env
from tfrl.envs.workers.sync_worker import copied
from tfrl.evaluation.result import EvaluationResult
from tfrl.tasks.samples import SampledTrajectory
from tfrl.tasks.sampling import iter_samples
from tfrl.tasks.task import RLTask


def make_pool(task: RLTask, *, num_workers: int, seed: int) -> WorkerPool:
    """Makes a pool by `get_worker_pool` of the task, or of a copy with another configuration.

    Args:
      task: The task.
      num_workers: How many; 0 for one in this process.
      seed: Of the episodes.

    Raises:
      UserError: It is no pool.
    """
    config = task.config.replace(
        num_env_workers=num_workers,
        env_seed=seed,
        min_action_batch_size=min(task.config.min_action_batch_size, max(1, num_workers)),
    )
    if config != task.config:
        task = copy.copy(task)
        task.config = config
    pool = task.get_worker_pool(force_sync=config.force_sync)
    thing = f"get_worker_pool of {type(task).__name__}"
    return checks.instance(thing, pool, WorkerPool, "a WorkerPool")  # type: ignore[no-any-return]


def evaluate_task(task: RLTask, model: Any, num_episodes: int, seed: int) -> EvaluationResult:
    """Plays episodes with `optimal=True`, in workers of their own.

    Each worker plays its share of them, its first ones, so that short episodes are not preferred.
    An episode whose worker is lost is replaced by the worker's next one.

    Args:
      task: The task.
      model: Of `get_model`.
      num_episodes: Exactly so many.
      seed: Of the episodes.
    """
    config = task.config
    # With 0 workers, one in this process.
    workers = min(config.num_env_workers, num_episodes)
    with make_pool(task, num_workers=workers, seed=seed) as pool:
        count = len(pool)
        shares = [num_episodes // count + (w < num_episodes % count) for w in range(count)]
        by_share: list[list[tuple[float, int]]] = [[] for _ in shares]
        stream = iter_samples(
            pool,
            lambda states, optimal: task.get_actions(model, states, optimal),
            total_samples=None,
            min_batch_size=min(config.min_action_batch_size, count),
            max_wait_time=config.max_wait_time,
            optimal=True,
        )
        with contextlib.closing(stream):  # type: ignore[type-var]
            while any(len(f) < n for f, n in zip(by_share, shares, strict=True)):
                t = next(stream)
                if not t.cut and len(by_share[t.worker_id]) < shares[t.worker_id]:
                    total = float(np.sum(t.reward, dtype=np.float64))
                    by_share[t.worker_id].append((total, len(t)))
    returns, lengths = zip(
        *(episode for of_worker in by_share for episode in of_worker), strict=True
    )
    return EvaluationResult.of(np.array(returns), np.array(lengths))


class EpisodeReturns:
    """Adds up the rewards of episodes over the trajectories that they were sampled in.

    An episode of which a part is missing (discarded, trimmed or lost) is left out.
    """

    def __init__(self) -> None:
        """Begins without an episode."""
        # {worker: (episode, next step, return so far)}
        self._open: dict[int, tuple[int, int, float]] = {}

    def add(self, trajectories: Iterable[SampledTrajectory]) -> list[tuple[float, int]]:
        """Takes trajectories, of each worker in order; returns (return, length) of what ended."""
        ended = []
        for t in trajectories:
            episode, at, total = self._open.pop(t.worker_id, (-1, -1, 0.0))
            if t.start == 0:
                episode, at, total = t.episode, 0, 0.0
            if (episode, at) != (t.episode, t.start):
                continue
            total += float(np.sum(t.reward, dtype=np.float64))
            at += len(t)
            if t.cut:
                self._open[t.worker_id] = (episode, at, total)
            else:
                ended.append((total, at))
        return ended


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
