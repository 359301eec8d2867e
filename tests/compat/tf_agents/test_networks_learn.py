"""Agents of ours that learn with networks of TF-Agents."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.ddpg import actor_network, critic_network
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks import (
    actor_distribution_network,
    actor_distribution_rnn_network,
    encoding_network,
    q_network,
    value_network,
    value_rnn_network,
)

import tfrl
from tests.agents import off_policy_cases as cases
from tfrl import seeding, specs, struct
from tfrl.agents import DDPG, DQN, PPO, SAC, TD3
from tfrl.compat.tf_agents import from_tf_agents_network, tensor_spec
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import Learner, ModuleConfig
from tfrl.ops.schedules import LinearSchedule
from tfrl.replay import InGraphReplay
from tfrl.rollout import rollout
from tfrl.workflows import OffPolicyWorkflow

KEY = seeding.key(3)
partial = functools.partial


def q_net(env, *sizes):
    make = partial(q_network.QNetwork, fc_layer_params=sizes)
    return from_tf_agents_network(make, env.obs_spec, env.action_spec)


BOX = specs.BoundedTensorSpec([2], tf.float32, [-1.0, 0.0], [3.0, 1.0])
OBS = tf.TensorSpec([3], tf.float32)


def actor_net(kind, obs_spec=OBS, action_spec=BOX):
    """An actor of TF-Agents as TD3 and SAC take them, and its maker."""
    make = partial(actor_network.ActorNetwork, fc_layer_params=(16,))
    if kind is SAC:
        make = partial(
            actor_distribution_network.ActorDistributionNetwork,
            fc_layer_params=(16,),
            continuous_projection_net=TanhNormalProjectionNetwork,
        )
    return from_tf_agents_network(make, obs_spec, action_spec)


def critic_net(obs_spec=OBS, action_spec=BOX):
    make = partial(critic_network.CriticNetwork, joint_fc_layer_params=(16,))
    return from_tf_agents_network(make, (obs_spec, action_spec))


def losses_on_one_batch(agent):
    """The critics' losses in 100 steps on the same items, and the learner."""
    learner = Learner(agent, config=ModuleConfig(lr=1e-2))
    learner.build(KEY)
    batch = cases.transitions(agent, rows=32)
    rows = [learner.update_from_batch(batch, compile="graph")["default_policy"] for _ in range(100)]
    return [row["critic/loss"] for row in rows], learner


def whole(kind, **more):
    return kind(
        obs_spec=OBS,
        action_spec=BOX,
        actor_network=actor_net(kind),
        critic_network=critic_net(),
        **more,
    )


