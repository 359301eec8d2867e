"""Parameters that travel from a learner to its collectors through a table of Reverb.

The table is that of TF-Agents' `ReverbVariableContainer`: one item, a nest with `train_step` and
`policy_variables`, so that programs of either library read what the other has written.
"""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.nest_packing import builder
from tfrl.replay.reverb.connection import Connection, await_server
from tfrl.replay.reverb.library import reverb
from tfrl.types import Nest

T = TypeVar("T")

# TF-Agents' names: `reverb_variable_container.DEFAULT_TABLE`, `POLICY_KEY`, `TRAIN_STEP_KEY`.
TABLE = "variables"
_POLICY, _TRAIN_STEP = "policy_variables", "train_step"
_ENV_STEPS, _FINISHED = "env_steps", "finished"
_START = "Start bin/learn.py with the same gin file, and give the address that it prints."


@dataclasses.dataclass(frozen=True)
class Published:
    """What a learner has published last.

    Attributes:
      agent_state: The agent's state, a nest of tensors.
      learner_steps: Those behind it.
      env_steps: Of all collectors together, as the learner knew them.
      finished: Whether the run has ended.
    """

    agent_state: Nest
    learner_steps: int
    env_steps: int
    finished: bool


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
        _POLICY: specs,
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


def publish(client: Any, published: Published) -> None:
    """Puts parameters into the table, in the place of those before.

    Args:
      client: A `reverb.Client` of its server.
      published: What to publish; its leaves may be variables.
    """
    nest = {
        _ENV_STEPS: np.int64(published.env_steps),
        _FINISHED: np.bool_(published.finished),
        _POLICY: {p: x.numpy() for p, x in struct.paths(published.agent_state).items()},
        _TRAIN_STEP: np.int64(published.learner_steps),
    }
    client.insert(tf.nest.flatten(nest), {TABLE: 1.0})


class Subscriber:
    """Reads the newest parameters in the background, at a set rate."""

    def __init__(
        self,
        address: str,
        form: Nest,
        *,
        pull_seconds: float,
        wait_seconds: float,
        log: Callable[[str], None],
    ):
        """Waits for the learner, and starts to read.

        Args:
          address: "host:port" of the learner's table.
          form: An agent's state; what is read has its form.
          pull_seconds: Between two readings.
          wait_seconds: How long to wait for the learner: for its first answer, its first
            parameters, and where it is lost.
          log: Takes a line where it is not there at once.

        Raises:
          UserError: It does not answer in time, or its agent has another form.
        """
        client = reverb().Client(address)
        info = await_server(
            address, client, wait_seconds, log, role="learner", remedy=_START
        )
        _check_form(address, form, info)
        self._leaves = list(struct.paths(form))
        self._build = builder(form)
        self._connection = Connection(
            address, timeout=wait_seconds, reconnect_seconds=wait_seconds
        )
        self._pull_seconds = pull_seconds
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._newest = self._pull()
        threading.Thread(target=self._run, name="parameters", daemon=True).start()

    def newest(self) -> Published:
        """Returns what was read last.

        Raises:
          UserError: The learner is lost.
        """
        if self._error is not None:
            raise self._error
        return self._newest

    def call(self, fn: Callable[[], T], what: str) -> T:
        """Makes another call to the learner's server; waits where it is lost, as for parameters."""
        return self._connection.guard(fn, what)

    def close(self) -> None:
        """Ends the reading."""
        self._ending.set()
        self._connection.close()

    def _run(self) -> None:
        while not self._ending.wait(self._pull_seconds):
            try:
                self._newest = self._pull()
            except BaseException as error:  # noqa: BLE001  (told by `newest`)
                if not self._ending.is_set():
                    self._error = error
                return

    def _pull(self) -> Published:
        def read() -> list[np.ndarray]:
            (sample,) = self._connection.client.sample(TABLE, 1)
            return list(sample[0].data)

        env_steps, finished, *values, learner_steps = self._connection.guard(
            read, "reading parameters"
        )
        by_path = dict(zip(sorted(self._leaves), values, strict=True))
        state = self._build([tf.constant(by_path[path]) for path in self._leaves])
        return Published(
            agent_state=state,
            learner_steps=int(learner_steps),
            env_steps=int(env_steps),
            finished=bool(finished),
        )


def _check_form(address: str, form: Nest, info: dict[str, Any]) -> None:
    if TABLE not in info:
        raise UserError(
            f"the server of parameters at {address}",
            expected=f"a learner, which has the table {TABLE!r}",
            got=f"tables {', '.join(sorted(info))}",
            remedy="Give --variable_server the address that bin/learn.py prints.",
        )
    have = struct.paths(info[TABLE].signature[_POLICY])
    want = struct.paths(signature(form)[_POLICY])
    for path in sorted(have.keys() | want.keys()):
        own, other = want.get(path), have.get(path)
        if own is None or other is None or (own.shape, own.dtype) != (other.shape, other.dtype):
            raise UserError(
                f"the parameters of the learner at {address}, {path}",
                expected="nothing" if own is None else f"{own.dtype.name} {own.shape.as_list()}",
                got="nothing" if other is None else f"{other.dtype.name} {other.shape.as_list()}",
                remedy="Start all processes of a run with the same gin file and bindings.",
            )
