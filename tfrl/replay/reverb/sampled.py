"""Sampling from the tables of a Reverb server."""

import abc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import checks
from tfrl.errors import UserError
from tfrl.replay.core import ReplayBuffer
from tfrl.replay.reverb import buffer
from tfrl.replay.reverb.dataset import STARVED, make_dataset, make_draw
from tfrl.replay.reverb.duplicates import Duplicates
from tfrl.replay.reverb.factory import ONCE, TableConfig
from tfrl.types import Sequences, Transition

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay


class SampledTables(ReplayBuffer):
    """What a buffer on Reverb does with items that are in the tables.

    Attributes:
      replay: Its maker.
      address: "host:port" of the server.
    """

    def __init__(self, replay: "ReverbReplay", connection: Any):
        """Takes a maker and a `Connection`, or a `LocalServer`."""
        self.replay = replay
        self._duplicates = Duplicates()
        self._highest = {config.name: 1.0 for config in replay.table_configs}
        self._use(connection)

    def _use(self, connection: Any) -> None:
        """Goes on with a server."""
        self._connection = connection
        self.address: str = connection.address
        self._draws: dict[Any, Callable[[Any], Any]] = {}
        self._duplicates.forget()  # a restored server gives again what it had when it was saved

    @property
    def duplicates_sampled(self) -> int:
        """Items of "fifo" and "lifo" tables that `sample` and `batches` of this buffer gave again.

        A writer whose connection breaks sends again what was not confirmed. What was sampled by
        then is not in the table any more, and comes in a second time under the same key. An item is
        known again among the newest 65,536.
        """
        return self._duplicates.count

    @abc.abstractmethod
    def _settle(self) -> None:
        """Sends what was added."""

    def size(self, table: str | None = None) -> tf.Tensor:
        """Returns how many items are in a table (None: the first one); an int64 scalar."""
        return tf.constant(self._settled_info(table).current_size, tf.int64)

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
        return tf.constant(_sampleable(info) >= batch_size)

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
        if info.current_size < max(batch_size, info.rate_limiter_info.min_size_to_sample):
            wanted = f"at most the {info.current_size} items of table {config.name!r}, and those "
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
        updates = _updates(index, priorities, config)
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
        made = make_dataset(self.replay, self.address, config, batch_size, beta, **options)
        if config.kind in ONCE:
            self._duplicates.add_dataset(made)
        return made

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
        made = strategy.distribute_datasets_from_function(
            lambda context: self.dataset(
                context.get_per_replica_batch_size(batch_size), beta, table, **options
            ).apply(_endless)  # or each element would be asked for in all processes
        )
        if self.replay.table(table).kind in ONCE:
            self._duplicates.add_dataset(made)
        return made

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


_endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)


def _updates(index: Any, values: Any, config: TableConfig) -> dict[int, float]:
    return buffer.updates(index, values, float(config.alpha or 0.0))


def _sampleable(info: Any) -> float:
    """How many items a limiter lets be sampled now, of those that there are."""
    limiter = info.rate_limiter_info
    if info.current_size < limiter.min_size_to_sample:
        return 0
    inserted, sampled = limiter.insert_stats.completed, limiter.sample_stats.completed
    allowed = inserted * limiter.samples_per_insert - sampled - limiter.min_diff
    return min(info.current_size, allowed)


def _refuse(
    name: str, expected: str, got: Any, remedy: str, cause: BaseException | None = None
) -> None:
    raise UserError(name, expected=expected, got=got, remedy=remedy) from cause
