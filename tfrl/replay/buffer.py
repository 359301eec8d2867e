"""A replay buffer in variables: time-major rings of steps and frames for each environment.

All of it is traced: `add`, `sample` and `update_priorities` may stand in any `tf.function`. A row
behind the rings takes what is masked, because a scatter cannot leave a row out; it holds zeros.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.replay import ring, stored, storing
from tfrl.replay.adding import check_given, check_trajectory, columns
from tfrl.replay.core import ReplayBuffer
from tfrl.replay.in_graph import InGraphReplay
from tfrl.replay.items import ConsecutiveItems, Items, TreeItems
from tfrl.replay.numeric import is_size
from tfrl.replay.priorities import Make
from tfrl.replay.reading import Reader
from tfrl.replay.ring import Counts
from tfrl.types import Nest, Sequences, Trajectory, Transition


class InGraphBuffer(ReplayBuffer):
    """The buffer that `InGraphReplay.init` makes.

    Attributes:
      replay: Its maker.
    """

    def __init__(self, replay: InGraphReplay, make: Make | None = None):
        """Makes the variables, empty.

        Args:
          replay: The maker.
          make: Makes a variable of zeros of a name, a shape and a dtype; by default a plain one.
        """
        make = make or _zeros
        self.replay = replay
        num_envs, steps, frames = replay.num_envs, replay.steps_per_env, replay.frames_per_env
        self._trash = (steps * num_envs, frames * num_envs)  # rows of what is masked
        step_rows, frame_rows = replay.step_packer, replay.frame_packer
        self._steps = make("steps", [self._trash[0] + 1, step_rows.width], step_rows.dtype)
        self._frames = make("frames", [self._trash[1] + 1, frame_rows.width], frame_rows.dtype)
        self._frame_of = make("frame_of", [self._trash[0] + 1], tf.int64)
        self._counts = make("counts", [len(_COUNTS), num_envs], tf.int64)
        self._items: Items
        self._items = TreeItems(replay, make) if replay.has_tree else ConsecutiveItems(replay)
        self._reader = Reader(replay, self._steps, self._frames, self._frame_of)
        # More rows at once would write some slots twice.
        self._most = min(steps, frames // (1 + replay.frame_stack))

    def variables(self) -> dict[str, tf.Variable]:
        """Returns all that changes, `{path: variable}`."""
        return {
            "steps": self._steps,
            "frames": self._frames,
            "frame_of": self._frame_of,
            "counts": self._counts,
            **self._items.variables(),
        }

    def add(self, trajectory: Trajectory) -> None:
        """Adds steps `[T, B, ...]`, which go on where the last ones stopped.

        Args:
          trajectory: T is static. Rows that are not valid are left out. With stacked frames the
            observations of an episode's further steps are taken to be their predecessors' with one
            frame more.

        Raises:
          UserError: For a leaf that is missing, or of another shape or dtype; it is named by path.
        """
        rows = columns(self.replay, trajectory)
        length = check_trajectory(self.replay, rows)
        if length <= self._most:
            self._write(rows)
            return
        for start in range(0, length, self._most):
            stop = min(start + self._most, length)
            self._write(tf.nest.map_structure(lambda x, a=start, b=stop: x[a:b], rows))

    def _write(self, rows: dict[str, Nest]) -> None:
        """Adds at most as many rows as the rings have room for."""
        replay, counts = self.replay, self._read_counts()
        valid = rows["valid"]
        ends = valid & (rows["termination"] | rows["truncation"])
        places, after = ring.place(counts, valid, ends, replay.frame_stack)
        envs = tf.range(replay.num_envs, dtype=tf.int64)
        slot = ring.slots(places.step, envs, replay.steps_per_env, replay.num_envs)
        kept = storing.if_some_are_not(valid)
        slot = tf.reshape(storing.chosen(kept, slot, self._trash[0]), [-1])
        frame_of = storing.chosen(kept, places.frame, 0)
        storing.scatter(self._frame_of, slot, tf.reshape(frame_of, [-1]))
        storing.scatter(self._steps, slot, storing.step_rows(replay, rows))
        at, frames = storing.frame_rows(replay, rows, places, self._trash[1])
        storing.scatter(self._frames, at, frames)
        # After the writes: a read before one makes XLA copy the variable.
        oldest = storing.oldest_step(replay, self._frame_of, after, valid.shape[0])
        after = after.replace(first=oldest)
        self._assign_counts(after)
        self._items.added(counts, after, places, valid, ends)

    def cut(self) -> None:
        """Says that the next steps do not go on from the last: environments were begun anew.

        Episodes that had not ended are truncated where they stopped.
        """
        counts = self._read_counts()
        after = counts.replace(age=tf.zeros_like(counts.age))
        self._assign_counts(after)
        self._items.cut(counts, after)

    def _read_counts(self) -> Counts:
        return Counts(**dict(zip(_COUNTS, tf.unstack(self._counts.read_value()), strict=True)))

    def _assign_counts(self, counts: Counts) -> None:
        self._counts.assign(tf.stack([getattr(counts, name) for name in _COUNTS]))

    def size(self) -> tf.Tensor:
        """Returns how many items can be sampled; an int64 scalar."""
        return self._items.size(self._read_counts())

    def can_sample(self, batch_size: int = 1) -> tf.Tensor:
        """Returns whether there are `batch_size` items; a bool scalar."""
        return self.size() >= batch_size

    def sample(
        self, key: tf.Tensor, batch_size: int, beta: float | tf.Tensor = 1.0
    ) -> Transition | Sequences:
        """Draws items with replacement: uniform, or by priority as in Schaul et al. 2016.

          P(i) = p_i^alpha / sum_j p_j^alpha,  w_i = (N P(i))^-beta / max_j w_j

        By priority one item is drawn out of each of N equal parts of the sum; the maximum of the
        weights is that of the batch. Source: https://arxiv.org/abs/1511.05952, section 3.

        Args:
          key: int32 [2].
          batch_size: N, static. In compiled code nobody notices that there are fewer items: guard
            it with `can_sample`.
          beta: How far the weights correct the sampling, 0 (not) to 1 (fully); uniform sampling
            has no weights.

        Returns:
          A `Transition`, or `Sequences` if the maker has a `sequence_length`.

        Raises:
          UserError: For a batch size below 1, and, outside of compiled code, for one above the
            number of items.
        """
        self._check_batch_size(batch_size)
        batch_size = int(batch_size)
        counts = self._read_counts()
        step, env, weight = self._items.draw(counts, key, batch_size, beta)
        index = step * self.replay.num_envs + env
        return self._reader.read(counts, step, env).replace(weight=weight, index=index)

    def _check_batch_size(self, batch_size: int) -> None:
        if not is_size(batch_size):
            raise UserError(
                "batch_size",
                expected="an int of at least 1",
                got=repr(batch_size),
                remedy="Give the number of items as a positive whole number.",
            )
        if tf.executing_eagerly() and not bool(self.can_sample(batch_size)):
            raise UserError(
                "batch_size",
                expected=f"at most the {int(self.size())} items that can be sampled",
                got=batch_size,
                remedy="Add more steps first (ask can_sample), or draw a smaller batch.",
            )

    def update_priorities(self, index: tf.Tensor, priorities: tf.Tensor) -> None:
        """Sets priorities of items that were sampled.

        Args:
          index: int64 [N], as sampled; items that are no longer there are left out.
          priorities: float [N], not negative, such as absolute TD errors. Of an item that occurs
            twice the highest counts; what is not finite changes nothing. Priority^alpha is kept in
            steps of 2^-24, from one step up to the greatest power of two below 2^38 / capacity.

        Raises:
          UserError: For a uniform buffer, for shapes that differ and, outside of compiled code, for
            a negative priority.
        """
        check_given(index=index, priorities=priorities)
        index, priorities = tf.convert_to_tensor(index), tf.convert_to_tensor(priorities)
        one_axis = index.shape.is_compatible_with([None])
        if not (one_axis and index.shape.is_compatible_with(priorities.shape)):
            raise UserError(
                "priorities",
                expected="index [N], as it was sampled, and one priority for each of its N items",
                got=f"index of shape {index.shape}, priorities of shape {priorities.shape}",
                remedy="Give the index of the batch and one priority for each of its items.",
            )
        if tf.executing_eagerly() and bool(tf.reduce_any(priorities < 0.0)):
            raise UserError(
                "priorities",
                expected="no negative number",
                got=f"{float(tf.reduce_min(priorities)):g}",
                remedy="Give absolute TD errors.",
            )
        self._items.update(self._read_counts(), index, priorities)

    def state_paths(self) -> set[str]:
        """Returns the paths of `state_values`."""
        return set(self.variables())

    def state_values(self) -> dict[str, Any]:
        """Returns a copy of all that changes, `{path: tensor}`."""
        return {path: v.read_value() for path, v in self.variables().items()}

    def load_values(self, values: Mapping[str, Any]) -> None:
        """Puts back what `state_values` gave, to the bit.

        Raises:
          UserError: About values of another buffer; nothing changes.
        """
        stored.assign_all(self.variables(), values)

    def save(self, folder: str) -> None:
        """Writes the buffer into a folder; one that is there is replaced when all is written."""
        stored.save(folder, self.replay, self.variables())

    def restore(self, folder: str) -> None:
        """Reads what `save` wrote.

        Raises:
          UserError: For the folder of a buffer that was made in another way, or none.
        """
        self.load_values(stored.restore(folder, self.replay))


_COUNTS = tuple(struct.paths(Counts(steps=0, frames=0, first=0, age=0)))


def _zeros(name: str, shape: list[int], dtype: tf.DType) -> tf.Variable:
    return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=f"replay/{name}")