class TestWholeNetworks:
    @pytest.mark.parametrize("kind", [TD3, DDPG])
    @pytest.mark.slow
    def test_actions_are_those_of_the_actor_network(self, kind):
        agent = whole(kind)
        state = agent.init(KEY)
        obs = seeding.normal(KEY, [20, 3])
        network = agent.actor.network.model.template.model.network
        for mine, x in zip(
            network.variables, tf.nest.flatten(state.params["actor"]["params"]), strict=True
        ):
            mine.assign(x)
        action, _ = network(obs)
        found = agent.evaluate_actions(state, obs, KEY).action
        np.testing.assert_allclose(found, action, atol=1e-6)
        explored = agent.compute_actions(state, obs, KEY).action.numpy()
        assert (explored >= BOX.minimum).all() and (explored <= BOX.maximum).all()
        assert np.abs(explored - action).max() > 0.01

    def test_values_are_those_of_the_critic_network(self):
        agent = whole(TD3)
        params = agent.init(KEY).params["critic"]
        obs, unit = seeding.normal(KEY, [20, 3]), tf.ones([20, 2]) * 0.3
        found = agent.critic.apply(params, obs, unit)
        assert found.shape == (2, 20)
        network = agent.critic_network.model.template.model.network
        for i in range(2):
            leaves = tf.nest.flatten(params["params"])
            for mine, x in zip(network.variables, leaves, strict=True):
                mine.assign(x[i])
            np.testing.assert_allclose(found[i], network((obs, unit))[0], rtol=1e-5)

    @pytest.mark.slow
    def test_log_probabilities_are_those_of_the_unit_vector(self):
        agent = whole(SAC)
        state, obs = agent.init(KEY), seeding.normal(KEY, [20, 3])
        policy = agent.actor.apply(state.params["actor"], obs)
        theirs = agent.actor_network.apply(state.params["actor"], obs)
        unit, log_prob = policy.sample_and_log_prob(KEY)
        action = agent.unit_actions.from_unit(unit)
        half = (BOX.maximum - BOX.minimum) / 2
        expected = theirs.log_prob(action) + np.sum(np.log(half))
        inside = np.abs(unit).max(-1) < 0.99  # where rounding of the action does not matter
        assert inside.sum() > 5
        np.testing.assert_allclose(log_prob[inside], expected[inside], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(
            agent.evaluate_actions(state, obs, KEY).action, theirs.mode(), atol=1e-6
        )

    def test_a_discrete_action(self):
        choice = specs.DiscreteSpec(4)
        q = partial(q_network.QNetwork, fc_layer_params=(8,))
        agent = SAC(
            obs_spec=OBS,
            action_spec=choice,
            actor_network=from_tf_agents_network(
                partial(actor_distribution_network.ActorDistributionNetwork, fc_layer_params=(8,)),
                OBS,
                choice,
            ),
            critic_network=from_tf_agents_network(q, OBS, choice),
        )
        learner = Learner(agent, config=ModuleConfig(lr=1e-2))
        learner.build(KEY)
        report = learner.update_from_batch(cases.transitions(agent, rows=16), compile="graph")
        assert np.isfinite(report["default_policy"]["critic/loss"])

    def test_mistakes(self):
        given = {"obs_spec": OBS, "action_spec": BOX}
        with pytest.raises(
            UserError, match="TD3.actor_network: expected a network that returns an "
        ):
            TD3(**given, actor_network=from_tf_agents_network(value_network.ValueNetwork, OBS))
        normal = from_tf_agents_network(
            actor_distribution_network.ActorDistributionNetwork, OBS, BOX
        )
        with pytest.raises(UserError, match="SAC.actor_network: expected squashed Gaussians.*Tanh"):
            SAC(**given, actor_network=normal)
        joined = partial(
            encoding_network.EncodingNetwork,
            preprocessing_combiner=keras.layers.Concatenate(),
            fc_layer_params=(4,),
        )
        with pytest.raises(UserError, match="TD3.critic_network: expected a network that returns "):
            TD3(**given, critic_network=from_tf_agents_network(joined, (OBS, BOX)))
        theirs = actor_network.ActorNetwork(tensor_spec(OBS), tensor_spec(BOX))
        with pytest.raises(UserError, match="SAC.actor_network.*from_tf_agents_network.make"):
            SAC(**given, actor_network=theirs)


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
        joined = partial(encoder, preprocessing_combiner=keras.layers.Concatenate())
        agent = SAC(
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            actor_torso=from_tf_agents_network(encoder, env.obs_spec),
            critic_torso=from_tf_agents_network(joined, (env.obs_spec, unit)),
            target_entropy=0.0,
        )
        losses, _ = losses_on_one_batch(agent)
        assert losses[-1] < 0.5 * losses[0], losses

    @pytest.mark.parametrize("kind", [TD3, SAC])
    @pytest.mark.variants(1)
    def test_whole_networks(self, kind):
        agent = whole(kind)
        losses, learner = losses_on_one_batch(agent)
        assert losses[-1] < 0.5 * losses[0], losses
        kernels = [np.asarray(x) for x in tf.nest.flatten(learner.state.params["critic"])]
        assert all(len(x) == agent.num_critics for x in kernels)
        assert any((x[0] != x[1]).any() for x in kernels)

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
    """With the settings of gin_configs/dqn/tf_cartpole.gin, whose seeds swing to the end."""
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
    # That of a single seed as in benchmarks/claims.py; without learning it is about 10 to 20.
    assert workflow.evaluate(state)[0]["eval_return_mean"] > 300
