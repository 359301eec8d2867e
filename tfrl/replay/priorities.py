"""Sums of priorities in tensor ops: draws items in proportion to them.

A tree of sums, 16 children a node, whose top level is short enough to be summed at each draw: a
million leaves take three levels below it, where a binary tree takes twenty. Priorities are integers
(fixed-point numbers), so that sums are exact: the same draws in eager, graph and XLA, no drift, and
an item of priority 0 is never drawn.
"""

import math
from collections.abc import Callable

import tensorflow as tf

Make = Callable[[str, list[int], tf.DType], tf.Variable]

# Running sums take most of a draw's time, in XLA by the square of their length: hence few children
# and a top that is not long.
_BRANCHES = 16
_TOP = 256
_FRACTION_BITS = 24
# All leaves together stay below 2^62.
_TOTAL_BITS = 62


class PriorityTree:
    """Priorities of `size` leaves as int64 variables.

    Attributes:
      size: Leaves. Leaf number `size` is where writes that are masked go; it stays 0.
      variables: `{name: variable}`, `level_0` the leaves, `[nodes, 16]` each, the last `[nodes]`.
      unit: The priority 1 as an integer.
      highest: The greatest priority that there can be.
    """

    def __init__(self, size: int, make: Make):
        """Makes the variables, all priorities 0.

        Args:
          size: Leaves.
          make: Makes a variable of zeros of a name, a shape and a dtype.
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
          priority: Floats, not negative; steps of 2^-24 are told apart.
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
          *changes: Leaves, int64 [M], and their priorities, int64 [M], 0 for what cannot be drawn;
            one change after the other. In one of them a leaf that occurs twice must have the same
            priority. `size` is the leaf of nothing, whose priority is 0.
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
        """Finds the leaf in which each target falls when the priorities stand in a row.

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
    """Returns for each leaf the highest of the values that the same leaf has; both int64 [M].

    Of what is scattered twice to one place either might stay.
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
