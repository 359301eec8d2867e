"""`WorkerPool`: several environments at once; their states arrive as they become ready."""

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium

from tfrl import checks
from tfrl.envs.workers.async_worker import AsyncEnvironmentWorker, WorkerLimits
from tfrl.envs.workers.base import Mailbox
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
                pool.send_action(state.worker_id, choose(state.obs))
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

    def reset(self) -> None:
        """Begins a new episode in every worker.

        States of before do not arrive any more, actions for them are dropped, in the pool and in
        the workers. Episode numbers, and with them seeds, go on after the last that was seen.

        Raises:
          WorkerError: A fault that `get_state` had not told yet; the reset has not begun.
          UserError: The pool is closed.
        """
        self._mailbox.check_open()
        self._mailbox.raise_faults()
        self._generation += 1
        for worker in self._workers:
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

    def send_action(self, worker_id: int, action: Any, generation: int | None = None) -> bool:
        """Sends the action for the last state that `get_state` returned of a worker.

        Args:
          worker_id: `WorkerState.worker_id`.
          action: Of the environment's action space; it is copied.
          generation: `WorkerState.generation` of the state for which it was chosen. An action of an
            older generation is dropped. None: of the running one.

        Returns:
          Whether it was sent. It is not where its episode is over: lost with the environment (a
          state with `lost` tells), or of an older generation.

        Raises:
          UserError: There is no such worker, or it awaits no action, or the pool is closed.
        """
        most = len(self._workers) - 1
        checks.at_least("worker_id of send_action", worker_id, 0, maximum=most)
        return self._workers[worker_id].send_action(action, generation)

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
        """How many times the pool was reset."""
        return self._generation

    @property
    def next_episodes(self) -> list[int]:
        """Of each worker the next episode that nothing was seen of: `first_episodes` to resume."""
        return [worker.next_episode for worker in self._workers]

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
