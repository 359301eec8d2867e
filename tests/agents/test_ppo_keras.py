"""PPO on Keras models: training mode in the loss only, and moving statistics of no optimizer."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tfrl import distributions, networks, seeding, struct
from tfrl.agents import PPO
from tfrl.keras import api as K
from tfrl.learners import Learner, ModuleConfig
from tfrl.rollout import rollout

KEY = seeding.key(3)
pytestmark = pytest.mark.usefixtures("_eager_updates")

MEAN = "modules/default_policy/params/{}/torso/state/000_moving_mean"


def normed():
    return K.Sequential([K.layers.BatchNormalization(momentum=0.9), K.layers.Dense(8, "tanh")])


def dropping():
    return K.Sequential([K.layers.Dense(8, "tanh"), K.layers.Dropout(0.5)])


def made(model_fn, wrapped=False, **kwargs):
    """The environment, the agent, a built learner and a batch of 32 rows."""
    env = tfrl.make_env("tf:CartPole-v1", num_envs=4)
    spec = tf.TensorSpec([4]) if wrapped else env.obs_spec
    torso = networks.KerasNetwork(model_fn=model_fn, spec=spec)
    if wrapped:
        torso = networks.ObservationTorso(obs_spec=env.obs_spec, body=torso)
    agent = PPO(
        obs_spec=env.obs_spec,
        action_spec=env.action_spec,
        policy=networks.PolicyNetwork(
            torso=torso, distribution=distributions.make_distribution(env.action_spec)
        ),
        value=networks.ValueNetwork(torso=torso),
    )
    learner = Learner(agent, **{"config": ModuleConfig(lr=1e-3), **kwargs})
    learner.build(KEY)
    state = struct.values(learner.state)
    trajectory = rollout(env, agent, env.reset(KEY), state, KEY, 8)[0]
    return agent, learner, agent.learner_batch(state, trajectory)[0]


def values(learner):
    return {path: v.numpy().copy() for path, v in learner.variables().items()}


def trained(learner, batch):
    return learner.update_from_batch(batch)["default_policy"]


def adamw(config):
    return K.optimizers.AdamW(0.1, weight_decay=0.5, jit_compile=False)


class KerasTest(parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_moving_statistics_follow_the_minibatches_and_no_optimizer(self, wrapped):
        _, learner, batch = made(normed, wrapped, optimizer_fn=adamw)
        learner.update_from_batch(batch, num_epochs=2)
        after = values(learner)
        # Two steps from mean 0 with momentum 0.9: 1 - 0.9^2 = 0.19 of the mean of the rows.
        expected = 0.19 * np.mean(batch.obs, axis=0)
        for group in ("policy", "value"):
            np.testing.assert_allclose(after[MEAN.format(group)], expected, rtol=1e-4, atol=1e-7)
        optimized = {p.ref() for p in learner.optimizers.of_module("default_policy")[0][1].params}
        state = learner.state.params["policy"]["torso"]["state"].values()
        self.assertFalse(optimized & {v.ref() for v in state})
        self.assertLen(optimized, 2 * 6)  # gamma, beta, kernel, bias; the head's two

    def test_a_step_that_is_left_out_leaves_the_statistics(self):
        _, learner, batch = made(normed)
        before = values(learner)
        broken = batch.replace(advantage=batch.advantage * np.nan)
        learner.update_from_batch(broken)
        self.assertEqual(int(learner.skipped_steps), 1)
        for group in ("policy", "value"):
            path = MEAN.format(group)
            np.testing.assert_array_equal(values(learner)[path], before[path])

    def test_metrics_are_scalars_only(self):
        _, learner, batch = made(normed)
        self.assertNotIn("param_updates", trained(learner, batch))

    def test_dropout_draws_in_the_loss_and_nowhere_else(self):
        agent, learner, batch = made(dropping)
        state = struct.values(learner.state)

        def value_loss(seed):
            return float(agent.loss(state.params, state, batch, seeding.key(seed))[1]["value_loss"])

        self.assertEqual(value_loss(1), value_loss(1))
        self.assertNotEqual(value_loss(1), value_loss(2))
        policy = agent.policy_network.apply(state.params["policy"], batch.obs)
        np.testing.assert_allclose(policy.log_prob(batch.action), batch.log_prob, atol=1e-6)
        value = agent.value_network.apply(state.params["value"], batch.obs)
        np.testing.assert_allclose(value, batch.value, atol=1e-6)
        self.assertGreater(trained(learner, batch)["grad_norm"], 0.0)

    def test_without_such_layers_the_loss_is_that_of_inference(self):
        agent, learner, batch = made(lambda: K.Sequential([K.layers.Dense(8, "tanh")]))
        state = struct.values(learner.state)
        _, metrics = agent.loss(state.params, state, batch, KEY)
        self.assertNotIn("param_updates", metrics)
        self.assertLess(abs(float(metrics["approx_kl"])), 1e-6)

    def test_a_layer_that_counts_in_integers_trains(self):
        _, learner, batch = made(
            lambda: K.Sequential([K.layers.Normalization(), K.layers.Dense(8)])
        )
        counts = learner.state.params["policy"]["torso"]["state"].values()
        self.assertIn(tf.int64, [v.dtype for v in counts])
        metrics = trained(learner, batch)
        self.assertEqual(metrics["skipped_steps"], 0.0)
        self.assertGreater(metrics["grad_norm"], 0.0)
