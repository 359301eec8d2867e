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
    """Environments in processes or threads that step while the caller does something else.

    ```python
    with WorkerPool(make_env, num_workers=8) as pool:
        pool.reset()
        while collecting:
            state = pool.get_state(timeout=1.0)
            if state and not state.last:
                pool.send_action(choose(state.obs), state.worker_id)
    ```

    An episode of n steps arrives as n + 1 states, see `WorkerState`; its worker then begins the
    next one by itself. Workers that die or hang are replaced, see `AsyncEnvironmentWorker`. A pool
    is for one thread at a time.
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
        """Starts the workers, which make their environments meanwhile.

        Args:
          env_factory: Returns a gymnasium.Env; called in each worker. It may be a lambda or a local
            function. Its module should not import TensorFlow: each process would too.
          num_workers: How many environments. 0: one, run synchronously.
          mode: `process` or `thread`; threads only where steps release the interpreter's lock, and
            with the limits that `AsyncEnvironmentWorker` tells of.
          seed: Worker w resets its episode e with `episode_seed(seed, w, e)`.
          max_episode_steps: Episodes are truncated there, beside the environment's own limit.
          first_episodes: The number of the first episode, of all workers or of each: a resumed
            run's `next_episodes`.
          force_sync: Runs all environments inside of `get_state`, in turn: for debugging. No
            timeouts and no restarts then.
          start_timeout: Seconds in which a worker must import and make its environment.
          reset_timeout: Seconds for one reset.
          step_timeout: Seconds for one step.
          max_restarts: How often one worker may be restarted after it died or hung.
          cleanup_time: Seconds for all environments to close; then they are killed.

        Raises:
          UserError: For arguments that do not fit, or a factory that cannot be pickled.
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
        """Makes a pool of workers, which it closes.

        Args:
          workers: Those with the `worker_id`s 0, 1, ... in this order, which belong to no pool yet.

        Raises:
          UserError: They are others.
        """
        ids = [worker.worker_id for worker in workers]
        if not ids or ids != list(range(len(ids))):
            raise UserError(
                "workers of a WorkerPool",
                expected="one or more, with the worker_ids 0, 1, ... in order",
                got=f"worker_ids {ids}",
                remedy="Make worker w with worker_id=w, which its seeds follow from.",
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
        """Begins a new episode in every worker, or in one.

        States of before do not arrive any more, actions for them are dropped, in the pool and in
        the workers. Episode numbers, and with them seeds, go on after the last that was seen.

        Args:
          worker_id: The worker; None for all of them.

        Raises:
          WorkerError: A fault that `get_state` had not told yet; the reset has not begun.
          UserError: There is no such worker, or the pool is closed.
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
          timeout: Seconds to wait; 0 takes only what has arrived. None waits as long as the
            workers' own timeouts let them take.

        Returns:
          A `WorkerState`; `NoState.TIMED_OUT`; or at once `NoState.IDLE` if no worker is busy, so
          that no state can arrive. Both of the latter count as false.

        Raises:
          WorkerError: The environment of a worker raised or returned something wrong, or a worker
            died or hung more than `max_restarts` times. The other workers go on; this one stands
            still until `reset`.
          UserError: `reset` was not called, or the pool is closed.
        """
        return self._mailbox.next(timeout)

    def send_action(self, action: Any, worker_id: int, generation: int | None = None) -> bool:
        """Sends the action for the last state that `get_state` returned of a worker.

        Args:
          action: Of the environment's action space; it is copied. The word "reset" is no action of
            the environment's: it is `reset(worker_id)`, at any time.
          worker_id: `WorkerState.worker_id`.
          generation: `WorkerState.generation` of the state for which it was chosen. An action of an
            older generation is dropped. None: of the running one.

        Returns:
          Whether it was sent. It is not where its episode is over: lost with the environment (a
          state with `lost` tells), or of an older generation.

        Raises:
          UserError: There is no such worker, or it awaits no action, or the pool is closed; or the
            word "close" was sent.
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
        order = "send_action(action, worker_id) is the order. " if method == "send_action" else ""
        remedy = f"{order}There are workers 0 to {most}."
        name = f"worker_id of {method}"
        return self._workers[checks.at_least(name, worker_id, 0, maximum=most, remedy=remedy)]

    def close(self) -> None:
        """Ends all workers: within `cleanup_time`, then by force. Twice is harmless."""
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
        """How many times the pool, or one of its workers, was reset."""
        return self._generation

    @property
    def next_episodes(self) -> list[int]:
        """Of each worker the next episode that nothing was seen of: `first_episodes` to resume.

        Set it for the next reset to begin with others.
        """
        return [worker.next_episode for worker in self._workers]

    @next_episodes.setter
    def next_episodes(self, episodes: Sequence[int]) -> None:
        checked = _checked_episodes(episodes, len(self._workers))
        for worker, episode in zip(self._workers, checked, strict=True):
            worker.next_episode = episode

    @property
    def restarts(self) -> int:
        """How many times workers were restarted because they died or hung."""
        return sum(worker.restarts for worker in self._workers)

    @property
    def abandoned_threads(self) -> int:
        """How many threads hung and could not be ended."""
        return self._left_threads + sum(worker.abandoned_threads for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        """The processes that run environments now."""
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
            expected=f"a whole number of at least 0, or {count} of them, one a worker",
            got=repr(first),
            remedy="Give the next_episodes of the run that is resumed, with as many workers.",
        )
    return [checks.at_least(name, episode, 0) for episode in episodes]
