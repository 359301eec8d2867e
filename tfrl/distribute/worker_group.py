"""Collectives between the Python processes of several workers: values, flags, bytes, barriers."""

import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import tensorflow as tf

from tfrl.distribute.multi_worker import WorkerLostError, lost_workers
from tfrl.distribute.workers import workers_of
from tfrl.traces import counted_separately

# Bytes of each worker per transfer.
_PIECE_BYTES = 2**23


def is_chief(strategy: tf.distribute.Strategy | None = None) -> bool:
    """Returns whether this process writes the files of the run; True for a single process.

    Args:
      strategy: The strategy, or None for one process.
    """
    return workers_of(strategy).is_chief


class WorkerGroup:
    """The worker processes of a strategy and their collectives; also for one process.

    Every worker must make the same calls in the same order, since each call is a reduction over all
    workers; calls that do not match raise. A call takes a few milliseconds.

    Attributes:
      num_workers: The number of processes (W).
      index: The index of this process.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy | None = None, timeout_seconds: float = 600.0
    ):
        """Takes the strategy, and the timeout of a collective."""
        self._strategy = strategy
        self._workers = workers_of(strategy)
        self._timeout = timeout_seconds
        self.num_workers: int = self._workers.count
        self.index: int = self._workers.index
        signature = [tf.TensorSpec([self.num_workers, 2], tf.int64)]
        total = counted_separately(self._sum_over_workers)
        self._sum = tf.function(total, input_signature=signature, autograph=False)
        self._sum_of_bytes = tf.function(
            counted_separately(self._sum_over_workers), autograph=False
        )

    @property
    def is_chief(self) -> bool:
        """Whether this process decides and writes files."""
        return self._workers.is_chief

    def all_gather(self, value: float | int) -> list[float | int]:
        """Returns every worker's value, in the order of the workers.

        Args:
          value: An int (64 bits), a bool or a float, of the same type on every worker.
        """
        if isinstance(value, float | np.floating):
            (bits,) = struct.unpack("<q", struct.pack("<d", value))
            rows = self._exchange("a float", bits)
            return [struct.unpack("<d", struct.pack("<q", row))[0] for row in rows]
        return [type(value)(row) for row in self._exchange(f"a {type(value).__name__}", int(value))]

    def broadcast(self, value: float | int) -> float | int:
        """Returns the chief's value; arguments as for `all_gather`."""
        return self.all_gather(value)[0]

    def broadcast_arrays(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the chief's arrays, to the bit.

        Args:
          arrays: Arrays of equal shapes and dtypes in every process; only the chief's values count.
        """
        own = [np.asarray(x) for x in arrays]
        if self.num_workers == 1:
            return own
        data = b"".join(x.tobytes() for x in own)
        words = np.zeros(-(-len(data) // 4), np.int32)
        if self.is_chief:
            words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        # Integers: sums with zeros are exact.
        with lost_workers(self._strategy), self._bounded("arrays of the chief"):
            received = self._sum_of_bytes(tf.constant(words)).numpy().tobytes()
        result, start = [], 0
        for x in own:
            part = np.frombuffer(received, x.dtype, x.size, start)
            result.append(part.reshape(x.shape))
            start += x.nbytes
        return result

    # Names of an earlier release.
    each_says, chief_says = all_gather, broadcast

    def any(self, flag: bool) -> bool:
        """Returns whether the flag is set on any worker."""
        return any(self._exchange("a flag", int(bool(flag))))

    def gather_to_chief(self, data: np.ndarray) -> list[np.ndarray]:
        """Gathers every worker's bytes at the chief, in the order of the workers.

        The transfers have a few megabytes each, and only the chief allocates memory for all.

        Args:
          data: uint8 [n]; n may differ between workers.

        Returns:
          uint8 [n] of each worker; an empty list in other processes than the chief.
        """
        if self.num_workers == 1:
            return [data]
        lengths = [int(n) for n in self.all_gather(int(data.size))]
        result = [np.empty(n, np.uint8) for n in lengths] if self.is_chief else []
        # Powers of two, so that few sizes are traced.
        piece = min(_PIECE_BYTES, max(4, 1 << (max(lengths, default=0) - 1).bit_length()))
        for start in range(0, max(lengths), piece):
            row = np.zeros([self.num_workers, piece], np.uint8)
            own = data[start : start + piece]
            row[self.index, : own.size] = own
            # Integers: sums with zeros are exact.
            with lost_workers(self._strategy), self._bounded("a piece of bytes"):
                total = self._sum_of_bytes(tf.constant(row.view(np.int32)))
                table = total.numpy().view(np.uint8)
            for each, values in zip(result, table, strict=False):
                part = each[start : start + piece]
                part[:] = values[: part.size]
        return result

    def barrier(self, name: str) -> None:
        """Waits until every worker has reached the barrier of this name.

        Args:
          name: The name of the barrier.

        Raises:
          RuntimeError: A worker has reached another barrier.
          WorkerLostError: A worker is lost, or has not come in time.
        """
        self._exchange(f"the barrier '{name}'", 0)

    def _exchange(self, label: str, bits: int) -> list[int]:
        """Returns the bits of each worker for the collective `label`."""
        if self.num_workers == 1:
            return [bits]
        code = zlib.crc32(label.encode())
        row = np.zeros([self.num_workers, 2], np.int64)
        row[self.index] = code, bits
        with lost_workers(self._strategy), self._bounded(label):
            table = self._sum(tf.constant(row)).numpy()
        elsewhere = [i for i in range(self.num_workers) if table[i, 0] != code]
        if elsewhere:
            raise RuntimeError(
                f"{self._workers.name(self.index)} is at {label}, but "
                f"{self._workers.names(elsewhere)} elsewhere: all workers must make the same calls"
            )
        return [int(x) for x in table[:, 1]]

    @contextmanager
    def _bounded(self, label: str) -> Iterator[None]:
        try:
            yield
        except tf.errors.DeadlineExceededError as error:
            if "heartbeat" in str(error).lower():
                raise
            raise WorkerLostError(
                f"{self._workers.names(self._workers.others)}",
                expected=f"to reach {label} within {self._timeout:g} s",
                got="at least one running worker that did not reach it",
                remedy="Check its output, and restart all workers with the same command to resume "
                "from the last complete checkpoint.",
            ) from error

    def _sum_over_workers(self, row: tf.Tensor) -> tf.Tensor:
        """Sums the workers' tables; each is zero except in the worker's row."""
        strategy = cast(tf.distribute.Strategy, self._strategy)  # several workers have one
        num_local = strategy.num_replicas_in_sync // self.num_workers
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=self._timeout)

        def replica(x: tf.Tensor) -> tf.Tensor:
            replica_context = tf.distribute.get_replica_context()
            local = replica_context.replica_id_in_sync_group % num_local
            mine = tf.where(tf.equal(local, 0), x, tf.zeros_like(x))
            return replica_context.all_reduce(tf.distribute.ReduceOp.SUM, mine, options)

        return strategy.experimental_local_results(strategy.run(replica, args=(row,)))[0]


Agreement = WorkerGroup  # its name in an earlier release
