"""The items of a buffer and their sampling, uniform or by a priority tree."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tfrl import seeding
from tfrl.errors import UserError
from tfrl.replay import ring
from tfrl.replay.ring import Counts, Placement

if TYPE_CHECKING:
    from tfrl.replay.in_graph import InGraphReplay


Make = Callable[[str, list[int], tf.DType], tf.Variable]

# Running sums dominate sampling time, in XLA quadratic in their length: hence few children and a
# short top level.
_BRANCHES = 16
_TOP = 256
_FRACTION_BITS = 24
# All leaves together stay below 2^62.
_TOTAL_BITS = 62


class PriorityTree:
    """Priorities of `size` leaves as int64 variables.

    Attributes:
      size: Number of leaves. Leaf `size` receives masked writes and stays 0.
      variables: `{name: variable}`, `level_0` the leaves, `[nodes, 16]` each, the last `[nodes]`.
      unit: The priority 1 as an integer.
      highest: The maximum priority.
    """

    def __init__(self, size: int, make: Make):
        """Makes the variables, all priorities 0.

        Args:
          size: Leaves.
          make: Makes a zero variable from name, shape and dtype.
        """
        self.size = size
        self.unit = 1 << _FRACTION_BITS
        self.highest = 1 << (_TOTAL_BITS - math.ceil(math.log2(max(size, 2))))
        self.variables: dict[str, tf.Variable] = {}
        self._levels: list[tf.Variable] = []
        nodes = size + 1
        while nodes > _TOP:
            nodes = -(-nodes // _BRANCHES)
            self._add_level([nodes, _BRANCHES], make)
        self._add_level([nodes], make)

    def _add_level(self, shape: list[int], make: Make) -> None:
        name = f"level_{len(self._levels)}"
        self._levels.append(make(name, shape, tf.int64))
        self.variables[name] = self._levels[-1]

    def quantized(self, priority: tf.Tensor) -> tf.Tensor:
        """Returns priorities as integers from 1 to `highest`.

        Args:
          priority: Non-negative floats, with a resolution of 2^-24.
        """
        scaled = tf.round(tf.cast(priority, tf.float64) * float(self.unit))
        return tf.cast(tf.clip_by_value(scaled, 1.0, float(self.highest)), tf.int64)

    def total(self) -> tf.Tensor:
        """Returns the sum over all leaves, int64 scalar."""
        return tf.reduce_sum(self._levels[-1])

    def values(self, leaves: tf.Tensor) -> tf.Tensor:
        """Returns the priorities, int64, of leaves, int64 [M]."""
        if len(self._levels) == 1:
            return tf.gather(self._levels[0], leaves)
        nodes = tf.gather(self._levels[0], leaves // _BRANCHES)
        return tf.gather(nodes, leaves % _BRANCHES, batch_dims=1)

    def set(self, *changes: tuple[tf.Tensor, tf.Tensor]) -> None:
        """Sets priorities and the sums over them.

        Args:
          *changes: Leaves, int64 [M], and their priorities, int64 [M], 0 to exclude a leaf; applied
            in order. Within a change, a repeated leaf must have equal priorities. Leaf `size` is
            unused, with priority 0.
        """
        # All leaves before any sum: a read between two writes would make XLA copy the leaves.
        for leaves, values in changes:
            if len(self._levels) == 1:
                self._levels[0].scatter_update(tf.IndexedSlices(values, leaves))
            else:
                self._levels[0].scatter_nd_update(_nd(leaves), values)
        nodes = tf.concat([leaves for leaves, _ in changes], axis=0)
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            nodes = nodes // _BRANCHES
            sums = tf.reduce_sum(tf.gather(below, nodes), axis=1)
            if level is self._levels[-1]:
                level.scatter_update(tf.IndexedSlices(sums, nodes))
            else:
                level.scatter_nd_update(_nd(nodes), sums)

    def find(self, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds the leaf of each target in the cumulative sum of priorities.

        Args:
          targets: int64 [M], each from 0 to `total() - 1`.

        Returns:
          The leaves, int64 [M], and their priorities, int64 [M].
        """
        top = self._levels[-1].read_value()
        sums = tf.cumsum(top)
        node = tf.searchsorted(sums, targets, side="right", out_type=tf.int64)
        node = tf.minimum(node, top.shape[0] - 1)
        priority = tf.gather(top, node)
        rest = targets - tf.gather(sums, node) + priority
        for level in reversed(self._levels[:-1]):
            children = tf.gather(level, node)  # [M, 16]
            sums = tf.cumsum(children, axis=1)
            child = tf.searchsorted(sums, rest[:, tf.newaxis], side="right", out_type=tf.int64)
            child = tf.minimum(child[:, 0], _BRANCHES - 1)
            priority = tf.gather(children, child, batch_dims=1)
            rest += priority - tf.gather(sums, child, batch_dims=1)
            node = node * _BRANCHES + child
        return node, priority


