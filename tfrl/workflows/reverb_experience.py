"""The replay buffer of an off-policy run on a Reverb server, in this process or another."""

from __future__ import annotations

import contextlib
import io
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf

from tfrl import tf_private
from tfrl.distribute.multi_worker import lost_workers
from tfrl.errors import UserError
from tfrl.replay.reverb.dataset import STARVED
from tfrl.storage import files
from tfrl.types import Nest, Trajectory
from tfrl.workflows.checks import on_reverb
from tfrl.workflows.collectors import WaitEndedError
from tfrl.workflows.experience import of_all_processes
from tfrl.workflows.stages import Stages

if TYPE_CHECKING:
    from tfrl.replay.reverb.sharded import AnyReverbBuffer
    from tfrl.workflows.off_policy import OffPolicyWorkflow
    from tfrl.workflows.run_state import State

T = TypeVar("T")
# Names of a checkpoint's values, by the place of the items.
_TABLES, _SERVER = "tables", "server"
# The most bytes of batches that are read before their learner steps.
FETCHED_BYTES = 2**26
# Messages of errors for a lost worker; errors for a lost server lack them.
_OF_WORKERS = ("Collective ops is aborted", "Error reported from /job:")
# The most batches of an iteration that Python reads: see `reads_batches`.
_READ_BATCHES = 4


