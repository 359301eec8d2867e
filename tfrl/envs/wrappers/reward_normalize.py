"""Divides rewards by the running standard deviation of the discounted return."""

import tensorflow as tf

from tfrl import struct
from tfrl.envs.core import Autoreset, carrying, where_rows
from tfrl.envs.wrappers.base import (
    StatefulWrapper,
    WrapperState,
    require_autoreset,
    require_number,
)
from tfrl.errors import UserError
from tfrl.ops import statistics
from tfrl.types import EnvState, Nest

# Returns up to 30 times this are no outliers: a task may pay 1,000 at its end and nothing before.
USUAL_RETURN = 1e4

# The field of `info` that tells where a return was an outlier, bool [B].
OUTLIER = "reward_outlier"


@struct.dataclass
class ReturnStatistics(struct.Struct):
    """What normalises rewards.

    Attributes:
      returns: float32 [B], the discounted return of the running episode, seen from its start on.
      statistics: Moments of all of them so far.
    """

    returns: tf.Tensor
    statistics: statistics.RunningStatistics


@struct.logic_dataclass
class RewardNormalize(StatefulWrapper):
    """Divides the reward by the running standard deviation of a discounted sum of rewards.

      g_t = discount g_{t-1} + r_t,  paid_t = r_t / sqrt(var(g) + epsilon)

    As Gymnasium's NormalizeReward, over all environments of the batch: the moments include step t,
    and begin with 1e-4 rows of mean 0 and variance 1. Unlike there, g starts from 0 after every
    end, after a truncation too, and at the step after the end, not at it. Invalid rows count
    nothing. A g far out of the scale of the others counts as `tfrl.ops.statistics.update` says and
    goes on from there; its own step is divided by the deviation with g as it is, and `info`'s
    `reward_outlier` says so. Above the autoreset only, so that the moments outlive episodes;
    `info`'s `episode_return` stays the task's own.

    Source: https://gymnasium.farama.org/api/wrappers/reward_wrappers/.

    Attributes:
      env: An environment with an autoreset mode and one reward.
      discount: Of g, in [0, 1].
      epsilon: Added to the variance.
    """

    discount: float = 0.99
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Checks the side and the numbers."""
        require_autoreset(self, "Below it the running moments would be reset with each episode.")
        require_number("RewardNormalize.epsilon", self.epsilon, above=0)
        require_number("RewardNormalize.discount", self.discount)
        if not 0 <= self.discount <= 1:
            raise UserError(
                "RewardNormalize.discount",
                expected="a number in [0, 1]",
                got=repr(self.discount),
                remedy="Give the discount of the agent.",
            )

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment, and the moments."""
        state = self.env.reset(key)
        moments = statistics.RunningStatistics(
            count=tf.constant(1e-4, tf.float64),
            mean=tf.constant(0.0, tf.float64),
            m2=tf.constant(1e-4, tf.float64),
        )
        own = ReturnStatistics(returns=state.reward, statistics=moments)
        return state.replace(
            env_state=WrapperState(inner=state.env_state, own=own),
            info={**state.info, OUTLIER: tf.zeros_like(state.termination)},
        )

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        own = state.env_state.own
        new = self.env.step(carrying(state.env_state.inner), action)
        returns = own.returns * self.discount + new.reward
        mask = None
        if self.autoreset in (Autoreset.NEXT_STEP, Autoreset.DISABLED):
            mask = tf.logical_not(new.info["autoreset"])
        counted, (outlier,) = statistics.limited(own.statistics, returns, mask, USUAL_RETURN)
        moments = statistics.update(own.statistics, counted, mask=mask, usual=USUAL_RETURN)
        variance = tf.cast(moments.m2 / moments.count, tf.float32)
        # Of the return as it is.
        deviation = tf.cast(returns, tf.float64) - moments.mean
        alone = tf.math.rsqrt((moments.m2 + tf.square(deviation)) / moments.count + self.epsilon)
        factor = tf.where(
            outlier, tf.cast(alone, tf.float32), tf.math.rsqrt(variance + self.epsilon)
        )
        ended = tf.logical_or(new.termination, new.truncation)
        own = ReturnStatistics(
            returns=where_rows(ended, tf.zeros_like(counted), counted), statistics=moments
        )
        return new.replace(
            env_state=WrapperState(inner=new.env_state, own=own),
            reward=new.reward * factor,
            info={**new.info, OUTLIER: outlier},
        )
