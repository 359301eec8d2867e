"""Environments with state in Python objects on the host, behind the device protocol.

Their `env_state` holds only a token: they cannot be copied, rewound or compiled by XLA. A reset
changes the objects, so the episode layer must select the rows to reset: `reset_rows` does this
through the key, which wrappers pass on unchanged.
"""

from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.envs.core import Autoreset, Env
from tfrl.errors import UserError
from tfrl.types import EnvState
from tfrl.xla import in_xla


@struct.dataclass
class RowsKey(struct.Struct):
    """A key for some rows only.

    Attributes:
      key: int32 [2].
      rows: bool [B], the rows to reset; results of other rows are undefined.
    """

    key: tf.Tensor
    rows: tf.Tensor


def on_host(env: Env) -> bool:
    """Tells whether an environment's state is on the host."""
    return bool(getattr(env.unwrapped, "on_host", False))


def reset_rows(env: Env, key: tf.Tensor, rows: tf.Tensor) -> EnvState:
    """Resets some rows [B] of an environment; for a device environment all, harmlessly."""
    reset_key: Any = RowsKey(key=key, rows=rows) if on_host(env) else key
    return env.reset(reset_key)


def check_place(thing: str, replicas: int | None = None) -> None:
    """Raises a UserError if the host is not reachable: under XLA, or on several replicas.

    Args:
      thing: The environment, for the message.
      replicas: Number of replicas; None for the current strategy's.
    """
    if in_xla():
        raise UserError(
            thing,
            expected="graph or eager mode, since its steps are Python calls on the host",
            got="compilation by XLA",
            remedy="Pass compile='graph' to the workflow or function that steps this environment.",
        )
    replicas = replicas or tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise UserError(
            thing,
            expected="one replica, since its environments are Python objects of one process",
            got=f"a strategy with {replicas} replicas",
            remedy="Train with --strategy=one_device.",
        )


def refuse_cached(thing: str, autoreset: Autoreset) -> None:
    """Raises a UserError for the mode that would restore a start state."""
    if autoreset is Autoreset.SAME_STEP_CACHED:
        raise UserError(
            f"autoreset of {thing}",
            expected="NEXT_STEP, SAME_STEP or DISABLED",
            got="SAME_STEP_CACHED, which restores a stored start state",
            remedy="Choose a different mode: a host environment cannot restore its state.",
        )
