"""`Sampler`: keeps the workers of a pool between calls of `iter_samples`; and one call of it."""

import dataclasses
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tfrl.envs.env_calls import RunningCall
from tfrl.envs.workers import NoState, WorkerError, WorkerPool, WorkerState
from tfrl.episodes import lookback_buffer
from tfrl.errors import UserError
from tfrl.tasks.samples import GetActions, SampledTrajectory, Track, batched_actions

_LOG = logging.getLogger(__name__)
_WAITING = RunningCall("an environment of the worker pool")


@dataclasses.dataclass(frozen=True)
class SamplingBounds:
    """Checked bounds of one call of `iter_samples`.

    Attributes:
      total_samples: The number of samples; `sys.maxsize` for an infinite stream.
      min_trajectory_length: Samples of the shortest yielded trajectory.
      max_trajectory_length: Samples of the longest trajectory; None for no bound.
      min_batch_size: The number of states to wait for.
      max_batch_size: States of the largest batch; at most the number of workers.
      max_wait_time: The most seconds that a state waits for others; infinity to wait for
        `min_batch_size` states.
      max_discarded_in_a_row: The most samples discarded without a usable trajectory; None for no
        bound.
    """

    total_samples: int
    min_trajectory_length: int
    max_trajectory_length: int | None
    min_batch_size: int
    max_batch_size: int
    max_wait_time: float
    max_discarded_in_a_row: int | None


@dataclasses.dataclass
class SamplingCounts:
    """Counts of one or more calls of `iter_samples`; an argument of it.

    The env steps with a known result are `samples + discarded_samples + trimmed_samples`.

    Attributes:
      samples: Yielded samples.
      trajectories: Yielded trajectories.
      episodes: Yielded trajectories that end with the environment's episode.
      discarded_trajectories: Trajectories that were too short, or did not fit the exact total.
      discarded_samples: The samples of discarded trajectories.
      trimmed_samples: Samples removed at the start of trajectories to reach the exact total.
      dropped_actions: Actions without a sample: their worker was lost, or the others waited for it
        longer than `max_wait_time` at the end.
      batches: Calls of `get_actions`.
      states: The states in these calls.
    """

    samples: int = 0
    trajectories: int = 0
    episodes: int = 0
    discarded_trajectories: int = 0
    discarded_samples: int = 0
    trimmed_samples: int = 0
    dropped_actions: int = 0
    batches: int = 0
    states: int = 0


