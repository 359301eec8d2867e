"""On-policy agents under TF-Agents' `train`: sequences of frames as rollouts."""

import math
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.compat.tf_agents.as_tf_agent_training import Training
from tfrl.compat.tf_agents.trajectories import FIRST, LAST, from_trajectory
from tfrl.errors import UserError
from tfrl.learners.batches import valid_rows
from tfrl.types import AgentState, Nest, Trajectory


class OnPolicyTraining(Training):
    """Epochs of minibatches on sequences `[B, T + 1]` of frames, which show T steps each.

    Attributes:
      num_epochs: Passes over the rows.
      num_minibatches: Gradient steps of a pass.
      remainder: See `tfrl.learners.MinibatchPlan`.
      max_sequence_length: Frames that sequences of an open length are padded to, or None.
    """

    acts_next = False

    def __init__(
        self,
        *args: Any,
        num_epochs: int,
        num_minibatches: int,
        remainder: Any,
        max_sequence_length: int | None,
        **kwargs: Any,
    ):
        """Keeps what it is given; see the attributes, and `Training`."""
        super().__init__(*args, **kwargs)
        self.num_epochs, self.num_minibatches = num_epochs, num_minibatches
        self.remainder, self.max_sequence_length = remainder, max_sequence_length

    def rows(self, experience: Any, weights: Any) -> tuple[Nest, Nest]:
        """Returns the rows that the agent learns from, with advantages, and the steps."""
        if weights is not None:
            raise UserError(
                "weights of train",
                expected="None: experience of the policy itself has no importance weights",
                got=repr(weights),
                remedy="Leave them out.",
            )
        steps = self.steps(experience)
        batch, _ = self.agent.learner_batch(self.state_values(), steps)
        return batch, steps if self.observes else ()

    def takes(self, shape: tf.TensorShape) -> bool:
        """As of `Training`; sequences of an open length too, where they are padded."""
        pads = self.max_sequence_length is not None
        return super().takes(shape[:1] if pads and shape.rank == 2 else shape)

    def steps(self, experience: Any) -> Trajectory:
        """Returns frames `[B, T + 1, ...]` as a rollout `[T, B, ...]`."""
        if experience.step_type.shape[1] is None:
            if self.max_sequence_length is None:
                raise UserError(
                    "max_sequence_length",
                    expected="a number of frames, for sequences of an open length",
                    got="None",
                    remedy="Give as_tf_agent the length of the longest, or sample with num_steps=.",
                )
            experience = padded(experience, self.max_sequence_length)
        return from_trajectory(self.packed(experience))

    def options(self, rows: Nest) -> dict[str, Any]:
        """Epochs and minibatches."""
        replicas = self.learner.replicas
        local = replicas.per_replica(rows)[0] if replicas.outside else rows
        num_rows = next(iter(struct.paths(local).values())).shape[0]
        return {
            "num_epochs": self.num_epochs,
            "minibatch_size": math.ceil(num_rows / self.num_minibatches) * replicas.num_replicas,
            "remainder": self.remainder,
        }

    def steps_in(self, rows: Nest) -> tf.Tensor:
        """The rows that count."""
        return tf.cast(valid_rows(rows), tf.int64)

    def observe(self, state: AgentState, seen: Nest) -> AgentState:
        """Merges the observations of all steps."""
        return self.agent.observe(state, seen)


