"""`Sampler`: the workers of a pool between two calls, and one call of `iter_samples`."""

import time
from collections.abc import Callable, Iterator

from tfrl.envs.env_calls import RunningCall
from tfrl.envs.workers import NoState, WorkerError, WorkerPool, WorkerState
from tfrl.episodes import nests
from tfrl.errors import UserError
from tfrl.tasks.actions import GetActions, batched_actions
from tfrl.tasks.bounds import SamplingBounds
from tfrl.tasks.budget import Budget
from tfrl.tasks.counts import Discards, SamplingCounts
from tfrl.tasks.samples import SampledTrajectory
from tfrl.tasks.tracks import Track

_WAITING = RunningCall("an environment of the worker pool")


class Sampler:
    """Samples from a pool over several calls; episodes go on from one call to the next.

    A sampler resets its pool at its first call, and after an error of a worker. Give it to
    `iter_samples` in place of the pool: with the pool itself, every call begins new episodes, and
    of long episodes only the start would ever be seen.
    """

    def __init__(self, pool: WorkerPool):
        """Does nothing yet.

        Args:
          pool: The workers; nobody else may use them meanwhile.
        """
        self.pool = pool
        self.tracks = [Track(worker_id) for worker_id in range(len(pool))]
        self._generation = 0
        self._user: object = None

    def begin(self, user: object) -> None:
        """Makes `user` the one who samples; what is under way becomes no sample."""
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

    def get_state(self, user: object, timeout: float | None) -> WorkerState | NoState:
        """The pool's, for whoever samples now.

        Raises:
          UserError: Sampling has begun anew elsewhere.
          WorkerError: As of the pool; the next `begin` resets it.
        """
        if self._user is not user or self.pool.generation != self._generation:
            raise UserError(
                "iter_samples",
                expected="to be the only one who uses the pool",
                got="a pool that was reset or sampled by something else meanwhile",
                remedy="Finish one call, or drop its iterator, before the next begins.",
            )
        try:
            with _WAITING:
                return self.pool.get_state(timeout)
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
        """See `iter_samples`; `on_progress` hears of the samples so far."""
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
        """Returns the workers to act for next, none of them when the total is reached."""
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
            state = self._sampler.get_state(self, timeout)
            if isinstance(state, WorkerState):
                self._receive(state)
            elif state is NoState.IDLE and ready:
                return ready[: self._bounds.max_batch_size]
            elif state is NoState.IDLE:
                raise RuntimeError("No worker is busy, and none may act.")

    def _take_what_has_arrived(self) -> None:
        while isinstance(state := self._sampler.get_state(self, 0.0), WorkerState):
            self._receive(state)

    def _waiting(self) -> tuple[list[Track], list[Track]]:
        """Workers that wait for an action, oldest first: who may have one, and who may not."""
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
        """What the trajectories under way hold of the rest."""
        return sum(self._budget.reserved(track.size) for track in self._tracks)

    def _wanted(self, ready: int) -> int:
        """How many states are worth waiting for: no more than can come."""
        coming = sum(track.waiting is None and not track.retired for track in self._tracks)
        return min(self._bounds.min_batch_size, ready + coming)

    def _finished(self, ready: list[Track]) -> bool:
        if ready or any(track.in_flight for track in self._tracks):
            return False
        return self._budget.remaining == sum(track.size for track in self._tracks)

    def _retire_late_workers(self) -> None:
        """Gives what workers that do not answer hold to those that wait.

        Only where others wait: the last worker is never retired, so that there is an end.
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
            # Rows of vectors are numbers for the environment, but arrays [] to be stacked.
            row = (i, ...)
            state = track.act(nests.take(actions, row), nests.take(extras, row) if extras else {})
            pool.send_action(state.worker_id, nests.take(actions, i), state.generation)

    def _receive(self, state: WorkerState) -> None:
        track = self._tracks[state.worker_id]
        if state.lost and track.in_flight:
            self._counts.dropped_actions += 1
        track.receive(state, time.monotonic())
        if state.last:
            self._close(track, state.obs, cut=state.lost)
        elif track.size == self._bounds.max_trajectory_length:
            self._close(track, state.obs, cut=True)

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
