"""Policies of this library as TF-Agents', under its own drivers, saver and checkpoints."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.drivers import dynamic_step_driver, py_driver
from tf_agents.environments import tf_py_environment
from tf_agents.policies import policy_saver, py_tf_eager_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import TimeStep
from tf_agents.utils import common

import tfrl
from tfrl import agents, seeding, specs, struct
from tfrl.compat import tf_agents as compat
from tfrl.errors import UserError
from tfrl.learners import Learner
from tfrl.types import ActionOutput, AgentState

KEY = seeding.key(3)
NESTED = {
    "action_mask": specs.BoundedTensorSpec([3], tf.bool, False, True),
    "pair": (tf.TensorSpec([2], tf.float32), specs.BoundedTensorSpec([1], tf.float32, -1.0, 1.0)),
}
CHOICE = specs.DiscreteSpec(3, start=2, dtype=tf.int32)
BOX = specs.BoundedTensorSpec([2], tf.float32, [-1.0, -2.0], [1.0, 2.0])
VECTOR = tf.TensorSpec([4], tf.float32)
SMALL = {"hidden": (8,)}

AGENTS = {
    "ppo": (agents.PPO, VECTOR, specs.DiscreteSpec(2), SMALL),
    "ppo_nested": (agents.PPO, NESTED, CHOICE, SMALL),
    "ppo_composite": (agents.PPO, VECTOR, {"a": BOX, "b": (CHOICE,)}, SMALL),
    "ppo_memory": (agents.PPO, VECTOR, BOX, {**SMALL, "memory": "lstm", "memory_size": 5}),
    "sac": (agents.SAC, VECTOR, BOX, {**SMALL, "normalize_obs": True}),
    "td3": (agents.TD3, VECTOR, BOX, SMALL),
    "dqn_nested": (agents.DQN, NESTED, CHOICE, SMALL),
}


def made(name, **more):
    kind, obs_spec, action_spec, kwargs = AGENTS[name]
    agent = kind(obs_spec=obs_spec, action_spec=action_spec, **{**kwargs, **more})
    return agent, agent.init(KEY)


def observations(agent, batch=3, key=KEY):
    obs = specs.sample(agent.obs_spec, key, [batch])
    if isinstance(obs, dict):
        obs["action_mask"] = tf.constant([[True, False, False], [False, True, True], [True] * 3])
    return obs


def folder_of(test):
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return folder.name


def time_step(obs, kinds=(0, 1, 1)):
    n = len(kinds)
    return TimeStep(tf.constant(kinds, tf.int32), tf.zeros([n]), tf.ones([n]), obs)


def assert_same(a, b):
    tf.nest.assert_same_structure(a, b)
    for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
        np.testing.assert_array_equal(x, y)


class ActionTest(parameterized.TestCase):
    @parameterized.product(name=list(AGENTS), explore=[False, True])
    @pytest.mark.variants(5)
    def test_actions_and_info_are_the_agents(self, name, explore):
        agent, state = made(name)
        policy = compat.as_tf_policy(agent, state, explore=explore, clip=False)
        obs = observations(agent)
        carry = policy.get_initial_state(3)
        step = policy.action(time_step(obs), carry, seed=KEY)
        act = agent.compute_actions if explore else agent.evaluate_actions
        own = agent.initial_carry(3) if hasattr(agent, "initial_carry") else None
        expected = act(state, obs, KEY, own)
        assert_same(step.action, expected.action)
        assert_same(step.info, expected.extras if explore and expected.extras else ())
        self.assertEqual(bool(step.state), bool(tf.nest.flatten(expected.carry or ())))
        # TF-Agents' own checks of specs, in a graph with open batch sizes.
        open_spec = tensor_spec.add_outer_dim(policy.time_step_spec)
        state_spec = tensor_spec.add_outer_dim(policy.policy_state_spec)
        graph = tf.function(policy.action, autograph=False).get_concrete_function(
            open_spec, state_spec
        )
        outer = tensor_spec.add_outer_dim(policy.policy_step_spec)
        for x, s in zip(graph.outputs, tf.nest.flatten(outer), strict=True):
            self.assertEqual((x.dtype, x.shape.as_list()[1:]), (s.dtype, s.shape.as_list()[1:]))

    def test_masks_are_kept(self):
        for name in ("ppo_nested", "dqn_nested"):
            agent, state = made(name)
            policy = compat.as_tf_policy(agent, state, explore=True)
            obs = observations(agent)
            drawn = [policy.action(time_step(obs), (), seed=i).action.numpy() for i in range(20)]
            self.assertEqual({int(a[0]) for a in drawn}, {2})
            self.assertEqual({int(a[1]) for a in drawn}, {3, 4})
            self.assertEqual(drawn[0].dtype, np.int32)

    def test_actions_are_clipped_where_it_does_not_explore(self):
        agent, state = made("ppo_memory")
        far = state.replace(params=tf.nest.map_structure(lambda x: x + 100.0, state.params))
        step = time_step(observations(agent), (1, 1, 1))
        carry = agent.initial_carry(3)
        clipped = compat.as_tf_policy(agent, far).action(step, carry).action
        np.testing.assert_array_equal(clipped, [[1.0, 2.0]] * 3)
        for policy in (
            compat.as_tf_policy(agent, far, clip=False),
            compat.as_tf_policy(agent, far, explore=True),
        ):
            self.assertGreater(np.max(policy.action(step, carry).action), 2.0)

    def test_seeds(self):
        agent, state = made("sac")
        policy = compat.as_tf_policy(agent, state, explore=True)
        step = time_step(observations(agent))

        def draws(seed):
            tf.random.set_seed(7)
            return [policy.action(step, (), seed=seed).action.numpy() for _ in range(2)]

        for seed in (None, 5):
            first, second = draws(seed)
            self.assertTrue(np.all(first != second))
            assert_same([first, second], draws(seed))
        first, second = draws((1, 2))
        assert_same(first, second)

    def test_distribution_of_what_does_not_explore(self):
        agent, state = made("td3")
        step = time_step(observations(agent))
        policy = compat.as_tf_policy(agent, state)
        found = policy.distribution(step).action
        np.testing.assert_array_equal(found.sample(), policy.action(step).action)


GRID = specs.BoundedTensorSpec([2, 2], tf.float32, -1.0, [[1.0, 2.0], [3.0, 4.0]])
MULTI = specs.MultiDiscreteSpec([2, 3], start=[1, 0])
BITS = specs.BinarySpec([3])
DRAWN_FROM = {
    "ppo": (AGENTS["ppo"], "Categorical"),
    "ppo_nested": (AGENTS["ppo_nested"], "ShiftedCategorical"),
    "ppo_memory": (AGENTS["ppo_memory"], "MultivariateNormalDiag"),
    "ppo_multi": ((agents.PPO, VECTOR, MULTI, SMALL), "IndependentShiftedCategorical"),
    "ppo_bits": ((agents.PPO, VECTOR, BITS, SMALL), "IndependentBernoulli"),
    "ppo_scalar": (
        (agents.A2C, VECTOR, specs.BoundedTensorSpec([], tf.float32, -1.0, 1.0), SMALL),
        "Normal",
    ),
    "ppo_grid": ((agents.PPO, VECTOR, GRID, SMALL), "IndependentNormal"),
    "ppo_squashed": (
        (agents.PPO, VECTOR, BOX, {**SMALL, "squash": True}),
        "SquashToSpecNormal",
    ),
    "sac": (AGENTS["sac"], "SquashToSpecNormal"),
    "sac_choice": ((agents.SAC, VECTOR, CHOICE, SMALL), "ShiftedCategorical"),
    "dqn_nested": ((agents.DQN, NESTED, CHOICE, {**SMALL, "epsilon": 0.3}), "ShiftedCategorical"),
}


class DistributionTest(parameterized.TestCase):
    @parameterized.parameters(*DRAWN_FROM)
    def test_it_is_what_actions_are_drawn_from(self, name):
        (kind, obs_spec, action_spec, kwargs), expected = DRAWN_FROM[name]
        agent = kind(obs_spec=obs_spec, action_spec=action_spec, **kwargs)
        state = agent.init(KEY)
        policy = compat.as_tf_policy(agent, state, explore=True)
        obs = tf.nest.map_structure(lambda x: tf.repeat(x[1:2], 4000, 0), observations(agent))
        step, carry = time_step(obs, (1,) * 4000), policy.get_initial_state(4000)
        found = policy.distribution(step, carry)
        self.assertEqual(found.action.name.replace("_", ""), expected)
        drawn = policy.action(step, carry, seed=KEY)
        own = found.action.sample(seed=5)
        self.assertEqual((own.dtype, own.shape), (drawn.action.dtype, drawn.action.shape))
        a, b = (np.asarray(x, np.float64).reshape(4000, -1) for x in (own, drawn.action))
        error = np.sqrt((a.var(0) + b.var(0)) / 4000) + 1e-9
        self.assertLess(np.max(np.abs(a.mean(0) - b.mean(0)) / error), 5.0)
        np.testing.assert_allclose(a.std(0), b.std(0), rtol=0.15, atol=1e-6)
        if "log_prob" in (drawn.info or {}):
            log_prob = found.action.log_prob(drawn.action)
            np.testing.assert_allclose(log_prob, drawn.info["log_prob"], rtol=1e-3, atol=1e-3)
            self.assertEqual(np.count_nonzero(found.info["log_prob"]), 0)
        tf.nest.assert_same_structure(found.state, drawn.state)
        if "nested" in name:  # row 1 forbids the first action
            np.testing.assert_allclose(found.action.prob(tf.fill([4000], 2)), 0.0)

    def test_nests(self):
        agent, state = made("ppo_composite")
        step = time_step(observations(agent))
        policy = compat.as_tf_policy(agent, state, explore=True)
        found = policy.distribution(step).action
        tf.nest.assert_same_structure(found, policy.action_spec)
        drawn = policy.action(step, (), KEY)
        parts = zip(tf.nest.flatten(found), tf.nest.flatten(drawn.action), strict=True)
        whole = tf.add_n([d.log_prob(x) for d, x in parts])
        np.testing.assert_allclose(whole, drawn.info["log_prob"], rtol=1e-4)
        sac = agents.SAC(obs_spec=VECTOR, action_spec={"a": BOX, "b": GRID}, **SMALL)
        policy = compat.as_tf_policy(sac, sac.init(KEY), explore=True)
        found = policy.distribution(step).action
        greedy = compat.as_tf_policy(sac, sac.init(KEY), clip=False).action(step).action
        for name in "ab":
            np.testing.assert_allclose(found[name].mode(), greedy[name], atol=1e-6)
        self.assertEqual(found["b"].log_prob(greedy["b"]).shape, [3])

    def test_epsilon_is_shared_among_the_valid_actions(self):
        agent, state = made("dqn_nested", epsilon=0.3)
        obs = observations(agent)
        found = compat.as_tf_policy(agent, state, explore=True).distribution(time_step(obs)).action
        best = agent.evaluate_actions(state, obs, KEY).action.numpy()
        expected = np.array([[1.0, 0.0, 0.0], [0.0, 0.15, 0.15], [0.1] * 3])
        expected[[1, 2], best[1:] - 2] += 0.7
        np.testing.assert_allclose(found.probs_parameter(), expected, atol=1e-6)
        self.assertTrue(np.all(np.isfinite(found.entropy())))

    def test_agents_without_one(self):
        agent, state = made("td3")
        step = time_step(observations(agent))
        with self.assertRaisesRegex(NotImplementedError, "TD3.*noise is clipped"):
            compat.as_tf_policy(agent, state, explore=True).distribution(step)
        odd = agents.RandomAgent(obs_spec=VECTOR, action_spec=BOX)
        with self.assertRaisesRegex(
            NotImplementedError, "RandomAgent has no known action distribution"
        ):
            compat.as_tf_policy(odd, AgentState(params={}), explore=True).distribution(step)

    @parameterized.parameters("ppo", "ppo_multi", "ppo_grid", "ppo_bits", "sac", "dqn_nested")
    @pytest.mark.variants(2)
    def test_policy_saver_takes_it(self, name):
        (kind, obs_spec, action_spec, kwargs), _ = DRAWN_FROM[name]
        agent = kind(obs_spec=obs_spec, action_spec=action_spec, **kwargs)
        policy = compat.as_tf_policy(agent, agent.init(KEY), explore=True)
        folder = folder_of(self)
        policy_saver.PolicySaver(policy).save(folder)
        loaded = tf.saved_model.load(folder)
        step = time_step(observations(agent))
        self.assertEqual(loaded.action(step).action.dtype, agent.action_spec.dtype)
        if name in ("ppo", "dqn_nested"):
            found = loaded.distribution(step).action
            np.testing.assert_allclose(
                found.logits, policy.distribution(step).action.logits, rtol=1e-5
            )


class MemoryTest(parameterized.TestCase):
    def test_state_begins_anew_where_a_time_step_is_first(self):
        agent, state = made("ppo_memory")
        policy = compat.as_tf_policy(agent, state, explore=True)
        self.assertEqual(
            tf.nest.map_structure(lambda s: s.shape, policy.policy_state_spec),
            {name: {"cell": [5], "hidden": [5]} for name in ("policy", "value")},
        )
        obs = observations(agent)
        before = policy.action(time_step(obs), policy.get_initial_state(3), seed=KEY).state
        step = policy.action(time_step(obs, (0, 1, 2)), before, seed=KEY)
        zeros = tf.nest.map_structure(tf.zeros_like, before)
        for i, carry in enumerate((zeros, before, before)):
            used = tf.nest.map_structure(lambda x, i=i: x[i], step.info["state_in"])
            assert_same(used, tf.nest.map_structure(lambda x, i=i: x[i], carry))

    def test_initial_state_without_a_batch(self):
        policy = compat.as_tf_policy(*made("ppo_memory"))
        for spec, x in zip(
            tf.nest.flatten(policy.policy_state_spec),
            tf.nest.flatten(policy.get_initial_state(None)),
            strict=True,
        ):
            self.assertEqual(spec.shape, x.shape)
        self.assertEqual(compat.as_tf_policy(*made("sac")).get_initial_state(2), ())


class VariablesTest(tf.test.TestCase, parameterized.TestCase):
    def test_values_are_copied_and_variables_are_followed(self):
        agent, state = made("td3")
        step = time_step(observations(agent))
        copied = compat.as_tf_policy(agent, state)
        learner = Learner(agent)
        learner.build(KEY)
        followed = compat.as_tf_policy(agent, learner.state)
        before = copied.action(step).action, followed.action(step).action
        for v in tf.nest.flatten(learner.state.params):
            v.assign(v + 0.1)
        self.assertAllEqual(copied.action(step).action, before[0])
        self.assertNotAllClose(followed.action(step).action, before[1])
        # Only what acting reads: neither critics nor targets.
        actor = {v.ref() for v in tf.nest.flatten(learner.state.params["actor"])}
        self.assertEqual({v.ref() for v in followed.variables()}, actor)
        common.soft_variables_update(followed.variables(), copied.variables(), tau=1.0)
        self.assertAllEqual(copied.action(step).action, followed.action(step).action)

    def test_checkpoints(self):
        agent, state = made("sac")
        policy = compat.as_tf_policy(agent, state, explore=True)
        path = tf.train.Checkpoint(policy=policy).write(folder_of(self) + "/policy")
        other = compat.as_tf_policy(agent, agent.init(seeding.key(9)), explore=True)
        tf.train.Checkpoint(policy=other).read(path).assert_consumed()
        step = time_step(observations(agent))
        self.assertAllEqual(policy.action(step, (), KEY).action, other.action(step, (), KEY).action)
        names = list(struct.paths(state))
        self.assertTrue({v.name.removesuffix(":0") for v in other.variables()} <= set(names))

    @parameterized.parameters("ppo_memory", "dqn_nested", "ppo_composite")
    @pytest.mark.variants(1)
    def test_policy_saver(self, name):
        agent, state = made(name)
        policy = compat.as_tf_policy(agent, state)
        train_step = tf.Variable(17, dtype=tf.int64)
        saver = policy_saver.PolicySaver(
            policy, train_step=train_step, metadata={"env_steps": tf.Variable(5)}
        )
        folder = folder_of(self)
        saver.save(folder + "/policy")
        saver.save_checkpoint(folder + "/old")
        loaded = py_tf_eager_policy.SavedModelPyTFEagerPolicy(
            folder + "/policy", load_specs_from_pbtxt=True
        )
        self.assertEqual(loaded.get_train_step(), 17)
        self.assertEqual({k: int(v) for k, v in loaded.get_metadata().items()}, {"env_steps": 5})
        step = time_step(observations(agent))
        numbers = tf.nest.map_structure(lambda x: x[1].numpy(), step)

        def both():
            ours = policy.action(step, policy.get_initial_state(3))
            theirs = loaded.action(numbers, loaded.get_initial_state(1))
            return tf.nest.map_structure(lambda x: x[1], ours.action), theirs.action

        self.assertAllClose(*both())
        for v in policy.variables():
            v.assign(v - 0.2)
        train_step.assign(18)
        saver.save_checkpoint(folder + "/new")
        loaded.update_from_checkpoint(folder + "/new")
        self.assertAllClose(*both())
        self.assertEqual(loaded.get_train_step(), 18)


class DriverTest(parameterized.TestCase):
    def test_in_the_graph(self):
        env = tfrl.make_env("tf:Masked", 2, max_episode_steps=4)
        agent = agents.PPO(
            obs_spec=env.obs_spec, action_spec=env.action_spec, memory="gru", **SMALL
        )
        policy = compat.as_tf_policy(agent, agent.init(KEY), explore=True)
        theirs = compat.as_tf_environment(env)
        self.assertEqual(policy.time_step_spec, theirs.time_step_spec())
        self.assertEqual(policy.action_spec, theirs.action_spec())
        seen = []

        def observer(trajectory):
            tf.nest.assert_same_structure(trajectory, policy.trajectory_spec)
            return tf.numpy_function(lambda x: seen.append(x) or x, [trajectory.reward], tf.float32)

        driver = dynamic_step_driver.DynamicStepDriver(theirs, policy, [observer], num_steps=12)
        driver.run(policy_state=policy.get_initial_state(2))
        self.assertGreaterEqual(len(seen), 6)

    def test_on_the_host(self):
        env = compat.as_py_environment(tfrl.make_env("gymnasium:CartPole-v1", max_episode_steps=5))
        spec = tfrl.make_env("gymnasium:CartPole-v1")
        agent = agents.PPO(obs_spec=spec.obs_spec, action_spec=spec.action_spec, **SMALL)
        tf_policy = compat.as_tf_policy(agent, agent.init(KEY), explore=True)
        policy = py_tf_eager_policy.PyTFEagerPolicy(tf_policy, use_tf_function=True)
        seen = []
        driver = py_driver.PyDriver(env, policy, [seen.append], max_episodes=2)
        driver.run(env.reset(), policy.get_initial_state())
        self.assertEqual(sum(bool(s.is_boundary()) for s in seen), 2)
        self.assertEqual(seen[0].policy_info["log_prob"].dtype, np.float32)
        theirs = tf_py_environment.TFPyEnvironment(env)
        tf_policy.action(theirs.current_time_step())
        env.close()
        spec.close()


class WrongTest(parameterized.TestCase):
    def test_no_agent(self):
        with self.assertRaisesRegex(UserError, "without compute_actions, evaluate"):
            compat.as_tf_policy(tfrl.make_env("tf:CartPole-v1"), AgentState(params={}))

    def test_extras_that_are_no_batch(self):
        class Odd(agents.RandomAgent):
            def compute_actions(self, state, obs, key, carry=None):
                action = specs.sample(self.action_spec, key, [obs.shape[0]])
                return ActionOutput(action=action, extras={"loss": tf.zeros([])})

        odd = Odd(obs_spec=VECTOR, action_spec=BOX)
        with self.assertRaisesRegex(UserError, r"info loss of a policy.*shape \(\)"):
            compat.as_tf_policy(odd, AgentState(params={}), explore=True)

    def test_a_carry_that_nobody_begins(self):
        class Counts(agents.RandomAgent):
            def evaluate_actions(self, state, obs, key, carry=None):
                action = specs.sample(self.action_spec, key, [obs.shape[0]])
                return ActionOutput(action=action, carry=obs[:, 0])

        odd = Counts(obs_spec=VECTOR, action_spec=BOX)
        with self.assertRaisesRegex(UserError, "carry of Counts.*initial_carry"):
            compat.as_tf_policy(odd, AgentState(params={}))

    def test_the_state_of_another_agent(self):
        agent = agents.PPO(obs_spec=VECTOR, action_spec=BOX, **SMALL)
        td3 = agents.TD3(obs_spec=VECTOR, action_spec=BOX, hidden=(8,))
        with self.assertRaisesRegex(UserError, r"params/policy/\S+ of the state for as_tf_policy"):
            compat.as_tf_policy(agent, td3.init(KEY))

    def test_the_state_of_other_observations(self):
        agent = agents.PPO(obs_spec=VECTOR, action_spec=BOX, **SMALL)
        wider = tf.TensorSpec([VECTOR.shape[0] + 1], tf.float32)
        other = agents.PPO(obs_spec=wider, action_spec=BOX, **SMALL)
        with self.assertRaisesRegex(UserError, r"shape \(4, 8\).*shape \(5, 8\)"):
            compat.as_tf_policy(agent, other.init(KEY))