class RowTraining(OnPolicyTraining):
    """One gradient step on frames `[B, T]` whose policy info is what `preprocess` made of them."""

    def __init__(self, *args: Any, collect_spec: Any, **kwargs: Any):
        """Finds out what rows the agent makes of a rollout.

        Args:
          *args: As of `OnPolicyTraining`.
          collect_spec: The spec of a frame that is collected.
          **kwargs: As of `OnPolicyTraining`.

        Raises:
          UserError: For an agent whose rows are sequences.
        """
        super().__init__(*args, **kwargs)
        if getattr(self.agent, "learns_sequences", False):
            raise UserError(
                "compute_value_and_advantage_in_train",
                expected=f"True for {type(self.agent).__name__}, which learns from sequences",
                got="False",
                remedy="Leave it out, and PPOLearner's minibatch_size too.",
            )
        self._record = self._rows_of(collect_spec)
        self._row_spec = {
            path: tf.TensorSpec(x.shape[1:], x.dtype, f"row/{path}")
            for path, x in struct.paths(self._record).items()
        }

    @property
    def row_spec(self) -> dict[str, tf.TensorSpec]:
        """Leaves of the rows, by their paths."""
        return self._row_spec

    def _rows_of(self, collect_spec: Any) -> Nest:
        """The rows of the shortest rollout there is, as specs."""
        length = 1 + (getattr(self.agent, "gae_horizon", None) or 1)
        frames = tf.nest.map_structure(
            lambda s: tf.TensorSpec([1, length, *s.shape], s.dtype), collect_spec
        )
        found: list[Nest] = []

        def make(experience: Any) -> tf.Tensor:
            batch, _ = self.agent.learner_batch(self.state_values(), self.steps(experience))
            found.append(tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), batch))
            return tf.constant(0)

        tf.function(make, autograph=False).get_concrete_function(frames)
        return found[0]

    def preprocess(self, experience: Any) -> Any:
        """Returns frames `[T, ...]` or `[B, T, ...]` with rows to learn from as policy info.

        Of the last frame the successor is not known: it counts in no loss.
        """
        if experience.step_type.shape.rank == 1:
            one = self.preprocess(tf.nest.map_structure(lambda x: x[tf.newaxis], experience))
            return tf.nest.map_structure(lambda x: x[0], one)
        length = tf.shape(experience.step_type)[1]
        steps = self.steps(experience)
        batch, _ = self.agent.learner_batch(self.state_values(), steps)
        num_steps, batch_size = steps.valid.shape[0], tf.shape(steps.valid)[1]

        def frames(x: tf.Tensor) -> tf.Tensor:
            by_time = tf.reshape(x, tf.concat([[num_steps, batch_size], tf.shape(x)[1:]], 0))
            rows = tf.transpose(by_time, [1, 0, *range(2, by_time.shape.rank)])
            rows = tf.pad(rows, [[0, 0], [0, 1]] + [[0, 0]] * (rows.shape.rank - 2))[:, :length]
            return tf.ensure_shape(rows, [*experience.step_type.shape, *x.shape[1:]])

        info = {path: frames(x) for path, x in struct.paths(batch).items()}
        return experience._replace(policy_info=info)

    def takes(self, shape: tf.TensorShape) -> bool:
        """Only static sizes: nothing is padded any more."""
        return bool(shape.is_fully_defined())

    def rows(self, experience: Any, weights: Any) -> tuple[Nest, Nest]:
        """Returns the rows that `preprocess` made."""
        if weights is not None:
            return super().rows(experience, weights)
        info = experience.policy_info

        def flat(x: tf.Tensor) -> tf.Tensor:
            return tf.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])

        leaves = [flat(info[path]) for path in self.row_spec]
        return tf.nest.pack_sequence_as(self._record, leaves), ()

    def options(self, rows: Nest) -> dict[str, Any]:
        """All rows at once: TF-Agents' learner shuffles them."""
        return {"shuffle": False}


def padded(experience: Any, length: int) -> Any:
    """Returns frames `[B, length, ...]` of fewer; those behind count in nothing.

    The last frame that is there shows an observation, and no step that counts.
    """
    found = tf.shape(experience.step_type)[1]
    with tf.control_dependencies(
        [
            tf.debugging.assert_less_equal(
                found, length, f"sequences must have at most max_sequence_length frames, {length}"
            )
        ]
    ):
        missing = length - tf.identity(found)

    def pad(x: tf.Tensor, value: Any = 0) -> tf.Tensor:
        paddings = [[0, 0], [0, missing]] + [[0, 0]] * (x.shape.rank - 2)
        full = tf.pad(x, paddings, constant_values=value)
        return tf.ensure_shape(full, [x.shape[0], length, *x.shape[2:]])

    out = tf.nest.map_structure(pad, experience)
    is_last = tf.range(length) >= found - 1
    return out._replace(
        step_type=tf.where(is_last, LAST, pad(experience.step_type, LAST)),
        next_step_type=tf.where(is_last, FIRST, pad(experience.next_step_type, FIRST)),
    )