class ReverbExperience:
    """A `tfrl.replay.reverb` buffer, as an off-policy iteration and a host runner use it.

    Python writes the rollouts. Batches come from a dataset that samples ahead of the learner.

    Attributes:
      buffer: The buffer.
    """

    def __init__(self, workflow: OffPolicyWorkflow, buffer: AnyReverbBuffer):
        """Takes the buffer of a run."""
        self._workflow, self.buffer, self.replicas = workflow, buffer, workflow.replicas
        self._replay = on_reverb(workflow.replay)
        self._iterator: Any = None
        self._spec: Nest = None
        self._reading: Callable[[], list[tf.Tensor]] | None = None
        self._read_each_time = 0  # batches
        # While a learner call is traced: the batches read before it, and its host outputs.
        self._batches_read: Nest = ()
        self._outputs: list[tf.Tensor] = []

    @property
    def _due(self) -> int | None:
        return self._workflow.always_due()

    @property
    def _elsewhere(self) -> bool:
        return self._replay.address is not None

    # From Python.

    def can_sample(self, size: int, state: State) -> bool:
        """Whether every process can sample a batch; ignores `size`, which is never 1 alone."""
        # An external server has the items of all processes.
        workflow, group = self._workflow, self._workflow.worker_group
        rows = workflow.batch_size
        rows = rows if self._elsewhere else rows // self.replicas.num_workers
        answer = self.buffer.can_sample(rows)
        return bool(answer) if group is None else not group.any(not answer)

    def on_rollout(self, played: Trajectory) -> None:
        """Writes a rollout of this process."""
        if self._workflow.collectors is None:
            self.buffer.add(played)

    @property
    def host_outputs(self) -> list[tf.DType]:
        """The dtypes of index and priorities, [K, N] for K learner steps; Python sends them."""
        sends = self._workflow.prioritized and not tf.executing_eagerly()
        return [tf.int64, tf.float32] if sends else []

    def flush(self, outputs: Sequence[tf.Tensor]) -> None:
        """Sends the priorities of an iteration."""
        if outputs:
            self.buffer.update_priorities(*(tf.reshape(x, [-1]) for x in outputs))

    def call_guarded(self, fn: Callable[..., T], *args: Any) -> T:
        """Calls a function that may wait for the server; a lost server raises an error.

        Raises:
          UserError: The server is lost, or sampling timed out.
        """
        several = self.replicas.num_workers > 1

        def call() -> T:
            try:
                return fn(*args)
            except tf.errors.OpError as error:
                if several and any(sign in str(error) for sign in _OF_WORKERS):
                    self.buffer.connection.probe()  # a lost server ends the others, too
                    with lost_workers(self.replicas.strategy):  # a lost worker, not the server
                        raise
                raise

        try:
            # A process cannot repeat an all-reduce over all processes alone.
            return self.buffer.connection.guard(call, "sampling", again=not several, may_wait=True)
        except tf.errors.OpError as error:
            if STARVED not in str(error):
                raise
            raise UserError(
                "The replay buffer",
                expected=f"items to sample within {self._replay.timeout:g} s",
                got="none",
                remedy="Raise samples_per_insert to allow batch_size * updates_per_step samples "
                "per env step, or raise its tolerance or the timeout.",
            ) from error

    # Traced.

    def add(self, trajectory: Trajectory) -> None:
        """Does nothing: `on_rollout` has written the rollout."""

    @contextlib.contextmanager
    def learner_call(self, batches: Nest) -> Iterator[list[tf.Tensor]]:
        """Enters the trace of a learner call; yields the list of its host outputs, see `flush`.

        Args:
          batches: The batches [K, N, ...] that `sample` returns one by one; () for the dataset's.
        """
        self._batches_read, self._outputs = batches, []
        try:
            yield self._outputs
        finally:
            self._batches_read, self._outputs = (), []

    def sample(self, number: tf.Tensor, key: tf.Tensor, beta: tf.Tensor) -> Nest:
        """Returns the batch of learner step `number` of an iteration, which the dataset sampled."""
        if tf.nest.flatten(self._batches_read):
            batch = tf.nest.map_structure(lambda x: x[number], self._batches_read)
        else:
            batch = self._next()
        return self.weighted(batch, beta)

    def _next(self) -> Nest:
        """Returns the next batch with weights of beta = 1, one for each local replica."""
        batch = self._batches().get_next()
        if not self.replicas.several:
            return batch
        # Compiled functions do not take replicated records, but their leaves.
        leaves = self.replicas.strategy.run(lambda own: tf.nest.flatten(own), args=(batch,))
        return tf.nest.pack_sequence_as(self.batch_spec, leaves)

    def weighted(self, batch: Nest, beta: tf.Tensor) -> Nest:
        """Returns a batch with the weights of another beta.

        Weights are (P(i) / min P)^-beta. A batch is sampled ahead and takes the present beta.
        """
        if not self._workflow.prioritized:
            return batch
        beta = tf.cast(beta, tf.float32)
        weight = self.replicas.run(lambda w: tf.pow(w, beta), batch.weight)
        return batch.replace(weight=weight)

    def _batches(self) -> Any:
        """Returns the iterator over sampled batches; the first call starts it."""
        if self._iterator is None:
            with tf.init_scope():
                self._iterator = self.buffer.connection.keep(iter(self._dataset()))
        return self._iterator

    def _dataset(self) -> Any:
        size = self._workflow.batch_size
        if self.replicas.several:
            return self.buffer.distributed_dataset(self.replicas.strategy, size)
        return self.buffer.dataset(size)

    @property
    def batch_spec(self) -> Nest:
        """The specs of a batch of one replica."""
        if self._spec is None:
            with tf.init_scope():
                own = self._workflow.batch_size // self.replicas.num_replicas
                self._spec = self.buffer.dataset(own).element_spec
        return self._spec

    def batch_form(self, key: tf.Tensor) -> Nest:
        """Returns the specs of a batch of one replica."""
        return self.batch_spec

    def update_priorities(self, index: tf.Tensor, priorities: tf.Tensor) -> list[tf.Tensor]:
        """Returns index and priorities for Python to send; sends them at once if eager."""
        updates = [tf.concat(self.replicas.per_replica(x), 0) for x in (index, priorities)]
        if not tf.executing_eagerly():
            return updates
        self.buffer.update_priorities(*updates)
        return []

    def take_outputs(self, outputs: list[tf.Tensor]) -> None:
        """Takes the outputs [K, N] of the K learner steps of a call."""
        self._outputs += outputs

    # XLA cannot read a dataset. If the number of learner steps is known, their batches are read
    # before them, and XLA compiles the rest.

    def fetches(self, run_stages: Stages) -> bool:
        """Whether the batches of an iteration are read before its learner steps.

        True for XLA and up to `FETCHED_BYTES`; otherwise each step reads its batch.
        """
        due = self._due
        if not run_stages.phase.learns or due is None or self.replicas.several:
            return False
        return run_stages.modes.get("update") == "xla" and due * self.batch_bytes <= FETCHED_BYTES

    def reads_batches(self, run_stages: Stages) -> str:
        """Returns who reads the batches of an iteration before its learner steps.

        "python" for few batches, so that the learner call is XLA only. A graph of both would use
        TensorFlow's thread pool, whose threads spin while they wait for work; on two cores the
        sampler needs this time. "graph" for more batches; "" if they are not read before.
        """
        if not self.fetches(run_stages):
            return ""
        return "python" if (self._due or 0) <= _READ_BATCHES else "graph"

    @property
    def batch_bytes(self) -> int:
        """The bytes of a batch."""
        specs = tf.nest.flatten(self.batch_spec)
        return sum(s.shape.num_elements() * s.dtype.size for s in specs)

    def batches(self) -> Nest:
        """Returns the batches of an iteration, [K, N, ...]; traced."""
        first, due = self._next(), self._due or 0
        if due == 1:
            return tf.nest.map_structure(lambda x: x[tf.newaxis], first)
        flat = tf.nest.flatten(first)
        kept = [tf.TensorArray(x.dtype, due, element_shape=x.shape) for x in flat]
        kept = [array.write(0, x) for array, x in zip(kept, flat, strict=True)]

        def read(j: tf.Tensor, kept: list[Any]) -> Any:
            more = tf.nest.flatten(self._next())
            return j + 1, [array.write(j, x) for array, x in zip(kept, more, strict=True)]

        _, kept = tf.while_loop(
            lambda j, _: j < due,
            read,
            (tf.constant(1), kept),
            parallel_iterations=1,
            name="batches",
        )
        return tf.nest.pack_sequence_as(first, [array.stack() for array in kept])

    def read(self, *, wait: bool) -> list[tf.Tensor]:
        """Reads the leaves of the batches of an iteration eagerly; see `reads_batches`.

        Args:
          wait: Whether to wait for their values. Needed before a trace: tracing reads their shapes,
            and waits for them while it holds Python's global lock, so that a lost server would go
            unnoticed.
        """
        if self._reading is None:
            # `get_next` inspects every tensor, which takes several times as long as reading it.
            self._reading = tf_private.element_reader(self._batches())
            self._read_each_time = self._due or 0
        reading = self._reading
        leaves = [leaf for _ in range(self._read_each_time) for leaf in reading()]
        if wait:
            for leaf in leaves:
                leaf.numpy()
        return leaves

    def batches_of(self, leaves: Sequence[tf.Tensor]) -> tuple[Nest, int]:
        """Returns the batches [K, N, ...] from the leaves of `read`, and the number of leaves.

        Args:
          leaves: The leaves of `read`, followed by others.
        """
        flat = tf.nest.flatten(self.batch_spec)
        each, count = len(flat), (self._due or 0) * len(flat)
        stacked = [tf.stack(leaves[i:count:each]) for i in range(each)]
        return tf.nest.pack_sequence_as(self.batch_spec, stacked), count

    # Checkpoints.

    def paths(self) -> set[str]:
        """Returns the paths of `values`."""
        group, own = self._workflow.worker_group, _SERVER if self._elsewhere else _TABLES
        if group is None:
            return {own}
        return {self._path_of(worker, own) for worker in range(group.num_workers)}

    def values(self) -> dict[str, Any]:
        """Returns the contents of all processes' servers, gathered at the chief."""
        return of_all_processes(self._workflow, self._own_values(), self._path_of)

    def copy_values(self) -> dict[str, Any]:
        """Returns `values` for a copy of the server.

        Raises:
          UserError: For an external server, which cannot be copied.
        """
        if self._elsewhere:
            raise UserError(
                "snapshot",
                expected="a replay buffer in this process",
                got=f"the Reverb server at {self._replay.address}, which cannot be copied",
                remedy="Save a checkpoint instead.",
            )
        return self._own_values()

    def load(self, values: Mapping[str, Any]) -> None:
        """Loads the result of `values` or `copy_values`."""
        group, name = self._workflow.worker_group, _SERVER if self._elsewhere else _TABLES
        if group is not None and name not in values:
            name = self._path_of(group.index, name)
        packed = io.BytesIO(np.asarray(values[name]).tobytes())
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(folder)
            self._forget_batches()
            self.buffer.restore(folder)
        if self._elsewhere and self.buffer.items_created and not int(self.buffer.size()):
            block = self.buffer.replay.block
            of_blocks = f" blocks of {block} transitions" if block > 1 else ""
            raise UserError(
                f"the Reverb server at {self._replay.address}",
                expected="items of this run, which has created "
                f"{self.buffer.items_created:,}{of_blocks}",
                got="none",
                remedy="Start the server with its original --root_dir, or refill it with "
                "--gin_bindings='OffPolicyWorkflow.checkpoint_replay = False'.",
            )

    def _path_of(self, worker: int, path: str) -> str:
        return f"worker_{worker}/{path}"

    def _forget_batches(self) -> None:
        if self._iterator is not None:
            self.buffer.connection.release(self._iterator)
            self._iterator = self._reading = None
            self._workflow.forget_traces(self)  # they hold the iterator

    def _own_values(self) -> dict[str, Any]:
        group = self._workflow.worker_group
        if group is None or not self._elsewhere:
            return self._saved()
        # The chief requests the server's checkpoint after all processes have sent their items.
        values = {} if group.is_chief else self._saved(tables=False)
        group.barrier("experience that was sent")
        return self._saved() if group.is_chief else values

    def _saved(self, tables: bool = True) -> dict[str, Any]:
        packed = io.BytesIO()
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / _TABLES
                try:
                    self.buffer.save(str(path), tables=tables)
                except WaitEndedError:
                    # A signal came, and a server is lost: servers that got it, too, write their
                    # tables by themselves; of others the last checkpoint remains.
                    self.buffer.save(str(path), tables=False)
                with zipfile.ZipFile(packed, "w") as archive:  # chunks are compressed already
                    for file in sorted(path.rglob("*")):
                        archive.write(file, file.relative_to(path))
        except OSError as error:
            raise UserError(
                f"the replay checkpoint, which is written in {tempfile.gettempdir()}",
                expected="a writable folder",
                got=files.reason(error),
                remedy="Free disk space there; the previous checkpoint is intact.",
            ) from error
        name = _SERVER if self._elsewhere else _TABLES
        return {name: np.frombuffer(packed.getbuffer(), np.uint8)}
