"""A replay buffer on a Reverb server."""

import dataclasses
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
from tfrl.replay.reverb.cancellable_call import CHECKPOINT_SECONDS, within
from tfrl.replay.reverb.dataset import STARVED, make_dataset, make_draw
from tfrl.replay.reverb.duplicates import Duplicates
from tfrl.replay.reverb.factory import ONCE, TableConfig
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.packed import in_blocks
from tfrl.replay.reverb.server import LocalServer
from tfrl.replay.reverb.signature import as_served, suits
from tfrl.replay.reverb.tables import check_tables, starts_of
from tfrl.replay.reverb.writer import Writer
from tfrl.types import Sequences, Trajectory, Transition

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay


# The least priority^alpha, as in the graph: an item of priority 0 can still be sampled.
_LEAST = 2.0**-24
_SMALLEST = 1e-300  # Reverb never samples an item of priority 0.
# Seconds between two checks of the tables' sizes.
_LOOK_SECONDS = 2.0
# The transitions in this process that may wait until their block is full, at least.
_MOST_WAITING = 16
# What the learner of a distributed run counts by inserts.
_COUNTED = ("env_steps", "episodes")


@dataclasses.dataclass
class InsertCount:
    """A count of the inserts of a table, exact over restarts of its server from a checkpoint.

    A restored server counts from the inserts of its checkpoint. It says how many these are, also
    for the starts before it, so that inserts between two looks hide none of the lost ones.

    Attributes:
      counted: The server's own count at the last look.
      lost: Inserts that were counted and that the checkpoints of the restored servers lacked.
      start: The start of the server at the last look, see `tables.starts_of`; 0 if unknown.
    """

    counted: int = 0
    lost: int = 0
    start: int = 0

    @property
    def total(self) -> int:
        """The count."""
        return self.counted + self.lost

    def look(self, info: Mapping[str, Any], table: str, each: int = 1) -> None:
        """Takes the server's own count.

        Args:
          info: `{table: reverb TableInfo}`.
          table: The table's name.
          each: The number that an insert counts for.
        """
        now = each * info[table].rate_limiter_info.insert_stats.completed
        starts = starts_of(info, table)
        # The first start after that of the last look has restored what was left of its inserts.
        # Without a known start, the count that the restarted server has reached by now.
        left = next((each * n for start, n in starts if 0 < self.start < start), now)
        self.lost += max(self.counted - left, 0)
        self.counted, self.start = now, starts[-1][0] if starts else 0


def priority_updates(index: Any, priorities: Any, alpha: float) -> dict[int, float]:
    """Returns the updates for Reverb, `{key: priority}`.

    Args:
      index: int64 [N], the bits of the keys.
      priorities: float [N]; the highest counts for a repeated key, non-finite ones are left out.
      alpha: The table's exponent, which Reverb applies.

    Raises:
      UserError: For a negative priority, and for unequal shapes.
    """
    check_given(index=index, priorities=priorities)
    keys = np.asarray(index)
    values = np.asarray(priorities, np.float64)
    if keys.dtype != np.int64 or keys.ndim != 1 or keys.shape != values.shape:
        raise UserError(
            "index",
            expected=f"int64 [{', '.join(map(str, values.shape))}], as sampled with the "
            "items of the priorities",
            got=f"{keys.dtype} {list(keys.shape)}",
            remedy="Pass the index of the batch and one priority for each of its items.",
        )
    if np.any(values < 0.0):
        raise UserError(
            "priorities",
            expected="non-negative numbers",
            got=f"{np.nanmin(values):g}",
            remedy="Pass absolute TD errors.",
        )
    finite = np.isfinite(values)
    keys, values = keys[finite].view(np.uint64), values[finite]
    # With alpha 0 every priority counts as 1, except 0, which Reverb never samples.
    least = _LEAST ** (1.0 / alpha) if alpha > 0.0 else 0.0
    values = np.maximum(values, max(least, _SMALLEST))
    unique, at = np.unique(keys, return_inverse=True)
    highest = np.zeros(len(unique))
    np.maximum.at(highest, at, values)
    return dict(zip(unique.tolist(), highest.tolist(), strict=True))


