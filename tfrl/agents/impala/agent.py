"""IMPALA: a V-trace learner."""

from typing import Any, ClassVar

import tensorflow as tf

from tfrl import ops, struct
from tfrl.agents.actor_critic.agent import ActorCritic
from tfrl.agents.core import algorithm
from tfrl.agents.impala.losses import ImpalaBatch, impala_loss
from tfrl.checks import Bound
from tfrl.distributions import Distribution
from tfrl.types import AgentState, Trajectory


@algorithm
@struct.logic_dataclass
class Impala(ActorCritic):
    """The learner of IMPALA, on batched trajectories.

    A row of a minibatch is a full trajectory of one environment. V-trace corrects for the gradient
    steps between acting and learning: earlier minibatches and epochs, and the policy lag of
    collectors.

    Source: Espeholt et al. 2018, https://arxiv.org/abs/1802.01561. Unlike the paper, it uses the
    value of the true successor at the end of a rollout and at a truncation.

    Attributes:
      normalize_advantage: Whether the advantages are divided by the root mean square, over the
        minibatch, of the rollout's advantages by the behaviour parameters. Otherwise their scale is
        that of the rewards, and the entropy bonus has to fit it.
      clip_rho: Maximum importance weight of a temporal difference (rho bar).
      clip_pg_rho: Maximum importance weight of an advantage.
    """

    screen_metrics: ClassVar[tuple[str, ...]] = ("entropy", "rho_mean", "explained_variance")
    epochs_and_minibatches = (1, 1)
    corrects_policy_lag = True

    gae_lambda: float = 1.0
    normalize_advantage: bool = False
    clip_rho: float = 1.0
    clip_pg_rho: float = 1.0

    def bounds(self) -> dict[str, Bound]:
        """Returns the bounds of every number."""
        positive = Bound(0, closed=False)
        return {**super().bounds(), "clip_rho": positive, "clip_pg_rho": positive}

    @property
    def learns_sequences(self) -> bool:
        """True: V-trace needs sequences."""
        return True

    @property
    def why_not_episodes(self) -> str:
        """V-trace needs rewards and values, not advantages."""
        return "V-trace learns from the trajectories of rollouts"

    def learner_batch(
        self, state: AgentState, trajectory: Trajectory
    ) -> tuple[Any, dict[str, tf.Tensor]]:
        """Splits trajectories into sequences, with values of the true successors."""
        value, next_value = self.values_of(state, trajectory)
        advantage, target = self.advantages(trajectory, value, next_value, state)
        batch = ImpalaBatch(
            obs=self.normalized(state, trajectory.obs),
            action=trajectory.action,
            log_prob=trajectory.policy_extras["log_prob"],
            reward=trajectory.reward,
            termination=trajectory.termination,
            truncation=trajectory.truncation,
            next_value=next_value,
            mask=trajectory.valid,
            advantage=advantage if self.normalize_advantage else None,
        )
        metrics = {
            "explained_variance": ops.explained_variance(value, target, trajectory.valid),
            "value_mean": ops.masked_mean(value, trajectory.valid),
        }
        return self.as_rows(batch, trajectory), metrics

    def prepare_minibatch(self, state: AgentState, batch: Any, all_reduce_sum: Any) -> Any:
        """Adds the advantages' root mean square over the valid rows on all replicas."""
        self.check_batch(batch)
        if not self.normalize_advantage:
            return batch
        mean, std = ops.masked_mean_std(batch.advantage, batch.mask, all_reduce=all_reduce_sum)
        scale = tf.sqrt(mean**2 + std**2)
        return batch.replace(advantage_scale=tf.fill(tf.shape(batch.advantage), scale))

    def policy_loss(
        self, policy: Distribution, value: tf.Tensor, batch: ImpalaBatch, state: AgentState
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of `losses.impala_loss`."""
        return impala_loss(
            policy,
            value,
            batch,
            discount=self.setting(state, "discount"),
            lambda_=self.setting(state, "gae_lambda"),
            clip_rho=self.clip_rho,
            clip_pg_rho=self.clip_pg_rho,
            value_coef=self.setting(state, "value_coef"),
            entropy_coef=state.extra["entropy_coef"],
        )
