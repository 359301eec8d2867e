"""What a module of a TFAgent does with steps that are not finite, and with others' variables."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.agents import tf_agent
from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
from tf_agents.agents.dqn.dqn_agent import DqnAgent
from tf_agents.networks import q_network
from tf_agents.networks.q_rnn_network import QRnnNetwork
from tf_agents.policies import q_policy

from tests.compat.tf_agents.from_tf_agent_cases import (
    CHOICE,
    KEY,
    VECTOR,
    items,
    made,
    make_dqn,
    rollout,
)
from tests.compat.tf_agents.test_from_tf_agent_learns import assert_same, values_of, variables_of
from tfrl import seeding
from tfrl.agents import RandomAgent
from tfrl.compat.tf_agents import from_tf_agent
from tfrl.compat.tf_agents.from_tf_agent_calls import experience_of, weights_of
from tfrl.compat.tf_agents.from_tf_agent_variables import unchecked
from tfrl.errors import UserError
from tfrl.experiment.metadata import params_digest
from tfrl.launch.training import params_of
from tfrl.learners import Learner
from tfrl.types import Sequences, Trajectory


class FiniteTest(parameterized.TestCase):
    @parameterized.parameters(("dqn", "graph"), ("dqn", "xla"), ("sac", "graph"))
    @pytest.mark.variants(1)
    def test_a_step_whose_loss_is_not_finite_is_undone(self, name, compile):
        self.check_undone(name, compile)

    @pytest.mark.slow
    def test_a_step_of_sac_is_undone_under_xla(self):
        self.check_undone("sac", "xla")

    def check_undone(self, name, compile):
        module = made(name)
        learner = Learner(module)
        learner.build(0)
        before = values_of(learner.state)
        batch = items(module.action_spec)
        bad = batch.replace(reward=tf.fill([6], np.float32(np.nan)))
        report = learner.update_from_batch(bad, shuffle=False, compile=compile)
        self.assertEqual(report["__all_modules__"]["skipped_steps"], 1)
        assert_same(values_of(learner.state), before, 0.0)
        report = learner.update_from_batch(batch, shuffle=False, compile=compile)
        self.assertEqual(report["__all_modules__"]["skipped_steps"], 0)
        self.assertTrue(np.isfinite(report["default_policy"]["loss"]))

    def test_checks_of_other_threads_go_on(self):
        bad, found = tf.constant(np.nan), []

        def check():
            try:
                tf.debugging.check_numerics(bad, "bad")
            except tf.errors.InvalidArgumentError as error:
                found.append(error)

        with unchecked():
            check()
            self.assertEmpty(found)
            thread = threading.Thread(target=check)
            thread.start()
            thread.join()
        self.assertLen(found, 1)
        check()
        self.assertLen(found, 2)


class LendingTest(parameterized.TestCase):
    def test_a_state_of_others_is_refused_and_changes_nothing(self):
        module = made("dqn")
        variables = module.logic.variables
        mine = tf.nest.flatten(variables.form)
        handles = [v.handle for v in mine]
        for other in (made("dqn", hidden=(5,)), made("ddpg")):
            with self.assertRaisesRegex(UserError, "the state of a TFAgent"):
                with variables.stand_for(variables_of(other)):
                    self.fail("lent")
            self.assertTrue(all(v.handle is h for v, h in zip(mine, handles, strict=True)))

    @pytest.mark.slow
    def test_two_threads_lend_one_after_the_other(self):
        module = made("dqn")
        mine = tf.nest.flatten(module.logic.variables.form)
        handles = [v.handle for v in mine]
        before = values_of(module.logic.variables.values())
        inside, go = threading.Event(), threading.Event()
        states = [variables_of(module) for _ in range(2)]

        def hold():
            with module.logic.variables.stand_for(states[0]):
                inside.set()
                go.wait(20)

        def train():
            module.train(states[1], items(module.action_spec, discount=0.99), KEY)

        threads = [threading.Thread(target=hold), threading.Thread(target=train)]
        threads[0].start()
        inside.wait(20)
        threads[1].start()
        threads[1].join(0.3)  # waits for the lock
        go.set()
        for thread in threads:
            thread.join()
        self.assertTrue(all(v.handle is h for v, h in zip(mine, handles, strict=True)))
        assert_same(values_of(module.logic.variables.values()), before, 0.0)
        fresh = values_of(module.init(KEY))
        assert_same(values_of(states[0]), fresh, 0.0)
        kernel = "params/q_network/000_kernel"
        moved = values_of(states[1])
        path = next(p for p in moved if p.startswith(kernel))
        self.assertGreater(np.abs(moved[path] - fresh[path]).max(), 0)


class MaskTest(parameterized.TestCase):
    def columns(self, module, **more):
        batch = items(module.action_spec)
        names = ("obs", "action", "reward", "next_obs", "discount")
        return {n: getattr(batch, n) for n in names} | more

    def test_rows_that_do_not_count_teach_nothing(self):
        module = made("dqn")
        mask = tf.constant([True, True, False, True, True, False])
        part = {n: tf.boolean_mask(x, mask) for n, x in self.columns(module).items()}
        # What stands in the other rows has no influence.
        whole = self.columns(module, mask=mask)
        whole["reward"] = tf.where(mask, whole["reward"], 1e3)
        states = [variables_of(module) for _ in range(2)]
        losses = []
        for state, batch in zip(states, (whole, part), strict=True):
            losses.append(module.train(state, batch, KEY)["loss"])
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
        assert_same(values_of(states[0]), values_of(states[1]), 1e-4)

    def test_weights_that_a_loss_ignores_are_refused(self):
        module = made("categorical_dqn")
        weighted = items(CHOICE).replace(weight=tf.ones([6]))
        with self.assertRaisesRegex(UserError, "importance weights of CategoricalDqnAgent"):
            module.train(variables_of(module), weighted, KEY)

    @pytest.mark.slow
    def test_minibatches_are_padded(self):
        module = made("dqn")
        learners = [Learner(module) for _ in range(2)]
        for learner in learners:
            learner.build(0)
        columns = self.columns(module)
        options = {"shuffle": False, "minibatch_size": 4}
        learners[0].update_from_batch(columns, remainder="pad", **options)
        four = {n: x[:4] for n, x in columns.items()}
        two = {n: x[4:] for n, x in columns.items()}
        for batch in (four, two):
            learners[1].update_from_batch(batch, shuffle=False)
        assert_same(values_of(learners[0].state), values_of(learners[1].state), 1e-4)

    @pytest.mark.slow
    def test_masks_of_their_experience_are_refused(self):
        module = made("ppo")
        state = variables_of(module)
        batch, _ = module.learner_batch(state, rollout(module, state))
        with self.assertRaisesRegex(UserError, "remainder='drop'"):
            module.train(state, {**batch, "mask": tf.constant([True, False])}, KEY)

    def test_masks_are_refused_where_the_loss_takes_no_weights(self):
        module = made("categorical_dqn")
        columns = self.columns(module, mask=tf.ones([6], tf.bool))
        with self.assertRaisesRegex(UserError, "whose loss takes weights"):
            module.train(variables_of(module), columns, KEY)


class SequenceTest(parameterized.TestCase):
    def make_cloning(self, time_step_spec, action_spec):
        return BehavioralCloningAgent(
            time_step_spec,
            action_spec,
            cloning_network=QRnnNetwork(
                time_step_spec.observation,
                action_spec,
                input_fc_layer_params=(6,),
                lstm_size=(5,),
                output_fc_layer_params=(),
            ),
            optimizer=tf.compat.v1.train.AdamOptimizer(1e-2),
            train_step_counter=tf.Variable(0),
            num_outer_dims=2,
        )

    @pytest.mark.slow
    def test_cloning_learns_the_actions_that_were_taken(self):
        module = from_tf_agent(self.make_cloning, obs_spec=VECTOR, action_spec=CHOICE)
        valid = tf.constant([[True] * 5, [True, True, True, False, False]])
        ends = tf.constant([[False] * 5, [False, False, True, False, False]])
        obs = seeding.normal(KEY, [2, 6, 4])

        def batch(behind):
            action = tf.constant([[0, 1, 2, 0, 1], [2, 1, 2, behind, behind]], CHOICE.dtype)
            return Sequences(
                steps=Trajectory(
                    obs=obs[:, :-1],
                    action=action,
                    reward=tf.ones([2, 5]),
                    next_obs=obs[:, 1:],
                    termination=ends,
                    truncation=tf.zeros_like(ends),
                    valid=valid,
                )
            )

        experience = experience_of(module.logic, batch(0), module.discount, module.n_step)
        np.testing.assert_array_equal(experience.action, batch(0).steps.action)
        states = [variables_of(module) for _ in range(2)]
        losses = [module.train(s, batch(i), KEY)["loss"] for i, s in enumerate(states)]
        assert_same(values_of(states[0]), values_of(states[1]), 0.0)
        agent = module.logic.agent
        with module.logic.variables.stand_for(variables_of(module)):
            each = agent._bc_loss_fn(experience)
            weights = weights_of(module.logic, batch(0))
        np.testing.assert_allclose(weights, tf.cast(valid, tf.float32) * 10 / 8)
        wanted = tf.reduce_mean(tf.boolean_mask(each, valid))
        np.testing.assert_allclose(losses, [wanted] * 2, rtol=1e-5)


class EndTest(parameterized.TestCase):
    @parameterized.parameters("graph", "xla", "eager")
    @pytest.mark.slow
    def test_reinforce_waits_for_an_end(self, compile):
        module = made("reinforce")
        learner = Learner(module)
        learner.build(0)
        before = values_of(learner.state)
        steps = rollout(module, module.init(KEY))
        ended, _ = module.learner_batch(None, steps)
        going_on, _ = module.learner_batch(
            None,
            steps.replace(
                termination=tf.zeros_like(steps.termination), valid=tf.ones_like(steps.valid)
            ),
        )
        update = {"shuffle": False, "compile": compile}
        report = learner.update_from_batch(going_on, **update)["default_policy"]
        self.assertEqual((report["loss"], report["no_episode_end"]), (0.0, 1.0))
        assert_same(values_of(learner.state), before, 0.0)
        report = learner.update_from_batch(ended, **update)["default_policy"]
        self.assertEqual(report["no_episode_end"], 0.0)
        self.assertNotEqual(report["loss"], 0.0)
        counter = next(p for p in before if p.endswith("train_step_counter"))
        self.assertEqual(int(values_of(learner.state)[counter]), 1)


class EagerTest(parameterized.TestCase):
    def test_each_kind_of_call_is_traced_once(self):
        module = made("dqn")
        for i in range(3):
            state = module.init(seeding.key(i))
            obs = seeding.normal(seeding.key(i), [4, 4])
            found = module.evaluate_actions(state, obs, KEY).action
            wanted = tf.function(module.evaluate_actions)(state, obs, KEY).action
            np.testing.assert_array_equal(found, wanted)
            module.compute_actions(state, obs.numpy(), KEY)
            module.td_errors(state, items(CHOICE), KEY)
        traced = module.logic.traced
        self.assertEqual(set(traced), {"greedy", "explore", "td_errors"})
        counts = {n: f.experimental_get_tracing_count() for n, f in traced.items()}
        self.assertEqual(counts, {"greedy": 1, "explore": 1, "td_errors": 1})


class ColumnsTest(parameterized.TestCase):
    @parameterized.parameters("dqn", "categorical_dqn_n_step", "sac", "ddpg")
    @pytest.mark.variants(1)
    def test_missing_columns_are_refused_by_name(self, name):
        module = made(name)
        batch = items(module.action_spec)
        names = ("obs", "action", "reward", "next_obs", "discount")
        columns = {n: getattr(batch, n) for n in names}
        learner = Learner(module)
        learner.build(0)
        learner.update_from_batch(columns)
        columns["rewards"] = columns.pop("reward")
        with self.assertRaisesRegex(UserError, "the batch of .*rewards, without reward"):
            learner.update_from_batch(columns)

    @parameterized.parameters("dqn", "sac")
    @pytest.mark.variants(1)
    def test_rows_of_other_shapes_are_refused_by_name(self, name):
        module = made(name)
        batch = items(module.action_spec)
        learner = Learner(module)
        learner.build(0)
        wide = tf.concat([batch.next_obs] * 2, axis=1)
        with self.assertRaisesRegex(
            UserError,
            r"Agent, next_obs: expected rows of shape \[4\], got rows of shape \[8\]",
        ):
            learner.update_from_batch(batch.replace(next_obs=wide))
        with self.assertRaisesRegex(UserError, "obs: expected rows .*, got nothing of this name"):
            learner.update_from_batch(batch.replace(obs={"x": batch.obs}, next_obs=batch.obs))
        action = tf.stack([batch.action] * 2, axis=1)
        with self.assertRaisesRegex(UserError, r"Agent, action: expected rows of shape \["):
            learner.update_from_batch(batch.replace(action=action))

    def test_what_makes_no_agent(self):
        for wrong in (3, RandomAgent(obs_spec=VECTOR, action_spec=CHOICE)):
            got = type(wrong).__name__
            with self.assertRaisesRegex(UserError, f"make_agent: expected a function.*a {got}"):
                from_tf_agent(wrong, obs_spec=VECTOR, action_spec=CHOICE)

    def test_what_contradicts_the_agent(self):
        def make(time_step, action):
            return make_dqn(time_step, action, n_step_update=3)

        given = {"obs_spec": VECTOR, "action_spec": CHOICE}
        own = from_tf_agent(make, **given).discount
        with self.assertRaisesRegex(UserError, f"gamma of DqnAgent: expected {own:g}, the agent"):
            from_tf_agent(make, gamma=0.5, **given)
        with self.assertRaisesRegex(UserError, "gamma of DqnAgent: .*got a"):
            from_tf_agent(make, gamma="a", **given)
        self.assertEqual(from_tf_agent(make, gamma=own, **given).discount, own)
        for name in given:
            with self.assertRaisesRegex(UserError, "from_tf_agent: expected both obs_spec and ac"):
                from_tf_agent(make, **{name: given[name]})
        with self.assertRaisesRegex(UserError, "make_agent: expected a func.*class DqnAgent: "):
            from_tf_agent(DqnAgent, **given)


class Kept(tf_agent.TFAgent):
    """A user's agent whose networks lie in a dict; its step adds what the rewards say."""

    def __init__(self, time_step_spec, action_spec):
        nets = [
            q_network.QNetwork(time_step_spec.observation, action_spec, fc_layer_params=(8,))
            for _ in range(2)
        ]
        for net in nets:
            net.create_variables()
        self.nets = {"q": nets[0], "target_q": nets[1]}
        policy = q_policy.QPolicy(time_step_spec, action_spec, q_network=nets[0])
        super().__init__(
            time_step_spec,
            action_spec,
            policy,
            policy,
            train_sequence_length=2,
            train_step_counter=tf.Variable(0),
        )

    def _train(self, experience, weights=None):
        for variable in self.nets["q"].trainable_variables:
            variable.assign_add(tf.reduce_mean(experience.reward) * tf.ones_like(variable))
        self.train_step_counter.assign_add(1)
        return tf_agent.LossInfo(tf.constant(0.0), ())


class KeptTest(parameterized.TestCase):
    def test_networks_in_a_collection_are_parameters(self):
        module = from_tf_agent(Kept, gamma=0.9, obs_spec=VECTOR, action_spec=CHOICE)
        one, other = (module.init(seeding.key(i)) for i in range(2))
        self.assertEqual(list(one.params["nets"]), ["q"])
        self.assertEqual(list(one.target_params["nets"]), ["target_q"])
        digests = [params_digest(params_of(state)) for state in (one, other)]
        self.assertNotEqual(*digests)
        learner = Learner(module, check_numerics="skip")
        learner.build(0)
        sizes = [v.shape.num_elements() for v in tf.nest.flatten(one.params)]
        self.assertEqual(learner.parameter_counts()["num_trainable_parameters"], sum(sizes))
        batch = items(module.action_spec)
        learner.update_from_batch(batch)
        before = [v.numpy() for v in tf.nest.flatten(learner.state.params)]
        bad = batch.replace(reward=batch.reward * np.nan)
        report = learner.update_from_batch(bad)
        self.assertEqual(report["__all_modules__"]["skipped_steps"], 1)
        for x, y in zip(before, tf.nest.flatten(learner.state.params), strict=True):
            np.testing.assert_array_equal(x, y)
