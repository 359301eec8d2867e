"""A run of an `OnPolicyWorkflow` as a value, and what its rollout hands to its update."""

import tensorflow as tf

from tfrl import struct
from tfrl.types import EnvState, Nest
from tfrl.workflows.on_policy_program import OnPolicyProgram, Progress


@struct.dataclass
class OnPolicyState(struct.Struct):
    """A run of an `OnPolicyWorkflow`: all that a checkpoint must hold.

    Attributes:
      progress: What one iteration hands to the next: environments, carry, key and counters.
      program: The learner's variables and the compiled functions over them.
      version: Which step made this state; an older one was consumed.
    """

    progress: Progress
    program: OnPolicyProgram = struct.field(static=True)
    version: int = struct.field(static=True, default=0)


@struct.dataclass
class RolloutResult(struct.Struct):
    """What the rollout seam gives to the update.

    Attributes:
      batch: Rows for the learner.
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
