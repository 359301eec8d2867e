"""Modules with known values, episodes with known columns, and a GAE loop."""

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.episodes import SingleAgentEpisode
from tfrl.types import AgentState


@struct.logic_dataclass
class LinearValue:
    """V(o) = slope * sum(o) + offset."""

    discount: float = 0.9
    gae_lambda: float = 0.8
    obs_spec: tf.TensorSpec = tf.TensorSpec([2], tf.float32)
    action_spec: tf.TensorSpec = tf.TensorSpec([], tf.int32)
    updates: tuple = ("one",)

    def compute_values(self, state, obs):
        return state.params["slope"] * tf.reduce_sum(obs, -1) + state.params["offset"]

    def normalized(self, state, obs):
        return (obs - state.normalizer["mean"]) / 2.0


@struct.logic_dataclass
class RunningSum:
    """A recurrent module: its state is the sum of all observations, V is the state after o_t."""

    discount: float = 0.9
    gae_lambda: float = 0.8

    def initial_carry(self, batch_size):
        return {"sum": tf.fill([batch_size], 100.0)}

    def compute_values(self, state, obs, carry):
        return carry["sum"][:, tf.newaxis] + tf.cumsum(obs, axis=1)


class NoValue:
    """Has no value function."""

    updates = ("one",)


def constant(value, offset=None):
    """A state of LinearValue whose values are all the same."""
    return AgentState(params={"slope": tf.constant(0.0), "offset": tf.constant(float(value))})


def linear(slope=0.5, offset=1.0, mean=None):
    return AgentState(
        params={"slope": tf.constant(slope), "offset": tf.constant(offset)},
        normalizer=None if mean is None else {"mean": tf.constant(mean)},
    )


def episode(steps, rng=None, *, end="", reward=None, module_id=None, lookback=0, extras=None):
    """A random episode of LinearValue's kind."""
    rng = rng or np.random.default_rng(0)
    total = steps + lookback
    return SingleAgentEpisode(
        obs=rng.normal(size=[total + 1, 2]).astype(np.float32),
        action=rng.integers(0, 5, [total]),
        reward=rng.normal(size=[total]) if reward is None else np.full([total], reward),
        policy_extras={"log_prob": rng.normal(size=[total]).astype(np.float32), **(extras or {})},
        termination=end == "terminated",
        truncation=end == "truncated",
        module_id=module_id,
        len_lookback_buffer=lookback,
    )


def gae_loop(reward, values, terminated, discount, lambda_):
    """Advantages and targets of one episode with the values of its T + 1 observations."""
    advantage, following = np.zeros(len(reward)), 0.0
    for t in reversed(range(len(reward))):
        last = t == len(reward) - 1
        successor = 0.0 if terminated and last else values[t + 1]
        delta = reward[t] + discount * successor - values[t]
        advantage[t] = following = delta + discount * lambda_ * following
    return advantage, advantage + values[:-1]
