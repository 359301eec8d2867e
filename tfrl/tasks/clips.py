"""Replay of trajectories that samples clips: of one worker, or of several with one capacity."""

import io
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfrl import checks
from tfrl.episodes import lookback_buffer
from tfrl.errors import UserError
from tfrl.tasks.samples import TIMED, SampledTrajectory, Samples, signature

_STATIC = ("worker_id", "episode", "start", "cut")


def clip_span(clip_size: int, stride: int = 1) -> int:
    """Returns the steps of an episode that a clip spans: `(clip_size - 1) * stride + 1`.

    Args:
      clip_size: Samples of a clip.
      stride: Steps from one sample of a clip to the next.

    Raises:
      UserError: Unless both are positive integers.
    """
    checks.at_least("clip_size", clip_size, 1, remedy="Pass the number of samples per clip.")
    checks.at_least("stride", stride, 1, remedy="Pass the number of steps between samples.")
    return (clip_size - 1) * stride + 1


def check_clip_fits(clip_size: int, stride: int, lengths: np.ndarray) -> None:
    """Raises a UserError if no trajectory is long enough for a clip."""
    span = clip_span(clip_size, stride)
    if not len(lengths) or lengths.max() < span:
        longest = (
            f"a longest trajectory of {lengths.max()} samples" if len(lengths) else "no trajectory"
        )
        raise UserError(
            f"clip of {clip_size} samples with stride {stride}",
            expected=f"a trajectory of at least {span} samples",
            got=longest,
            remedy=f"Sample with clip_length={span}, or use shorter clips.",
        )


def check_generator(rng: Any) -> np.random.Generator:
    """Returns the generator, a fresh one for None; raises a UserError for others, e.g. a seed."""
    if rng is None:
        return np.random.default_rng()
    kind = np.random.Generator
    remedy = "Pass numpy.random.default_rng(seed)."
    return checks.instance("rng of the clips", rng, kind, "a numpy.random.Generator", remedy=remedy)


def to_bytes(trajectories: Sequence[SampledTrajectory]) -> np.ndarray:
    """Returns trajectories as uint8 `[N]`, in the format of `numpy.savez` without pickle."""
    if not trajectories:
        return np.zeros([0], np.uint8)
    leaves = [tf.nest.flatten(_nest(t)) for t in trajectories]
    last = [tf.nest.flatten(t.last_obs) for t in trajectories]
    static = [[int(getattr(t, name)) for name in _STATIC] for t in trajectories]
    arrays: dict[str, np.ndarray] = {
        "static": np.array(static, np.int64),
        "lengths": np.array([len(t) for t in trajectories], np.int64),
    }
    arrays.update(
        {f"timed_{i}": np.concatenate(x) for i, x in enumerate(zip(*leaves, strict=True))}
    )
    arrays.update({f"last_{i}": np.stack(x) for i, x in enumerate(zip(*last, strict=True))})
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return np.frombuffer(stream.getvalue(), np.uint8)


def from_bytes(data: np.ndarray, like: SampledTrajectory) -> list[SampledTrajectory]:
    """Returns the trajectories of `to_bytes`.

    Args:
      data: uint8 `[N]`.
      like: A trajectory of the same task, for the structure of its nests.
    """
    if not data.size:
        return []
    with np.load(io.BytesIO(data.tobytes()), allow_pickle=False) as file:
        arrays = dict(file)
    lengths = arrays["lengths"]
    structure = _nest(like)
    timed = [arrays[f"timed_{i}"] for i in range(len(tf.nest.flatten(structure)))]
    last = [arrays[f"last_{i}"] for i in range(len(tf.nest.flatten(like.last_obs)))]
    clips = []
    for row, end in enumerate(np.cumsum(lengths)):
        steps = slice(end - lengths[row], end)
        static = dict(zip(_STATIC, arrays["static"][row].tolist(), strict=True))
        fields: dict[str, Any] = tf.nest.pack_sequence_as(structure, [x[steps] for x in timed])
        last_obs = tf.nest.pack_sequence_as(like.last_obs, [x[row] for x in last])
        static["cut"] = bool(static["cut"])
        clips.append(SampledTrajectory(**fields, **static, last_obs=last_obs))
    return clips


