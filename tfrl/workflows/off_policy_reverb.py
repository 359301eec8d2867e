"""An off-policy run whose experience lives in a Reverb server, of this process or another."""

import io
import pathlib
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfrl.errors import UserError
from tfrl.learners import Learner
from tfrl.types import Nest, Trajectory
from tfrl.workflows.off_policy_program import OffPolicyProgram
from tfrl.workflows.run_state import Progress

T = TypeVar("T")
_TABLES = "tables"


class ReverbProgram(OffPolicyProgram):
    """Runs iterations of an `OffPolicyWorkflow` over `tfrl.replay.reverb`.

    Python writes what was played; batches come from a dataset that samples ahead of the learning.
    """

    fuses_on_host = False  # a dataset is read in a graph only
    prefers_fused = False

    def __init__(self, workflow: Any, learner: Learner, eval_key: tf.Tensor):
        """Connects to the server, or starts one; see `OffPolicyProgram`."""
        super().__init__(workflow, learner, eval_key)
        self._beta = tf.Variable(1.0, trainable=False)
        self._iterator: Any = None

    def _asking_for_a_batch(self) -> Callable[[], tf.Tensor]:
        return lambda: self.buffer.can_sample(self._workflow.batch_size)

    # The buffer.

    def take(self, played: Trajectory) -> None:
        """Writes what was played."""
        self.buffer.add(played)

    def guarded(self, fn: Callable[..., T], *args: Any) -> T:
        """Calls what may wait for the server; if that is lost, it ends with an error.

        Raises:
          UserError: The server is lost, or there was nothing to sample in time.
        """
        return self.buffer.connection.guard(lambda: fn(*args), "sampling")

    def _add(self, trajectory: Trajectory) -> None:
        """Nothing: `take` did it."""

    def _sample(self, key: tf.Tensor, beta: tf.Tensor) -> Nest:
        if self._workflow.prioritized:
            self._beta.assign(tf.cast(beta, tf.float32))
        return self._batches().get_next()

    def _batches(self) -> Any:
        """The iterator over sampled batches, begun when it is first asked for."""
        if self._iterator is None:
            with tf.init_scope():
                batches = self.buffer.dataset(self._workflow.batch_size, self._beta)
                self._iterator = self.buffer.connection.keep(iter(batches))
        return self._iterator

    @property
    def note_dtypes(self) -> list[tf.DType]:
        """Those of index and priorities, which are Python's to send: [K, N] of K learner steps."""
        return [tf.int64, tf.float32] if self._workflow.prioritized else []

    def _update_priorities(self, index: tf.Tensor, priorities: tf.Tensor) -> list[tf.Tensor]:
        if not tf.executing_eagerly():
            return [index, priorities]
        self.buffer.update_priorities(index, priorities)
        return []

    def settle(self, notes: Sequence[tf.Tensor]) -> None:
        """Sends the priorities of an iteration."""
        if notes:
            self.buffer.update_priorities(*(tf.reshape(x, [-1]) for x in notes))

    def _trial_batch(self, progress: Progress) -> Nest:
        spec = self.buffer.dataset(self._workflow.batch_size, self._beta).element_spec
        return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), spec)

    def _forget_batches(self) -> None:
        if self._iterator is not None:
            self.buffer.connection.release(self._iterator)
            self._iterator = None
            self._forget_traces()  # they hold the iterator

    # What a checkpoint holds.

    def clone(self) -> "ReverbProgram":
        """Returns a program over a copy of the variables and of the server.

        Raises:
          UserError: For a server elsewhere, of which there is one.
        """
        if self._workflow.replay.address is not None:
            raise UserError(
                "snapshot",
                expected="a replay buffer in this process",
                got=f"the Reverb server at {self._workflow.replay.address}, which is not copied",
                remedy="Save a checkpoint instead.",
            )
        return super().clone()  # type: ignore[return-value]

    def _buffer_values(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / _TABLES
            self.buffer.save(str(path))
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                archive.add(path, arcname=_TABLES)
        return {_TABLES: np.frombuffer(packed.getvalue(), np.uint8)}

    def _load_buffer(self, values: Mapping[str, Any]) -> None:
        packed = io.BytesIO(np.asarray(values[_TABLES]).tobytes())
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=packed, mode="r") as archive:
                archive.extractall(folder, filter="data")
            self._forget_batches()
            self.buffer.restore(str(pathlib.Path(folder) / _TABLES))