class Discards:
    """Counts discarded trajectories, and warns of the first, the 10th, the 100th, ..."""

    def __init__(self, counts: SamplingCounts, shortest: int, most_in_a_row: int | None):
        """Begins a call.

        Args:
          counts: The counts to add to.
          shortest: min_trajectory_length.
          most_in_a_row: The most samples discarded without a usable trajectory.
        """
        self._counts = counts
        self._shortest = shortest
        self._most_in_a_row = most_in_a_row
        self._trajectories = self._samples = self._longest = 0
        self._in_a_row = 0
        self._next_warning = 1

    def accepted(self) -> None:
        """Notes a trajectory that was not discarded."""
        self._in_a_row = 0

    def add(self, trajectory: SampledTrajectory, remaining: int) -> None:
        """Counts a discarded trajectory.

        Args:
          trajectory: A trajectory that is too short, or does not fit the remaining total.
          remaining: The remaining samples of the total.

        Raises:
          UserError: More samples than `most_in_a_row` were discarded since the last usable
            trajectory: sampling might never end.
        """
        length = len(trajectory)
        self._counts.discarded_trajectories += 1
        self._counts.discarded_samples += length
        self._trajectories += 1
        self._samples += length
        self._longest = max(self._longest, length)
        self._in_a_row += length
        if self._trajectories == self._next_warning:
            self._next_warning *= 10
            self._warn(trajectory, self._reason(length, remaining))
        if self._most_in_a_row is not None and self._in_a_row >= self._most_in_a_row:
            raise UserError(
                "iter_samples",
                expected=f"usable trajectories: {self._reason(length, remaining)}",
                got=f"no usable trajectory in the last {self._in_a_row} env steps; the longest "
                f"discarded trajectory had {self._longest} samples",
                remedy="Lower the clip length or min_trajectory_length, make the episodes longer, "
                "or raise max_discarded_in_a_row (None for no limit).",
            )

    def close(self) -> None:
        """Warns of the sum if there was more than one."""
        if self._trajectories > 1:
            message = "Discarded %d trajectories with %d samples (min_trajectory_length is %d)."
            _LOG.warning(message, self._trajectories, self._samples, self._shortest)

    def _warn(self, trajectory: SampledTrajectory, reason: str) -> None:
        length, worker_id = len(trajectory), trajectory.worker_id
        if self._trajectories == 1:
            message = "Discarded a trajectory of %d samples of worker %d: %s."
            _LOG.warning(message, length, worker_id, reason)
        else:
            message = (
                "Discarded %d trajectories with %d samples so far, the longest of %d; %d samples "
                "since the last usable trajectory. The newest has %d samples of worker %d: %s."
            )
            numbers = (self._trajectories, self._samples, self._longest, self._in_a_row)
            _LOG.warning(message, *numbers, length, worker_id, reason)

    def _reason(self, length: int, remaining: int) -> str:
        if length < self._shortest:
            return f"min_trajectory_length is {self._shortest}"
        return (
            f"with it, the {remaining} remaining samples cannot be divided into trajectories of at "
            f"least {self._shortest} samples"
        )


class Budget:
    """Counts samples down; the released trajectories add up to the total exactly.

    An open trajectory reserves the samples that it needs to become long enough. So no trajectory is
    too short at the end of sampling, and none begins without enough samples left.

    Still, an episode may end when the rest is no sum of allowed lengths. The budget then plans to
    trim samples at the starts of trajectories, and keeps the last trajectories back until others
    have enough samples to spare. If that does not suffice, it discards the shortest of them. So it
    reaches every total that a policy's longest episodes can add up to.

    Attributes:
      remaining: Samples of the total that are not in accepted trajectories.
      trimmed: Samples that were trimmed from released trajectories.
    """

    def __init__(self, bounds: SamplingBounds):
        """Starts with the whole total remaining."""
        self.remaining = bounds.total_samples
        self.trimmed = 0
        self._unreleased = bounds.total_samples
        self._shortest = bounds.min_trajectory_length
        self._longest = bounds.max_trajectory_length
        self._endless = bounds.total_samples == sys.maxsize
        # Untrimmed: trimming is decided at their release.
        self._kept_back: list[SampledTrajectory] = []

    def reserved(self, size: int) -> int:
        """Returns the samples that an open trajectory of `size` samples reserves."""
        return max(self._shortest, size) if size else 0

    def next_cost(self, size: int) -> int:
        """Returns what one more sample reserves for a trajectory of `size` samples."""
        return self.reserved(size + 1) - self.reserved(size)

    def accept(self, trajectory: SampledTrajectory, held: int) -> SampledTrajectory | None:
        """Subtracts a closed trajectory from the remaining total.

        Args:
          trajectory: A trajectory within the length bounds' maximum.
          held: The samples that open trajectories reserve.

        Returns:
          The trajectory that is discarded for it, or None. It is the trajectory itself if it is too
          short, or if no allowed lengths add up to the rest and no kept trajectory is shorter.
        """
        if len(trajectory) < self._shortest:
            return trajectory
        known = [*self._kept_back, trajectory]
        if self._keep(known, held):
            return None
        # The newest of the shortest.
        position = min(reversed(range(len(known))), key=lambda i: len(known[i]))
        thrown_away = known.pop(position)
        if thrown_away is not trajectory:
            # The new one replaces it: the rest may stay, and the difference is trimmed.
            self._keep(known, held)
        return thrown_away

    def release(self) -> list[SampledTrajectory]:
        """Returns the accepted trajectories that are final, oldest first."""
        count = len(self._kept_back)
        if self._endless:
            pass
        elif self.remaining:
            count = self._num_certain()
        else:
            self._trim()
        released, self._kept_back = self._kept_back[:count], self._kept_back[count:]
        self._unreleased -= _num_samples(released)
        return released

    def _keep(self, known: list[SampledTrajectory], held: int) -> bool:
        """Keeps these trajectories if allowed lengths can add up to the rest."""
        bare = self._unreleased - _num_samples(known)
        rest = bare
        if not self._endless:
            rest = next_splittable(max(bare, held), self._shortest, self._longest)
        if rest - bare > self._to_spare(known):
            return False
        self._kept_back, self.remaining = known, rest
        return True

    def _surplus(self) -> int:
        """Returns the samples to trim from the kept trajectories for the planned rest."""
        return self.remaining + _num_samples(self._kept_back) - self._unreleased

    def _num_certain(self) -> int:
        """Returns how many of the oldest can be released: the later ones have enough to spare."""
        # The next reachable rest is never further away than this.
        needed = self._shortest - 1 + self._surplus()
        count = 0
        while self._kept_back[count:] and self._to_spare(self._kept_back[count + 1 :]) >= needed:
            count += 1
        return count

    def _to_spare(self, trajectories: list[SampledTrajectory]) -> int:
        return _num_samples(trajectories) - self._shortest * len(trajectories)

    def _trim(self) -> None:
        """Trims the surplus at the starts of trajectories, the newest first."""
        surplus = self._surplus()
        self.trimmed += surplus
        for position in reversed(range(len(self._kept_back))):
            trajectory = self._kept_back[position]
            taken = min(surplus, len(trajectory) - self._shortest)
            if taken:
                self._kept_back[position] = trajectory.newest(len(trajectory) - taken)
                surplus -= taken


