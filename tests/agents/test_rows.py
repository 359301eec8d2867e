"""Tests of batches whose rows do not match an agent's specs."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.agents import off_policy_cases as cases
from tfrl import Learner, specs, struct
from tfrl.agents import DQN, PPO, SAC
from tfrl.agents.actor_critic import PolicyBatch
from tfrl.agents.off_policy.agent import COLUMNS
from tfrl.agents.rows import check_rows
from tfrl.errors import UserError

CHOICE = specs.DiscreteSpec(3)
N = 6


def off_policy(cls, action_spec):
    agent = cls(obs_spec=cases.OBS, action_spec=action_spec, hidden=(4,))
    return agent, cases.transitions(agent, rows=N)


def on_policy(action_spec, **options):
    agent = PPO(obs_spec=cases.OBS, action_spec=action_spec, **{"hidden": (4,), **options})
    drawn = cases.transitions(agent, rows=N)
    number = tf.zeros([N])
    return agent, PolicyBatch(
        obs=drawn.obs,
        action=drawn.action,
        log_prob=number,
        advantage=number,
        value_target=number,
        value=number,
        mask=tf.ones([N], tf.bool),
    )


def as_column(x):
    return x[:, None]


def as_floats(x):
    return tf.cast(x, tf.float32)


def as_flags(x):
    return x > 0


MADE = {
    "DQN": functools.partial(off_policy, DQN, CHOICE),
    "SAC": functools.partial(off_policy, SAC, cases.BOX),
    "PPO": functools.partial(on_policy, CHOICE),
    "PPO_box": functools.partial(on_policy, cases.BOX),
}


@pytest.mark.parametrize(
    ("name", "column", "change", "message"),
    [
        ("DQN", "action", as_column, r"DQN, action: expected rows of shape \[\], .* \[1\]"),
        ("DQN", "action", as_floats, "DQN, action: expected integers, got float32"),
        ("DQN", "reward", as_column, r"DQN, reward: expected rows of shape \[\]"),
        ("SAC", "action", lambda x: x[:, :1], r"SAC, action: expected .* \[2\], .* \[1\]"),
        ("SAC", "discount", as_column, r"SAC, discount: expected rows of shape \[\]"),
        ("SAC", "discount", as_flags, "SAC, discount: expected numbers, got bool"),
        ("PPO", "mask", as_floats, "PPO, mask: expected bools, got float32"),
        ("PPO", "obs", lambda x: x[:, :2], r"PPO, obs: expected .* \[3\], .* \[2\]"),
        ("PPO", "action", as_column, r"PPO, action: expected rows of shape \[\]"),
        ("PPO", "action", as_floats, "PPO, action: expected integers, got float32"),
        ("PPO_box", "advantage", as_column, r"PPO, advantage: expected rows of shape \[\]"),
    ],
)
def test_columns_of_another_form_are_refused_by_name(name, column, change, message):
    agent, batch = MADE[name]()
    learner = Learner(agent)
    learner.build(0)
    with pytest.raises(UserError, match=message):
        learner.update_from_batch(batch.replace(**{column: change(getattr(batch, column))}))


@pytest.mark.parametrize("column", ["weight", "mask"])
def test_optional_columns_too(column):
    agent, batch = MADE["DQN"]()
    rows = {name: getattr(batch, name) for name in COLUMNS}
    learner = Learner(agent)
    learner.build(0)
    rows[column] = np.ones([N, 1], bool if column == "mask" else np.float32)
    with pytest.raises(UserError, match=rf"DQN, {column}: expected rows of shape \[\]"):
        learner.update_from_batch(rows)


def test_sequences_have_two_leading_axes():
    agent, batch = on_policy(CHOICE, memory="gru")
    two = tf.nest.map_structure(lambda x: tf.reshape(x, [2, 3, *x.shape[1:]]), batch)
    agent.check_batch(two)
    with pytest.raises(UserError, match="PPO, value: expected 2 leading axes, got an array of"):
        agent.check_batch(two.replace(value=batch.value[:2]))
    with pytest.raises(UserError, match=r"PPO, value: expected rows of shape \[\], .* \[1\]"):
        agent.check_batch(two.replace(value=two.value[..., None]))


def test_observations_may_be_scaled_or_only_what_the_network_takes():
    image = specs.BoundedTensorSpec([2, 2, 1], tf.uint8, 0, 255)
    check_rows("DQN", struct.TensorDict(obs=tf.ones([N, 2, 2, 1])), obs=image)
    both = {"pose": cases.OBS, "rest": tf.TensorSpec([2])}
    agent = PPO(obs_spec=both, action_spec=CHOICE, hidden=(4,), obs_key="pose")
    _, batch = on_policy(CHOICE)
    agent.check_batch(batch.replace(obs={"pose": batch.obs}))
