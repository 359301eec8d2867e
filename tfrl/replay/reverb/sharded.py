"""A replay buffer over several Reverb servers."""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf

from tfrl.errors import UserError
from tfrl.replay.core import ReplayBuffer
from tfrl.replay.reverb import checkpoints
from tfrl.replay.reverb.buffer import ReverbBuffer, distribute
from tfrl.replay.reverb.cancellable_call import Callers, leave_behind
from tfrl.types import Trajectory

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay

T = TypeVar("T")

# Seconds between two looks for errors and signals, while servers take items.
_LOOK_SECONDS = 0.1


def goes_by_step(replay: "ReverbReplay") -> bool:
    """Whether each step may go to another server than the last one: packed items have one step."""
    return bool(replay.packed) and all(config.n_step == 1 for config in replay.table_configs)


class ShardedBuffer(ReplayBuffer):
    """Several buffers of equal tables, each on a separate server, used as one.

    Each environment's packed one-step items go to the servers in turn. Other items of an
    environment go to one server, so that all servers grow alike; if the servers do not divide the
    environments, its next episode goes to the next server. A batch has equally many items of each
    server, sorted by server, so that `update_priorities` finds the server of an item. Importance
    weights are computed for each server separately.

    Attributes:
      replay: The factory of the whole buffer.
      shards: The `ReverbBuffer`s.
      on_wait: See `ReverbBuffer`.
    """

    def __init__(self, replay: "ReverbReplay"):
        """Connects to all servers; see `ReverbReplay.init`."""
        self.replay = replay
        self._callers = Callers()
        self.shards: list[ReverbBuffer] = []
        one = replay.of_one_server
        try:
            for address in replay.addresses:
                self.shards.append(ReverbBuffer(one.replace(address=address)))
        except BaseException:
            self._each(ReverbBuffer.close)
            raise
        self.connection = Connections([shard.connection for shard in self.shards])
        self._by_step = goes_by_step(self.shards[0].replay)
        # If servers grew at different rates, a writer could wait until the learner samples from the
        # largest, and the learner until the smallest grows.
        self._by_episode = not self._by_step and replay.num_envs % len(self.shards) != 0
        # The server for the current episode, or the next step, of each environment.
        self._at = np.arange(replay.num_envs) % len(self.shards)
        self._block = 0  # rows of one replica's batch

    @property
    def on_wait(self) -> Callable[[], None] | None:
        """See `ReverbBuffer`."""
        return self.shards[0].on_wait

    @on_wait.setter
    def on_wait(self, fn: Callable[[], None] | None) -> None:
        for shard in self.shards:
            shard.on_wait = fn

    def add(self, trajectory: Trajectory) -> None:
        """Adds steps `[T, B, ...]`; see `ReverbBuffer.add`."""
        valid = np.asarray(trajectory.valid)
        # Steps after which the environment changes to the next server.
        moves = valid & self._by_step
        if self._by_episode:
            ends = np.asarray(trajectory.termination) | np.asarray(trajectory.truncation)
            moves = ends & valid
        moved = np.cumsum(moves, axis=0)
        before = np.concatenate([np.zeros_like(moved[:1]), moved[:-1]])
        home = (self._at + before) % len(self.shards)
        self._at = (self._at + moved[-1]) % len(self.shards)
        # At the same time: one after the other, a writer could wait until the learner samples from
        # the first server, and the learner until the second one grows.
        parts = [valid & (home == i) for i in range(len(self.shards))]
        calls = [
            self._callers.start(functools.partial(shard.add, trajectory.replace(valid=own)))
            for shard, own in zip(self.shards, parts, strict=True)
            if own.any()
        ]
        waiting = calls
        try:
            while waiting:
                waiting = [call for call in waiting if not call.wait(_LOOK_SECONDS)]
                for call in calls:
                    if call not in waiting:
                        call.result()  # raises its error, while others may still wait
        except BaseException:
            leave_behind(*waiting)
            raise

    def cut(self) -> None:
        """See `ReverbBuffer`."""
        self._each(ReverbBuffer.cut)

    def flush(self) -> None:
        """See `ReverbBuffer`."""
        self._each(ReverbBuffer.flush)

    def size(self, table: str | None = None) -> tf.Tensor:
        """Returns the number of items in a table over all servers, int64 scalar."""
        return tf.add_n([shard.size(table) for shard in self.shards])

    def can_sample(self, batch_size: int = 1, table: str | None = None) -> tf.Tensor:
        """Returns whether each server can sample its share of `batch_size` items."""
        share = -(-batch_size // len(self.shards))
        return tf.reduce_all([shard.can_sample(share, table) for shard in self.shards])

    def sample(
        self,
        key: tf.Tensor,
        batch_size: int,
        beta: float | tf.Tensor = 1.0,
        table: str | None = None,
    ) -> Any:
        """Draws equally many items of each server; see `ReverbBuffer.sample`."""
        share = self._share(batch_size)
        return _joined(*[shard.sample(key, share, beta, table) for shard in self.shards])

    def dataset(self, batch_size: int, *args: Any, **options: Any) -> tf.data.Dataset:
        """Returns an infinite dataset of batches; see `ReverbBuffer.dataset`."""
        share = self._share(batch_size)
        parts = tuple(shard.dataset(share, *args, **options) for shard in self.shards)
        return tf.data.Dataset.zip(parts).map(_joined)

    def distributed_dataset(
        self, strategy: tf.distribute.Strategy, batch_size: int, *args: Any, **options: Any
    ) -> Any:
        """Returns a distributed dataset; see `ReverbBuffer.distributed_dataset`."""
        return distribute(strategy, batch_size, lambda size: self.dataset(size, *args, **options))

    def update_priorities(
        self, index: tf.Tensor, priorities: tf.Tensor, table: str | None = None
    ) -> None:
        """Sets the priorities of sampled items, each at its server.

        Args:
          index: int64 [N], as sampled: whole batches, in order.
          priorities: float [N], see `ReverbBuffer`.
          table: See `ReverbBuffer`.
        """
        share, count = self._block // len(self.shards), len(self.shards)
        home = np.arange(len(index)) // share % count
        keys, values = np.asarray(index), np.asarray(priorities)
        for i, shard in enumerate(self.shards):
            shard.update_priorities(keys[home == i], values[home == i], table)

    def state_values(self) -> dict[str, Any]:
        """Returns the values on the client's side, under the number of each server."""
        return {
            f"{i}/{path}": value
            for i, shard in enumerate(self.shards)
            for path, value in shard.state_values().items()
        }

    def load_values(self, values: Mapping[str, Any]) -> None:
        """Loads the result of `state_values`."""
        for i, shard in enumerate(self.shards):
            own = f"{i}/"
            shard.load_values({p[len(own) :]: x for p, x in values.items() if p.startswith(own)})

    @property
    def new_priority(self) -> float:
        """See `ReverbBuffer`; the greatest over all servers."""
        return max(shard.new_priority for shard in self.shards)

    @new_priority.setter
    def new_priority(self, value: float) -> None:
        for shard in self.shards:
            shard.new_priority = value

    @property
    def items_created(self) -> int:
        """Items created so far, on all servers together; a block counts as one."""
        return sum(shard.items_created for shard in self.shards)

    def save(self, folder: str, tables: bool = True) -> None:
        """Writes the buffer to a folder; see `ReverbBuffer.save`."""
        for i, shard in enumerate(self.shards):
            path = pathlib.Path(folder, str(i))
            path.parent.mkdir(parents=True, exist_ok=True)
            shard.save(str(path), tables)

    def restore(self, folder: str) -> None:
        """Reads a folder of `save`; see `ReverbBuffer.restore`."""
        checkpoints.check_servers(folder, len(self.shards))
        for i, shard in enumerate(self.shards):
            shard.restore(str(pathlib.Path(folder, str(i))))

    def close(self) -> None:
        """See `ReverbBuffer`."""
        self._callers.close()
        self._each(ReverbBuffer.close)

    def _each(self, fn: Callable[[ReverbBuffer], Any]) -> None:
        """Calls a method of all shards, even if one of them raises."""
        errors: list[Exception] = []
        for shard in self.shards:
            try:
                fn(shard)
            except Exception as error:  # noqa: BLE001  (raised below)
                errors.append(error)
        if errors:
            raise errors[0]

    def _share(self, batch_size: int) -> int:
        count = len(self.shards)
        if batch_size % count:
            raise UserError(
                "batch_size",
                expected=f"a multiple of the {count} replay servers",
                got=str(batch_size),
                remedy=f"{-(-batch_size // count) * count} is the nearest above.",
            )
        self._block = batch_size
        return batch_size // count


def _joined(*parts: Any) -> Any:
    """Concatenates the batches of several servers."""
    return tf.nest.map_structure(lambda *xs: tf.concat(xs, 0), *parts)


# What `ReverbReplay.init` returns.
AnyReverbBuffer = ReverbBuffer | ShardedBuffer


class Connections:
    """The connections to several servers, used as one; see `Connection`."""

    def __init__(self, connections: Sequence[Any]):
        """Stores the connections."""
        self._all = tuple(connections)

    @property
    def lost(self) -> bool:
        """Whether one of the servers is lost for good."""
        return any(connection.lost for connection in self._all)

    def check(self, what: str = "using it") -> None:
        """Returns if all servers answer; waits for lost servers that may come back."""
        for connection in self._all:
            connection.check(what)

    def probe(self) -> None:
        """See `Connection`."""
        for connection in self._all:
            connection.probe()

    @property
    def on_wait(self) -> Callable[[], None]:
        """See `Connection`."""
        return self._all[0].on_wait

    @on_wait.setter
    def on_wait(self, fn: Callable[[], None]) -> None:
        for connection in self._all:
            connection.on_wait = fn

    def guard(
        self,
        fn: Callable[[], T],
        what: str,
        timeout: float | None = None,
        again: bool = True,
        may_wait: bool = False,
    ) -> T:
        """Calls a function that may block; the loss of any server raises an error."""

        def inner(rest: Sequence[Any]) -> T:
            if not rest:
                return fn()
            first, *others = rest
            return first.guard(lambda: inner(others), what, timeout, again, may_wait=may_wait)

        return inner(self._all)

    def keep(self, thing: T) -> T:
        """See `Connection`."""
        for connection in self._all:
            connection.keep(thing)
        return thing

    def release(self, thing: Any) -> None:
        """See `Connection`."""
        for connection in self._all:
            connection.release(thing)
