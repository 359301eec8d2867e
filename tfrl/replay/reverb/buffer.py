"""A replay buffer whose items live in a Reverb server."""

import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl import checks
from tfrl.errors import UserError
from tfrl.replay.core import ReplayBuffer, check_given
from tfrl.replay.reverb import checkpoints
from tfrl.replay.reverb.cancellable_call import CHECKPOINT_SECONDS
from tfrl.replay.reverb.dataset import STARVED, make_dataset, make_draw
from tfrl.replay.reverb.duplicates import Duplicates
from tfrl.replay.reverb.factory import ONCE, TableConfig
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.server import LocalServer
from tfrl.replay.reverb.signature import as_served, suits
from tfrl.replay.reverb.tables import check_tables
from tfrl.replay.reverb.writer import Writer
from tfrl.types import Sequences, Trajectory, Transition

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay


# The least priority^alpha, as in the graph: an item of priority 0 can still be sampled.
_LEAST = 2.0**-24
_SMALLEST = 1e-300  # Reverb leaves out what is exactly 0.
# Between two looks at the sizes of the tables.
_LOOK_SECONDS = 2.0


def priority_updates(index: Any, priorities: Any, alpha: float) -> dict[int, float]:
    """Returns what Reverb is told, `{key: priority}`.

    Args:
      index: int64 [N], the bits of the keys.
      priorities: float [N]; of a key that occurs twice the highest counts, what is not finite is
        left out.
      alpha: The table's exponent, which Reverb applies.

    Raises:
      UserError: For a negative priority, and for shapes that differ.
    """
    check_given(index=index, priorities=priorities)
    keys = np.asarray(index)
    values = np.asarray(priorities, np.float64)
    if keys.dtype != np.int64 or keys.ndim != 1 or keys.shape != values.shape:
        raise UserError(
            "index",
            expected=f"int64 [{', '.join(map(str, values.shape))}], as it was sampled with the "
            "items of the priorities",
            got=f"{keys.dtype} {list(keys.shape)}",
            remedy="Give the index of the batch and one priority for each of its items.",
        )
    if np.any(values < 0.0):
        raise UserError(
            "priorities",
            expected="no negative number",
            got=f"{np.nanmin(values):g}",
            remedy="Give absolute TD errors.",
        )
    finite = np.isfinite(values)
    keys, values = keys[finite].view(np.uint64), values[finite]
    # With alpha 0 every priority counts as 1, but for the 0 that Reverb leaves out.
    least = _LEAST ** (1.0 / alpha) if alpha > 0.0 else 0.0
    values = np.maximum(values, max(least, _SMALLEST))
    unique, at = np.unique(keys, return_inverse=True)
    highest = np.zeros(len(unique))
    np.maximum.at(highest, at, values)
    return dict(zip(unique.tolist(), highest.tolist(), strict=True))