class ReverbBuffer(ReplayBuffer):
    """A buffer from `ReverbReplay.init`; do not call its methods in a `tf.function`.

    One thread may add; another may sample and set priorities. Added items reach the tables in the
    background. `cut`, `sample`, `size`, `can_sample`, `save` and `close` wait for them, but not for
    items that a table's rate limiter holds back.

    Attributes:
      replay: The factory, with `packed` and `block_size` resolved.
      address: "host:port" of the server.
      on_wait: Called repeatedly while `add` or `flush` waits, in place of the bound `timeout`. If
        it raises, the method ends, and the items continue in the background.
      possible_duplicates: The most items of "fifo" and "lifo" tables that may have been inserted
        twice because of outages of the server: all unconfirmed items, for each outage that the
        heartbeat has found. Other tables have no duplicates, since a resent item keeps its key and
        replaces the first. `duplicates_sampled` counts the duplicates that were sampled.
      inserted: For the learner of a distributed run: the collectors' env steps and episodes at the
        server, `{name: InsertCount}`.
    """

    def __init__(self, replay: "ReverbReplay", batch_size: int | None = None):
        """Connects, or starts a server; see `ReverbReplay.init`."""
        self._asked = replay.packed
        self.replay, connection = _connected(replay, batch_size)
        self.on_wait: Callable[[], None] | None = None
        self._duplicates = Duplicates()
        self._highest = {config.name: 1.0 for config in self.replay.table_configs}
        self._use(connection)
        self.possible_duplicates = 0
        self.inserted = {name: InsertCount() for name in _COUNTED}
        self._reconnections = self._created = 0
        self._sizes: dict[str, int] = {}
        self._looked = time.monotonic()
        self._writer: Writer | None = None  # opened by the first `add`; a learner needs none
        self._closed = False

    def _use(self, connection: Any) -> None:
        """Switches to a server."""
        self._connection = connection
        self.address: str = connection.address
        self._draws: dict[Any, Callable[[Any], Any]] = {}
        self._duplicates.forget()  # a restored server repeats the items of its checkpoint

    def _opened(self) -> Writer:
        """Returns the writer; opens it first if needed."""
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
            # No server need answer: unconfirmed items are dropped.
            where = f"Reverb server at {self.address}"
            within(self.replay.timeout, writer.close, where, "closing writers")

    @property
    def connection(self) -> Any:
        """The `Connection` to the server, or the `LocalServer`, which `restore` replaces."""
        return self._connection

    def _check(self) -> None:
        """Raises if the server is lost; counts possible duplicates after a reconnection."""
        self._connection.check("writing experience")
        if self._connection.reconnections != self._reconnections:
            outages = self._connection.reconnections - self._reconnections
            self._reconnections += outages
            # Not the items pending now: some may have been confirmed since.
            most = self._writer.most_pending if self._writer else 0
            self.possible_duplicates += outages * most
            self._sizes = {}  # the server may have restarted from its last checkpoint
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._look_at_sizes()

    def _wait(self) -> bool:
        """Called by the writer while it waits; returns whether `on_wait` bounds the wait."""
        self._check()
        if self.on_wait is None:
            return False
        self.on_wait()
        return True

    def _look_at_sizes(self) -> None:
        """Raises if another process has removed items from a table that never shrinks by itself."""
        self._looked = time.monotonic()
        result = self._connection.server_info()
        for config in self.replay.table_configs:
            size, before = result[config.name].current_size, self._sizes.get(config.name, 0)
            shrank = config.kind not in ONCE and size < before
            if shrank:
                self._connection.probe()  # the heartbeat may not have noticed the restart yet
            if self._connection.reconnections != self._reconnections:
                return  # the server may have restarted from its last checkpoint
            if shrank:
                raise UserError(
                    f"table {config.name!r} of the Reverb server at {self.address}",
                    expected=f"at least the {before:,} items of the previous check",
                    got=f"{size:,}, since another program emptied it or deleted items",
                    remedy="Resume from the last checkpoint, and restrict access to the server, "
                    "which has no authentication.",
                )
            self._sizes[config.name] = size

    def _settle(self) -> None:
        self._check()
        if self._writer is not None:
            self._writer.settle()

    def add(self, trajectory: Trajectory) -> None:
        """Adds steps `[T, B, ...]` that continue the last ones.

        Waits for samples if a table limits inserts and is full.

        Args:
          trajectory: NumPy arrays or eager tensors. Invalid rows are left out.

        Raises:
          UserError: For a missing leaf, or a leaf of another shape or dtype; for a lost server; and
            if the server does not take the items within `timeout`.
        """
        self._opened().add(trajectory)

    def cut(self) -> None:
        """Truncates the unfinished episodes: the environments were reset.

        The items that this completes are marked as truncated. A sequence of L steps that was
        complete before stays as it was written.
        """
        self._check()
        if self._writer is not None:
            self._writer.cut()

    def flush(self) -> None:
        """Waits until all added items are in the tables, except transitions without a full block.

        Raises:
          UserError: If they are not within `timeout`, also because of a limiter.
        """
        self._check()
        if self._writer is not None:
            self._writer.flush()

    # Sampling.

    @property
    def duplicates_sampled(self) -> int:
        """Items of "fifo" and "lifo" tables that `sample` and `batches` returned a second time.

        A writer whose connection broke resends unconfirmed items. An item that was sampled already
        is no longer in the table, so it is inserted a second time under the same key. The newest
        65,536 keys are compared.
        """
        return self._duplicates.count

    def size(self, table: str | None = None) -> tf.Tensor:
        """Returns the number of items in a table (None: the first), int64 scalar."""
        size = self._settled_info(table).current_size * self.replay.block
        return tf.constant(size, tf.int64)

    def _settled_info(self, table: str | None) -> Any:
        name = self.replay.table(table).name
        self._settle()
        return self._connection.server_info()[name]

    def can_sample(self, batch_size: int = 1, table: str | None = None) -> tf.Tensor:
        """Returns whether the table has `batch_size` items and its limiter allows to sample them.

        Args:
          batch_size: N.
          table: The table's name; None for the first.
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
        """Draws items with replacement, from "fifo" and "lifo" tables each item once.

        A learner that samples continuously should use a `dataset`, which samples ahead.

        Args:
          key: Ignored: the server draws the random numbers.
          batch_size: N.
          beta: The exponent of the importance weights, 0 (no correction) to 1 (full correction).
          table: The table's name; None for the first.

        Returns:
          A `Transition`, or `Sequences` for a table of sequences.

        Raises:
          UserError: If the table has fewer items, if the limiter does not allow it within
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
            _refuse(f"table {config.name!r}", wanted, "no such samples", remedy)
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
        """Sets the priorities of sampled items.

        Args:
          index: int64 [N], as sampled; items no longer in the table are left out.
          priorities: float [N], not negative, for example absolute TD errors. The highest counts
            for a repeated item; non-finite ones are left out. Reverb samples in proportion to
            priority^alpha; priority^alpha below 2^-24 counts as 2^-24.
          table: The table's name; None for the first.

        Raises:
          UserError: For a table of another kind, a negative priority, or a lost server.
        """
        config = self.replay.table(table)
        if config.kind != "prioritized":
            remedy = 'Create the table with kind="prioritized".'
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
        """Returns an infinite, prefetched dataset of `Transition` or `Sequences` batches.

        Items in flight were sampled before the newest steps and priorities. If nothing can be
        sampled for `timeout` seconds, the next element is an error. Use `batches` to iterate: it
        converts the error to a `UserError`, and notices a lost server, for which a dataset waits
        forever.

        Args:
          batch_size: N.
          beta: The exponent of the importance weights; a variable is read, and a function called,
            for every batch.
          table: The table's name; None for the first.
          **options: `prefetch` (batches, 1), `in_flight` (items per worker, None for 2 N but at
            most 64), `num_workers` (None for Reverb's choice) and `wait` (True to wait without
            limit for items).
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
        """Returns a distributed dataset, with a separate stream for each worker of a strategy.

        Args:
          strategy: The strategy.
          batch_size: The global batch size; the replicas divide it evenly.
          beta: As in `dataset`.
          table: As in `dataset`.
          **options: As in `dataset`.

        Raises:
          UserError: For a batch size that the replicas do not divide.
        """
        dataset = distribute(
            strategy, batch_size, lambda size: self.dataset(size, beta, table, **options)
        )
        if self.replay.table(table).kind in ONCE:
            self._duplicates.add_dataset(dataset)
        return dataset

    def batches(self, dataset: Any) -> Iterator[Any]:
        """Iterates over a dataset of this buffer, distributed or not.

        Yields:
          Its elements, up to the end of a finite dataset (`dataset.take`).

        Raises:
          UserError: If sampling times out, for a lost server, and if `restore` has replaced the
            server of this process meanwhile.
        """
        iterator, address = iter(dataset), self.address
        once = self._duplicates.counts(dataset)
        while True:
            if self.address != address:
                wanted = "a dataset created after restore"
                _refuse(
                    "ReverbBuffer.batches", wanted, "an older dataset", "Create the dataset again."
                )
            try:
                batch = self._connection.guard(lambda: next(iterator, None), "sampling")
            except tf.errors.InvalidArgumentError as error:
                if STARVED not in str(error):
                    raise
                wanted = f"items to sample within timeout={self.replay.timeout:g} s"
                remedy = "Add more steps, lower min_size, raise tolerance or timeout, or pass "
                remedy += "wait=True to the dataset."
                _refuse("ReverbBuffer.dataset", wanted, "none", remedy, error)
            if batch is None:
                return
            if once:
                self._duplicates.note_batch(batch)
            yield batch

    # Files.

    def state_values(self) -> dict[str, Any]:
        """Returns the values on the client's side: the priorities of new items, and counts.

        The server holds the items; `save` writes both.
        """
        result: dict[str, Any] = {
            f"highest_priority/{name}": np.float64(value) for name, value in self._highest.items()
        }
        result["items_created"] = np.int64(self.items_created)
        result["possible_duplicates"] = np.int64(self.possible_duplicates)
        for name, count in self.inserted.items():
            result[f"{name}_counted"] = np.int64(count.counted)
            result[f"{name}_lost"] = np.int64(count.lost)
            result[f"{name}_start"] = np.int64(count.start)
        return result

    @property
    def new_priority(self) -> float:
        """The priority of new items of the first table: the greatest set so far, at least 1."""
        return self._highest[self.replay.table().name]

    @new_priority.setter
    def new_priority(self, value: float) -> None:
        self._highest[self.replay.table().name] = value

    @property
    def items_created(self) -> int:
        """Items created so far, in all tables together; a block counts as one."""
        return self._created + (self._writer.created if self._writer else 0)

    def load_values(self, values: Mapping[str, Any]) -> None:
        """Loads the result of `state_values`.

        Raises:
          UserError: For values of a buffer with other tables; nothing changes.
        """
        # Earlier versions stored none of these, or no starts.
        names = [f"{name}_{what}" for name in _COUNTED for what in ("counted", "lost", "start")]
        values = {**dict.fromkeys(names, 0), **values}
        if values.keys() != self.state_values().keys():
            remedy = "Create the buffer with the tables of the saved one."
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
        for name, count in self.inserted.items():
            count.counted = int(values[f"{name}_counted"])
            count.lost = int(values[f"{name}_lost"])
            count.start = int(values[f"{name}_start"])

    def save(self, folder: str, tables: bool = True) -> None:
        """Writes the buffer to a folder; replaces an existing folder once all is written.

        The folder has items, priorities and the counts of the limiters. It lacks the steps of
        incomplete items, transitions without a full block, and items that a limiter holds back. An
        external server writes a checkpoint to its own folder.

        Args:
          folder: The path of the folder.
          tables: Whether to request a checkpoint of an external server; False if another client
            does, or if the server is lost.

        Raises:
          UserError: If the server is lost.
        """
        if tables or self._writer is not None:
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
        """Reads a folder of `save`; the next steps begin new episodes.

        A server in this process restarts from the folder at another address, so datasets must be
        created again; it takes the folder's size of blocks. An external server restores its items
        itself.

        Raises:
          UserError: For a missing folder, or the folder of a buffer with other settings.
        """
        checkpoints.check_servers(folder, 1)
        here = isinstance(self._connection, LocalServer)
        # The form of an external server's items was compared when it answered.
        asked = self._asked if here else None
        values, tables, replay = checkpoints.restore(folder, self.replay, asked, not here)
        if here:
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
        """Sends pending items and closes the writers, and a server in this process.

        Transitions without a full block, up to `block_size` - 1, are not sent.

        Raises:
          UserError: If items could not be sent in time; everything is closed nevertheless.
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


