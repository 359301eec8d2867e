"""Parameters from a learner to its collectors, through a Reverb table.

The table has the format of TF-Agents' `ReverbVariableContainer`: one item, a nest with `train_step`
and `policy_variables`. Programs of either library can read it.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UnavailableError, UserError
from tfrl.nest_packing import array_of, builder
from tfrl.replay.reverb.cancellable_call import ServerSilentError
from tfrl.replay.reverb.connection import Connection, await_server
from tfrl.replay.reverb.library import reverb
from tfrl.traces import counted_separately
from tfrl.types import Nest
from tfrl.workflows.fast_call import JoinedOutputs

# TF-Agents' names: `reverb_variable_container.DEFAULT_TABLE`, `POLICY_KEY`, `TRAIN_STEP_KEY`.
TABLE = "variables"
_CLOSE_SECONDS = 5.0
_POLICY, _TRAIN_STEP = "policy_variables", "train_step"
_ENV_STEPS, _FINISHED, _PRIORITY, _REQUEST = "env_steps", "finished", "new_priority", "request"
# While the learner has published nothing: seconds between two polls, and before a log line.
_LOOK_SECONDS = 0.2
_TELL_SECONDS = 3.0
# Seconds within which a filled table returns its item, unless its server has restarted meanwhile.
_READ_SECONDS = 30.0
# Seconds after which `refresh` returns the parameters of the last read.
_REFRESH_SECONDS = 5.0


# Identifies a read: the number of outages before it, and of inserts.
_Mark = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Published:
    """The agent's state and counters that a learner publishes.

    Attributes:
      agent_state: The agent's state, a nest of tensors.
      learner_steps: The learner steps that made it.
      env_steps: Env steps of all collectors, as counted by the learner.
      finished: Whether the run has ended.
      request: Each collector plays one rollout for each new number; 0 to play without pause.
      new_priority: The priority of new items of a prioritised replay: the greatest that the learner
        has set.
    """

    agent_state: Nest
    learner_steps: int
    env_steps: int
    finished: bool
    request: int = 0
    new_priority: float = 1.0


def signature(agent_state: Nest) -> dict[str, Any]:
    """Returns the signature of the table, a nest of specs.

    Args:
      agent_state: A nest of tensors or variables.
    """
    specs = {p: tf.TensorSpec(x.shape, x.dtype) for p, x in struct.paths(agent_state).items()}
    count = tf.TensorSpec([], tf.int64)
    return {
        _ENV_STEPS: count,
        _FINISHED: tf.TensorSpec([], tf.bool),
        _PRIORITY: tf.TensorSpec([], tf.float64),
        _POLICY: specs,
        _REQUEST: count,
        _TRAIN_STEP: count,
    }


def make_table(agent_state: Nest) -> Any:
    """Returns the empty `reverb.Table` for an agent's state."""
    library = reverb()
    return library.Table(
        name=TABLE,
        sampler=library.selectors.Uniform(),
        remover=library.selectors.Fifo(),
        max_size=1,
        max_times_sampled=0,
        rate_limiter=library.rate_limiters.MinSize(1),
        signature=signature(agent_state),
    )


class AgentStateReader:
    """Reads an agent's variables in one call with a tensor per dtype.

    TensorFlow keeps some bytes of each eager tensor for the life of the process.
    """

    def __init__(self) -> None:
        """Traces at the first call."""
        self._variables: list[Any] = []
        self._joined = JoinedOutputs()
        self._read: Callable[[], list[tf.Tensor]] = list

    def arrays(self, agent_state: Nest) -> Nest:
        """Returns a state of tensors or variables in NumPy.

        Other variables than those of the last call cause a trace.
        """
        leaves = tf.nest.flatten(agent_state)
        one_each = all(
            isinstance(x, tf.Variable) and not isinstance(x, tf.distribute.DistributedValues)
            for x in leaves
        )
        if not one_each:
            return tf.nest.map_structure(array_of, agent_state)
        if [id(x) for x in leaves] != [id(x) for x in self._variables]:
            self._variables = leaves
            # A concrete function that captures variables is called three times as fast as one
            # that takes them as arguments.
            traced = tf.function(counted_separately(self._join), autograph=False)
            self._read = traced.get_concrete_function()
        return tf.nest.pack_sequence_as(agent_state, self._joined.arrays(self._read()))

    def _join(self) -> list[tf.Tensor]:
        return self._joined.join([tf.convert_to_tensor(x) for x in self._variables])