def _nest(trajectory: Samples) -> dict[str, Any]:
    """Returns the leaves with a time axis."""
    return {name: getattr(trajectory, name) for name in (*TIMED, "extras")}


class Stored(NamedTuple):
    """A trajectory with its leaves flattened once, since flattening for every clip is slow."""

    trajectory: SampledTrajectory
    timed: list[np.ndarray]
    obs: list[np.ndarray]
    last_obs: list[np.ndarray]

    @classmethod
    def of(cls, trajectory: SampledTrajectory) -> "Stored":
        """Flattens a trajectory."""
        return cls(
            trajectory,
            tf.nest.flatten(_nest(trajectory)),
            tf.nest.flatten(trajectory.obs),
            tf.nest.flatten(trajectory.last_obs),
        )


class Place(NamedTuple):
    """The start of a clip."""

    stored: Stored
    start: int


def gather(places: Sequence[Place], size: int, stride: int) -> Samples:
    """Returns the clips at N places, stacked.

    Args:
      places: N starts, in trajectories with the same leaves.
      size: Samples of a clip, n.
      stride: Steps from one sample to the next.

    Returns:
      Samples `[N, n, ...]`; `last_obs` `[N, ...]` is one step after the last sample of each clip.
    """
    span = (size - 1) * stride + 1
    first = places[0].stored
    timed = [
        np.stack([p.stored.timed[leaf][p.start : p.start + span : stride] for p in places])
        for leaf in range(len(first.timed))
    ]
    last_obs = [
        np.stack([_observation_at(p.stored, leaf, p.start + span) for p in places])
        for leaf in range(len(first.last_obs))
    ]
    trajectory = first.trajectory
    return Samples(
        **tf.nest.pack_sequence_as(_nest(trajectory), timed),
        last_obs=tf.nest.pack_sequence_as(trajectory.last_obs, last_obs),
    )


def _observation_at(stored: Stored, leaf: int, step: int) -> np.ndarray:
    if step == len(stored.trajectory):
        return stored.last_obs[leaf]
    return stored.obs[leaf][step]


