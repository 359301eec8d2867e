"""The environments of a task: worker pools, evaluation episodes, a short check."""

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
      num_workers: The number of workers; 0 for one in this process.
      seed: The seed of the episodes.

    Raises:
      UserError: `get_worker_pool` returns no pool.
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
    return checks.instance(thing, pool, WorkerPool, "a WorkerPool")


def evaluate_task(task: RLTask, model: Any, num_episodes: int, seed: int) -> EvaluationResult:
    """Plays episodes with `optimal=True`, in separate workers.

    Each worker plays an equal share, so that short episodes are not preferred. An episode of a lost
    worker is replaced by the worker's next episode.

    Args:
      task: The task.
      model: The result of `get_model`.
      num_episodes: The exact number of episodes.
      seed: The seed of the episodes.
    """
    config = task.config
    # 0 workers stand for one in this process.
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
    """Sums the rewards of episodes over their trajectories.

    An episode with a missing part (discarded, trimmed or lost) is left out.
    """

    def __init__(self) -> None:
        """Starts without episodes."""
        # {worker: (episode, next step, return so far)}
        self._open: dict[int, tuple[int, int, float]] = {}

    def add(self, trajectories: Iterable[SampledTrajectory]) -> list[tuple[float, int]]:
        """Adds trajectories, each worker's in order; returns (return, length) of ended episodes."""
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
    """Seeds every reset and copies the environment's outputs, as workers do; never renders.

    So resets without a seed need not work, the environment may reuse its buffers, and images are
    left to `check_video`.
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

    It allows what training tolerates: episodes that do not depend on the seed, resets that need a
    seed, observations that the next step overwrites.

    Args:
      task: The task.
      seed: See `check_env`.
      steps: The number of steps. They are taken twice.

    Raises:
      UserError: For the first failed check.
    """
    env = checked_env(task.get_environment(), "get_environment()")
    try:
        check_env(_AsInWorkers(env), steps, seed, stochastic=False)
    finally:
        env.close()