class ReverbBuffer(ReplayBuffer):
    """The buffer that `ReverbReplay.init` makes; nothing of it may be called in a `tf.function`.

    One thread may add; sampling and priorities may be another's. What is added reaches the tables
    in the background. `cut`, `sample`, `size`, `can_sample`, `save` and `close` wait for it, unless
    a table limits inserts: then they do not wait for items that the limiter holds back.

    Attributes:
      replay: Its factory, which says here whether items are packed.
      address: "host:port" of the server.
      on_wait: Called again and again while `add` or `flush` waits; what it raises ends them, and
        what was waited for goes on in the background.
      possible_duplicates: Items of "fifo" and "lifo" tables, at most, that may have been inserted
        twice because the server was away: all that may be unconfirmed, for each time that the
        heartbeat found it away and back. Other tables have no duplicates: what is sent again has
        its key, and takes the place of the first. `duplicates_sampled` counts those that came.
    """

    def __init__(self, replay: "ReverbReplay"):
        """Connects, or starts a server; see `ReverbReplay.init`."""
        self._asked = replay.packed
        self.replay, connection = _connected(replay)
        self.on_wait: Callable[[], None] = lambda: None
        self._duplicates = Duplicates()
        self._highest = {config.name: 1.0 for config in self.replay.table_configs}
        self._use(connection)
        self.possible_duplicates = 0
        self._reconnections = self._created = 0
        self._sizes: dict[str, int] = {}
        self._looked = time.monotonic()
        self._writer: Writer | None = None  # opened by the first `add`: a learner has none
        self._closed = False
        try:
            check_tables(self._connection.server_info(), self.replay)
        except BaseException:
            self._connection.close()
            raise

    def _use(self, connection: Any) -> None:
        """Goes on with a server."""
        self._connection = connection
        self.address: str = connection.address
        self._draws: dict[Any, Callable[[Any], Any]] = {}
        self._duplicates.forget()  # a restored server gives again what it had when it was saved

    def _opened(self) -> Writer:
        """The writer."""
        self._check()
        if self._writer is None:
            client = self._connection.client
            self._writer = self._connection.guard(
                lambda: Writer(self.replay, client, self._highest, self._wait),
                "opening writers",
                self.replay.timeout,
            )
        return self._writer

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._created += self._writer.created
            writer, self._writer = self._writer, None
            self._connection.guard(writer.close, "closing writers", self.replay.timeout)

    @property
    def connection(self) -> Any:
        """The `Connection` to the server, or the `LocalServer`, which changes at `restore`."""
        return self._connection

    def _check(self) -> None:
        """Raises if the server is lost; counts what may be there twice after a reconnection."""
        self._connection.check("writing experience")
        if self._connection.reconnections != self._reconnections:
            outages = self._connection.reconnections - self._reconnections
            self._reconnections += outages
            # Not what is pending now: some of it may have been confirmed since.
            most = self._writer.most_pending if self._writer else 0
            self.possible_duplicates += outages * most
            self._sizes = {}  # the server may have begun from its last checkpoint
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._look_at_sizes()

    def _wait(self) -> None:
        self._check()
        self.on_wait()

    def _look_at_sizes(self) -> None:
        """Raises if somebody else has taken items out of a table that by itself never shrinks."""
        self._looked = time.monotonic()
        result = self._connection.server_info()
        if self._connection.reconnections != self._reconnections:
            return  # it was waited for, and may have begun from its last checkpoint
        for config in self.replay.table_configs:
            size, before = result[config.name].current_size, self._sizes.get(config.name, 0)
            if config.kind not in ONCE and size < before:
                raise UserError(
                    f"table {config.name!r} of the Reverb server at {self.address}",
                    expected=f"at least the {before:,} items of a moment ago",
                    got=f"{size:,}: another program has emptied it, or deleted items",
                    remedy="Go on from the last checkpoint, and see who else reaches the server: "
                    "it asks nobody who they are.",
                )
            self._sizes[config.name] = size

    def _settle(self) -> None:
        self._check()
        if self._writer is not None:
            self._writer.settle()

    def add(self, trajectory: Trajectory) -> None:
        """Adds steps `[T, B, ...]`, which go on where the last ones stopped.

        Where a table limits inserts and is full, this waits until items are sampled.

        Args:
          trajectory: NumPy arrays or eager tensors. Rows that are not valid are left out.

        Raises:
          UserError: For a leaf that is missing, or of another shape or dtype; for a server that is
            lost; and if the items are not taken within `timeout`.
        """
        self._opened().add(trajectory)

    def cut(self) -> None:
        """Says that the next steps do not go on from the last: environments were begun anew.

        Episodes that had not ended are truncated where they stopped: the items that this completes
        say so. A sequence of L steps that was complete before stays as it was written.
        """
        self._check()
        if self._writer is not None:
            self._writer.cut()

    def flush(self) -> None:
        """Waits until all that was added is in the tables, but what has no full block yet.

        Raises:
          UserError: If it is not within `timeout`, of a limiter too.
        """
        self._check()
        if self._writer is not None:
            self._writer.flush()

    # Sampling.

    @property
    def duplicates_sampled(self) -> int:
        """Items of "fifo" and "lifo" tables that `sample` and `batches` of this buffer gave again.

        A writer whose connection breaks sends again what was not confirmed. What was sampled by
        then is not in the table any more, and comes in a second time under the same key. An item is
        known again among the newest 65,536.
        """
        return self._duplicates.count

    def size(self, table: str | None = None) -> tf.Tensor:
        """Returns how many items are in a table (None: the first one); an int64 scalar."""
        size = self._settled_info(table).current_size * self.replay.block
        return tf.constant(size, tf.int64)

    def _settled_info(self, table: str | None) -> Any:
        name = self.replay.table(table).name
        self._settle()
        return self._connection.server_info()[name]

    def can_sample(self, batch_size: int = 1, table: str | None = None) -> tf.Tensor:
        """Returns whether there are `batch_size` items and the limiter lets them be sampled.

        Args:
          batch_size: N.
          table: Its name; None for the first one.
        """
        info = self._settled_info(table)
        return tf.constant(_sampleable(info, self.replay.block) >= batch_size)

    def sample(
        self,
        key: tf.Tensor,
        batch_size: int,
        beta: float | tf.Tensor = 1.0,
        table: str | None = None,
    ) -> Transition | Sequences:
        """Draws items with replacement; of "fifo" and "lifo" tables without, each item once.

        A learner that samples all the time takes a `dataset`, which samples ahead.

        Args:
          key: Ignored: the server draws, with random numbers of its own.
          batch_size: N.
          beta: How far the weights correct the sampling by priority, 0 (not) to 1 (fully).
          table: Its name; None for the first one.

        Returns:
          A `Transition`, or `Sequences` if the table has such.

        Raises:
          UserError: If there are not so many items, if the limiter does not allow it within
            `timeout`, or if the server is lost.
        """
        del key
        config = self.replay.table(table)
        batch_size = checks.at_least("batch_size", batch_size, 1)
        info = self._settled_info(table)
        block, least = self.replay.block, info.rate_limiter_info.min_size_to_sample
        if block * info.current_size < max(batch_size, block * least):
            size = block * info.current_size
            wanted = f"at most the {size} items of table {config.name!r}, and those "
            wanted += f"only when there are min_size={config.min_size}"
            remedy = "Add more steps first (ask can_sample), or draw a smaller batch."
            _refuse("batch_size", wanted, batch_size, remedy)
        drawn = self._draw(config, batch_size, beta)
        if drawn is None:
            remedy = "Add more steps, or raise tolerance or timeout."
            wanted = f"the limiter to allow {batch_size} samples within {self.replay.timeout:g} s"
            _refuse(f"table {config.name!r}", wanted, "a limiter that does not", remedy)
        if config.kind in ONCE:
            self._duplicates.note_batch(drawn)
        return drawn

    def _draw(self, config: TableConfig, batch_size: int, beta: Any) -> Any:
        known = (config.name, batch_size)
        if known not in self._draws:
            self._draws[known] = make_draw(self.replay, self.address, config, batch_size)
        draw = self._draws[known]
        return self._connection.guard(lambda: draw(beta), f"sampling from table {config.name!r}")

    def update_priorities(
        self, index: tf.Tensor, priorities: tf.Tensor, table: str | None = None
    ) -> None:
        """Sets priorities of items that were sampled.

        Args:
          index: int64 [N], as sampled; items that are no longer there are left out.
          priorities: float [N], not negative, such as absolute TD errors. Of an item that occurs
            twice the highest counts; what is not finite changes nothing. Reverb samples in
            proportion to priority^alpha; priority^alpha below 2^-24 counts as 2^-24.
          table: Its name; None for the first one.

        Raises:
          UserError: For a table of another kind, a negative priority, or a server that is lost.
        """
        config = self.replay.table(table)
        if config.kind != "prioritized":
            remedy = 'Make the table with kind="prioritized".'
            wanted = 'a table of kind="prioritized"'
            _refuse("update_priorities", wanted, f"kind={config.kind!r}", remedy)
        updates = priority_updates(index, priorities, float(config.alpha or 0.0))
        if updates:
            self._connection.guard(
                lambda: self._connection.client.mutate_priorities(config.name, updates),
                f"setting priorities of table {config.name!r}",
                self.replay.timeout,
            )
            self._highest[config.name] = max(self._highest[config.name], *updates.values())

    def dataset(
        self,
        batch_size: int,
        beta: float | tf.Variable | Callable[[], Any] = 1.0,
        table: str | None = None,
        **options: Any,
    ) -> tf.data.Dataset:
        """Returns batches without end, prefetched: of `Transition`, or of `Sequences`.

        What is in flight was sampled before the newest steps and priorities. Where nothing can be
        sampled for `timeout` seconds, the next element is an error; `batches` makes it a
        `UserError`, and notices a lost server, which a dataset waits for for ever.

        Args:
          batch_size: N.
          beta: How far weights correct the sampling by priority; a variable, or what a function
            returns, is read for every batch.
          table: Its name; None for the first one.
          **options: `prefetch` (batches, 1), `in_flight` (items a worker, None for 2 N but at most
            64), `num_workers` (None for Reverb's choice) and `wait` (True waits on where there is
            nothing to sample).
        """
        config = self.replay.table(table)
        dataset = make_dataset(self.replay, self.address, config, batch_size, beta, **options)
        if config.kind in ONCE:
            self._duplicates.add_dataset(dataset)
        return dataset

    def distributed_dataset(
        self,
        strategy: tf.distribute.Strategy,
        batch_size: int,
        beta: float | tf.Variable | Callable[[], Any] = 1.0,
        table: str | None = None,
        **options: Any,
    ) -> Any:
        """Returns a distributed dataset: a stream of its own for each worker of a strategy.

        Args:
          strategy: The strategy.
          batch_size: Of all replicas together; they share it evenly.
          beta: As in `dataset`.
          table: As in `dataset`.
          **options: As in `dataset`.

        Raises:
          UserError: For a batch that the replicas cannot share evenly.
        """
        if batch_size % strategy.num_replicas_in_sync:
            wanted = f"a multiple of the {strategy.num_replicas_in_sync} replicas"
            _refuse("batch_size", wanted, batch_size, "Give such a number.")
        dataset = strategy.distribute_datasets_from_function(
            lambda context: self.dataset(
                context.get_per_replica_batch_size(batch_size), beta, table, **options
            ).apply(_endless)  # or each element would be asked for in all processes
        )
        if self.replay.table(table).kind in ONCE:
            self._duplicates.add_dataset(dataset)
        return dataset

    def batches(self, dataset: Any) -> Iterator[Any]:
        """Iterates over a dataset of this buffer, distributed or not.

        Yields:
          Its elements, to the end if it has one (`dataset.take`).

        Raises:
          UserError: Where there was nothing to sample in time, for a lost server, and if the server
            of this process was replaced by `restore` meanwhile.
        """
        iterator, address = iter(dataset), self.address
        once = self._duplicates.counts(dataset)
        while True:
            if self.address != address:
                wanted = "a dataset that was made after restore"
                _refuse("ReverbBuffer.batches", wanted, "an older one", "Make the dataset anew.")
            try:
                batch = self._connection.guard(lambda: next(iterator, None), "sampling")
            except tf.errors.InvalidArgumentError as error:
                if STARVED not in str(error):
                    raise
                wanted = f"items to sample within timeout={self.replay.timeout:g} s"
                remedy = "Add more steps, lower min_size, raise tolerance or timeout, or give the "
                remedy += "dataset wait=True."
                _refuse("ReverbBuffer.dataset", wanted, "none", remedy, error)
            if batch is None:
                return
            if once:
                self._duplicates.note_batch(batch)
            yield batch

    # Files.

    def state_values(self) -> dict[str, Any]:
        """Returns what lives on our side: the priorities of new items, and counts.

        The items are the server's; `save` keeps both.
        """
        result: dict[str, Any] = {
            f"highest_priority/{name}": np.float64(value) for name, value in self._highest.items()
        }
        result["items_created"] = np.int64(self.items_created)
        result["possible_duplicates"] = np.int64(self.possible_duplicates)
        return result

    @property
    def new_priority(self) -> float:
        """The priority of new items of the first table: 1, or the greatest that was set so far."""
        return self._highest[self.replay.table().name]

    @new_priority.setter
    def new_priority(self, value: float) -> None:
        self._highest[self.replay.table().name] = value

    @property
    def items_created(self) -> int:
        """Items that were made so far, in all tables together; a block is one."""
        return self._created + (self._writer.created if self._writer else 0)

    def load_values(self, values: Mapping[str, Any]) -> None:
        """Puts back what `state_values` gave.

        Raises:
          UserError: About values of a buffer with other tables; nothing changes.
        """
        if values.keys() != self.state_values().keys():
            remedy = "Make the buffer with the tables of the one that was saved."
            wanted = ", ".join(sorted(self.state_values()))
            got = ", ".join(sorted(values))
            raise UserError(
                "the values of a replay buffer", expected=wanted, got=got, remedy=remedy
            )
        for name in self._highest:
            self._highest[name] = float(values[f"highest_priority/{name}"])
        written = self._writer.created if self._writer else 0
        self._created = int(values["items_created"]) - written
        self.possible_duplicates = int(values["possible_duplicates"])

    def save(self, folder: str, tables: bool = True) -> None:
        """Writes the buffer into a folder; one that is there is replaced when all is written.

        It holds items, priorities and the counts of the limiters. Steps of items that are not
        complete, transitions that have no full block yet, and items that a limiter holds back, are
        not in it. A server elsewhere is told to write a checkpoint where it writes them.

        Args:
          folder: Its path.
          tables: Whether a server elsewhere is told so; False where another client does it.

        Raises:
          UserError: If the server is lost.
        """
        self._settle()
        numbers = {path: value.item() for path, value in self.state_values().items()}
        checkpoints.save(folder, self.replay, numbers, lambda path: self._save_tables(path, tables))

    def _save_tables(self, folder: pathlib.Path, elsewhere: bool) -> None:
        if isinstance(self._connection, LocalServer):
            self._connection.checkpoint(folder)
        elif elsewhere:
            write = self._connection.client.checkpoint
            try:
                self._connection.guard(write, "writing a checkpoint", CHECKPOINT_SECONDS)
            except IndexError as error:  # its disk is full
                raise checkpoints.unwritten(self._connection.address, error) from error

    def restore(self, folder: str) -> None:
        """Reads what `save` wrote, and goes on with new episodes.

        A server in this process is started again from it, at another address: datasets must be made
        anew. A server elsewhere restores its items itself.

        Raises:
          UserError: For the folder of a buffer that was made in another way, or none.
        """
        here = isinstance(self._connection, LocalServer)
        # A server elsewhere has items in its own form, which was compared when it answered.
        asked = self._asked if here else None
        values, tables, packed = checkpoints.restore(folder, self.replay, asked, not here)
        if here:
            replay = self.replay.replace(packed=packed)
            fresh = LocalServer(replay, tables)
            self._close_writer()
            self._connection.close()
            self.replay = replay
            self._use(fresh)
            self._sizes = {}
        else:
            self.flush()
            self._close_writer()
        self.load_values(values)

    def close(self) -> None:
        """Sends what there is and ends the writers, and the server if it is in this process.

        Transitions that have no full block, up to `block_size` - 1, are not sent.

        Raises:
          UserError: If items could not be sent in time; all is closed nevertheless.
        """
        if self._closed:
            return
        self._closed = True
        if self._connection.lost:
            from tfrl.replay.reverb.cancellable_call import leave_behind

            leave_behind(self._writer)  # Reverb's destructors would wait for the server.
            self._connection.close()
            return
        try:
            if self._writer is not None:
                self._writer.settle(patience=1.0)
        finally:
            try:
                self._close_writer()
            finally:
                self._connection.close()


_endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)


def _sampleable(info: Any, block_size: int) -> float:
    """How many items a limiter lets be sampled now, of those that there are."""
    limiter = info.rate_limiter_info
    if info.current_size < limiter.min_size_to_sample:
        return 0
    inserted, sampled = limiter.insert_stats.completed, limiter.sample_stats.completed
    allowed = inserted * limiter.samples_per_insert - sampled - limiter.min_diff
    return min(block_size * info.current_size, allowed)


def _refuse(
    name: str, expected: str, got: Any, remedy: str, cause: BaseException | None = None
) -> None:
    raise UserError(name, expected=expected, got=got, remedy=remedy) from cause


def _connected(replay: "ReverbReplay") -> tuple["ReverbReplay", Any]:
    """Returns a factory that says whether items are packed, and a connection to its server."""
    reverb()
    if replay.address is None:
        if replay.packed is None:
            replay = replay.replace(packed=suits(replay))
        return replay, LocalServer(replay)
    from tfrl.replay.reverb.connection import Connection

    connection = Connection(
        replay.address, timeout=replay.timeout, reconnect_seconds=replay.reconnect_seconds
    )
    try:
        return as_served(replay, connection.server_info()), connection
    except BaseException:
        connection.close()
        raise
