"""Closed-form environments with a known optimal return, for tests.

All are bare and natively batched; `tfrl.make_env("testing:Chain", ...)` adds the episode layer.
"""

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.envs.core import Env, initial_state
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest


def _never(num_envs: int) -> tf.Tensor:
    return tf.zeros([num_envs], tf.bool)


@struct.logic_dataclass
class ConstantReward(Env):
    """A constant reward for any action; terminates after `length` steps.

    The observation, float32 [1], is the elapsed fraction of the episode. With discount g its value
    is reward (1 - g^rest) / (1 - g) with rest = length (1 - observation).

    Attributes:
      num_envs: B.
      reward: The reward of each step.
      length: Steps of an episode, or None to never terminate (observation 0).
    """

    num_envs: int = 1
    reward: float = 1.0
    length: int | None = 10

    def __post_init__(self) -> None:
        """Checks the numbers."""
        checks.number("ConstantReward.reward", self.reward)
        if self.length is not None:
            checks.at_least("ConstantReward.length", self.length, 1)

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [1], in [0, 1]."""
        return specs.BoundedTensorSpec([1], tf.float32, 0.0, 1.0)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """Two actions without a difference."""
        return specs.DiscreteSpec(2)

    def _observe(self, t: tf.Tensor) -> tf.Tensor:
        done = 0.0 if self.length is None else 1.0 / self.length
        return (tf.cast(t, tf.float32) * done)[:, tf.newaxis]

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        t = tf.zeros([self.num_envs], tf.int32)
        return initial_state(self, env_state=t, obs=self._observe(t))

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Pays."""
        t = state.env_state + 1
        return EnvState(
            env_state=t,
            obs=self._observe(t),
            reward=tf.fill([self.num_envs], self.reward),
            termination=_never(self.num_envs) if self.length is None else t >= self.length,
            truncation=_never(self.num_envs),
            info={},
        )


@struct.logic_dataclass
class Chain(Env):
    """Walks a chain from its left end; reward 1 at the right end, which terminates.

    Action 1 moves right, action 0 left (at the left end it stays). The observation is the one-hot
    position. The optimal episode takes length - 1 steps; the optimal value at position i is
    g^(length - 2 - i) with discount g.

    Attributes:
      num_envs: B.
      length: Positions, at least 2.
    """

    num_envs: int = 1
    length: int = 5

    def __post_init__(self) -> None:
        """Checks the length."""
        checks.at_least("Chain.length", self.length, 2)

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [length], one-hot."""
        return specs.BoundedTensorSpec([self.length], tf.float32, 0.0, 1.0)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """Left (0) or right (1)."""
        return specs.DiscreteSpec(2)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        place = tf.zeros([self.num_envs], tf.int32)
        return initial_state(self, env_state=place, obs=tf.one_hot(place, self.length))

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Walks one position."""
        place = state.env_state + 2 * tf.cast(action, tf.int32) - 1
        place = tf.clip_by_value(place, 0, self.length - 1)
        arrived = tf.equal(place, self.length - 1)
        return EnvState(
            env_state=place,
            obs=tf.one_hot(place, self.length),
            reward=tf.cast(arrived, tf.float32),
            termination=arrived,
            truncation=_never(self.num_envs),
            info={},
        )


