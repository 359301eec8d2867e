"""Replay under a strategy: every replica has its own buffer on its device."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfrl import checks, seeding
from tfrl.distribute import Replicas
from tfrl.errors import UserError
from tfrl.replay import in_graph
from tfrl.replay.core import ReplayBuffer
from tfrl.replay.in_graph import InGraphBuffer, InGraphReplay
from tfrl.replay.items import Make
from tfrl.types import Nest, Sequences, Trajectory, Transition


class ReplicatedBuffer(ReplayBuffer):
    """The buffers of the replicas of a strategy, each with its share of capacity and environments.

    Outside the replicas, methods take and return per-replica values, and sizes are totals. Inside a
    replica's function they refer to its own buffer.

    Attributes:
      replay: The factory; its sizes are global.
      replicas: The strategy's.
    """

    def __init__(
        self,
        replay: InGraphReplay,
        replicas: Replicas | None = None,
        variables: Mapping[str, tf.Variable] | None = None,
    ):
        """Makes the variables of the replicas of this process, in the scope of a strategy.

        Args:
          replay: The factory.
          replicas: The strategy's replicas; by default of the current strategy.
          variables: The `variables` of another buffer, to share them; None for new ones.

        Raises:
          UserError: If the replicas do not divide the environments.
        """
        self.replay, self.replicas = replay, replicas or Replicas()
        count = self.replicas.num_replicas
        if replay.num_envs % count:
            raise UserError(
                "InGraphReplay.num_envs",
                expected=f"a multiple of the {count} replicas, which share the environments",
                got=replay.num_envs,
                remedy=f"The nearest above is {-(-replay.num_envs // count) * count}.",
            )
        own = replay.replace(capacity=replay.capacity // count, num_envs=replay.num_envs // count)
        buffers: dict[str, Any] = {}

        def make_on(replica: int) -> Make:
            def make(name: str, shape: list[int], dtype: tf.DType) -> tf.Variable:
                if name not in buffers:
                    buffers[name] = _on_every_replica(name, shape, dtype)
                return buffers[name].values[replica]

            return make

        def of_replica(replica: int) -> dict[str, tf.Variable] | None:
            if variables is None:
                return None
            own = f"{replica}/"
            return {p.removeprefix(own): v for p, v in variables.items() if p.startswith(own)}

        with self.replicas.scope():
            self._own = [
                InGraphBuffer(own, make_on(i), of_replica(i))
                for i in range(self.replicas.num_local)
            ]

    def local(self) -> InGraphBuffer:
        """Returns the buffer of the current replica, inside a replica's function.

        Raises:
          UserError: On a TPU, where all replicas share one trace.
        """
        context = tf.distribute.get_replica_context()
        number = tf.get_static_value(context.replica_id_in_sync_group)
        if number is None:
            raise UserError(
                "InGraphReplay",
                expected="a strategy that traces each replica separately, such as MirroredStrategy",
                got=type(self.replicas.strategy).__name__,
                remedy="Use a replay buffer on the host with this strategy.",
            )
        return self._own[int(number) % self.replicas.num_local]

    def _run(self, fn: Callable[..., Nest], *args: Nest) -> Nest:
        return self.replicas.run(fn, *args)

    def _share(self, batch_size: int) -> int:
        """The rows of one replica: `batch_size` inside a replica, its share outside."""
        count = self.replicas.num_replicas if self.replicas.outside else 1
        if checks.at_least("batch_size", batch_size, 1) % count:
            below = batch_size // count * count
            near = [str(n) for n in (below, below + count) if n]
            raise UserError(
                "batch_size",
                expected=f"a multiple of the {count} replicas, which share it evenly",
                got=batch_size,
                remedy=f"The nearest are {' and '.join(near)}.",
            )
        return batch_size // count

    def add(self, trajectory: Trajectory) -> None:
        """Adds per-replica steps `[T, B / R, ...]`, each to the buffer of its replica."""
        self._run(lambda rows: self.local().add(rows), trajectory)

    def cut(self) -> None:
        """Declares that all environments were restarted."""
        self._run(lambda: self.local().cut())

    def sample(
        self, key: tf.Tensor, batch_size: int, beta: float | tf.Tensor = 1.0
    ) -> Transition | Sequences:
        """Draws `batch_size / R` items on every replica, from its own buffer.

        Importance weights are divided by the maximum of the replica's rows.

        Args:
          key: int32 [2], equal on all; every replica folds in its index.
          batch_size: N over all replicas; inside a replica's function, its own rows.
          beta: As for one buffer.

        Returns:
          The items, leaves per-replica `[N / R, ...]`.
        """
        share = self._share(batch_size)

        def draw(key: tf.Tensor, beta: tf.Tensor) -> Transition | Sequences:
            own = seeding.fold_in(key, self.replicas.index())
            return self.local().sample(own, share, beta)

        return self._run(draw, key, tf.convert_to_tensor(beta, tf.float32))

    def update_priorities(self, index: tf.Tensor, priorities: tf.Tensor) -> None:
        """Sets priorities of per-replica items, each in its own buffer."""
        self._run(lambda i, p: self.local().update_priorities(i, p), index, priorities)

    def can_sample(self, batch_size: int = 1) -> tf.Tensor:
        """Returns whether every replica has its share of `batch_size` items; a bool scalar."""
        share = -(-batch_size // self.replicas.num_replicas)
        if not self.replicas.outside:
            return self.local().can_sample(batch_size)
        return self._sum(lambda: tf.cast(self.local().size() < share, tf.int64)) == 0

    def size(self) -> tf.Tensor:
        """Returns the number of items on all replicas; an int64 scalar."""
        if not self.replicas.outside:
            return self.local().size()
        return self._sum(lambda: self.local().size())

    def _sum(self, fn: Callable[[], tf.Tensor]) -> tf.Tensor:
        return self.replicas.any_replica(self._run(lambda: self.replicas.sum([fn()])))[0]

    def state_paths(self) -> set[str]:
        """Returns the paths of `state_values`."""
        return set(self.variables())

    def state_values(self) -> dict[str, Any]:
        """Returns a copy of the state; paths begin with the replica's index."""
        return {path: v.read_value() for path, v in self.variables().items()}

    def variables(self) -> dict[str, tf.Variable]:
        """Returns the state's variables; paths begin with the replica's index."""
        return {
            f"{i}/{p}": v for i, own in enumerate(self._own) for p, v in own.variables().items()
        }

    def load_values(self, values: Mapping[str, Any]) -> None:
        """Restores the result of `state_values`, to the bit.

        Raises:
          UserError: For values of another buffer, or of another number of replicas.
        """
        in_graph.assign_all(self.variables(), values)

    def save(self, folder: str) -> None:
        """Writes the buffers of this process into a folder."""
        in_graph.save_values(folder, self.replay, self.variables())

    def restore(self, folder: str) -> None:
        """Reads what `save` wrote with the same number of replicas."""
        self.load_values(in_graph.read_values(folder, self.replay))


def _on_every_replica(name: str, shape: list[int], dtype: tf.DType) -> Any:
    """One plain variable on the device of each replica, never synchronised."""
    return tf.Variable(
        tf.zeros(shape, dtype),
        trainable=False,
        name=f"replay/{name}",
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