def highest_of_equal(leaves: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns for each leaf the highest value among equal leaves; both int64 [M].

    With duplicate indices, a scatter may keep any value.
    """
    order = tf.argsort(leaves, stable=True)
    ordered = tf.gather(leaves, order)
    is_new = tf.concat([[False], ordered[1:] != ordered[:-1]], axis=0)
    group = tf.cumsum(tf.cast(is_new, tf.int32))  # [M]
    size = leaves.shape[0] if leaves.shape[0] is not None else tf.size(leaves)
    best = tf.math.unsorted_segment_max(tf.gather(values, order), group, size)
    return tf.gather(tf.gather(best, group), tf.argsort(order))


def _nd(leaves: tf.Tensor) -> tf.Tensor:
    return tf.stack([leaves // _BRANCHES, leaves % _BRANCHES], axis=-1)


class Items(abc.ABC):
    """The items of a buffer, identified by the number of the first step and the environment."""

    def __init__(self, replay: InGraphReplay):
        """Takes the buffer's factory."""
        self.replay = replay
        self.num_slots = replay.steps_per_env * replay.num_envs

    def variables(self) -> dict[str, tf.Variable]:
        """Returns what changes, beside the steps themselves."""
        return {}

    def begin(self) -> None:
        """Initialises the zero variables."""
        return

    @abc.abstractmethod
    def size(self, counts: Counts) -> tf.Tensor:
        """Returns how many there are; an int64 scalar."""

    @abc.abstractmethod
    def draw(
        self, counts: Counts, key: tf.Tensor, batch_size: int, beta: float | tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Returns the first steps and environments of items, int64 [N], and their weights."""

    def added(
        self,
        counts: Counts,
        after: Counts,
        places: Placement,
        valid: tf.Tensor,
        ends: tf.Tensor,
    ) -> None:
        """Updates the items for newly written steps [T, B]; no-op if the counts suffice."""
        return None  # autograph wants a body

    def cut(self, counts: Counts, after: Counts) -> None:
        """Updates the items when unfinished episodes are truncated."""
        return None

    def update(self, counts: Counts, index: tf.Tensor, priorities: tf.Tensor) -> None:
        """Sets priorities of items that are still there.

        Raises:
          UserError: If the items have no priorities.
        """
        raise UserError(
            "update_priorities",
            expected='a buffer of kind="prioritized"',
            got=f"kind={self.replay.kind!r}",
            remedy='Create it with InGraphReplay(kind="prioritized").',
        )


class ConsecutiveItems(Items):
    """Uniform n-step items: complete items are consecutive in each environment."""

    def _sizes(self, counts: Counts) -> tf.Tensor:
        return tf.maximum(ring.complete(counts, self.replay.n_step) - counts.first, 0)

    def size(self, counts: Counts) -> tf.Tensor:
        """Returns how many there are; an int64 scalar."""
        return tf.reduce_sum(self._sizes(counts))

    def draw(
        self, counts: Counts, key: tf.Tensor, batch_size: int, beta: float | tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, None]:
        """Returns the first steps and environments of items, int64 [N], and no weights."""
        sizes = self._sizes(counts)
        bits = seeding.uniform_bits(key, [batch_size], tf.int64)
        if self.replay.num_envs == 1:
            number = tf.math.floormod(bits, tf.maximum(sizes, 1))
            return counts.first + number, tf.zeros([batch_size], tf.int64), None
        through = tf.cumsum(sizes)
        number = tf.math.floormod(bits, tf.maximum(through[-1], 1))
        env = tf.searchsorted(through, number, side="right", out_type=tf.int64)
        env = tf.minimum(env, self.replay.num_envs - 1)
        return tf.gather(counts.first - through + sizes, env) + number, env, None


class TreeItems(Items):
    """Items with priorities of their first steps in a tree, all equal for uniform sampling.

    So sequences are drawn without rejection, although not every step begins one.
    """

    def __init__(self, replay: InGraphReplay, make: Make):
        """Takes the buffer's factory and a function that makes variables."""
        super().__init__(replay)
        self._tree = PriorityTree(
            self.num_slots, lambda name, *form: make(f"priorities/{name}", *form)
        )
        self._num_items = make("num_items", [], tf.int64)
        self._highest = make("highest_priority", [], tf.int64)
        self._weighted = replay.kind == "prioritized"

    def begin(self) -> None:
        """Sets the priority of the first items."""
        self._highest.assign(self._tree.unit)

    def variables(self) -> dict[str, tf.Variable]:
        """Returns what changes, beside the steps themselves."""
        result = {f"priorities/{name}": v for name, v in self._tree.variables.items()}
        return {**result, "num_items": self._num_items, "highest_priority": self._highest}

    def size(self, counts: Counts) -> tf.Tensor:
        """Returns how many there are; an int64 scalar."""
        return self._num_items.read_value()

    def added(
        self,
        counts: Counts,
        after: Counts,
        places: Placement,
        valid: tf.Tensor,
        ends: tf.Tensor,
    ) -> None:
        """Removes items that lost a step, and adds newly complete ones."""
        length = self.replay.sequence_length
        if length is None:
            ready, steps = self._now_complete(counts, after, valid.shape[0])
        else:
            ready, steps = ring.ready_sequences(places, valid, ends, length, self.replay.period)
        # Only items with a priority lose it: a write independent of the previous read makes XLA
        # copy all priorities.
        ahead = tf.range(valid.shape[0] * (1 + self.replay.frame_stack), dtype=tf.int64)
        old = counts.first + ahead[:, tf.newaxis]
        leaves = self._leaves(old, old < after.first)
        gone = self._tree.values(leaves) > 0
        forgotten = (tf.where(gone, leaves, self.num_slots), tf.zeros_like(leaves))
        admitted, count = self._admitted(after, ready, steps)
        self._tree.set(forgotten, admitted)
        self._num_items.assign_add(count - tf.math.count_nonzero(gone))

    def cut(self, counts: Counts, after: Counts) -> None:
        """Adds the items that the truncation completed."""
        length = self.replay.sequence_length
        if length is None:
            ready, steps = self._now_complete(counts, after, 0)
        else:
            ready, steps = ring.unfinished_sequences(counts, length, self.replay.period)
        admitted, count = self._admitted(after, ready, steps)
        self._tree.set(admitted)
        self._num_items.assign_add(count)

    def _now_complete(
        self, counts: Counts, after: Counts, rows: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Whether n-step items are complete after `rows` more rows, bool [M, B]; their numbers."""
        ahead = tf.range(rows + self.replay.n_step - 1, dtype=tf.int64)[:, tf.newaxis]
        steps = ring.complete(counts, self.replay.n_step) + ahead
        return steps < ring.complete(after, self.replay.n_step), steps

    def _admitted(
        self, after: Counts, ready: tf.Tensor, steps: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
        """Leaves and priorities of complete items that begin at steps [..., B]; their number."""
        ready = ready & (steps >= after.first)
        new = self._highest.read_value()
        values = tf.where(tf.reshape(ready, [-1]), new, tf.zeros_like(new))
        return (self._leaves(steps, ready), values), tf.math.count_nonzero(ready)

    def _leaves(self, steps: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
        """The leaves [M] of steps [..., B]; the unused leaf where `wanted` is False."""
        envs = tf.range(self.replay.num_envs, dtype=tf.int64)
        leaves = ring.slots(steps, envs, self.replay.steps_per_env, self.replay.num_envs)
        return tf.reshape(tf.where(wanted, leaves, self.num_slots), [-1])

    def draw(
        self, counts: Counts, key: tf.Tensor, batch_size: int, beta: float | tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Draws one item from each of N equal parts of the sum of priorities."""
        total = tf.maximum(self._tree.total(), batch_size)
        part = tf.range(batch_size, dtype=tf.int64)
        size, more = total // batch_size, total % batch_size
        bits = seeding.uniform_bits(key, [batch_size], tf.int64)
        within = tf.math.floormod(bits, tf.where(part < more, size + 1, size))
        leaf, priority = self._tree.find(part * size + tf.minimum(part, more) + within)
        leaf = tf.minimum(leaf, self.num_slots - 1)
        slot, env = leaf // self.replay.num_envs, tf.math.floormod(leaf, self.replay.num_envs)
        first = tf.gather(counts.first, env)
        step = ring.number_in_slot(slot, first, self.replay.steps_per_env)
        return step, env, _weights(priority, beta) if self._weighted else None

    def update(self, counts: Counts, index: tf.Tensor, priorities: tf.Tensor) -> None:
        """Sets finite priorities of items that still exist."""
        if not self._weighted:
            super().update(counts, index, priorities)
        index, priorities = tf.cast(index, tf.int64), tf.cast(priorities, tf.float64)
        finite = tf.math.is_finite(priorities)
        powered = tf.pow(tf.where(finite, tf.maximum(priorities, 0.0), 1.0), self.replay.alpha)
        step, env = index // self.replay.num_envs, tf.math.floormod(index, self.replay.num_envs)
        leaves = ring.slots(step, env, self.replay.steps_per_env, self.replay.num_envs)
        there = (step >= tf.gather(counts.first, env)) & (step < tf.gather(counts.steps, env))
        leaves = tf.where(there & finite, leaves, self.num_slots)
        is_item = self._tree.values(leaves) > 0  # the leaf for masked writes has none
        leaves = tf.where(is_item, leaves, self.num_slots)
        values = tf.where(is_item, self._tree.quantized(powered), tf.zeros([], tf.int64))
        self._highest.assign(tf.maximum(self._highest.read_value(), tf.reduce_max(values)))
        self._tree.set((leaves, highest_of_equal(leaves, values)))


def _weights(values: tf.Tensor, beta: float | tf.Tensor) -> tf.Tensor:
    """float32 [N]; the number of items and the sum cancel in the ratio to the highest weight."""
    least = tf.maximum(tf.reduce_min(values), 1)
    ratio = tf.cast(tf.maximum(values, 1), tf.float64) / tf.cast(least, tf.float64)
    return tf.cast(tf.pow(ratio, -tf.cast(beta, tf.float64)), tf.float32)
