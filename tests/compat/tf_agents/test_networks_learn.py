"""Agents of ours that learn with networks of TF-Agents."""

import functools
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import (
    actor_distribution_network,
    actor_distribution_rnn_network,
    encoding_network,
    q_network,
    value_network,
    value_rnn_network,
)

import tfrl
from tfrl import seeding, specs, struct
from tfrl.agents import DQN, PPO, SAC
from tfrl.compat.tf_agents import from_tf_agents_network
from tfrl.learners import Learner, ModuleConfig
from tfrl.ops.schedules import LinearSchedule
from tfrl.replay import InGraphReplay
from tfrl.rollout import rollout
from tfrl.workflows import OffPolicyWorkflow

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "agents"))
import off_policy_cases as cases

KEY = seeding.key(3)
partial = functools.partial


def q_net(env, *sizes):
    make = partial(q_network.QNetwork, fc_layer_params=sizes)
    return from_tf_agents_network(make, env.obs_spec, env.action_spec)


class TestLoss:
    @pytest.mark.slow
    def test_dqn_on_one_batch_in_a_graph(self):
        self._dqn_on_one_batch("graph")

    def test_dqn_on_one_batch(self):
        self._dqn_on_one_batch("xla")

    def _dqn_on_one_batch(self, mode):
        env = tfrl.make_env("tf:CartPole-v1", 1)
        agent = DQN(
            obs_spec=env.obs_spec, action_spec=env.action_spec, q=q_net(env, 16), target_every=1000
        )
        learner = Learner(agent, config=ModuleConfig(lr=1e-2))
        learner.build(KEY)
        batch = cases.transitions(agent, rows=32)
        losses = [
            learner.update_from_batch(batch, compile=mode)["default_policy"]["loss"]
            for _ in range(100)
        ]
        assert losses[-1] < 0.5 * losses[0], losses
        # The target network is a copy of the same kind, and stands still.
        found = struct.values(learner.state)
        kernels = [p["q"]["params"]["000_kernel"] for p in (found.params, found.target_params)]
        assert not np.allclose(*kernels)

    def test_sac_on_torsos(self):
        env = tfrl.make_env("tf:Pendulum-v1", 1)
        unit = specs.BoundedTensorSpec([1], tf.float32, -1.0, 1.0)
        encoder = partial(encoding_network.EncodingNetwork, fc_layer_params=(16,))
        joined = partial(encoder, preprocessing_combiner=tf.keras.layers.Concatenate())
        agent = SAC(
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            actor_torso=from_tf_agents_network(encoder, env.obs_spec),
            critic_torso=from_tf_agents_network(joined, (env.obs_spec, unit)),
            target_entropy=0.0,
        )
        learner = Learner(agent, config=ModuleConfig(lr=1e-2))
        learner.build(KEY)
        batch = cases.transitions(agent, rows=32)
        rows = [
            learner.update_from_batch(batch, compile="graph")["default_policy"] for _ in range(100)
        ]
        losses = [row["critic/loss"] for row in rows]
        assert losses[-1] < 0.5 * losses[0], losses

    def test_ppo(self):
        self._ppo(memory=False)

    @pytest.mark.slow
    def test_ppo_with_memory(self):
        self._ppo(memory=True)

    def _ppo(self, memory):
        env = tfrl.make_env("tf:CartPole-v1", 4)
        actor, critic = (
            actor_distribution_network.ActorDistributionNetwork,
            value_network.ValueNetwork,
        )
        make = [partial(net, fc_layer_params=(16,)) for net in (actor, critic)]
        if memory:
            actor = actor_distribution_rnn_network.ActorDistributionRnnNetwork
            critic = value_rnn_network.ValueRnnNetwork
            sizes = {"input_fc_layer_params": (8,), "output_fc_layer_params": None}
            make = [partial(net, lstm_size=(8,), **sizes) for net in (actor, critic)]
        agent = PPO(
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            policy=from_tf_agents_network(make[0], env.obs_spec, env.action_spec),
            value=from_tf_agents_network(make[1], env.obs_spec),
        )
        assert agent.recurrent == memory
        learner = Learner(agent, config=ModuleConfig(lr=1e-2))
        learner.build(KEY)
        state = struct.values(learner.state)

        @tf.function(autograph=False)
        def collect(state):
            rows, *_ = rollout(env, agent, env.reset(KEY), state, KEY, 16)
            return agent.learner_batch(state, rows)[0]

        batch = collect(state)
        losses = [
            learner.update_from_batch(batch, compile="graph")["default_policy"]["value_loss"]
            for _ in range(100)
        ]
        assert losses[-1] < 0.7 * losses[0], losses


@pytest.mark.slow
def test_dqn_learns_cartpole():
    """With the settings of gin_configs/dqn/tf_cartpole.gin."""
    env, test = (
        tfrl.make_env("tf:CartPole-v1", num_envs=n, autoreset=mode)
        for n, mode in ((8, "SAME_STEP"), (32, "DISABLED"))
    )
    steps = 49_920
    agent = partial(
        DQN,
        q=q_net(env, 128, 128),
        discount=0.98,
        n_step=3,
        normalize_obs=True,
        epsilon=((0, 1.0), (8_000, 0.1)),
        tau=0.01,
        target_every=1,
    )
    workflow = OffPolicyWorkflow(
        env=env,
        eval_env=test,
        agent=agent,
        replay=partial(InGraphReplay, capacity=51_200),
        rollout_length=32,
        batch_size=128,
        random_steps=1_024,
        learner_config=ModuleConfig(
            lr=LinearSchedule(start=5e-4, end=0.0, steps=steps), grad_clip=10.0
        ),
        eval_episodes=32,
    )
    state = workflow.learn(workflow.setup(seed=0), total_env_steps=steps, progress=False)
    assert workflow.evaluate(state)[0]["eval_return_mean"] > 400
