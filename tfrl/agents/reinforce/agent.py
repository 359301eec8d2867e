"""REINFORCE with a baseline: Monte-Carlo returns of episodes."""

from typing import ClassVar

import tensorflow as tf

from tfrl import struct
from tfrl.agents.a2c.agent import A2C
from tfrl.agents.actor_critic.batch import PolicyBatch
from tfrl.agents.core import algorithm
from tfrl.errors import UserError
from tfrl.types import AgentState, Trajectory


@algorithm
@struct.logic_dataclass
class Reinforce(A2C):
    """Monte-Carlo policy gradient with a learned baseline.

      loss = -mean_t (G_t - V(o_t)) log pi(a_t | o_t) + value_coef L_value - entropy_coef H

    G_t is the discounted return up to the end of the episode. Steps of episodes that do not end
    within the rollout are masked, since their return is unknown. If a time limit truncates an
    episode, G_t bootstraps from V at the last observation. The rollout should be longer than an
    episode, or most steps are masked (see the metric `rows_used`).

    As usual, the discount applies to the returns, and steps are not weighted by gamma^t.

    Source: Williams 1992, https://doi.org/10.1007/BF00992696; Sutton and Barto 2018, section 13.4,
    http://incompleteideas.net/book/the-book-2nd.html.
    """

    in_state: ClassVar[tuple[str, ...]] = ("discount", "value_coef", "entropy_coef")
    screen_metrics: ClassVar[tuple[str, ...]] = ("entropy", "rows_used")

    def __post_init__(self) -> None:
        """Checks that the settings give returns of full episodes."""
        super().__post_init__()
        if self.gae_lambda != 1.0 or self.gae_horizon is not None:
            raise UserError(
                "Reinforce",
                expected="gae_lambda=1 and gae_horizon=None, since REINFORCE uses full returns",
                got=f"gae_lambda={self.gae_lambda} and gae_horizon={self.gae_horizon}",
                remedy="Use A2C to bootstrap from the value function.",
            )

    @property
    def why_not_episodes(self) -> str:
        """Only `learner_batch` knows which episodes have ended."""
        return "REINFORCE learns from the rollouts in which episodes end"

    def learner_batch(
        self, state: AgentState, trajectory: Trajectory
    ) -> tuple[PolicyBatch, dict[str, tf.Tensor]]:
        """As in `ActorCritic`, over the steps whose episode ends within the rollout."""
        valid = trajectory.valid
        if valid is None:
            valid = tf.ones_like(trajectory.termination)
        ends = tf.logical_or(trajectory.termination, trajectory.truncation)
        # An end at this step or later: the running sum from the back is above 0.
        later = tf.cumsum(tf.cast(ends & valid, tf.int32), axis=0, reverse=True)
        used = valid & (later > 0)
        batch, metrics = super().learner_batch(state, trajectory.replace(valid=used))
        share = tf.math.count_nonzero(used, dtype=tf.float32) / tf.maximum(
            tf.math.count_nonzero(valid, dtype=tf.float32), 1.0
        )
        return batch, {**metrics, "rows_used": share}
