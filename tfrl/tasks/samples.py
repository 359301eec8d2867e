"""`Samples`: consecutive samples of one episode, as a trajectory or a clip."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfrl import struct
from tfrl.envs.workers import WorkerState
from tfrl.episodes import lookback_buffer
from tfrl.errors import UserError

Nest = Any
# States [N, ...] and `optimal` to actions [N, ...], or to a pair of actions and extras.
GetActions = Callable[[Nest, bool], Any]


@struct.dataclass
class Samples(struct.Struct):
    """Samples t = 0 .. T-1 of one episode, arrays `[T, ...]`; batches have more axes in front.

    Sample t has the observation s_t, the action a_t, its reward, and whether the episode ended with
    it. Only the last sample can end an episode.

    Attributes:
      obs: s_t, a nest.
      action: a_t, a nest.
      reward: r_t of that action, float32 `[T]`.
      termination: bool `[T]`; the task ended the episode at this step.
      truncation: bool `[T]`; the episode or the trajectory was cut after this step: bootstrap from
        `last_obs`.
      last_obs: The observation after the last sample, s_T, a nest without the time axis; the
        terminal observation if the episode ended.
      extras: The extras of `get_actions` and of hooks, a dict `[T, ...]`.
    """

    obs: Nest
    action: Nest
    reward: Any
    termination: Any
    truncation: Any
    last_obs: Nest
    extras: dict[str, Any]

    def __len__(self) -> int:
        return len(self.reward)

    def clip(self, start: int, size: int, stride: int = 1) -> "Samples":
        """Returns samples start, start + stride, ... as views of the arrays.

        Args:
          start: The first sample.
          size: The number of samples.
          stride: Steps from one sample to the next. Skipped steps and their rewards are left out.

        Returns:
          `size` samples; `last_obs` is the observation one step after the last.
        """
        after = start + (size - 1) * stride + 1
        steps = slice(start, after, stride)
        end = after == len(self)
        return Samples(
            **{name: lookback_buffer.take(getattr(self, name), steps) for name in TIMED},
            last_obs=self.last_obs if end else lookback_buffer.take(self.obs, (after, ...)),
            extras=lookback_buffer.take(self.extras, steps),
        )


# The fields of `Samples` with a time axis that are never empty.
TIMED = ("obs", "action", "reward", "termination", "truncation")


@struct.dataclass
class SampledTrajectory(Samples):
    """Consecutive samples of one worker, without a gap.

    Attributes:
      worker_id: The worker.
      episode: The number of the episode among the worker's.
      start: The number of the episode's steps before sample 0.
      cut: Whether it ends because sampling stopped or the worker was lost, and not because the
        environment ended its episode.
    """

    worker_id: int = struct.field(static=True)
    episode: int = struct.field(static=True)
    start: int = struct.field(static=True)
    cut: bool = struct.field(static=True)

    def newest(self, size: int) -> "SampledTrajectory":
        """Returns the last `size` samples; the end stays the same."""
        dropped = len(self) - size
        kept = self.clip(dropped, size)
        fields = {name: getattr(kept, name) for name in (*TIMED, "extras")}
        return self.replace(**fields, start=self.start + dropped)


def signature(samples: Samples) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Returns `{path: (shape of one sample's leaf, dtype)}`."""
    leaves = {}
    for name in (*TIMED, "extras", "last_obs"):
        axes = int(name != "last_obs")
        for path, (shape, dtype) in lookback_buffer.signature(getattr(samples, name)).items():
            leaf = name if path == "." else f"{name}/{path}"
            leaves[leaf] = shape[axes:], dtype
    return leaves


class Track:
    """The samples of one worker since its last trajectory was closed.

    Attributes:
      worker_id: The worker.
      waiting: Its state that has no action yet, or None.
      since: When that state arrived, in seconds of time.monotonic.
      retired: Whether it gets no more actions in this call, because others waited for it.
    """

    def __init__(self, worker_id: int):
        """Starts without a state."""
        self.worker_id = worker_id
        self.waiting: WorkerState | None = None
        self.since = 0.0
        self.retired = False
        self.clear()

    def clear(self) -> None:
        """Drops the samples; a pending result will not become a sample."""
        self._episode = self._start = -1
        self._taken: list[tuple[Nest, Nest, Nest]] = []
        self._results: list[tuple[float, bool, bool]] = []

    @property
    def in_flight(self) -> bool:
        """Whether the result of an action is pending."""
        return len(self._taken) > len(self._results)

    @property
    def size(self) -> int:
        """The number of samples, with a pending one."""
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
        """Takes a state of the worker: the result of its action, or the start of a trajectory."""
        if self.in_flight:
            if state.lost:
                self._taken.pop()
            else:
                self._results.append((state.reward, state.terminated, state.truncated))
        self.waiting = None if state.last else state
        self.since = now

    def drop_action(self) -> Nest:
        """Drops the pending action; returns its observation.

        A state that arrives later can only start the next trajectory.
        """
        obs, _, _ = self._taken.pop()
        return obs

    def close(self, last_obs: Nest, cut: bool) -> SampledTrajectory:
        """Returns the samples as a trajectory and clears the track.

        Args:
          last_obs: The observation after the last sample.
          cut: Whether the environment's episode continues; the last sample is then marked as
            truncated.
        """
        obs, action, extras = zip(*self._taken, strict=True)
        reward, termination, truncation = zip(*self._results, strict=True)
        truncation = (*truncation[:-1], truncation[-1] or cut)
        trajectory = SampledTrajectory(
            obs=lookback_buffer.stack(obs),
            action=lookback_buffer.stack(action),
            reward=np.array(reward, np.float32),
            termination=np.array(termination, bool),
            truncation=np.array(truncation, bool),
            last_obs=last_obs,
            extras=lookback_buffer.stack(extras),
            worker_id=self.worker_id,
            episode=self._episode,
            start=self._start,
            cut=cut,
        )
        self.clear()
        return trajectory


def batched_actions(
    get_actions: GetActions,
    states: Sequence[WorkerState],
    optimal: bool,
) -> tuple[Nest, dict[str, Any]]:
    """Calls `get_actions` with the stacked observations.

    Args:
      get_actions: See `iter_samples`.
      states: N states.
      optimal: Passed to `get_actions`.

    Returns:
      Actions and extras, nests of arrays `[N, ...]`.

    Raises:
      UserError: For outputs without the leading axis N.
    """
    result = get_actions(lookback_buffer.stack([state.obs for state in states]), optimal)
    extras: dict[str, Any] = {}
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        result, extras = result
    if extras:
        extras = _checked(extras, "extras", len(states))
    return _checked(result, "action", len(states)), extras


def _checked(value: Nest, name: str, count: int) -> Nest:
    thing = f"{name} of get_actions"
    value = lookback_buffer.as_arrays(value, thing)
    rows = lookback_buffer.num_items(value, thing)
    if rows != count:
        raise UserError(
            thing,
            expected=f"arrays [{count}, ...], one row per state",
            got=f"[{rows}, ...]",
            remedy="Return one action per state, in the order of the states.",
        )
    return value
