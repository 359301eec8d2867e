"""APPO: PPO's surrogate on trajectories of lagging policies."""

import tensorflow as tf

from tfrl import struct
from tfrl.agents.appo.losses import appo_loss
from tfrl.agents.core import algorithm
from tfrl.agents.impala.agent import Impala
from tfrl.agents.impala.losses import ImpalaBatch
from tfrl.checks import Bound
from tfrl.distributions import Distribution
from tfrl.types import AgentState


@algorithm
@struct.logic_dataclass
class APPO(Impala):
    """Asynchronous PPO: the clipped surrogate over V-trace's advantages.

    Sequences, targets and memory are as in `Impala`; `clip_pg_rho` has no effect, since the
    surrogate's ratio replaces it.

    Source: Petrenko et al. 2020, https://arxiv.org/abs/2006.11751. Unlike RLlib's APPO, it has no
    target network.

    Attributes:
      clip: Half width of the interval of pi / mu.
    """

    epochs_and_minibatches = (1, 4)

    clip: float = 0.1

    def bounds(self) -> dict[str, Bound]:
        """Returns the bounds of every number."""
        return {**super().bounds(), "clip": Bound(0, closed=False)}

    def policy_loss(
        self, policy: Distribution, value: tf.Tensor, batch: ImpalaBatch, state: AgentState
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of `losses.appo_loss`."""
        return appo_loss(
            policy,
            value,
            batch,
            clip=self.clip,
            discount=self.setting(state, "discount"),
            lambda_=self.setting(state, "gae_lambda"),
            clip_rho=self.clip_rho,
            value_coef=self.setting(state, "value_coef"),
            entropy_coef=state.extra["entropy_coef"],
        )
