"""A run over one learner as a value, and what its rollout hands to its update."""

from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.types import EnvState, Nest


@struct.dataclass
class Progress(struct.Struct):
    """What one iteration hands to the next, beside the learner's variables.

    Attributes:
      env_state: The environments.
      carry: Recurrent state, or None.
      key: int32 [2]; iteration i draws from `fold_in(key, i)`.
      iterations: int64, iterations so far.
      env_steps: int64, valid agent steps so far.
      episodes: int64, episodes that have ended.
      episode_return: float32, mean of the last iteration in which episodes ended; NaN before.
      episode_length: float32, likewise, in agent steps.
      ahead: Within a call, what the next iteration learns from where it is known before: a batch
        and the key of its update. None outside of calls.
    """

    env_state: EnvState
    carry: Nest
    key: tf.Tensor
    iterations: tf.Tensor
    env_steps: tf.Tensor
    episodes: tf.Tensor
    episode_return: tf.Tensor
    episode_length: tf.Tensor
    ahead: Nest = None


@struct.dataclass
class RunState(struct.Struct):
    """A run of a `LearnerWorkflow`: all that a checkpoint must hold.

    Attributes:
      progress: What one iteration hands to the next: environments, carry, key and counters.
      program: The variables (the learner's, a replay buffer's) and the compiled functions over
        them.
      version: Which step made this state; an older one was consumed.
    """

    progress: Progress
    program: Any = struct.field(static=True)
    version: int = struct.field(static=True, default=0)


@struct.dataclass
class RolloutResult(struct.Struct):
    """What the rollout seam gives to the update.

    Attributes:
      batch: Rows for the learner, or experience for a replay buffer.
      normalizer: The agent's statistics with this experience merged in, or None.
      metrics: `{name: float32 scalar}` of the rollout.
      counts: `{name: int64 scalar}`: `env_steps` (valid rows) and `episodes` that ended.
      env_state: The environments after the rollout.
      carry: The recurrent state after it, or None.
    """

    batch: Nest
    normalizer: Nest
    metrics: dict[str, tf.Tensor]
    counts: dict[str, tf.Tensor]
    env_state: EnvState | None = None
    carry: Nest = None