@struct.logic_dataclass
class Identity(Env):
    """Reward 1 if the action equals the observed value, else 0; a new value at every step.

    The observation is the one-hot value. The optimal return is `length`, a random policy's is
    length / num_values.

    Attributes:
      num_envs: B.
      num_values: Number of values of the observation and the action.
      length: Steps of an episode.
    """

    num_envs: int = 1
    num_values: int = 4
    length: int = 16

    def __post_init__(self) -> None:
        """Checks the numbers."""
        checks.at_least("Identity.num_values", self.num_values, 1)
        checks.at_least("Identity.length", self.length, 1)

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [num_values], one-hot."""
        return specs.BoundedTensorSpec([self.num_values], tf.float32, 0.0, 1.0)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """The value to answer."""
        return specs.DiscreteSpec(self.num_values)

    def _observe(self, values: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        return tf.one_hot(tf.gather(values, t, axis=1, batch_dims=1), self.num_values)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Draws the values of an episode in every environment."""
        values = seeding.randint(key, [self.num_envs, self.length + 1], 0, self.num_values)
        t = tf.zeros([self.num_envs], tf.int32)
        return initial_state(
            self, env_state={"values": values, "t": t}, obs=self._observe(values, t)
        )

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Compares the action with the value."""
        values, t = state.env_state["values"], state.env_state["t"]
        target = tf.gather(values, t, axis=1, batch_dims=1)
        # After the end, where steps are ignored, the last value stays.
        t = tf.minimum(t + 1, self.length)
        return EnvState(
            env_state={"values": values, "t": t},
            obs=self._observe(values, t),
            reward=tf.cast(tf.equal(tf.cast(action, tf.int32), target), tf.float32),
            termination=t >= self.length,
            truncation=_never(self.num_envs),
            info={},
        )


@struct.logic_dataclass
class MemoryRecall(Env):
    """Shows a cue and asks for it later: only a policy with memory beats chance.

    The observation, float32 [num_cues + 1], is the one-hot cue at the first step, zeros while
    waiting, and 1 in its last element at the question. The action at that step has reward 1 if it
    is the cue, else -1, and the episode terminates; other rewards are 0. The optimal return is 1,
    without memory 2 / num_cues - 1.

    Attributes:
      num_envs: B.
      num_cues: Number of cues, and of actions.
      delay: Steps between the cue and the question; an episode has delay + 2 steps.
    """

    num_envs: int = 1
    num_cues: int = 2
    delay: int = 3

    def __post_init__(self) -> None:
        """Checks the numbers."""
        checks.at_least("MemoryRecall.num_cues", self.num_cues, 1)
        checks.at_least("MemoryRecall.delay", self.delay, 0)

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [num_cues + 1]."""
        return specs.BoundedTensorSpec([self.num_cues + 1], tf.float32, 0.0, 1.0)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """The cue to answer."""
        return specs.DiscreteSpec(self.num_cues)

    def _observe(self, cue: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        nothing = -1 * tf.ones_like(cue)  # one_hot of -1 is zeros
        asking = tf.where(t > self.delay, self.num_cues, nothing)
        return tf.one_hot(tf.where(tf.equal(t, 0), cue, asking), self.num_cues + 1)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Draws the cue of an episode in every environment."""
        cue = seeding.randint(key, [self.num_envs], 0, self.num_cues)
        t = tf.zeros([self.num_envs], tf.int32)
        return initial_state(self, env_state={"cue": cue, "t": t}, obs=self._observe(cue, t))

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Waits, or judges the answer."""
        cue, t = state.env_state["cue"], state.env_state["t"]
        asked = t > self.delay
        right = tf.equal(tf.cast(action, tf.int32), cue)
        paid = tf.where(right, tf.ones([], tf.float32), -tf.ones([], tf.float32))
        t = t + 1
        return EnvState(
            env_state={"cue": cue, "t": t},
            obs=self._observe(cue, t),
            reward=tf.where(asked, paid, tf.zeros_like(paid)),
            termination=asked,
            truncation=_never(self.num_envs),
            info={},
        )


@struct.logic_dataclass
class ScriptedEnv(Env):
    """Rewards and episode ends from tables, independent of actions.

    Row t of a table is for step t of an episode, so every episode of an environment follows its
    column from the top; after the last row the table repeats. The observation, float32 [2], is (t,
    start), where the start value is uniform in [0, 1) and drawn at every reset.

    Attributes:
      rewards: T rows, each a number for all environments or a tuple of B numbers.
      terminations: T rows of bools, or () for none.
      truncations: T rows of bools, or () for none.
      num_envs: B.
    """

    rewards: tuple
    terminations: tuple = ()
    truncations: tuple = ()
    num_envs: int = 1

    def __post_init__(self) -> None:
        """Checks the shapes of the tables."""
        if not self.rewards:
            raise UserError("ScriptedEnv.rewards", expected="at least one row", got="()")
        for name in ("rewards", "terminations", "truncations"):
            self._table(name, np.float32)

    def _table(self, name: str, dtype: type) -> np.ndarray:
        """The table as [T, B]."""
        rows, count = getattr(self, name), len(self.rewards)
        if not rows:
            return np.zeros([count, self.num_envs], dtype)
        shapes = {np.shape(row) for row in rows}
        if len(rows) != count or not shapes <= {(), (self.num_envs,)}:
            raise UserError(
                f"ScriptedEnv.{name}",
                expected=f"{count} rows, each a number or {self.num_envs} numbers",
                got=f"{len(rows)} rows of shapes {', '.join(map(str, sorted(shapes)))}",
            )
        return np.stack([np.broadcast_to(np.asarray(r, dtype), [self.num_envs]) for r in rows])

    @property
    def obs_spec(self) -> tf.TensorSpec:
        """float32 [2]: step of the episode, start value."""
        return specs.TensorSpec([2], tf.float32)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """Two actions without a difference."""
        return specs.DiscreteSpec(2)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        obs = tf.stack([tf.zeros([self.num_envs]), seeding.uniform(key, [self.num_envs])], axis=1)
        return initial_state(self, env_state=obs, obs=obs)

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Reads one row of the tables."""
        t, start = tf.unstack(state.env_state, axis=1)
        row = tf.math.floormod(tf.cast(t, tf.int32), len(self.rewards))
        at = tf.stack([row, tf.range(self.num_envs)], axis=1)  # [B, 2]
        obs = tf.stack([t + 1.0, start], axis=1)
        return EnvState(
            env_state=obs,
            obs=obs,
            reward=tf.gather_nd(self._table("rewards", np.float32), at),
            termination=tf.gather_nd(self._table("terminations", np.bool_), at),
            truncation=tf.gather_nd(self._table("truncations", np.bool_), at),
            info={},
        )
