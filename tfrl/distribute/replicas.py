"""Runs functions on every replica of a strategy, with one code for one device and for many.

Code that uses `Replicas` runs in the cross-replica context: it has the loops and conditions, and
`run` calls a function on every replica. With one replica, or in a replica context already (where a
whole loop is one TPU program), `run` is a plain call. This order is required: on CPUs a reduction
over replicas must not be inside a loop of the replica's function.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.traces import counted_separately

Nest = Any


class Replicas:
    """The replicas of a tf.distribute strategy.

    Attributes:
      strategy: The strategy; TensorFlow's default strategy for one device.
      num_replicas: Replicas over all workers (R).
      num_local: Replicas of this process.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None = None):
        """Takes a strategy, by default the strategy of the current scope.

        Raises:
          UserError: For anything else, such as a strategy's name.
        """
        if strategy is not None and not hasattr(strategy, "num_replicas_in_sync"):
            raise UserError(
                "strategy",
                expected="a tf.distribute.Strategy, or None",
                got=repr(strategy),
                remedy="Make it by name: tfrl.distribute.make_strategy('mirrored').",
            )
        self.strategy = strategy or tf.distribute.get_strategy()
        self.num_replicas: int = self.strategy.num_replicas_in_sync
        # TensorFlow's default strategy has no worker_devices.
        self.several = several = self.num_replicas > 1
        self._gather: Any = None
        devices = self.strategy.extended.worker_devices if several else ()
        self.num_local: int = len(devices) if several else 1
        self.num_workers = self.num_replicas // self.num_local
        on_cpu = all("CPU" in device.upper() for device in devices)
        self._adds = on_cpu and self.num_local == self.num_replicas

    def scope(self) -> Any:
        """Returns the context for the creation of variables."""
        return self.strategy.scope()

    @property
    def outside(self) -> bool:
        """Whether this is the cross-replica context of several replicas."""
        inside = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        return self.several and not inside

    def run(self, fn: Callable[..., Nest], *args: Nest) -> Nest:
        """Runs `fn(*args)` on every replica.

        Args:
          fn: A function of nests of tensors, which returns a nest.
          *args: Nests of tensors, equal for all replicas, or per-replica values.

        Returns:
          The nest that `fn` returns, each tensor a per-replica value. Leaves other than tensors are
          the first replica's.
        """
        if not self.outside:
            return fn(*args)
        arguments = tf.nest.flatten(args)
        tensors = [i for i, x in enumerate(arguments) if _is_value(x)]
        results: list[Nest] = []

        def flat(*values: tf.Tensor) -> list[tf.Tensor]:
            # A dataclass of per-replica values has no TypeSpec: passes only flat leaves.
            leaves = list(arguments)
            for i, value in zip(tensors, values, strict=True):
                leaves[i] = value
            result = fn(*tf.nest.pack_sequence_as(args, leaves))
            results.append(result)
            return [x for x in tf.nest.flatten(result) if _is_value(x)]

        outputs = iter(self.strategy.run(flat, args=tuple(arguments[i] for i in tensors)))
        leaves = [next(outputs) if _is_value(x) else x for x in tf.nest.flatten(results[0])]
        return tf.nest.pack_sequence_as(results[0], leaves)

    def run_traced(self, fn: Callable[..., Nest], *args: Nest) -> Nest:
        """`run` for calls from Python, traced: in eager mode each op would start a thread."""
        if not self.outside:
            return fn(*args)
        results: list[Nest] = []

        def flat(*leaves: Any) -> list[Any]:
            result = self.run(fn, *tf.nest.pack_sequence_as(args, leaves))
            results.append(result)
            return [x for x in tf.nest.flatten(result) if _is_value(x)]

        outputs = iter(
            tf.function(counted_separately(flat), autograph=False)(*tf.nest.flatten(args))
        )
        leaves = [next(outputs) if _is_value(x) else x for x in tf.nest.flatten(results[0])]
        return tf.nest.pack_sequence_as(results[0], leaves)

    def all_gather(self, nest: Nest) -> Nest:
        """Gathers a nest of per-replica values to tensors `[R, ...]`, from Python; traced once.

        Args:
          nest: Numbers and bools, per-replica or equal on all replicas of this process.
        """
        if not self.outside:
            return self.gather(nest)
        if self._gather is None:
            self._gather = tf.function(counted_separately(self._gather_leaves), autograph=False)
        return tf.nest.pack_sequence_as(nest, self._gather(*tf.nest.flatten(nest)))

    def _gather_leaves(self, *leaves: tf.Tensor) -> list[tf.Tensor]:
        return self.any_replica(self.run(self.gather, list(leaves)))

    def per_replica(self, nest: Nest) -> list[Nest]:
        """Splits a nest of per-replica values into one nest for each replica of this process."""
        if not self.several:
            return [nest]
        leaves = [
            self.strategy.experimental_local_results(x) if _is_value(x) else (x,) * self.num_local
            for x in tf.nest.flatten(nest)
        ]
        return [
            tf.nest.pack_sequence_as(nest, [x[i if len(x) > 1 else 0] for x in leaves])
            for i in range(self.num_local)
        ]

    def any_replica(self, nest: Nest) -> Nest:
        """Returns the first local replica's values of a nest that is equal on all replicas."""
        return self.per_replica(nest)[0] if self.outside else nest

    # Inside `run`.

    def index(self) -> tf.Tensor:
        """Returns the index of the replica among all R, int32 scalar."""
        context = tf.distribute.get_replica_context()
        if not self.several or context is None:
            return tf.constant(0)
        return tf.cast(context.replica_id_in_sync_group, tf.int32)

    def local_index(self) -> tf.Tensor:
        """Returns the index of the replica within its process, int32 scalar."""
        return self.index() % self.num_local

    def sum(self, nest: Nest) -> Nest:
        """Sums the tensors of a nest over the replicas; the result is equal on each.

        It makes one reduction for each dtype, of all its tensors together.
        """
        if not self.several:
            return nest
        leaves = tf.nest.flatten(nest)
        sums: dict[int, tf.Tensor] = {}
        for dtype in sorted({x.dtype for x in leaves}, key=lambda d: d.name):
            mine = [i for i, x in enumerate(leaves) if x.dtype == dtype]
            flat = tf.concat([tf.reshape(leaves[i], [-1]) for i in mine], 0)
            total = tf.ensure_shape(self._reduced(flat), flat.shape)
            sizes = [leaves[i].shape.num_elements() for i in mine]
            for i, part in zip(mine, tf.split(total, sizes), strict=True):
                sums[i] = tf.reshape(part, leaves[i].shape)
        return tf.nest.pack_sequence_as(nest, [sums[i] for i in range(len(leaves))])

    def _reduced(self, flat: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        if not self._adds:
            return context.all_reduce(tf.distribute.ReduceOp.SUM, flat)
        # Plain additions, in the order of the replicas. TensorFlow would use collective ops on CPUs
        # too; their keys clash if a process creates a second strategy over the same devices.
        return context.merge_call(
            lambda strategy, x: tf.add_n(strategy.experimental_local_results(x)), args=(flat,)
        )

    def gather(self, nest: Nest) -> Nest:
        """Gathers numbers and bools of all replicas, `[R, ...]`; the result is equal on each."""
        if not self.several:
            return tf.nest.map_structure(lambda x: x[tf.newaxis], nest)
        index = self.index()

        def spread(x: tf.Tensor) -> tf.Tensor:
            # Zeros except in this replica's row: the sum is exact.
            row = tf.cast(x, tf.int32) if x.dtype == tf.bool else x
            mine = tf.reshape(tf.range(self.num_replicas) == index, [-1] + [1] * x.shape.rank)
            return tf.where(mine, row[tf.newaxis], tf.zeros([], row.dtype))

        gathered = self.sum(tf.nest.map_structure(spread, nest))
        return tf.nest.map_structure(lambda x, g: tf.cast(g, x.dtype), nest, gathered)


def _is_value(x: Any) -> bool:
    return tf.is_tensor(x) or isinstance(x, tf.distribute.DistributedValues | tf.Variable)