def distribute(
    strategy: tf.distribute.Strategy,
    batch_size: int,
    dataset: Callable[[int], tf.data.Dataset],
) -> Any:
    """Returns an infinite distributed dataset, with a separate stream for each worker.

    Args:
      strategy: The strategy.
      batch_size: The global batch size; the replicas divide it evenly.
      dataset: Returns a dataset of batches of a given size.

    Raises:
      UserError: For a batch size that the replicas do not divide.
    """
    if batch_size % strategy.num_replicas_in_sync:
        wanted = f"a multiple of the {strategy.num_replicas_in_sync} replicas"
        _refuse("batch_size", wanted, batch_size, "Give such a number.")
    return strategy.distribute_datasets_from_function(
        lambda context: dataset(context.get_per_replica_batch_size(batch_size)).apply(
            _endless  # else all processes would synchronize for each element
        )
    )


def _sampleable(info: Any, block_size: int) -> float:
    """Returns the number of items that can be sampled now, by the limiter and the table's size."""
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


def _connected(replay: "ReverbReplay", batch_size: int | None) -> tuple["ReverbReplay", Any]:
    """Returns the factory with its items' form resolved, and a connection to its server.

    Raises:
      UserError: The tables of a server at an address differ from the factory's.
    """
    reverb()
    if replay.address is None:
        if replay.packed is None:
            replay = replay.replace(packed=suits(replay))
        if batch_size is not None:
            replay = in_blocks(replay, batch_size, max(_MOST_WAITING, replay.num_envs))
        return replay, LocalServer(replay)
    from tfrl.replay.reverb.connection import Connection

    connection = Connection(
        replay.address, timeout=replay.timeout, reconnect_seconds=replay.reconnect_seconds
    )
    try:
        info = connection.server_info()
        check_tables(info, replay)
        return as_served(replay, info), connection
    except BaseException:
        connection.close()
        raise
