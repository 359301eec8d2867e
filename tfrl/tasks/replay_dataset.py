"""`ReplayDataset`: batches of clips of the newest samples, as a tf.data dataset."""

from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from tfrl import checks
from tfrl.episodes import lookback_buffer
from tfrl.errors import UserError
from tfrl.tasks.clips import MultiReplaySamples, clip_span
from tfrl.tasks.samples import SampledTrajectory, Samples


class ReplayDataset:
    """A bounded replay of trajectories that yields clips `[batch, clip, ...]`.

    ```python
    replay = ReplayDataset(batch_size=32, clip_size=8, rng=np.random.default_rng(seed))
    replay.add(collect_samples(pool, get_actions, total_samples=512, clip_length=8))
    for clips in replay.as_dataset().take(num_update_steps):
        update(clips)
    ```

    A batch is drawn from the present trajectories when it is read. So equal calls in equal order
    give equal batches, and the next batch sees an `add`. A dataset with `prefetch` has neither
    property, and `add` is not safe while it draws. `len` is the number of stored samples.
    """

    def __init__(
        self,
        samples: MultiReplaySamples | None = None,
        clip_size: int = 1,
        stride: int = 1,
        *,
        batch_size: int | None = None,
        only_last: bool = False,
        rng: np.random.Generator | None = None,
        replay_buffer_sample_size: int = 10_000,
    ):
        """Creates an empty replay, or uses an existing one.

        Args:
          samples: The replay to read and add to; None for a new one.
          clip_size: Samples of a clip.
          stride: Steps from one sample of a clip to the next.
          batch_size: Clips of a batch; None for single clips `[clip, ...]` instead of batches.
          only_last: Takes clips that end at a worker's newest sample.
          rng: Draws the clips of a new replay; None for a fresh generator with a seed of the
            operating system.
          replay_buffer_sample_size: Env steps that a new replay keeps; the oldest are dropped.

        Raises:
          UserError: For a number that is no positive integer, or a clip that spans more steps than
            the replay keeps.
        """
        remedy = "Pass the number of clips per batch."
        checks.at_least("batch_size", batch_size, 1, optional=True, remedy=remedy)
        self._batch_size = batch_size
        self._clip = (clip_size, stride, only_last)
        span = clip_span(clip_size, stride)
        size = replay_buffer_sample_size
        checks.at_least(
            "replay_buffer_sample_size", size, 1, remedy="Pass the number of stored steps."
        )
        if samples is not None:
            thing, kind = "samples of a ReplayDataset", MultiReplaySamples
            self.samples = checks.instance(thing, samples, kind, "MultiReplaySamples")
            return
        if replay_buffer_sample_size < span:
            raise UserError(
                "replay_buffer_sample_size",
                expected=f"at least {span} steps, the span of a clip of {clip_size} samples with "
                f"stride {stride}",
                got=str(replay_buffer_sample_size),
                remedy="Raise it, or use shorter clips.",
            )
        self.samples = MultiReplaySamples(rng=rng, max_samples=replay_buffer_sample_size)

    def __len__(self) -> int:
        return len(self.samples)

    def add(self, trajectories: SampledTrajectory | Iterable[SampledTrajectory]) -> None:
        """Stores trajectories, oldest first.

        Args:
          trajectories: One or several.

        Raises:
          UserError: Leaves, shapes or dtypes differ from earlier trajectories.
        """
        if isinstance(trajectories, SampledTrajectory):
            trajectories = [trajectories]
        for trajectory in trajectories:
            self.samples.add(trajectory)

    def clear(self) -> None:
        """Removes all trajectories."""
        self.samples.clear()

    def draw(self) -> Samples:
        """Returns one batch as NumPy arrays `[batch, clip, ...]`; `last_obs` is `[batch, ...]`.

        Without a `batch_size` there is no batch axis.

        Raises:
          UserError: No stored trajectory is long enough.
        """
        if self._batch_size is None:
            return self.samples.sample(*self._clip)
        return self.samples.sample_batch(self._batch_size, *self._clip)

    def as_dataset(self) -> tf.data.Dataset:
        """Returns an infinite dataset of batches as from `draw`, as tensors.

        Raises:
          UserError: No stored trajectory is long enough. (If that happens later, the iterator
            raises tf.errors.InvalidArgumentError with the same message.)
        """
        clip_size, stride, _ = self._clip
        self.samples.check_clip(clip_size, stride)
        spec = self._batch_spec(next(iter(self.samples.workers.values())).oldest)

        def batches() -> Iterator[tuple[np.ndarray, ...]]:
            while True:
                yield tuple(tf.nest.flatten(self.draw()))

        # from_generator supports only tuples and dicts.
        leaves = tf.data.Dataset.from_generator(
            batches, output_signature=tuple(tf.nest.flatten(spec))
        )
        batches_of_clips = leaves.map(lambda *leaves: tf.nest.pack_sequence_as(spec, leaves))
        # tf.data would otherwise draw ahead of `add`, in another thread.
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        return batches_of_clips.with_options(options)

    def __iter__(self) -> Iterator[Samples]:
        return iter(self.as_dataset())

    def _batch_spec(self, trajectory: SampledTrajectory) -> Samples:
        clip = trajectory.clip(0, 1)
        batch = [] if self._batch_size is None else [self._batch_size]

        def timed(x: np.ndarray) -> tf.TensorSpec:
            return tf.TensorSpec([*batch, self._clip[0], *x.shape[1:]], x.dtype)

        spec = lookback_buffer.map_leaves(timed, clip)
        last = lookback_buffer.map_leaves(
            lambda x: tf.TensorSpec([*batch, *np.shape(x)], x.dtype), clip.last_obs
        )
        return spec.replace(last_obs=last)