class Publisher:
    """Writes parameters to the table, in place of the last ones; for one thread.

    Its stream to the server stays open: a new one for each publication takes four times the CPU
    time.
    """

    def __init__(self, client: Any):
        """Takes a `reverb.Client` of the table's server."""
        self._client = client
        self._writer: Any = None

    def publish(self, published: Published) -> None:
        """Returns once the server has the parameters; may be repeated after an error.

        Args:
          published: The parameters; their leaves may be variables.
        """
        nest = {
            _ENV_STEPS: np.int64(published.env_steps),
            _FINISHED: np.bool_(published.finished),
            _POLICY: {p: array_of(x) for p, x in struct.paths(published.agent_state).items()},
            _PRIORITY: np.float64(published.new_priority),
            _REQUEST: np.int64(published.request),
            _TRAIN_STEP: np.int64(published.learner_steps),
        }
        try:
            self._write(nest)
        except RuntimeError:
            # The stream is of before an outage of the server; a new one waits for the server.
            self._write(nest)

    def _write(self, nest: Nest) -> None:
        # Taken meanwhile: an abandoned call keeps its stream, and the next one opens another.
        writer, self._writer = self._writer, None
        if writer is None:
            # The C++ writer: the destructor of Reverb's Python writer waits for a lost server.
            writer = self._client._client.NewWriter(1, 1, False, 1)
        try:
            writer.Append(tf.nest.flatten(nest))
            writer.CreateItem(TABLE, 1, 1.0)
            writer.Flush()
        except RuntimeError:
            with contextlib.suppress(RuntimeError):
                writer.Close(False)  # without waiting for a lost server
            raise
        self._writer = writer

    def close(self) -> None:
        """Closes the stream; may wait for a server that does not answer."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.Close(False)


def publish(client: Any, published: Published) -> None:
    """Writes parameters once, see `Publisher`."""
    with contextlib.closing(Publisher(client)) as publisher:
        publisher.publish(published)


def connect(address: str, wait_seconds: float, log: Callable[[str], None]) -> Connection:
    """Returns a connection to the server of parameters once it answers.

    Args:
      address: "host:port".
      wait_seconds: Seconds to wait for it, now and when it is lost.
      log: Takes a line if the server does not answer at once.

    Raises:
      UserError: It does not answer in time, or has no table of parameters.
    """
    checks.address(address)
    info = await_server(address, reverb().Client(address), wait_seconds, log)
    if TABLE not in info:
        raise UserError(
            f"the parameter server at {address}",
            expected=f"the table {TABLE!r}",
            got=f"tables {', '.join(sorted(info))}",
            remedy="Start tfrl-reverb-server with --num_collectors=N, the number of collectors.",
        )
    return Connection(address, timeout=wait_seconds, reconnect_seconds=wait_seconds)


class Subscriber:
    """Reads the newest parameters in the background, at a set rate."""

    def __init__(
        self,
        connection: Connection,
        form: Nest,
        *,
        pull_seconds: float,
        wait_seconds: float,
        log: Callable[[str], None],
    ):
        """Waits for the first parameters, then starts the thread that reads.

        A server that goes on after a run keeps its last parameters. They are not the first ones of
        the next run, which a learner has yet to publish.

        Args:
          connection: The connection to the server; the caller closes it.
          form: An agent's state with the structure of the parameters.
          pull_seconds: Seconds between two reads.
          wait_seconds: Seconds to wait for the learner.
          log: Takes a line if the learner has published nothing yet, or if the run has ended.

        Raises:
          UserError: No parameters in time, or parameters of another agent.
        """
        check_form(connection.address, form, connection.server_info())
        self._leaves = list(struct.paths(form))
        self._build = builder(form)
        self._connection = connection
        self._pull_seconds = pull_seconds
        self._ending, self._awake = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        # Reads that the thread has begun, and ended; only it sets `_newest`.
        self._changed, self._begun, self._done = threading.Condition(), 0, 0
        self._known: _Mark | None = None
        self._pulled: _Mark | None = None
        self._newest = self._first(wait_seconds, log)
        self._thread = threading.Thread(target=self._run, name="parameters", daemon=True)
        self._thread.start()

    @property
    def finished(self) -> bool:
        """Whether the run had ended at the last read."""
        return self._newest.finished

    def newest(self) -> Published:
        """Returns the parameters of the last read.

        Raises:
          UserError: The server is lost.
        """
        if self._error is not None:
            raise self._error
        return self._newest

    def refresh(self, on_wait: Callable[[], None]) -> Published:
        """Reads the table at once and returns the newest parameters.

        A restarted server has no parameters until the learner publishes again. The learner may need
        rollouts for that, so the known parameters stay in use.

        Args:
          on_wait: Called while it waits; may raise.

        Raises:
          UserError: The server is lost.
        """
        deadline = time.monotonic() + _REFRESH_SECONDS
        with self._changed:
            wanted = self._begun + 1  # a read under way may have looked too early
            self._awake.set()
            while self._done < wanted and self._error is None and time.monotonic() < deadline:
                if not self._changed.wait(_LOOK_SECONDS):
                    on_wait()
        return self.newest()

    def pull(self) -> Published | None:
        """Reads at once; returns None if nothing was published since the last call."""
        self._pulled, published = self._read(self._pulled)
        return published

    def close(self) -> None:
        """Ends the thread; a read at the end of the interpreter would abort the process."""
        self._ending.set()
        self._awake.set()
        self._thread.join(timeout=_CLOSE_SECONDS)

    def _first(self, seconds: float, log: Callable[[str], None]) -> Published:
        deadline = time.monotonic() + seconds
        tells_at = time.monotonic() + _TELL_SECONDS
        self._known, published = self._read(self._known)
        ended = published is not None and published.finished
        if ended:
            published, tells_at = None, deadline + 1.0
            log(
                f"The run of the server at {self._connection.address} has ended: waiting up to "
                f"{seconds:g} s for the learner of the next one."
            )
        while published is None:
            if time.monotonic() > tells_at:
                tells_at = deadline + 1.0
                log(f"Waiting up to {seconds:g} s for the learner's parameters.")
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"The parameters at {self._connection.address}",
                    expected=f"a learner that publishes them within {seconds:g} s",
                    got="only those of a run that has ended" if ended else "no parameters",
                    remedy="Start tfrl-learn with the same gin file and servers.",
                )
            time.sleep(_LOOK_SECONDS)
            self._known, published = self._read(self._known)
        return published

    def _run(self) -> None:
        while self._error is None:
            self._awake.wait(self._pull_seconds)
            self._awake.clear()
            if self._ending.is_set():
                return
            with self._changed:
                self._begun += 1
            published = None
            try:
                self._known, published = self._read(self._known)
            except BaseException as error:  # noqa: BLE001  (raised by `newest`)
                if self._ending.is_set():
                    return
                self._error = error
            with self._changed:
                self._newest = published or self._newest
                self._done = self._begun
                self._changed.notify_all()

    def _read(self, known: _Mark | None) -> tuple[_Mark | None, Published | None]:
        """Reads the table if it is newer than an earlier read.

        Args:
          known: The mark of the earlier read.

        Returns:
          The mark of this read, and the parameters; None for the parameters if the table has no
          newer ones, or is empty after a restart of the server.
        """
        outages = self._connection.reconnections  # a restarted server counts inserts from 0
        info = self._connection.table_counts()[TABLE]
        mark = outages, info.rate_limiter_info.insert_stats.completed
        if mark == known or not info.current_size:
            return mark, None
        try:
            return mark, self._sample()
        except ServerSilentError:  # it was emptied meanwhile
            return known, None

    def _sample(self) -> Published:
        leaves = _sample(self._connection)
        env_steps, finished, new_priority, *values, request, learner_steps = leaves
        by_path = dict(zip(sorted(self._leaves), values, strict=True))
        state = self._build([tf.constant(by_path[path]) for path in self._leaves])
        return Published(
            agent_state=state,
            learner_steps=int(learner_steps),
            env_steps=int(env_steps),
            finished=bool(finished),
            request=int(request),
            new_priority=float(new_priority),
        )


def has_ended(connection: Connection) -> bool:
    """Returns whether a server's newest parameters are those of a run that has ended."""
    if not connection.table_counts()[TABLE].current_size:
        return False
    _, finished, *_ = _sample(connection)
    return bool(finished)


def _sample(connection: Connection) -> list[Any]:
    """Returns the leaves of the table's item."""

    def read() -> Any:
        return next(iter(connection.client.sample(TABLE, 1)))[0].data

    return connection.guard(read, "reading parameters", timeout=_READ_SECONDS)


def check_form(address: str, form: Nest, info: Mapping[str, Any]) -> None:
    """Raises a UserError unless a server's table of parameters has the structure of `form`."""
    have = struct.paths(info[TABLE].signature[_POLICY])
    want = struct.paths(signature(form)[_POLICY])
    for path in sorted(have.keys() | want.keys()):
        own, other = want.get(path), have.get(path)
        if own is None or other is None or (own.shape, own.dtype) != (other.shape, other.dtype):
            raise UserError(
                f"the parameters at {address}, {path}",
                expected="nothing" if own is None else f"{own.dtype.name} {own.shape.as_list()}",
                got="nothing" if other is None else f"{other.dtype.name} {other.shape.as_list()}",
                remedy="Start all processes of a run with the same gin file and bindings.",
            )
