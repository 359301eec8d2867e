"""An off-policy run whose experience lives in a Reverb server, of this process or another."""

import functools
import io
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfrl import seeding
from tfrl.distribute.multi_worker import lost_workers
from tfrl.distribute.statistics import merge_over_replicas
from tfrl.errors import UserError
from tfrl.learners import Learner
from tfrl.ops.schedules import make_schedule
from tfrl.replay.reverb.dataset import STARVED
from tfrl.storage import files
from tfrl.types import Nest, Trajectory
from tfrl.workflows.fast_call import FastReading
from tfrl.workflows.off_policy_program import OffPolicyProgram
from tfrl.workflows.run_state import Progress
from tfrl.workflows.stages import CompiledStage

T = TypeVar("T")
# How the values of a checkpoint are called, by where the items were.
_TABLES, _SERVER = "tables", "server"
# Bytes of batches that are read before their learner steps, at most.
FETCHED_BYTES = 2**26
# What errors of a lost worker say, and those of a lost server do not.
_OF_WORKERS = ("Collective ops is aborted", "Error reported from /job:")
# So many batches of an iteration, at most, are read by Python: see `reads_from_python`.
_READ_BATCHES = 4


class ReverbProgram(OffPolicyProgram):
    """Runs iterations of an `OffPolicyWorkflow` over `tfrl.replay.reverb`.

    Python writes what was played; batches come from a dataset that samples ahead of the learning.
    """

    prefers_fused = False

    def __init__(self, workflow: Any, learner: Learner):
        """Connects to the server, or starts one; see `OffPolicyProgram`."""
        super().__init__(workflow, learner)
        if self.replicas.several:
            self.rollout, self.fill = (self._of_all(stage) for stage in (self.rollout, self.fill))
        self._iterator: Any = None
        self._spec: Nest = None
        self._reading: FastReading | None = None
        self._fetched: Nest = ()  # while a call is traced: the batches of its learner steps

    @property
    def fuses_on_host(self) -> bool:  # type: ignore[override]
        """Whether XLA can have all of a call but the reading of the dataset."""
        if self.replicas.several:
            return False  # the sums over them stand between what XLA compiles
        return self.fetches or not self.learning

    def _of_all(self, stage: CompiledStage) -> CompiledStage:
        """A stage that plays on every replica and gives the steps of all of them, [T, B, ...]."""
        graph, xla = (functools.partial(self._play, stage, mode) for mode in ("graph", "xla"))
        return CompiledStage(stage.name, graph, xla=xla)

    def _play(
        self,
        stage: CompiledStage,
        mode: str,
        values: Nest,
        env_state: Nest,
        carry: Nest,
        key: tf.Tensor,
    ) -> tuple[Trajectory, Nest, Nest]:
        def own(values: Nest, env_state: Nest, carry: Nest, key: tf.Tensor) -> Any:
            key = seeding.fold_in(key, self.replicas.index())
            played, after, carry = stage.compiled(mode)(values, env_state, carry, key)
            return played, merge_over_replicas(self.replicas, env_state, after), carry

        played, env_state, carry = self.replicas.run(own, values, env_state, carry, key)
        parts = self.replicas.per_replica(played)
        return tf.nest.map_structure(lambda *xs: tf.concat(xs, 1), *parts), env_state, carry

    def _digested(self, played: Trajectory) -> Any:
        """Of several replicas: what all of them played, though each process has its own part."""
        if not self.replicas.several:
            return super()._digested(played)
        share = self._workflow.replica_env.num_envs

        def own(played: Trajectory) -> Any:
            start = self.replicas.local_index() * share
            rows = tf.nest.map_structure(lambda x: x[:, start : start + share], played)
            out = self._digest(self.acting_state(), rows)
            normalizer = self._workflow.normalizer(self.acting_state())
            return self._workflow.merged(out, normalizer, None)

        out = self.replicas.run(own, played)
        return self.replicas.any_replica(out.replace(batch=None))  # it is in the tables

    def _asking_for_a_batch(self) -> Callable[[], tf.Tensor]:
        # A server elsewhere has the items of all processes.
        size = self._workflow.batch_size if self._elsewhere else self._rows_here
        return lambda: self._all_say(self.buffer.can_sample(size))

    def _all_say(self, answer: tf.Tensor) -> bool:
        """Whether the answer is yes in every process."""
        group = self._workflow.worker_group
        return bool(answer) if group is None else not group.any(not answer)

    # The buffer.

    def take(self, played: Trajectory) -> None:
        """Writes what was played."""
        self.buffer.add(played)

    def guarded(self, fn: Callable[..., T], *args: Any) -> T:
        """Calls what may wait for the server; if that is lost, it ends with an error.

        Raises:
          UserError: The server is lost, or there was nothing to sample in time.
        """
        several = self.replicas.num_workers > 1

        def call() -> T:
            try:
                return fn(*args)
            except tf.errors.OpError as error:
                if several and any(sign in str(error) for sign in _OF_WORKERS):
                    with lost_workers(self.replicas.strategy):  # it is not the server that is lost
                        raise
                raise

        try:
            # Processes in a call that sums over all of them cannot begin it anew by themselves.
            return self.buffer.connection.guard(call, "sampling", again=not several)
        except tf.errors.OpError as error:
            if STARVED not in str(error):
                raise
            raise UserError(
                "The replay buffer",
                expected=f"items to sample within {self._workflow.replay.timeout:g} s",
                got="none",
                remedy="A limit of samples per insert must allow batch_size * updates_per_step "
                "samples for each env step: raise it, its tolerance or the timeout.",
            ) from error

    def add(self, trajectory: Trajectory) -> None:
        """Nothing: `take` did it."""

    def _sample(self, key: tf.Tensor, beta: tf.Tensor) -> Nest:
        return self._weighted(self._next(), beta)

    def _next(self) -> Nest:
        """The next batch, with weights of beta = 1; of several replicas one for each here."""
        batch = self._batches().get_next()
        if not self.replicas.several:
            return batch
        # Replicated records are no arguments of compiled functions; their leaves are.
        leaves = self.replicas.strategy.run(lambda own: tf.nest.flatten(own), args=(batch,))
        return tf.nest.pack_sequence_as(self._batch_spec, leaves)

    def _weighted(self, batch: Nest, beta: tf.Tensor) -> Nest:
        """A batch with the weights of another beta.

        Weights are (P(i) / min P)^-beta: a batch was sampled ahead, its beta is today's.
        """
        if not self._workflow.prioritized:
            return batch
        beta = tf.cast(beta, tf.float32)
        weight = self.replicas.run(lambda w: tf.pow(w, beta), batch.weight)
        return batch.replace(weight=weight)

    def _batches(self) -> Any:
        """The iterator over sampled batches, begun when it is first asked for."""
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
    def _batch_spec(self) -> Nest:
        """The specs of a batch of one replica."""
        if self._spec is None:
            with tf.init_scope():
                own = self._workflow.batch_size // self.replicas.num_replicas
                self._spec = self.buffer.dataset(own).element_spec
        return self._spec

    # A dataset is read in a graph only. Where it is known how many learner steps there will be,
    # their batches are read before them, and XLA has the rest.

    @property
    def fetches(self) -> bool:
        """Whether the batches of an iteration are read before its learner steps.

        For XLA alone, where they are no more than `FETCHED_BYTES`; otherwise one is read at a time.
        """
        due = self._due
        if not self.learning or not isinstance(due, int) or self.replicas.several:
            return False
        return self.update.mode == "xla" and due * self._batch_bytes <= FETCHED_BYTES

    @property
    def _batch_bytes(self) -> int:
        specs = tf.nest.flatten(self._batch_spec)
        return sum(s.shape.num_elements() * s.dtype.size for s in specs)

    def fetched(self, progress: Progress) -> Nest:
        """Returns the batches of an iteration, [K, N, ...], where it is known how many."""
        if not self.fetches:
            return ()
        first = self._next()
        flat = tf.nest.flatten(first)
        kept = [tf.TensorArray(x.dtype, self._due, element_shape=x.shape) for x in flat]
        kept = [array.write(0, x) for array, x in zip(kept, flat, strict=True)]

        def read(j: tf.Tensor, kept: list[Any]) -> Any:
            more = tf.nest.flatten(self._next())
            return j + 1, [array.write(j, x) for array, x in zip(kept, more, strict=True)]

        if self._due == 1:
            return tf.nest.map_structure(lambda x: x[tf.newaxis], first)
        _, kept = tf.while_loop(
            lambda j, _: j < self._due,
            read,
            (tf.constant(1), kept),
            parallel_iterations=1,
            name="batches",
        )
        return tf.nest.pack_sequence_as(first, [array.stack() for array in kept])

    @property
    def reads_from_python(self) -> bool:
        """Whether Python asks for each batch, where those of an iteration are read first.

        The call behind it is XLA's alone then. A graph of the two would go through TensorFlow's
        pool of threads, which wait for work by turning around: on two cores the sampler needs them.
        """
        return self.fetches and self._due <= _READ_BATCHES

    def read(self, ahead: bool) -> list[tf.Tensor]:
        """Returns the leaves of the batches of an iteration, eagerly; see `reads_from_python`.

        Args:
          ahead: Whether they may still be awaited when this returns, with `overlap`. Not for a call
            that is yet to be traced: it asks for their shapes, and waits for these with the
            interpreter locked, so that nobody would notice that the server was lost.
        """
        reading = self._reading or FastReading(self._batches())
        leaves = [leaf for _ in range(self._due) for leaf in reading()]
        if not ahead:
            for leaf in leaves:
                leaf.numpy()
        self._reading = reading
        return leaves

    def fetched_of(self, leaves: Sequence[tf.Tensor]) -> tuple[Nest, int]:
        """Returns the batches [K, N, ...] of what `read` gave, and how many leaves that were.

        Args:
          leaves: Those, and others behind them.
        """
        flat = tf.nest.flatten(self._batch_spec)
        each, count = len(flat), self._due * len(flat)
        stacked = [tf.stack(leaves[i:count:each]) for i in range(each)]
        return tf.nest.pack_sequence_as(self._batch_spec, stacked), count

    def behind_the_host(
        self, progress: Progress, played: Trajectory, key: tf.Tensor, fetched: Nest
    ) -> tuple[Progress, tf.Tensor, tf.Tensor]:
        """See `LearnerProgram.behind_the_host`; the learner steps are on the batches."""
        self._fetched = fetched
        try:
            return super().behind_the_host(progress, played, key, fetched)
        finally:
            self._fetched = ()

    def _sample_number(
        self, number: tf.Tensor, key: tf.Tensor, env_steps: tf.Tensor
    ) -> tuple[Nest, tf.Tensor]:
        if not tf.nest.flatten(self._fetched):
            return super()._sample_number(number, key, env_steps)
        update_key = seeding.stream(seeding.fold_in(key, number), "update")
        batch = tf.nest.map_structure(lambda x: x[number], self._fetched)
        beta = make_schedule(self._workflow.priority_beta)(env_steps)
        return self._weighted(batch, beta), update_key

    @property
    def note_dtypes(self) -> list[tf.DType]:
        """Those of index and priorities, which are Python's to send: [K, N] of K learner steps."""
        return [tf.int64, tf.float32] if self._workflow.prioritized else []

    def _update_priorities(self, index: tf.Tensor, priorities: tf.Tensor) -> list[tf.Tensor]:
        found = [tf.concat(self.replicas.per_replica(x), 0) for x in (index, priorities)]
        if not tf.executing_eagerly():
            return found
        self.buffer.update_priorities(*found)
        return []

    def settle(self, notes: Sequence[tf.Tensor]) -> None:
        """Sends the priorities of an iteration."""
        if notes:
            self.buffer.update_priorities(*(tf.reshape(x, [-1]) for x in notes))

    def _trial_batch(self, progress: Progress) -> Nest:
        spec = self._batch_spec
        return self.replicas.run_traced(
            lambda: tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), spec)
        )

    def _forget_batches(self) -> None:
        if self._iterator is not None:
            self.buffer.connection.release(self._iterator)
            self._iterator = self._reading = None
            self._forget_traces()  # they hold the iterator

    # What a checkpoint holds.

    def clone(self) -> "ReverbProgram":
        """Returns a program over a copy of the variables and of the server.

        Raises:
          UserError: For a server elsewhere, of which there is one.
        """
        if self._elsewhere:
            raise UserError(
                "snapshot",
                expected="a replay buffer in this process",
                got=f"the Reverb server at {self._workflow.replay.address}, which is not copied",
                remedy="Save a checkpoint instead.",
            )
        return super().clone()  # type: ignore[return-value]

    @property
    def _elsewhere(self) -> bool:
        return self._workflow.replay.address is not None

    def _buffer_paths(self) -> set[str]:
        return {_SERVER if self._elsewhere else _TABLES}

    def _path_of(self, worker: int, path: str) -> str:
        return f"worker_{worker}/{path}"

    def _buffer_values(self) -> dict[str, Any]:
        group = self._workflow.worker_group
        if group is None or not self._elsewhere:
            return self._saved()
        # The server's checkpoint, which the chief asks for, has what all have sent before.
        found = {} if group.is_chief else self._saved(tables=False)
        group.barrier("experience that was sent")
        return self._saved() if group.is_chief else found

    def _saved(self, tables: bool = True) -> dict[str, Any]:
        packed = io.BytesIO()
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / _TABLES
                self.buffer.save(str(path), tables=tables)
                with zipfile.ZipFile(packed, "w") as archive:  # not compressed: chunks are
                    for file in sorted(path.rglob("*")):
                        archive.write(file, file.relative_to(path))
        except OSError as error:
            raise UserError(
                f"the replay checkpoint, which is made in {tempfile.gettempdir()}",
                expected="a folder that can be written",
                got=files.reason(error),
                remedy="Make room there. The checkpoint before it is whole.",
            ) from error
        (name,) = self._buffer_paths()
        return {name: np.frombuffer(packed.getbuffer(), np.uint8)}

    def _load_buffer(self, values: Mapping[str, Any]) -> None:
        (name,) = self._buffer_paths()
        packed = io.BytesIO(np.asarray(values[name]).tobytes())
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(folder)
            self._forget_batches()
            self.buffer.restore(folder)
        if self._elsewhere and self.buffer.items_created and not int(self.buffer.size()):
            raise UserError(
                f"the Reverb server at {self._workflow.replay.address}",
                expected=f"items of this run, which has made {self.buffer.items_created:,}",
                got="none",
                remedy="Start the server with the --root_dir that it had, or fill it anew with "
                "--gin_bindings='OffPolicyWorkflow.checkpoint_replay = False'.",
            )
