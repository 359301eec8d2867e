"""Agents of TF-Agents learn through our Learner what they learn by their own `train`."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.networks.q_rnn_network import QRnnNetwork
from tf_agents.trajectories import Trajectory as Frames

from tests.compat.tf_agents.from_tf_agent_cases import (
    BOX,
    CHOICE,
    FACTORIES,
    KEY,
    VECTOR,
    agent_specs,
    items,
    made,
    make_cloning,
    make_cql,
    make_dqn,
    rollout,
    tf_agent,
)
from tests.learners.test_own_update import Slope
from tfrl import seeding, struct
from tfrl.agents.core import ExternalUpdate
from tfrl.compat.tf_agents import from_tf_agent
from tfrl.compat.tf_agents.from_tf_agent_calls import experience_of
from tfrl.compat.tf_agents.from_tf_agent_logic import undecorated
from tfrl.compat.tf_agents.from_tf_agent_variables import drawn_from
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import Learner, Module
from tfrl.types import AgentState, Sequences, Trajectory

ON_POLICY = ("ppo", "reinforce")


def over(agent, action_spec):
    return from_tf_agent(agent, obs_spec=VECTOR, action_spec=action_spec)


def values_of(nest):
    return {path: np.asarray(x) for path, x in struct.paths(nest).items()}


def assert_same(got, want, tolerance=1e-6):
    assert got.keys() == want.keys()
    for path, x in got.items():
        np.testing.assert_allclose(x, want[path], rtol=tolerance, atol=tolerance, err_msg=path)


def variables_of(module):
    state = module.init(KEY)
    return tf.nest.map_structure(lambda x: tf.Variable(x), state)


class SameTest(parameterized.TestCase):
    @parameterized.parameters("dqn", "categorical_dqn_n_step", "sac", "ppo")
    @pytest.mark.variants(2)
    def test_a_training_step_is_the_agents_own(self, name):
        self.check_step(name)

    @parameterized.parameters("ddqn_n_step", "categorical_dqn", "td3", "ddpg", "reinforce")
    @pytest.mark.slow
    def test_a_training_step_is_that_of_the_others(self, name):
        self.check_step(name)

    def check_step(self, name):
        agent = tf_agent(name)
        module = over(agent, FACTORIES[name][1])
        state = variables_of(module)
        if name in ON_POLICY:
            batch, _ = module.learner_batch(state, rollout(module, state))
            experience = batch["experience"]
        else:
            batch = items(FACTORIES[name][1], discount=module.discount)
            experience = experience_of(module.logic, batch, module.discount, module.n_step)
        step = tf.function(module.train, autograph=False)
        for i in range(2):
            key = seeding.fold_in(KEY, i)
            metrics = step(state, batch, key)
            with drawn_from(key):
                info = agent.train(experience)
            np.testing.assert_allclose(metrics["loss"], info.loss, rtol=1e-5)
        theirs = tf.nest.map_structure(tf.convert_to_tensor, module.logic.variables.form)
        assert_same(values_of(state), values_of(theirs), 1e-5)
        self.assertEqual(int(agent.train_step_counter), 4 if name == "ppo" else 2)

    @pytest.mark.slow
    def test_a_decorated_loss_is_the_agents_own(self):
        agent = make_cql(*agent_specs(action_spec=BOX))
        agent.initialize()
        module = over(agent, BOX)
        state, batch = variables_of(module), items(BOX)
        experience = experience_of(module.logic, batch, 0.9, 1)
        step = tf.function(module.train, autograph=False)
        losses = []
        for i in range(2):  # the first clones, as a condition inside of the loss says
            key = seeding.fold_in(KEY, i)
            metrics = step(state, batch, key)
            # Plain too: the trace that a tf.function keeps would draw the same twice.
            with drawn_from(key), undecorated(agent):
                info = agent.train(experience)
            np.testing.assert_allclose(metrics["loss"], info.loss, rtol=1e-5)
            losses.append(float(metrics["actor_loss"]))
        theirs = tf.nest.map_structure(tf.convert_to_tensor, module.logic.variables.form)
        assert_same(values_of(state), values_of(theirs), 1e-5)
        self.assertNotIn("actor_loss", vars(agent))
        self.assertTrue(np.all(np.isfinite(losses)))

    @parameterized.parameters("graph", "xla", "eager")
    @pytest.mark.variants(1)
    def test_the_learner_takes_the_step(self, compile):
        agent = make_dqn(*agent_specs(), target_update_tau=0.5)
        agent.initialize()
        learner = Learner(over(agent, CHOICE))
        learner.build(0)
        batch = items(CHOICE)
        for _ in range(3):
            report = learner.update_from_batch(batch, shuffle=False, compile=compile)
            experience = experience_of(learner.modules["default_policy"].logic, batch, 0.9, 1)
            info = agent.train(experience)
        np.testing.assert_allclose(report["default_policy"]["loss"], info.loss, rtol=1e-5)
        self.assertEqual(report["__all_modules__"]["learner_steps"], 3)
        trained = values_of(learner.state.params)
        for i, variable in enumerate(agent._q_network.variables):
            path = next(p for p in trained if p.startswith(f"q_network/{i:03d}_"))
            np.testing.assert_allclose(trained[path], variable, atol=1e-5)

    @parameterized.parameters(
        tf.compat.v1.train.AdamOptimizer,
        keras.optimizers.legacy.Adam,
        keras.optimizers.Adam,
        keras.optimizers.SGD,
    )
    @pytest.mark.variants(2)
    def test_every_kind_of_optimizer_is_in_the_state(self, optimizer):
        agent = make_dqn(*agent_specs(), lambda: optimizer(1e-2))
        agent.initialize()
        module = over(agent, CHOICE)
        state = variables_of(module)
        step = tf.function(module.train, autograph=False)
        batch = items(CHOICE)
        experience = experience_of(module.logic, batch, 0.9, 1)
        before = [v.numpy() for v in agent.variables]
        for _ in range(3):
            step(state, batch, KEY)
        for x, variable in zip(before, agent.variables, strict=True):
            np.testing.assert_array_equal(x, variable)  # its own have not changed
        for _ in range(3):
            agent.train(experience)
        theirs = tf.nest.map_structure(tf.convert_to_tensor, module.logic.variables.form)
        assert_same(values_of(state), values_of(theirs))

    def test_a_cloning_agent_takes_columns(self):
        agent = make_cloning(*agent_specs())
        module = over(agent, CHOICE)
        learner = Learner(module)
        learner.build(0)
        batch = items(CHOICE)
        experience = experience_of(module.logic, batch, 1.0, 1)
        self.assertIsInstance(experience, Frames)
        for _ in range(2):
            learner.update_from_batch({"obs": batch.obs, "action": batch.action}, shuffle=False)
            agent.train(experience)
        theirs = tf.nest.map_structure(tf.convert_to_tensor, module.logic.variables.form)
        assert_same(values_of(learner.state), values_of(theirs))

    @pytest.mark.slow
    def test_a_network_with_a_memory_learns_from_sequences(self):
        agent = make_dqn(*agent_specs(), network=QRnnNetwork)
        agent.initialize()
        module = over(agent, CHOICE)
        self.assertTrue(module.takes_sequences)
        key = seeding.streams(KEY, ["obs", "reward"])
        obs = seeding.normal(key["obs"], [2, 5, 4])
        steps = Trajectory(
            obs=obs[:, :-1],
            action=tf.ones([2, 4], CHOICE.dtype),
            reward=seeding.normal(key["reward"], [2, 4]),
            next_obs=obs[:, 1:],
            termination=tf.constant([[False] * 4, [False, True, False, False]]),
            truncation=tf.zeros([2, 4], tf.bool),
            valid=tf.constant([[True] * 4, [True, True, False, False]]),
        )
        state = variables_of(module)
        batch = Sequences(steps=steps)
        experience = experience_of(module.logic, batch, 0.9, 1)
        self.assertEqual(experience.reward.shape, [2, 5])
        step = tf.function(module.train, autograph=False)
        metrics = step(state, batch, KEY)
        np.testing.assert_allclose(metrics["loss"], agent.train(experience).loss, rtol=1e-5)
        with self.assertRaisesRegex(UserError, "Sequences"):
            module.train(state, items(CHOICE), KEY)


class LossTest(parameterized.TestCase):
    @parameterized.parameters("huber", "squared")
    def test_dqn_has_the_loss_that_is_asked_for(self, loss):
        module = made("dqn", loss=loss)
        batch = items(CHOICE, discount=module.discount)
        batch = batch.replace(reward=4.0 * batch.reward)  # some errors are above 1, some below
        error = np.asarray(module.td_errors(module.init(KEY), batch, KEY))
        self.assertGreater(np.abs(error).max(), 1.0)
        self.assertLess(np.abs(error).min(), 1.0)
        want = np.where(np.abs(error) <= 1.0, error**2 / 2, np.abs(error) - 0.5)
        want = np.mean(want if loss == "huber" else error**2)
        metrics = module.train(variables_of(module), batch, KEY)
        np.testing.assert_allclose(metrics["loss"], want, rtol=1e-5)

    def test_another_loss_is_refused(self):
        with self.assertRaisesRegex(UserError, "TFAgentsDQN.loss: expected 'huber' or 'squared'"):
            made("dqn", loss="hinge")


class TargetTest(parameterized.TestCase):
    @parameterized.parameters("ddqn_n_step", "categorical_dqn_n_step")
    def test_n_step_items_have_the_targets_of_n_step_frames(self, name):
        agent = tf_agent(name)
        module = over(agent, CHOICE)
        gamma = module.discount
        self.assertEqual((module.n_step, gamma), (3, 0.99))
        reward = np.array([[1.0, 2.0, 3.0, 0.0], [0.5, -1.0, 2.0, 0.0]], np.float32)
        discount = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0]], np.float32)
        obs = np.asarray(seeding.normal(KEY, [2, 4, 4]))
        frames = Frames(
            step_type=tf.ones([2, 4], tf.int32),
            observation=tf.constant(obs),
            action=tf.ones([2, 4], CHOICE.dtype),
            policy_info=(),
            next_step_type=tf.ones([2, 4], tf.int32),
            reward=tf.constant(reward),
            discount=tf.constant(discount),
        )
        sums = reward[:, :3] @ gamma ** np.arange(3, dtype=np.float32)
        batch = items(CHOICE, size=2).replace(
            obs=tf.constant(obs[:, 0]),
            action=tf.ones([2], CHOICE.dtype),
            next_obs=tf.constant(obs[:, 3]),
            reward=tf.constant(sums),
            discount=tf.constant(gamma**3 * discount[:, 2]),
        )
        mine = experience_of(module.logic, batch, gamma, 3)
        losses = [agent.loss(x, gamma=gamma).loss for x in (frames, mine)]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)

    @pytest.mark.slow
    def test_importance_weights_and_td_errors(self):
        agent = make_dqn(*agent_specs())
        agent.initialize()
        module = over(agent, CHOICE)
        state = module.init(KEY)
        batch = items(CHOICE)
        errors = module.td_errors(state, batch, KEY)
        obs, after = (agent._q_network(x)[0].numpy() for x in (batch.obs, batch.next_obs))
        target = batch.reward + batch.discount * after.max(-1)
        wanted = np.abs(target - obs[np.arange(6), batch.action])
        np.testing.assert_allclose(errors, wanted, atol=1e-5)
        variables = tf.nest.map_structure(tf.Variable, state)
        weighted = batch.replace(weight=tf.constant([1.0, 0, 0, 0, 0, 0]))
        loss = module.train(variables, weighted, KEY)["loss"]
        huber = 0.5 * wanted[0] ** 2 if wanted[0] < 1 else wanted[0] - 0.5
        np.testing.assert_allclose(loss, huber / 6, rtol=1e-4)
        with self.assertRaisesRegex(UserError, "prioritized replay"):
            made("sac").td_errors(state, batch, KEY)


class StateTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_fresh_states_follow_from_the_key(self):
        module = made("sac")
        one, same, other = (values_of(module.init(seeding.key(i))) for i in (1, 1, 2))
        assert_same(one, same, 0.0)
        kernel = "params/actor_network/000_kernel"
        self.assertGreater(np.abs(one[kernel] - other[kernel]).max(), 1e-3)
        # Two critics, each with its target; three optimizers; the temperature.
        targets = [p for p in one if p.startswith("target_params/")]
        self.assertLen({p.split("/")[1] for p in targets}, 2)
        for path in targets:
            source = path.replace("target_params/target_", "params/")
            np.testing.assert_array_equal(one[path], one[source])
        self.assertIn("extra/log_alpha", one)
        self.assertIn("extra/critic_optimizer/m/params/critic_network_1/000_kernel", one)
        self.assertTrue(all(not x.any() for p, x in one.items() if "_optimizer/m/" in p))

    def test_names_do_not_count_what_was_made_before(self):
        paths = [
            set(values_of(from_tf_agent(make, obs_spec=VECTOR, action_spec=CHOICE).init(KEY)))
            for make in (make_dqn, make_dqn)
        ]
        self.assertEqual(*paths)

    def test_a_learner_is_saved_and_goes_on_exactly(self):
        module = made("dqn")
        batch = items(CHOICE, discount=0.99)
        one, two = Learner(module), Learner(made("dqn"))
        one.build(1)
        two.build(2)
        one.update_from_batch(batch, shuffle=False)
        with tempfile.TemporaryDirectory() as folder:
            one.save_to_path(f"{folder}/learner")
            two.restore_from_path(f"{folder}/learner")
        assert_same(values_of(one.state), values_of(two.state), 0.0)
        for learner in (one, two):
            learner.update_from_batch(batch, shuffle=False)
        assert_same(values_of(one.state), values_of(two.state), 0.0)

    @pytest.mark.slow
    def test_a_clone_is_independent(self):
        learner = Learner(made("dqn"))
        learner.build(0)
        before = values_of(learner.state)
        other = learner.clone()
        learner.update_from_batch(items(CHOICE), shuffle=False)
        assert_same(values_of(other.state), before, 0.0)
        other.update_from_batch(items(CHOICE), shuffle=False)
        assert_same(values_of(other.state), values_of(learner.state), 0.0)


class Counting(Module):
    """A module that counts by itself; its loss is that of the batch."""

    def init_params(self, key):
        return {"n": tf.constant(0.0)}

    def forward(self, params, batch, key):
        return batch

    @property
    def updates(self):
        return (ExternalUpdate(name="count", step=self.step),)

    def step(self, state, batch, key):
        state.params["n"].assign_add(1.0)
        return {"loss": tf.reduce_mean(batch["x"]), "n": state.params["n"].read_value()}


class OwnUpdateTest(parameterized.TestCase):
    @parameterized.parameters("graph", "xla", "eager")
    def test_a_step_whose_loss_is_not_finite_is_undone(self, compile):
        learner = Learner(Counting(), check_numerics="skip")
        learner.build(0)
        update = {"compile": compile, "minibatch_size": 2, "shuffle": False}
        report = learner.update_from_batch({"x": tf.ones([4])}, **update)
        self.assertEqual(float(learner.state.params["n"]), 2.0)
        self.assertEqual(report["default_policy"]["n"], 1.5)
        bad = {"x": tf.constant([1.0, np.nan, 1.0, 1.0])}
        report = learner.update_from_batch(bad, **update)
        self.assertEqual(float(learner.state.params["n"]), 3.0)
        self.assertEqual(report["__all_modules__"]["skipped_steps"], 1)

    def test_beside_a_module_that_is_trained_by_gradients(self):
        learner = Learner({"a": Counting(), "b": Slope()})
        learner.build(0)
        batch = {"x": tf.ones([2])}
        report = learner.update_from_batch({"a": batch, "b": batch})
        self.assertEqual(float(learner.module_state("a").params["n"]), 1.0)
        self.assertLess(float(learner.module_state("b").params["w"]), 1.0)
        self.assertEqual(report["a"]["loss"], 1.0)

    def test_several_replicas_are_refused(self):
        devices = [d.name for d in tf.config.list_logical_devices("CPU")[:2]]
        learner = Learner(Counting(), strategy=tf.distribute.MirroredStrategy(devices))
        learner.build(0)
        with self.assertRaisesRegex(UserError, "one replica"):
            learner.update_from_batch({"x": tf.ones([4])})

    def test_metrics_must_have_a_loss(self):
        class Silent(Counting):
            def step(self, state, batch, key):
                return {"n": tf.constant(1.0)}

        learner = Learner(Silent())
        learner.build(0)
        with self.assertRaisesRegex(UserError, "item 'loss'"):
            learner.update_from_batch({"x": tf.ones([4])})

    def test_state_is_an_agent_state_of_variables(self):
        learner = Learner(made("ddpg"))
        learner.build(0)
        self.assertIsInstance(learner.state, AgentState)
        sizes = [v.shape.num_elements() for v in tf.nest.flatten(learner.state.params)]
        counts = {"num_trainable_parameters": sum(sizes), "num_non_trainable_parameters": 0}
        self.assertGreater(sum(sizes), 0)
        self.assertEqual(learner.parameter_counts(), counts)  # its own train trains them
        self.assertEqual(BOX.shape, [2])
