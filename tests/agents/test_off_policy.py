"""What the off-policy agents share: action vectors, normalisers, random play, targets."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tests.agents import off_policy_cases as cases
from tests.agents import registered
from tfrl import networks, seeding, specs, struct
from tfrl.agents.off_policy import UnitActions
from tfrl.agents.off_policy.agent import COLUMNS, copy_params, polyak_update
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import Learner
from tfrl.ops import statistics
from tfrl.rollout import rollout
from tfrl.types import Trajectory

KEY = cases.KEY
pytestmark = pytest.mark.usefixtures("_eager_updates")
MASKED = {"observation": cases.OBS, "action_mask": tf.TensorSpec([3], tf.float32)}
AGENTS = registered.cases(registered.OFF_POLICY)
DISCRETE, CONTINUOUS = (
    [name for name, (_, spec) in AGENTS.items() if specs.is_discrete(spec) == discrete]
    for discrete in (True, False)
)
FLAGS = [(name, flag) for name, (cls, _) in AGENTS.items() for flag in registered.flags(cls)]


def made(name, **options):
    cls, action_spec = AGENTS[name]
    return cls(**{"obs_spec": cases.OBS, "action_spec": action_spec, "hidden": (8,), **options})


class FlagsTest(parameterized.TestCase):
    @parameterized.parameters(*FLAGS)
    def test_only_bools_are_flags(self, name, flag):
        owner = AGENTS[name][0].__name__
        for bad in ("no", 0, 1, None, np.array([True])):
            with self.assertRaises(UserError) as error:
                made(name, **{flag: bad})
            message = f"{owner}.{flag}: expected True or False, got {bad!r}. Pass True or False"
            self.assertIn(message, str(error.exception))
        for good in (True, False, np.bool_(True), np.bool_(False)):
            self.assertEqual(getattr(made(name, **{flag: good}), flag), good)


class UnitActionsTest(parameterized.TestCase):
    @parameterized.parameters(
        (specs.BoundedTensorSpec([2], tf.float32, [-2, 0], [2, 10]),),
        (specs.BoundedTensorSpec([], tf.float64, -1, 3),),
        (specs.BoundedTensorSpec([2, 3], tf.float32, -0.4, 0.1),),
        ({"b": cases.BOX, "a": (specs.BoundedTensorSpec([1, 2], tf.float64, 5, 6),)},),
    )
    def test_there_and_back(self, spec):
        unit = UnitActions(action_spec=spec)
        action = specs.sample(spec, KEY, [4, 5])
        u = unit.to_unit(action)
        self.assertEqual((u.dtype, u.shape), (tf.float32, [4, 5, unit.size]))
        self.assertLessEqual(float(tf.reduce_max(tf.abs(u))), 1.0 + 1e-5)
        back = unit.from_unit(u)
        tf.nest.assert_same_structure(back, action)
        for x, y in zip(tf.nest.flatten(back), tf.nest.flatten(action), strict=True):
            self.assertEqual((x.dtype, x.shape), (y.dtype, y.shape))
            np.testing.assert_allclose(x, y, atol=1e-5)

    def test_by_hand(self):
        unit = UnitActions(action_spec=cases.BOX)  # [-2, 2] and [0, 10]
        np.testing.assert_allclose(unit.to_unit(tf.constant([[1.0, 0.0]])), [[0.5, -1.0]])
        np.testing.assert_allclose(unit.from_unit(tf.constant([[0.5, 0.0]])), [[1.0, 5.0]])
        # Nothing leaves the bounds, whatever the vector.
        np.testing.assert_array_equal(unit.from_unit(tf.constant([[-7.0, 7.0]])), [[-2.0, 10.0]])
        self.assertEqual(unit.spec, specs.BoundedTensorSpec([2], tf.float32, -1.0, 1.0))

    @parameterized.parameters((-0.1, 0.3), (0.1, 0.7), (1e6, 1e6 + 1), (-3e29, 3e29))
    def test_rounding_does_not_leave_the_bounds(self, low, high):
        spec = specs.BoundedTensorSpec([1], tf.float32, low, high)
        found = UnitActions(action_spec=spec).from_unit(tf.constant([[-1.0], [0.3], [1.0]]))
        low, high = specs.bounds(spec)
        self.assertTrue(np.all(found >= low) and np.all(found <= high))
        np.testing.assert_allclose(found[::2, 0], [low[0], high[0]], rtol=1e-6)

    def test_an_unknown_number_of_rows(self):
        unit = UnitActions(action_spec=specs.BoundedTensorSpec([2, 2], tf.float32, -1, 1))
        fn = tf.function(unit.to_unit, input_signature=[tf.TensorSpec([None, 2, 2])])
        self.assertEqual(fn(tf.zeros([3, 2, 2])).shape, [3, 4])
        back = tf.function(unit.from_unit, input_signature=[tf.TensorSpec([None, 4])])
        self.assertEqual(back(tf.zeros([3, 4])).shape, [3, 2, 2])


class TargetsTest(parameterized.TestCase):
    def test_by_hand(self):
        target = {"a": tf.constant([0.0, 2.0]), "count": tf.constant(1)}
        params = {"a": tf.constant([4.0, 4.0]), "count": tf.constant(5)}
        found = polyak_update(target, params, 0.25)
        np.testing.assert_array_equal(found["a"], [1.0, 2.5])
        self.assertEqual(int(found["count"]), 5)
        self.assertIs(polyak_update(target, params, 1.0), params)

    @parameterized.parameters(*AGENTS)
    def test_target_networks_begin_as_copies(self, name):
        state = made(name).init(KEY)
        for group, nest in state.target_params.items():
            learns = struct.paths(state.params[group])
            for path, x in struct.paths(nest).items():
                np.testing.assert_array_equal(x, learns[path])
                self.assertIsNot(x, learns[path])
        self.assertIsNot(copy_params(learns)[path], learns[path])


class NormalizerTest(parameterized.TestCase):
    @parameterized.parameters(*AGENTS)
    def test_replayed_observations_are_normalised_by_the_statistics_of_the_moment(self, name):
        agent, plain = made(name, normalize_obs=True), made(name)
        state = agent.init(KEY)
        raw = cases.transitions(agent)
        no = tf.zeros([4, 5], tf.bool)
        valid = tf.constant(np.arange(20).reshape(4, 5) % 3 > 0)
        trajectory = Trajectory(
            obs=3.0 + 2.0 * seeding.normal(KEY, [4, 5, 3]),
            action=None,
            reward=tf.zeros([4, 5]),
            next_obs=None,
            termination=no,
            truncation=no,
            valid=valid,
        )
        state = agent.update_normalizer(state, trajectory)
        rows = trajectory.obs.numpy()[valid.numpy()]
        np.testing.assert_allclose(statistics.mean(state.normalizer), rows.mean(0), rtol=1e-4)
        scaled = lambda x: (x - rows.mean(0)) / rows.std(0)  # noqa: E731
        same = raw.replace(obs=scaled(raw.obs), next_obs=scaled(raw.next_obs))
        bare = state.replace(normalizer=None)
        for update in agent.updates:
            found = cases.gradients(agent, update.name, state, raw).loss
            expected = cases.gradients(plain, update.name, bare, same).loss
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(
            agent.td_errors(state, raw, KEY), plain.td_errors(bare, same, KEY), rtol=1e-3, atol=1e-4
        )
        np.testing.assert_allclose(
            agent.evaluate_actions(state, raw.obs, KEY).action,
            plain.evaluate_actions(bare, same.obs, KEY).action,
            atol=1e-4,
        )

    def test_masks_are_not_normalised(self):
        for name in DISCRETE:
            agent = made(name, obs_spec=MASKED, normalize_obs=True)
            state = agent.init(KEY)
            mask = tf.constant([[0.0, 1.0, 0.0]] * 4)
            obs = {"observation": seeding.normal(KEY, [4, 3]), "action_mask": mask}
            some = tf.nest.map_structure(lambda x: x[tf.newaxis], obs)
            no = tf.zeros([1, 4], tf.bool)
            state = agent.update_normalizer(
                state,
                Trajectory(
                    obs=some,
                    action=None,
                    reward=None,
                    next_obs=None,
                    termination=no,
                    truncation=no,
                    valid=~no,
                ),
            )
            for act in (agent.compute_actions, agent.evaluate_actions, agent.random_actions):
                np.testing.assert_array_equal(act(state, obs, KEY).action, [1] * 4)

    def test_without_statistics_nothing_is_observed(self):
        agent = made("DQN_discrete")
        state = agent.init(KEY)
        self.assertIsNone(state.normalizer)
        self.assertIs(agent.update_normalizer(state, None), state)


class RowsTest(parameterized.TestCase):
    @parameterized.parameters(*AGENTS)
    def test_what_follows_a_termination_is_of_no_consequence(self, name):
        agent = made(name)
        state, raw = agent.init(KEY), cases.transitions(made(name))
        ended = raw.discount == 0.0
        spoilt = raw.replace(next_obs=tf.where(ended[:, tf.newaxis], np.nan, raw.next_obs))
        first = agent.updates[0].name
        one, other = (cases.gradients(agent, first, state, b) for b in (raw, spoilt))
        self.assertEqual(float(one.loss), float(other.loss))
        for x, y in zip(
            tf.nest.flatten(one.gradients), tf.nest.flatten(other.gradients), strict=True
        ):
            np.testing.assert_array_equal(x, y)

    @parameterized.parameters(
        ("DQN_discrete", {}),
        ("SAC_discrete", {}),
        ("TD3_box", {"target_noise": 0.0, "num_critics": 3}),
    )
    def test_masked_rows_change_nothing(self, name, options):
        agent = made(name, **options)
        state = agent.init(KEY)
        raw = cases.transitions(agent, weight=tf.abs(seeding.normal(KEY, [16])))
        keep = tf.constant(np.arange(16) < 12)
        fields = ("obs", "action", "reward", "discount", "weight", "next_obs")
        few = struct.TensorDict({n: getattr(raw, n)[:12] for n in fields})
        many = raw.replace(
            obs=tf.where(keep[:, tf.newaxis], raw.obs, 1e3),
            next_obs=tf.where(keep[:, tf.newaxis], raw.next_obs, -1e3),
            **{n: tf.where(keep, getattr(raw, n), np.nan) for n in fields[2:] if n != "next_obs"},
        )
        many = struct.TensorDict({n: getattr(many, n) for n in fields}, mask=keep)
        for update in agent.updates:
            one, other = (cases.gradients(agent, update.name, state, b) for b in (few, many))
            np.testing.assert_allclose(one.loss, other.loss, rtol=1e-5)
            for x, y in zip(
                tf.nest.flatten(one.gradients), tf.nest.flatten(other.gradients), strict=True
            ):
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


class RolloutTest(parameterized.TestCase):
    @parameterized.parameters(*AGENTS)
    @pytest.mark.variants(4)
    def test_it_acts_in_a_compiled_rollout(self, name):
        env_id = "tf:CartPole-v1" if name in DISCRETE else "tf:Pendulum-v1"
        env = tfrl.make_env(env_id, num_envs=3)
        cls, _ = AGENTS[name]
        agent = cls(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,))
        state = agent.init(KEY)
        for act in (None, agent.evaluate_actions, agent.random_actions):
            run = tf.function(
                lambda act=act: (
                    rollout(env, agent, env.reset(KEY), state, KEY, 5, action_fn=act)[0]
                    if act
                    else rollout(env, agent, env.reset(KEY), state, KEY, 5)[0]
                ),
                autograph=False,
            )
            action = run().action
            self.assertEqual(action.shape[:2], [5, 3])
            low, high = specs.bounds(env.action_spec)
            self.assertTrue(np.all(action >= low) and np.all(action <= high))

    def test_equal_agents_are_equal(self):
        for name in AGENTS:
            self.assertEqual(made(name), made(name))
            self.assertNotEqual(made(name), made(name, tau=0.5))
            again = made(name).replace(discount=0.5)
            self.assertEqual((again.discount, again.n_step), (0.5, 1))

    def test_an_item_of_the_observation(self):
        spec = {"x": cases.OBS, "y": tf.TensorSpec([2])}
        for name in AGENTS:
            agent = made(name, obs_spec=spec, obs_key="y")
            state, raw = agent.init(KEY), cases.transitions(agent)
            spoilt = raw.replace(obs={**raw.obs, "x": np.nan * raw.obs["x"]})
            first = agent.updates[0].name
            one, other = (cases.gradients(agent, first, state, b) for b in (raw, spoilt))
            self.assertEqual(float(one.loss), float(other.loss))


class ReplicasTest(parameterized.TestCase):
    @parameterized.parameters(
        ("DQN_discrete", {"target_every": 2, "normalize_obs": True}),
        ("TD3_box", {"target_noise": 0.0}),
    )
    def test_two_replicas_are_one_device(self, name, options):
        # No noise: every replica draws its own.
        agent = made(name, **options)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        one, two = cases.learner(agent), cases.learner(agent, strategy=strategy)
        for step in range(3):
            weight = tf.abs(seeding.normal(seeding.fold_in(KEY, step), [16]))
            raw = cases.transitions(agent, seed=step, weight=weight)
            for learner in (one, two):
                learner.update_from_batch(raw, key=KEY, timesteps=step, shuffle=False)
        found = struct.paths(struct.values(two.state))
        for path, value in cases.snapshot(one).items():
            np.testing.assert_allclose(found[path], value, rtol=1e-4, atol=1e-5, err_msg=path)


class CustomTorsoTest(parameterized.TestCase):
    def test_batch_normalisation_of_critics_and_actor(self):
        def model():
            x = keras.layers.Input([5])
            return keras.Model(x, keras.layers.BatchNormalization()(x))

        def small():
            return keras.Sequential([keras.layers.BatchNormalization()])

        body = networks.KerasNetwork(model_fn=model, spec=tf.TensorSpec([5]))
        critic = networks.StateActionTorso(
            encoder=networks.make_torso(cases.OBS, hidden=()), body=body
        )
        actor = networks.KerasNetwork(model_fn=small, spec=cases.OBS)
        for name in CONTINUOUS:
            agent = made(name, hidden=None, critic_torso=critic, actor_torso=actor)
            learner = cases.learner(agent)
            before = cases.snapshot(learner)
            learner.update_from_batch(cases.transitions(agent), key=KEY, shuffle=False)
            after = cases.snapshot(learner)
            moving = [p for p in before if "moving_mean" in p and p.startswith("params/")]
            self.assertEqual(len(moving), 2)
            for path in moving:
                self.assertFalse(np.array_equal(before[path], after[path]), path)


class ColumnsTest(parameterized.TestCase):
    @parameterized.parameters(*AGENTS)
    @pytest.mark.variants(4)
    def test_a_dict_of_columns_teaches_what_a_transition_does(self, name):
        agent = made(name)
        batch = cases.transitions(agent)
        columns = {n: getattr(batch, n) for n in COLUMNS}
        params = []
        for rows in (batch, {**columns, "episode": tf.zeros([batch.reward.shape[0]])}):
            learner = Learner(agent)
            learner.build(KEY)
            learner.update_from_batch(rows, shuffle=False)
            params.append([v.numpy() for v in tf.nest.flatten(learner.state.params)])
        for x, y in zip(*params, strict=True):
            np.testing.assert_array_equal(x, y)
        learner = Learner(agent)
        learner.build(KEY)
        wide = tf.concat([batch.obs] * 2, axis=1)
        with self.assertRaisesRegex(UserError, r"of \w+, obs: expected rows of shape \[\d\], got"):
            learner.update_from_batch({**columns, "obs": wide}, shuffle=False)
        del columns["reward"], columns["discount"]
        with self.assertRaisesRegex(UserError, "rewards, without reward, discount."):
            learner.update_from_batch({**columns, "rewards": batch.reward})