class ReplaySamples:
    """The trajectories of one worker, oldest first. `len` is the number of their samples.

    A clip is `clip_size` samples of one trajectory, `stride` steps apart, so none crosses the end
    of an episode. Trajectories that are too short for a clip are skipped.
    """

    def __init__(
        self,
        trajectories: SampledTrajectory | Iterable[SampledTrajectory] = (),
        *,
        rng: np.random.Generator | None = None,
    ):
        """Stores trajectories.

        Args:
          trajectories: One or several, oldest first.
          rng: Draws the clips and nothing else, so that equal calls give equal clips. None for a
            fresh generator with a seed of the operating system.
        """
        self._rng = check_generator(rng)
        if isinstance(trajectories, SampledTrajectory):
            trajectories = [trajectories]
        self._stored: deque[Stored] = deque(map(Stored.of, trajectories))
        self._lengths: np.ndarray | None = None
        self._places: dict[int, np.ndarray] = {}

    @property
    def trajectories(self) -> list[SampledTrajectory]:
        """The stored trajectories, oldest first."""
        return [stored.trajectory for stored in self._stored]

    @property
    def oldest(self) -> SampledTrajectory:
        """The oldest trajectory."""
        return self._stored[0].trajectory

    def __len__(self) -> int:
        return int(self._all_lengths().sum())

    def add(self, trajectory: SampledTrajectory) -> None:
        """Appends the newest trajectory."""
        self._stored.append(Stored.of(trajectory))
        self._forget_lengths()

    def pop_oldest(self) -> SampledTrajectory:
        """Removes the oldest trajectory and returns it."""
        self._forget_lengths()
        return self._stored.popleft().trajectory

    def shorten_oldest(self, samples: int) -> None:
        """Removes the oldest `samples` of the oldest trajectory, which must have more."""
        self._forget_lengths()
        self._stored[0] = Stored.of(self.oldest.newest(len(self.oldest) - samples))

    def usable(self, span: int) -> int:
        """Returns the number of samples in trajectories that are long enough for a clip.

        Args:
          span: See `clip_span`.
        """
        lengths = self._all_lengths()
        return int(lengths[lengths >= span].sum())

    def sample(self, clip_size: int, stride: int = 1, only_last: bool = False) -> Samples:
        """Draws a clip, uniformly among all possible starts.

        Args:
          clip_size: Samples of the clip, n.
          stride: Steps from one sample to the next. Samples are returned as stored: the rewards of
            skipped steps are not added, and `last_obs` comes one step after the last sample.
          only_last: Returns the clip that ends at the newest sample (of the newest trajectory that
            is long enough), without a draw.

        Returns:
          Samples `[n, ...]`, copied.

        Raises:
          UserError: If size or stride is no positive integer, or no trajectory is long enough.
        """
        place = self.place(clip_size, stride, only_last)
        return lookback_buffer.take(gather([place], clip_size, stride), 0)

    def place(self, clip_size: int, stride: int, only_last: bool) -> Place:
        """Draws the start of a clip; see `sample`."""
        span = clip_span(clip_size, stride)
        lengths = self._all_lengths()
        check_clip_fits(clip_size, stride, lengths)
        if only_last:
            chosen = int(np.flatnonzero(lengths >= span)[-1])
            return Place(self._stored[chosen], int(lengths[chosen]) - span)
        if span not in self._places:
            self._places[span] = np.cumsum(np.maximum(0, lengths - span + 1))
        ends = self._places[span]
        place = int(self._rng.integers(ends[-1]))
        chosen = int(np.searchsorted(ends, place, side="right"))
        return Place(self._stored[chosen], place - (int(ends[chosen - 1]) if chosen else 0))

    def _all_lengths(self) -> np.ndarray:
        if self._lengths is None:
            self._lengths = np.array([len(s.trajectory) for s in self._stored], np.int64)
        return self._lengths

    def _forget_lengths(self) -> None:
        self._lengths = None
        self._places.clear()


