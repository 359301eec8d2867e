"""`TrainingState`: the counts of a run, for `run_model` and `compute_loss`."""

import tensorflow as tf

from tfrl import struct


@struct.dataclass
class TrainingState(struct.Struct):
    """The counts of a run before an update; int64 scalars, which may be symbolic.

    Each count has a second name, from the library `ml`.

    Attributes:
      iterations: Collections so far, including this one; `num_epochs`.
      env_steps: Env steps so far; `num_samples`.
      learner_steps: Updates of the run so far; `num_steps`.
      epoch_steps: Updates since the collection; `num_epoch_steps`.
    """

    iterations: tf.Tensor
    env_steps: tf.Tensor
    learner_steps: tf.Tensor
    epoch_steps: tf.Tensor

    @classmethod
    def start(cls) -> "TrainingState":
        """Returns zeros."""
        zero = tf.constant(0, tf.int64)
        return cls(iterations=zero, env_steps=zero, learner_steps=zero, epoch_steps=zero)

    @property
    def num_epochs(self) -> tf.Tensor:
        """The same as `iterations`."""
        return self.iterations

    @property
    def num_samples(self) -> tf.Tensor:
        """The same as `env_steps`."""
        return self.env_steps

    @property
    def num_steps(self) -> tf.Tensor:
        """The same as `learner_steps`."""
        return self.learner_steps

    @property
    def num_epoch_steps(self) -> tf.Tensor:
        """The same as `epoch_steps`."""
        return self.epoch_steps