def _num_samples(trajectories: list[SampledTrajectory]) -> int:
    return sum(map(len, trajectories))


def splittable(samples: int, shortest: int, longest: int) -> bool:
    """Whether trajectories of `shortest` to `longest` samples can add up to `samples`."""
    # The most trajectories give the widest range: k of them reach k shortest to k longest.
    return shortest * (samples // shortest) <= samples <= longest * (samples // shortest)


def next_splittable(samples: int, shortest: int, longest: int | None) -> int:
    """Returns the least number >= `samples` that such trajectories, or none, can add up to.

    It is at most `shortest - 1` more.
    """
    if samples <= 0:
        return 0
    if longest is None:
        return max(samples, shortest)
    if splittable(samples, shortest, longest):
        return samples
    return shortest * (samples // shortest + 1)


class Sampler:
    """Samples from a pool over several calls; episodes continue from one call to the next.

    A sampler resets its pool at its first call, and after an error of a worker. Pass it to
    `iter_samples` in place of the pool: with a pool every call begins new episodes, so that
    sampling would only see the start of long episodes. It has the pool's methods for states and
    actions, so functions for pools also take samplers.

    Attributes:
      pool: The workers.
      counts: The counts of calls without their own `counts`.
      on_trajectory: Called with each yielded trajectory, before all hooks; or None.
    """

    def __init__(self, pool: WorkerPool):
        """Does not touch the pool yet.

        Args:
          pool: The workers; no other code may use them meanwhile.
        """
        self.pool = pool
        self.counts = SamplingCounts()
        self.on_trajectory: Callable[[SampledTrajectory], object] | None = None
        self.tracks = [Track(worker_id) for worker_id in range(len(pool))]
        self._generation = 0
        self._user: object = None

    def begin(self, user: object) -> None:
        """Makes `user` the one who samples; drops unfinished samples."""
        self._user = user
        for track in self.tracks:
            track.clear()
            track.retired = False
        if self._generation == 0 or self._generation != self.pool.generation:
            for track in self.tracks:
                track.waiting = None
            self._generation = 0
            self.pool.reset()
            self._generation = self.pool.generation

    # The pool's methods.

    def __len__(self) -> int:
        return len(self.pool)

    def reset(self, worker_id: int | None = None) -> None:
        """See `WorkerPool.reset`; the next call of `iter_samples` then begins new episodes."""
        self.pool.reset(worker_id)

    def get_state(self, timeout: float | None = None) -> WorkerState | NoState:
        """See `WorkerPool.get_state`."""
        return self.pool.get_state(timeout)

    def send_action(self, action: Any, worker_id: int, generation: int | None = None) -> bool:
        """See `WorkerPool.send_action`."""
        return self.pool.send_action(action, worker_id, generation)

    # For a call of `iter_samples`.

    def reset_worker(self, worker_id: int) -> None:
        """Begins a new episode in one worker, for the current user."""
        self.pool.reset(worker_id)
        self._generation = self.pool.generation

    def next_state(self, user: object, timeout: float | None) -> WorkerState | NoState:
        """Returns the pool's next state, for the current user.

        Args:
          user: The caller.
          timeout: Seconds; None or infinity for no bound.

        Raises:
          UserError: Another call has begun to sample.
          WorkerError: See the pool; the next `begin` resets it.
        """
        if self._user is not user or self.pool.generation != self._generation:
            raise UserError(
                "iter_samples",
                expected="exclusive use of the pool",
                got="a pool that a different caller reset or sampled meanwhile",
                remedy="Finish one call, or delete its iterator, before the next call.",
            )
        try:
            with _WAITING:
                return self.pool.get_state(None if timeout == math.inf else timeout)
        except WorkerError:
            self._generation = 0
            raise


class Sampling:
    """One call of `iter_samples`."""

    def __init__(
        self,
        sampler: Sampler,
        get_actions: GetActions,
        bounds: SamplingBounds,
        optimal: bool,
        counts: SamplingCounts,
        on_progress: Callable[[int], None],
    ):
        """See `iter_samples`; `on_progress` gets the number of samples so far."""
        self._sampler = sampler
        self._tracks = sampler.tracks
        self._get_actions = get_actions
        self._bounds = bounds
        self._optimal = optimal
        self._counts = counts
        self._on_progress = on_progress
        self._budget = Budget(bounds)
        self._discards = Discards(
            counts, bounds.min_trajectory_length, bounds.max_discarded_in_a_row
        )

    def run(self) -> Iterator[SampledTrajectory]:
        """Yields trajectories as the budget releases them."""
        self._sampler.begin(self)
        try:
            while batch := self._next_batch():
                self._act(batch)
                self._report()
                yield from self._released()
            for track in self._tracks:
                if track.size and track.waiting is not None:
                    self._close(track, track.waiting.obs, cut=True)
            self._report()
            yield from self._released()
        finally:
            self._discards.close()

    def _next_batch(self) -> list[Track]:
        """Returns the workers to act for next; empty when the total is reached."""
        stalled: float | None = None
        while True:
            self._take_what_has_arrived()
            ready, blocked = self._waiting()
            if self._finished(ready):
                return []
            now = time.monotonic()
            timeout: float | None = None
            if ready:
                stalled = None
                timeout = ready[0].since + self._bounds.max_wait_time - now
                if timeout <= 0.0 or len(ready) >= self._wanted(len(ready)):
                    return ready[: self._bounds.max_batch_size]
            elif blocked:
                stalled = now if stalled is None else stalled
                timeout = stalled + self._bounds.max_wait_time - now
                if timeout <= 0.0:
                    self._retire_late_workers()
                    continue
            state = self._sampler.next_state(self, timeout)
            if isinstance(state, WorkerState):
                self._receive(state)
            elif state is NoState.IDLE and ready:
                return ready[: self._bounds.max_batch_size]
            elif state is NoState.IDLE:
                raise RuntimeError("No worker is busy, and no worker may act.")

    def _take_what_has_arrived(self) -> None:
        while isinstance(state := self._sampler.next_state(self, 0.0), WorkerState):
            self._receive(state)

    def _waiting(self) -> tuple[list[Track], list[Track]]:
        """Returns workers that wait for an action, oldest first: allowed ones, and blocked ones."""
        budget = self._budget
        free = budget.remaining - self._reserved()
        ready: list[Track] = []
        blocked: list[Track] = []
        waiting = [t for t in self._tracks if t.waiting is not None and not t.retired]
        for track in sorted(waiting, key=lambda t: t.since):
            cost = budget.next_cost(track.size)
            (ready if cost <= free else blocked).append(track)
            free -= cost if cost <= free else 0
        return ready, blocked

    def _reserved(self) -> int:
        """Returns the samples that open trajectories reserve."""
        return sum(self._budget.reserved(track.size) for track in self._tracks)

    def _wanted(self, ready: int) -> int:
        """Returns the number of states to wait for, at most those that can arrive."""
        coming = sum(track.waiting is None and not track.retired for track in self._tracks)
        return min(self._bounds.min_batch_size, ready + coming)

    def _finished(self, ready: list[Track]) -> bool:
        if ready or any(track.in_flight for track in self._tracks):
            return False
        return self._budget.remaining == sum(track.size for track in self._tracks)

    def _retire_late_workers(self) -> None:
        """Moves the reserved samples of unresponsive workers to waiting ones.

        Called only while others wait: the last worker is never retired, so that sampling ends.
        """
        for track in self._tracks:
            if track.in_flight:
                track.retired = True
                self._counts.dropped_actions += 1
                self._close(track, track.drop_action(), cut=True)

    def _act(self, batch: list[Track]) -> None:
        pool = self._sampler.pool
        states = [track.waiting for track in batch if track.waiting is not None]
        actions, extras = batched_actions(self._get_actions, states, self._optimal)
        self._counts.batches += 1
        self._counts.states += len(batch)
        for i, track in enumerate(batch):
            # (i, ...) keeps a row of a vector an array [], which can be stacked.
            row = (i, ...)
            state = track.act(
                lookback_buffer.take(actions, row),
                lookback_buffer.take(extras, row) if extras else {},
            )
            pool.send_action(lookback_buffer.take(actions, i), state.worker_id, state.generation)

    def _receive(self, state: WorkerState) -> None:
        track = self._tracks[state.worker_id]
        if state.lost and track.in_flight:
            self._counts.dropped_actions += 1
        longest = self._bounds.max_trajectory_length
        if not state.last and track.in_flight and track.size == longest:
            state = state._replace(truncated=True)
            self._sampler.reset_worker(state.worker_id)
        track.receive(state, time.monotonic())
        if state.last:
            self._close(track, state.obs, cut=state.lost)

    def _close(self, track: Track, last_obs: object, cut: bool) -> None:
        if not track.size:
            return
        trajectory = track.close(last_obs, cut)
        thrown_away = self._budget.accept(trajectory, self._reserved())
        if thrown_away is None:
            self._discards.accepted()
        else:
            self._discards.add(thrown_away, self._budget.remaining)

    def _report(self) -> None:
        left = self._budget.remaining - sum(track.size for track in self._tracks)
        self._on_progress(self._bounds.total_samples - left)

    def _released(self) -> Iterator[SampledTrajectory]:
        trimmed = self._budget.trimmed
        released = self._budget.release()
        self._counts.trimmed_samples += self._budget.trimmed - trimmed
        for trajectory in released:
            self._counts.samples += len(trajectory)
            self._counts.trajectories += 1
            self._counts.episodes += not trajectory.cut
            yield trajectory
