"""Off-policy agents under TF-Agents' `train`: windows of frames as transitions."""

from typing import Any

import tensorflow as tf

from tfrl.agents.off_policy.columns import MaskedTransition
from tfrl.compat.tf_agents.as_tf_agent_training import Training, check_weights
from tfrl.compat.tf_agents.replay import sequences, transitions
from tfrl.compat.tf_agents.time_steps import LAST
from tfrl.errors import UserError
from tfrl.types import AgentState, Nest


class OffPolicyTraining(Training):
    """One learner step on windows `[B, n_step + 1]` of frames."""

    def rows(self, experience: Any, weights: Any) -> tuple[Nest, Nest]:
        """Returns transitions, and the steps that they were made of."""
        experience = self.packed(experience)
        self._check_length(experience.step_type.shape)
        items = transitions(experience, self.agent.discount)
        fields = {name: getattr(items, name) for name in _FIELDS}
        if weights is not None:
            fields["weight"] = check_weights(weights, items.reward.shape[0])
        mask = tf.not_equal(experience.step_type[:, 0], LAST)
        counts = self.observes and self.learner.state.normalizer is not None
        seen = sequences(experience).steps if counts else ()
        return MaskedTransition(**fields, mask=mask), seen

    def _check_length(self, shape: tf.TensorShape) -> None:
        """Raises a UserError for windows that would be items of another number of steps."""
        wanted = self.agent.n_step + 1
        if shape.rank != 2 or shape[1] != wanted:
            raise UserError(
                f"the experience of {type(self.agent).__name__}",
                expected=f"windows [B, {wanted}] of frames, n_step + 1",
                got=f"step_type of shape {shape}",
                remedy="Sample with num_steps=agent.train_sequence_length.",
            )

    def options(self, rows: Nest) -> dict[str, Any]:
        """All rows at once, in their order."""
        return {"shuffle": False}

    def steps_in(self, rows: Nest) -> tf.Tensor:
        """One env step a train step, of all replicas together."""
        replicas = self.learner.replicas
        return tf.cast(replicas.index() == 0, tf.int64)

    def observe(self, state: AgentState, seen: Nest) -> AgentState:
        """Merges the first step of every window, `[1, B, ...]`."""
        first = tf.nest.map_structure(lambda x: x[tf.newaxis, :, 0], seen)
        return self.agent.observe(state, first)


_FIELDS = ("obs", "action", "reward", "next_obs", "discount", "extras", "weight", "index")
