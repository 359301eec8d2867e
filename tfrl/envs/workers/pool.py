"""`WorkerPool`: several environments at once; their states arrive as they become ready."""

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium

from tfrl import checks
from tfrl.envs.workers.async_worker import AsyncEnvironmentWorker, WorkerLimits
from tfrl.envs.workers.base import EnvironmentWorker, Mailbox, asks_for_reset
from tfrl.envs.workers.protocol import NoState, WorkerMode, WorkerState
from tfrl.envs.workers.runner import EnvFactory, check_factory
from tfrl.envs.workers.sync_worker import SyncEnvironmentWorker
from tfrl.errors import UserError

Worker = SyncEnvironmentWorker | AsyncEnvironmentWorker


class WorkerPool:
    """Environments in processes or threads that step concurrently with the caller.

    ```python
    with WorkerPool(make_env, num_workers=8) as pool:
        pool.reset()
        while collecting:
            state = pool.get_state(timeout=1.0)
            if state and not state.last:
                pool.send_action(choose(state.obs), state.worker_id)
    ```

    An episode of n steps arrives as n + 1 states, see `WorkerState`; its worker then starts the
    next one by itself. Workers that die or hang are replaced, see `AsyncEnvironmentWorker`. A pool
    is not thread-safe.
    """

    def __init__(
        self,
        env_factory: EnvFactory,
        num_workers: int = 1,
        *,
        mode: WorkerMode | str = WorkerMode.PROCESS,
        seed: int = 1337,
        max_episode_steps: int | None = None,
        first_episodes: int | Sequence[int] = 0,
        force_sync: bool = False,
        start_timeout: float = 120.0,
        reset_timeout: float = 60.0,
        step_timeout: float = 60.0,
        max_restarts: int = 10,
        cleanup_time: float = 5.0,
    ):
        """Starts the workers, which create their environments concurrently.

        Args:
          env_factory: Returns a gymnasium.Env; called in each worker. It may be a lambda or a local
            function. Its module should not import TensorFlow, as each process would import it too.
          num_workers: Number of environments. 0: one, run synchronously.
          mode: `process` or `thread`; use threads only if steps release the interpreter's lock; see
            `AsyncEnvironmentWorker` for their limits.
          seed: Worker w resets its episode e with `episode_seed(seed, w, e)`.
          max_episode_steps: Time limit in steps, besides the environment's own.
          first_episodes: The number of the first episode, for all workers or for each: a resumed
            run's `next_episodes`.
          force_sync: Runs all environments in turn inside `get_state`, for debugging, without
            timeouts and restarts.
          start_timeout: Seconds for a worker to import and create its environment.
          reset_timeout: Seconds for one reset.
          step_timeout: Seconds for one step.
          max_restarts: Maximum number of restarts of one worker that died or hung.
          cleanup_time: Seconds for all environments to close before they are killed.

        Raises:
          UserError: For invalid arguments, or a factory that cannot be pickled.
        """
        check_factory(env_factory)
        mode = WorkerMode.of(mode)
        count = max(1, checks.at_least("num_workers of a WorkerPool", num_workers, 0))
        episodes = _checked_episodes(first_episodes, count)
        limits = WorkerLimits(
            start_timeout=start_timeout,
            reset_timeout=reset_timeout,
            step_timeout=step_timeout,
            max_restarts=max_restarts,
            cleanup_time=cleanup_time,
        )
        common: dict[str, Any] = {"seed": seed, "max_episode_steps": max_episode_steps}
        self._generation = 0
        self._left_threads = 0
        self._mailbox = common["mailbox"] = Mailbox(self, cleanup_time)
        self._workers: list[Worker] = []
        try:
            for worker_id, episode in enumerate(episodes):
                common.update(worker_id=worker_id, first_episode=episode)
                if force_sync or num_workers == 0:
                    worker: Worker = SyncEnvironmentWorker(env_factory, **common)
                else:
                    worker = AsyncEnvironmentWorker(env_factory, mode=mode, limits=limits, **common)
                self._workers.append(worker)
        except BaseException:
            self.close()
            raise
        self._mailbox.serve(self._workers)

    @classmethod
    def from_workers(cls, workers: Sequence[EnvironmentWorker]) -> "WorkerPool":
        """Creates a pool of existing workers, which it closes.

        Args:
          workers: Workers outside a pool, with the `worker_id`s 0, 1, ... in this order.

        Raises:
          UserError: The workers do not meet this.
        """
        ids = [worker.worker_id for worker in workers]
        if not ids or ids != list(range(len(ids))):
            raise UserError(
                "workers of a WorkerPool",
                expected="one or more workers, with the worker_ids 0, 1, ... in order",
                got=f"worker_ids {ids}",
                remedy="Create worker w with worker_id=w, which its seeds depend on.",
            )
        pool = cls.__new__(cls)
        pool._left_threads = 0
        pool._generation = max(worker.generation for worker in workers)
        pool._mailbox = Mailbox(pool, max(worker.cleanup_time for worker in workers))
        pool._workers = list(workers)  # type: ignore[arg-type]
        for worker in workers:
            worker.join(pool._mailbox)
        pool._mailbox.serve(pool._workers)
        return pool

    def reset(self, worker_id: int | None = None) -> None:
        """Starts a new episode in every worker, or in one.

        Drops all earlier states and the actions for them, in the pool and in the workers. Episode
        numbers, and thus seeds, continue after the last delivered episode.

        Args:
          worker_id: The worker; None for all of them.

        Raises:
          WorkerError: A fault that `get_state` has not raised yet; the reset has not started.
          UserError: The worker does not exist, or the pool is closed.
        """
        workers = self._workers if worker_id is None else [self._worker(worker_id, "reset")]
        self._mailbox.check_open()
        self._mailbox.raise_faults()
        self._generation = 1 + max(self._generation, *(w.generation for w in workers))
        for worker in workers:
            worker.reset(self._generation)

    def get_state(self, timeout: float | None = None) -> WorkerState | NoState:
        """Returns the next state of any worker, in the order of arrival, or why there is none.

        Args:
          timeout: Seconds to wait; 0 takes only arrived states. None waits up to the workers' own
            timeouts.

        Returns:
          A `WorkerState`; `NoState.TIMED_OUT`; or at once `NoState.IDLE` if no worker is busy. A
          `NoState` is false.

        Raises:
          WorkerError: The environment of a worker raised or returned an invalid value, or a worker
            died or hung more than `max_restarts` times. The worker stops until `reset`; the others
            continue.
          UserError: `reset` was not called, or the pool is closed.
        """
        return self._mailbox.next(timeout)

    def send_action(self, action: Any, worker_id: int, generation: int | None = None) -> bool:
        """Sends the action for the last state of a worker that `get_state` returned.

        Args:
          action: An element of the action space; it is copied. The word "reset" calls
            `reset(worker_id)` instead, at any time.
          worker_id: `WorkerState.worker_id`.
          generation: `WorkerState.generation` of the answered state, by default the current one. An
            action of an older generation is dropped.

        Returns:
          Whether it was sent: not if its episode was lost with the environment (reported by a state
          with `lost`), or belongs to an older generation.

        Raises:
          UserError: The worker does not exist or expects no action, the pool is closed, or the
            action is the word "close".
        """
        worker = self._worker(worker_id, "send_action")
        if not asks_for_reset(action):
            return worker.send_action(action, generation)
        if generation is not None and generation != worker.generation:
            return False
        self.reset(worker_id)
        return True

    def _worker(self, worker_id: Any, method: str) -> Worker:
        most = len(self._workers) - 1
        order = "Call send_action(action, worker_id). " if method == "send_action" else ""
        remedy = f"{order}Use a worker_id from 0 to {most}."
        name = f"worker_id of {method}"
        return self._workers[checks.at_least(name, worker_id, 0, maximum=most, remedy=remedy)]

    def close(self) -> None:
        """Ends all workers, by force after `cleanup_time`; idempotent."""
        self._left_threads += self._mailbox.close()
        for worker in self._workers:
            worker.close()

    def __len__(self) -> int:
        return len(self._workers)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def generation(self) -> int:
        """Number of resets of the pool or of single workers."""
        return self._generation

    @property
    def next_episodes(self) -> list[int]:
        """Each worker's first episode without delivered states: `first_episodes` to resume.

        Set it to change the episodes of the next reset.
        """
        return [worker.next_episode for worker in self._workers]

    @next_episodes.setter
    def next_episodes(self, episodes: Sequence[int]) -> None:
        checked = _checked_episodes(episodes, len(self._workers))
        for worker, episode in zip(self._workers, checked, strict=True):
            worker.next_episode = episode

    @property
    def restarts(self) -> int:
        """Number of restarts of workers that died or hung."""
        return sum(worker.restarts for worker in self._workers)

    @property
    def abandoned_threads(self) -> int:
        """Number of threads that hung and did not end."""
        return self._left_threads + sum(worker.abandoned_threads for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        """The ids of the current worker processes."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    @property
    def observation_space(self) -> gymnasium.Space:
        """Of the environment of worker 0; waits until it is made."""
        return self._workers[0].observation_space

    @property
    def action_space(self) -> gymnasium.Space:
        """Of the environment of worker 0; waits until it is made."""
        return self._workers[0].action_space


def _checked_episodes(first: Any, count: int) -> list[int]:
    several = isinstance(first, Iterable)
    episodes = list(first) if several else [first] * count
    name = "first_episodes of a WorkerPool"
    if len(episodes) != count:
        raise UserError(
            name,
            expected=f"a whole number of at least 0, or {count} of them, one per worker",
            got=repr(first),
            remedy="Pass the next_episodes of the resumed run, with the same number of workers.",
        )
    return [checks.at_least(name, episode, 0) for episode in episodes]
