"""Policies of TF-Agents act as pure functions of an AgentState."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.agents.dqn.dqn_agent import DqnAgent
from tf_agents.networks.q_rnn_network import QRnnNetwork
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import TimeStep
from tf_agents.trajectories import time_step as time_step_lib

from tests.compat.tf_agents.from_tf_agent_cases import (
    CHOICE,
    KEY,
    VECTOR,
    agent_specs,
    items,
    made,
    make_cloning,
    make_dqn,
)
from tfrl import seeding, specs, struct
from tfrl.compat.tf_agents import from_tf_agent
from tfrl.compat.tf_agents.from_tf_agent_variables import drawn_from
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.rollout.numpy_program import NumpyProgram

OBS = seeding.normal(seeding.key(11), [64, 4])


def dqn(make=make_dqn, **options):
    return from_tf_agent(lambda t, a: make(t, a, **options), obs_spec=VECTOR, action_spec=CHOICE)


def time_step(obs, kind=1):
    n = obs.shape[0]
    return TimeStep(tf.fill([n], kind), tf.zeros([n]), tf.ones([n]), obs)


class ActingTest(parameterized.TestCase):
    @parameterized.parameters("dqn", "sac", "ddpg", "ppo")
    @pytest.mark.variants(1)
    def test_the_same_in_eager_graph_and_xla(self, name):
        module = made(name)
        state, carry = module.init(KEY), module.initial_carry(64)
        self.assertEqual(carry is not None, name == "ddpg")

        def act(state, obs, key, carry):
            found = module.compute_actions(state, obs, key, carry)
            return found, module.evaluate_actions(state, obs, key, carry).action

        found = [
            fn(state, OBS, KEY, carry)
            for fn in (act, tf.function(act, autograph=False), tf.function(act, jit_compile=True))
        ]
        for other in found[1:]:
            for x, y in zip(tf.nest.flatten(found[0]), tf.nest.flatten(other), strict=True):
                np.testing.assert_allclose(x, y, atol=1e-5)
        (output, greedy) = found[0]
        self.assertEqual(output.action.dtype, module.action_spec.dtype)
        self.assertEqual(greedy.shape, [64, *module.action_spec.shape])
        again, _ = act(state, OBS, seeding.fold_in(KEY, 1), carry)
        self.assertGreater(np.abs(np.asarray(again.action - output.action)).max(), 0)

    def test_greedy_actions_are_those_of_the_agents_policy(self):
        agent = make_dqn(*agent_specs())
        agent.initialize()
        module = from_tf_agent(agent, obs_spec=VECTOR, action_spec=CHOICE)
        action = module.evaluate_actions(module.init(KEY), OBS, KEY).action
        np.testing.assert_array_equal(action, agent.policy.action(time_step(OBS)).action)

    def test_exploration_follows_the_state(self):
        counter = {}

        def make(time_step_spec, action_spec):
            steps = counter["steps"] = tf.Variable(0)
            rate = lambda: tf.where(steps < 1, 1.0, 0.0)  # noqa: E731
            made = make_dqn(time_step_spec, action_spec, epsilon_greedy=rate)
            made.steps = steps
            return made

        module = from_tf_agent(make, obs_spec=VECTOR, action_spec=CHOICE)
        state = module.init(KEY)
        obs = tf.repeat(OBS[:1], 300, axis=0)
        greedy = module.evaluate_actions(state, obs, KEY).action
        share = np.mean(module.compute_actions(state, obs, KEY).action == greedy)
        self.assertBetween(share, 0.2, 0.5)
        state.extra["steps"] = tf.constant(1)
        np.testing.assert_array_equal(module.compute_actions(state, obs, KEY).action, greedy)

    def test_draws_of_a_policy_have_its_distribution(self):
        with drawn_from(KEY):
            logits = tf.math.log([[0.1, 0.2, 0.7]])
            picks = tf.random.categorical(logits, 4000)
            normal = tf.random.normal([4000], mean=1.0, stddev=2.0)
            uniform = tf.random.uniform([4000], maxval=3, dtype=tf.int32)
            shuffled = tf.random.shuffle(tf.range(50))
        shares = np.bincount(picks[0], minlength=3) / 4000
        np.testing.assert_allclose(shares, [0.1, 0.2, 0.7], atol=0.03)
        np.testing.assert_allclose([np.mean(normal), np.std(normal)], [1.0, 2.0], atol=0.1)
        np.testing.assert_allclose(np.bincount(uniform) / 4000, [1 / 3] * 3, atol=0.03)
        self.assertCountEqual(shuffled.numpy(), range(50))

    def test_a_memory_is_carried_and_begins_anew(self):
        agent = make_dqn(*agent_specs(), network=QRnnNetwork, epsilon_greedy=0.0)
        module = from_tf_agent(agent, obs_spec=VECTOR, action_spec=CHOICE)
        state = module.init(KEY)
        carry, policy_state = module.initial_carry(64), agent.policy.get_initial_state(64)
        for t in range(3):
            kind = time_step_lib.StepType.FIRST if t == 0 else time_step_lib.StepType.MID
            step = agent.policy.action(time_step(OBS + t, int(kind)), policy_state)
            policy_state = step.state
            output = module.evaluate_actions(state, OBS + t, KEY, carry)
            carry = output.carry
            np.testing.assert_array_equal(output.action, step.action)
        for x, y in zip(carry["greedy"], tf.nest.flatten(policy_state), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)
        self.assertFalse(carry["fresh"].numpy().any())

    def test_ou_noise_is_carried_for_each_environment(self):
        module = made("ddpg", noise_std=1.0, noise_damping=0.5)
        state, carry = module.init(KEY), module.initial_carry(2)
        np.testing.assert_array_equal(carry["noise"][0], np.zeros([2, 2]))
        first = module.compute_actions(state, OBS[:2], KEY, carry).carry["noise"][0]
        self.assertGreater(np.abs(first[0] - first[1]).max(), 1e-3)
        other = seeding.fold_in(KEY, 1)
        fresh = module.compute_actions(state, OBS[:2], other, carry).carry["noise"][0]
        known = {**carry, "noise": [first]}
        second = module.compute_actions(state, OBS[:2], other, known).carry["noise"][0]
        np.testing.assert_allclose(second, 0.5 * first + fresh, atol=1e-6)

    def test_numpy_acts_alike(self):
        module = made("dqn")
        state = module.init(KEY)

        def act(state, key, obs):
            return module.compute_actions(state, obs, key).action

        def spec(nest):
            return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), nest)

        program = NumpyProgram(act, spec(state), [spec(OBS)])
        program.begin(state, KEY, 3)
        keys = seeding.split(KEY, 3)
        for t in range(3):
            wanted = act(state, keys[t], OBS)
            np.testing.assert_array_equal(program.run(t, [OBS.numpy()]), wanted)


class Decorated(DqnAgent):
    """An agent as users write them."""

    @tf.function(autograph=False)
    def _train(self, experience, weights):
        return super()._train(experience, weights)


class DecoratedLoss(DqnAgent):
    """One whose decorated method is called by its training."""

    @tf.function(autograph=False)
    def _loss(self, experience, **options):
        return super()._loss(experience, **options)


class ErrorsTest(parameterized.TestCase):
    def test_what_makes_no_agent(self):
        with self.assertRaisesRegex(UserError, "make_agent"):
            from_tf_agent(lambda t, a: None, obs_spec=VECTOR, action_spec=CHOICE)

    def test_an_agent_for_other_specs(self):
        agent = make_dqn(*agent_specs())
        with self.assertRaisesRegex(UserError, "the observation spec of DqnAgent"):
            from_tf_agent(agent, obs_spec=tf.TensorSpec([3], tf.float32), action_spec=CHOICE)

    def test_an_agent_of_an_unknown_kind_must_say_what_it_learns_from(self):
        class Own(tf.Module):
            pass

        agent = make_cloning(*agent_specs())
        agent._as_trajectory = Own()
        agent.__class__ = type("MyAgent", (type(agent).__mro__[1],), {"_train": lambda *a: None})
        with self.assertRaisesRegex(UserError, "learns_from='replay' or learns_from='rollout'"):
            from_tf_agent(agent, obs_spec=VECTOR, action_spec=CHOICE)
        with self.assertRaisesRegex(UserError, "learns_from"):
            from_tf_agent(agent, obs_spec=VECTOR, action_spec=CHOICE, learns_from="both")

    def test_a_gamma_that_items_cannot_be_divided_by(self):
        with self.assertRaisesRegex(UserError, "gamma of DqnAgent"):
            dqn(gamma=0.0)

    def test_steps_that_frames_do_not_have(self):
        agent = made("categorical_dqn").logic.agent
        with self.assertRaisesRegex(UserError, "train_sequence_length"):
            from_tf_agent(agent, obs_spec=VECTOR, action_spec=CHOICE, n_step=2)

    @pytest.mark.slow
    def test_rows_without_boundaries(self):
        module = made("ppo")
        with self.assertRaisesRegex(UserError, "NEXT_STEP"):
            module.learner_batch(None, _steps())

    def test_a_decorated_method_is_found(self):
        agent = make_dqn(*agent_specs())
        agent.initialize()
        agent.__class__ = Decorated
        agent._train_fn = agent._train
        with self.assertRaisesRegex(UserError, "a tf.function in its training"):
            from_tf_agent(agent, obs_spec=VECTOR, action_spec=CHOICE)

    def test_decorated_methods_that_training_calls_are_called_plainly(self):
        agent, losses = make_dqn(*agent_specs()), []
        agent.initialize()
        for kind in (DqnAgent, DecoratedLoss):
            agent.__class__ = kind
            module = from_tf_agent(agent, obs_spec=VECTOR, action_spec=CHOICE)
            state = tf.nest.map_structure(tf.Variable, module.init(KEY))
            losses.append(float(module.train(state, items(CHOICE), KEY)["loss"]))
        self.assertAlmostEqual(*losses, places=6)

    def test_a_nested_observation_is_told_alike(self):
        spec = {"b": VECTOR, "a": specs.BoundedTensorSpec([1], tf.float32, 0.0, 1.0)}
        seen = []

        def make(time_step_spec, action_spec):
            seen.append(time_step_spec.observation)
            layers = {k: keras.layers.Flatten() for k in ("a", "b")}
            from tf_agents.networks.q_network import QNetwork

            network = QNetwork(
                time_step_spec.observation,
                action_spec,
                preprocessing_layers=layers,
                preprocessing_combiner=keras.layers.Concatenate(),
                fc_layer_params=(4,),
            )
            return DqnAgent(
                time_step_spec,
                action_spec,
                q_network=network,
                optimizer=tf.compat.v1.train.AdamOptimizer(1e-3),
                gamma=0.9,
                train_step_counter=tf.Variable(0),
            )

        module = from_tf_agent(make, obs_spec=spec, action_spec=CHOICE)
        self.assertEqual(set(seen[0]), {"a", "b"})
        obs = specs.sample(spec, KEY, [5])
        action = module.compute_actions(module.init(KEY), obs, KEY).action
        self.assertEqual(action.shape, [5])
        self.assertIsInstance(tensor_spec.from_spec(seen[0]["a"]), tf.TensorSpec)
        self.assertIn("params/q_network/000_kernel", struct.paths(module.init(KEY)))


def _steps():
    from tfrl.types import Trajectory

    return Trajectory(
        obs=OBS[:2, None],
        action=tf.zeros([2, 1, 2]),
        reward=tf.zeros([2, 1]),
        next_obs=OBS[:2, None],
        termination=tf.zeros([2, 1], tf.bool),
        truncation=tf.zeros([2, 1], tf.bool),
        valid=None,
    )