class MultiReplaySamples:
    """The trajectories of several workers; the oldest samples are dropped first.

    `len` is the number of samples. A clip is drawn from one worker's `ReplaySamples`, chosen in
    proportion to its samples in trajectories that are long enough.
    """

    def __init__(
        self,
        trajectories: Iterable[SampledTrajectory | ReplaySamples] = (),
        *,
        rng: np.random.Generator | None = None,
        max_samples: int | None = None,
    ):
        """Stores trajectories.

        Args:
          trajectories: Trajectories of any workers, oldest first, or whole `ReplaySamples`.
          rng: Draws workers and clips; a fresh generator if None.
          max_samples: The number of samples to keep; None for all.

        Raises:
          UserError: If `max_samples` is no positive integer; see also `add`.
        """
        if max_samples is not None:
            checks.at_least(
                "max_samples", max_samples, 1, remedy="Pass the number of stored samples."
            )
        self._rng = check_generator(rng)
        self._max_samples = max_samples
        self._workers: dict[int, ReplaySamples] = {}
        self._order: deque[int] = deque()  # each trajectory's worker, oldest first
        self._size = 0
        self._signature: dict[str, Any] | None = None
        for item in trajectories:
            for trajectory in item.trajectories if isinstance(item, ReplaySamples) else [item]:
                self.add(trajectory)

    @property
    def workers(self) -> dict[int, ReplaySamples]:
        """The stored trajectories by worker."""
        return {worker_id: self._workers[worker_id] for worker_id in sorted(self._workers)}

    def __len__(self) -> int:
        return self._size

    def add(self, trajectory: SampledTrajectory) -> None:
        """Stores a trajectory; drops the oldest samples beyond `max_samples`.

        A trajectory that loses samples is shortened at its start.

        Raises:
          UserError: Its leaves, shapes or dtypes differ from earlier trajectories.
        """
        self._check_signature(trajectory)
        if self._max_samples is not None:
            if len(trajectory) > self._max_samples:
                trajectory = trajectory.newest(self._max_samples)
            self._drop_oldest(self._size + len(trajectory) - self._max_samples)
        worker_id = trajectory.worker_id
        if worker_id not in self._workers:
            self._workers[worker_id] = ReplaySamples(rng=self._rng)
        self._workers[worker_id].add(trajectory)
        self._order.append(worker_id)
        self._size += len(trajectory)

    def clear(self) -> None:
        """Removes all trajectories; later ones must still have the same leaves."""
        self._workers.clear()
        self._order.clear()
        self._size = 0

    def in_order(self) -> list[SampledTrajectory]:
        """Returns the trajectories of all workers, oldest first."""
        rest = {worker_id: iter(w.trajectories) for worker_id, w in self._workers.items()}
        return [next(rest[worker_id]) for worker_id in self._order]

    def sample(self, clip_size: int, stride: int = 1, only_last: bool = False) -> Samples:
        """Draws a clip of one worker; see `ReplaySamples.sample`.

        Args:
          clip_size: Samples of the clip, n.
          stride: Steps from one sample to the next.
          only_last: Returns the clip that ends at the newest sample of the drawn worker.

        Returns:
          Samples `[n, ...]`.

        Raises:
          UserError: See `ReplaySamples.sample`.
        """
        return lookback_buffer.take(self.sample_batch(1, clip_size, stride, only_last), 0)

    def sample_batch(
        self, batch_size: int, clip_size: int, stride: int = 1, only_last: bool = False
    ) -> Samples:
        """Draws clips like `sample`, one after the other, and stacks them.

        Args:
          batch_size: The number of clips, N.
          clip_size: Samples of a clip, n.
          stride: Steps from one sample to the next.
          only_last: See `sample`.

        Returns:
          Samples `[N, n, ...]`; `last_obs` is `[N, ...]`.

        Raises:
          UserError: See `sample`; also if `batch_size` is no positive integer.
        """
        checks.at_least("batch_size", batch_size, 1, remedy="Pass the number of clips per batch.")
        span = clip_span(clip_size, stride)
        workers = list(self.workers.values())
        ends = np.cumsum([worker.usable(span) for worker in workers], dtype=np.int64)
        if not len(ends) or not ends[-1]:
            self.check_clip(clip_size, stride)
        places = []
        for _ in range(batch_size):
            sample = int(self._rng.integers(ends[-1]))
            worker = workers[int(np.searchsorted(ends, sample, side="right"))]
            places.append(worker.place(clip_size, stride, only_last))
        return gather(places, clip_size, stride)

    def check_clip(self, clip_size: int, stride: int = 1) -> None:
        """Raises a UserError if no trajectory is long enough for a clip."""
        lengths = [len(t) for worker in self._workers.values() for t in worker.trajectories]
        check_clip_fits(clip_size, stride, np.array(lengths, np.int64))

    def _drop_oldest(self, excess: int) -> None:
        while excess > 0:
            worker_id = self._order[0]
            worker = self._workers[worker_id]
            length = len(worker.oldest)
            if length > excess:
                worker.shorten_oldest(excess)
                self._size -= excess
                return
            self._order.popleft()
            worker.pop_oldest()
            self._size -= length
            excess -= length
            if not len(worker):
                del self._workers[worker_id]

    def _check_signature(self, trajectory: SampledTrajectory) -> None:
        own = signature(trajectory)
        known = self._signature = self._signature or own
        for path in [*known, *own]:
            if known.get(path) != own.get(path):
                raise UserError(
                    f"{path} of a trajectory",
                    expected=f"{_leaf(known.get(path))}, as in earlier trajectories",
                    got=_leaf(own.get(path)),
                    remedy="Use the same leaves, shapes and dtypes in all trajectories, also for "
                    "leaves added by hooks.",
                )


def _leaf(leaf: Any) -> str:
    return "no leaf" if leaf is None else f"{leaf[1].name} {list(leaf[0])}"
