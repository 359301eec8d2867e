"""Wrappers that make a vector of an observation leave its action mask beside the vector."""

import functools

import numpy as np
import tensorflow as tf

import tfrl
from tests.envs.multi_agent_fakes import IDS, Two
from tfrl import seeding, specs, struct
from tfrl.agents import PPO, MultiAgent
from tfrl.envs.registry import finish
from tfrl.envs.wrappers import AgentId, CentralState, ObservationFlatten
from tfrl.rollout import rollout

KEY = seeding.key(5)


@struct.logic_dataclass
class MaskedTwo(Two):
    """Action 1 is the only valid one at even ages, action 0 at odd ones."""

    @property
    def obs_spec(self):
        mask = tf.TensorSpec([2], tf.bool)
        seen = super().obs_spec
        return {
            "a": {"observation": seen["a"], "action_mask": mask},
            "b": {**seen["b"], "action_mask": mask},
        }

    def observe(self, start, age):
        seen = super().observe(start, age)
        even = tf.equal(age % 2, 0)
        mask = tf.stack([~even, even], axis=-1)
        return {
            "a": {"observation": seen["a"], "action_mask": mask},
            "b": {**seen["b"], "action_mask": mask},
        }


def made(wrapper):
    return finish(
        wrapper(env=MaskedTwo(num_envs=4)),
        autoreset=tfrl.envs.Autoreset.SAME_STEP,
        max_episode_steps=6,
        task_limit=None,
    )


def invalid_actions(env, **settings):
    agent = MultiAgent(
        obs_spec=env.obs_spec,
        action_spec=env.action_spec,
        policies=dict.fromkeys(IDS, functools.partial(PPO, hidden=(8,), **settings)),
    )
    state = agent.init(KEY)
    trajectory, *_ = rollout(env, agent, env.reset(KEY), state, KEY, 12)
    wrong = 0
    for name in IDS:
        mask = trajectory.obs[name]["action_mask"].numpy()  # [T, B, 2]
        action = trajectory.action[name].numpy()[..., np.newaxis]
        wrong += int((~np.take_along_axis(mask, action, -1)).sum())
    return wrong


def test_an_agent_id_stands_beside_the_mask():
    env = made(AgentId)
    assert sorted(env.obs_spec["a"]) == ["action_mask", "observation"]
    # start, age, two ids; b has the kind (one of 3) besides.
    assert env.obs_spec["a"]["observation"].shape == [4]
    assert env.obs_spec["b"]["observation"].shape == [7]
    np.testing.assert_array_equal(env.reset(KEY).obs["a"]["observation"][0, 2:], [1.0, 0.0])
    assert invalid_actions(env) == 0


def test_a_central_state_stands_beside_the_mask():
    env = made(CentralState)
    assert sorted(env.obs_spec["b"]) == ["action_mask", "own", "state"]
    assert sorted(env.obs_spec["b"]["own"]) == ["kind", "vector"]
    assert env.obs_spec["a"]["state"].shape == [2 + 5 + 2]  # of a, of b, the id; no masks
    assert invalid_actions(env, obs_key="own", value_obs_key="state") == 0


def test_a_flat_observation_stands_beside_the_mask():
    env = tfrl.make_env(
        "tf:Masked", num_envs=3, outer_wrappers=(lambda e: ObservationFlatten(env=e),)
    )
    assert env.obs_spec["observation"].shape == [2]
    assert env.obs_spec["action_mask"].dtype == tf.bool
    agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,))
    trajectory, *_ = rollout(
        env, agent, env.reset(KEY), agent.init(KEY), KEY, 30, env_extra_fields=("invalid_action",)
    )
    assert not trajectory.env_extras["invalid_action"].numpy().any()
    assert not trajectory.obs["action_mask"].numpy().all()


def test_a_bool_leaf_has_bounds():
    low, high = specs.bounds(tf.TensorSpec([2], tf.bool))
    np.testing.assert_array_equal(low, [False, False])
    np.testing.assert_array_equal(high, [True, True])
