"""`Track`: the trajectory that one worker is running through."""

from typing import Any

import numpy as np

from tfrl.envs.workers import WorkerState
from tfrl.episodes import nests
from tfrl.tasks.samples import SampledTrajectory

Nest = Any


class Track:
    """The samples of one worker since its last trajectory was closed.

    Attributes:
      worker_id: The worker.
      waiting: Its state that has no action yet, or None.
      since: When that state was received, in seconds of time.monotonic.
      retired: Whether it gets no more actions in this call, because others waited for it.
    """

    def __init__(self, worker_id: int):
        """Begins without a state."""
        self.worker_id = worker_id
        self.waiting: WorkerState | None = None
        self.since = 0.0
        self.retired = False
        self.clear()

    def clear(self) -> None:
        """Forgets the samples; a result that is still to come will not be one."""
        self._episode = self._start = -1
        self._taken: list[tuple[Nest, Nest, Nest]] = []
        self._results: list[tuple[float, bool, bool]] = []

    @property
    def in_flight(self) -> bool:
        """Whether the result of an action is to come."""
        return len(self._taken) > len(self._results)

    @property
    def size(self) -> int:
        """Samples, with the one whose result is to come."""
        return len(self._taken)

    def act(self, action: Nest, extras: Nest) -> WorkerState:
        """Adds the action for the waiting state; returns that state."""
        state, self.waiting = self.waiting, None
        if state is None:
            raise RuntimeError(f"Worker {self.worker_id} has no state to act on.")
        if not self._taken:
            self._episode, self._start = state.episode, state.step
        self._taken.append((state.obs, action, extras))
        return state

    def receive(self, state: WorkerState, now: float) -> None:
        """Takes a state of the worker: the result of its action, or where it may begin."""
        if self.in_flight:
            if state.lost:
                self._taken.pop()
            else:
                self._results.append((state.reward, state.terminated, state.truncated))
        self.waiting = None if state.last else state
        self.since = now

    def drop_action(self) -> Nest:
        """Gives up the result that is to come; returns the observation that the action was for.

        Whatever arrives later is only where the next trajectory may begin.
        """
        obs, _, _ = self._taken.pop()
        return obs

    def close(self, last_obs: Nest, cut: bool) -> SampledTrajectory:
        """Returns the samples as a trajectory and forgets them.

        Args:
          last_obs: The observation after the last sample.
          cut: Whether the environment did not end the episode there; the last sample is then marked
            as truncated.
        """
        obs, action, extras = zip(*self._taken, strict=True)
        reward, termination, truncation = zip(*self._results, strict=True)
        truncation = (*truncation[:-1], truncation[-1] or cut)
        trajectory = SampledTrajectory(
            obs=nests.stack(obs),
            action=nests.stack(action),
            reward=np.array(reward, np.float32),
            termination=np.array(termination, bool),
            truncation=np.array(truncation, bool),
            last_obs=last_obs,
            extras=nests.stack(extras),
            worker_id=self.worker_id,
            episode=self._episode,
            start=self._start,
            cut=cut,
        )
        self.clear()
        return trajectory
