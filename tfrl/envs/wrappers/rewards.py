"""Wrappers that change rewards."""

import tensorflow as tf

from tfrl import checks, struct
from tfrl.envs.core import Autoreset, Wrapper, carrying, where_rows
from tfrl.envs.wrappers.base import (
    RewardWrapper,
    StatefulWrapper,
    WrapperState,
    require_autoreset,
)
from tfrl.ops import statistics
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class RewardActive(Wrapper):
    """Sets the reward of inactive agents to 0.

    `tfrl.envs.MultiAgentEnv` requires this; the wrapper enforces it for other environments. On
    either side of the autoreset; without `info["agents"]` it has no effect.
    """

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        new = self.env.step(state, action)
        agents = new.info.get("agents")
        if agents is None:
            return new
        reward = {name: tf.where(agents[name]["active"], r, 0.0) for name, r in new.reward.items()}
        return new.replace(reward=reward)


@struct.logic_dataclass
class RewardAndEnergy(Wrapper):
    """Returns two rewards: the task's, and minus the action's energy; below the autoreset.

      {"reward": r, "energy": -sum a^2}

    For searches with several objectives (`EvolutionWorkflow.objectives`).
    """

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        fresh = self.env.reset(key)
        return fresh.replace(reward={"reward": fresh.reward, "energy": fresh.reward})

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        new = self.env.step(state, action)
        parts = [tf.reshape(a, [self.num_envs, -1]) for a in tf.nest.flatten(action)]
        energy = tf.add_n([tf.reduce_sum(tf.square(p), axis=-1) for p in parts])
        return new.replace(reward={"reward": new.reward, "energy": -energy})


@struct.logic_dataclass
class RewardClip(RewardWrapper):
    """Clips every reward to [low, high]; on either side of the autoreset.

    Attributes:
      env: An environment.
      low: Smallest reward.
      high: Largest reward.
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        """Checks the range."""
        checks.number("RewardClip.low", self.low)
        checks.number("RewardClip.high", self.high, self.low, closed=False)

    def pay(self, reward: tf.Tensor) -> tf.Tensor:
        """Clips rewards [B]."""
        return tf.clip_by_value(reward, self.low, self.high)


# Returns up to 30 times this are not outliers, since a task may have a single reward of 1,000 at
# its end.
USUAL_RETURN = 1e4

# The field of `info` that marks outlier returns, bool [B].
OUTLIER = "reward_outlier"


@struct.dataclass
class ReturnStatistics(struct.Struct):
    """Statistics for reward normalisation.

    Attributes:
      returns: float32 [B], the discounted sum of the running episode's rewards.
      statistics: Moments of all these sums so far.
    """

    returns: tf.Tensor
    statistics: statistics.RunningStatistics


@struct.logic_dataclass
class RewardNormalize(StatefulWrapper):
    """Divides the reward by the running standard deviation of a discounted sum of rewards.

      g_t = discount g_{t-1} + r_t,  paid_t = r_t / sqrt(var(g) + epsilon)

    As Gymnasium's NormalizeReward, over all environments of the batch: the moments include step t,
    and start with 1e-4 rows of mean 0 and variance 1. Unlike Gymnasium, g restarts from 0 after
    every end, also a truncation, at the step after the end. Invalid rows are ignored. An outlier g
    is clipped as in `tfrl.ops.statistics.update`; its own step is divided by the deviation that
    includes the unclipped g, and `info`'s `reward_outlier` marks it. Only above the autoreset, so
    that the moments continue across episodes; `info`'s `episode_return` stays unscaled.

    Source: https://gymnasium.farama.org/api/wrappers/reward_wrappers/.

    Attributes:
      env: An environment with an autoreset mode and one reward.
      discount: The discount of g, in [0, 1].
      epsilon: Added to the variance.
    """

    discount: float = 0.99
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Checks the side and the numbers."""
        require_autoreset(self, "Below the autoreset the running moments reset with each episode.")
        checks.number("RewardNormalize.epsilon", self.epsilon, 0, closed=False)
        checks.probability("RewardNormalize.discount", self.discount)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment, and resets the moments."""
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
        # With the unclipped return.
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


@struct.logic_dataclass
class RewardScale(RewardWrapper):
    """Multiplies every reward by `scale`; on either side of the autoreset.

    Attributes:
      env: An environment.
      scale: The factor.
    """

    scale: float

    def __post_init__(self) -> None:
        """Checks the factor."""
        checks.number("RewardScale.scale", self.scale)

    def pay(self, reward: tf.Tensor) -> tf.Tensor:
        """Scales rewards [B]."""
        return reward * self.scale


@struct.logic_dataclass
class RewardSparse(StatefulWrapper):
    """Returns reward 0, and at an episode's last step the sum of its rewards.

    Only outside the autoreset, where it sees time limits too.
    """

    def __post_init__(self) -> None:
        """Checks the side."""
        require_autoreset(self, "Below the autoreset a truncated episode loses its reward.")

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        state = self.env.reset(key)
        return state.replace(env_state=WrapperState(inner=state.env_state, own=state.reward))

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        new = self.env.step(carrying(state.env_state.inner), action)
        total = tf.nest.map_structure(tf.add, state.env_state.own, new.reward)
        nothing = tf.nest.map_structure(tf.zeros_like, total)
        ended = tf.logical_or(new.termination, new.truncation)
        # Rows that are not steps have reward 0 and a total of 0, so their result is 0 too.
        paid = where_rows(ended, total, nothing)
        owed = where_rows(ended, nothing, total)
        return new.replace(env_state=WrapperState(inner=new.env_state, own=owed), reward=paid)
