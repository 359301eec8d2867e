"""Plays whole episodes of a task, for its evaluation."""

import contextlib
from typing import Any

import numpy as np

from tfrl.envs.workers import WorkerPool
from tfrl.evaluation.result import EvaluationResult
from tfrl.tasks.sampling import iter_samples
from tfrl.tasks.task import RLTask


def make_pool(task: RLTask, *, num_workers: int, seed: int, first_episodes: Any = 0) -> WorkerPool:
    """Starts the workers of a task.

    Args:
      task: The task.
      num_workers: How many; 0 for one in this process.
      seed: Of the episodes.
      first_episodes: See `WorkerPool`.
    """
    config = task.config
    return WorkerPool(
        task.get_environment,
        num_workers,
        mode=config.env_worker_mode,
        seed=seed,
        max_episode_steps=config.max_episode_steps,
        first_episodes=first_episodes,
        force_sync=config.force_sync,
        cleanup_time=config.env_cleanup_time,
    )


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
    count = max(1, workers)
    shares = [num_episodes // count + (w < num_episodes % count) for w in range(count)]
    found: list[list[tuple[float, int]]] = [[] for _ in shares]
    with make_pool(task, num_workers=workers, seed=seed) as pool:
        stream = iter_samples(
            pool,
            lambda states, optimal: task.get_actions(model, states, optimal),
            total_samples=None,
            min_batch_size=min(config.min_action_batch_size, count),
            max_wait_time=config.max_wait_time,
            optimal=True,
        )
        with contextlib.closing(stream):  # type: ignore[type-var]
            while any(len(f) < n for f, n in zip(found, shares, strict=True)):
                t = next(stream)
                if not t.cut and len(found[t.worker_id]) < shares[t.worker_id]:
                    total = float(np.sum(t.reward, dtype=np.float64))
                    found[t.worker_id].append((total, len(t)))
    returns, lengths = zip(*(episode for of_worker in found for episode in of_worker), strict=True)
    return EvaluationResult.of(np.array(returns), np.array(lengths))
