"""Agents under action masks: an invalid action is never taken, and learning stays finite."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.agents import registered
from tests.envs.multi_agent_fakes import IDS, Two
from tests.envs.test_action_mask import made as make_masked
from tfrl import seeding, specs, struct
from tfrl.agents import PPO, MultiAgent, RandomAgent
from tfrl.envs.action_masks import split_mask
from tfrl.envs.core import Autoreset
from tfrl.envs.registry import finish
from tfrl.errors import UserError
from tfrl.rollout import rollout
from tfrl.types import Trajectory

KEY = seeding.key(17)
DRAWS = 4000
MODES = ("NEXT_STEP", "SAME_STEP", "SAME_STEP_CACHED")
BOX = specs.BoundedTensorSpec([2], tf.float32, -1, 1)
MULTI = np.array([[True, False, False], [False, True, True]])  # nvec (2, 3)
KINDS = {
    "discrete": (specs.DiscreteSpec(4), np.array([False, True, False, True])),
    "one_left": (specs.DiscreteSpec(3, start=5), np.array([False, True, False])),
    "multi": (specs.MultiDiscreteSpec([2, 3]), MULTI),
    "binary": (specs.BinarySpec([3]), np.array([True, False, True])),
    "nested": (
        {"a": specs.DiscreteSpec(3), "b": specs.BinarySpec([2])},
        {"a": np.array([True, False, True]), "b": np.array([False, True])},
    ),
}


def specs_of(mask):
    return tf.nest.map_structure(lambda m: tf.TensorSpec(m.shape, tf.bool), mask)


def seen(mask, batch, steps=()):
    obs = seeding.normal(KEY, [*steps, batch, 2])
    many = tf.nest.map_structure(
        lambda m: tf.broadcast_to(tf.constant(m), [*steps, batch, *m.shape]), mask
    )
    return {"observation": obs, "action_mask": many}


def assert_valid(kind, action):
    """Every action of a batch [..., *shape] is one that the mask allows."""
    _, mask = KINDS[kind]
    if kind == "discrete":
        assert set(np.unique(action)) <= {1, 3}
    elif kind == "one_left":
        assert set(np.unique(action)) == {6}
    elif kind == "multi":
        assert set(np.unique(action[..., 0])) <= {0}
        assert set(np.unique(action[..., 1])) <= {1, 2}
    elif kind == "binary":
        assert not np.any(action[..., 1])
    else:
        assert set(np.unique(action["a"])) <= {0, 2}
        assert not np.any(action["b"][..., 0])


def made(kind, cls=PPO, **options):
    action_spec, mask = KINDS[kind]
    spec = {"observation": tf.TensorSpec([2]), "action_mask": specs_of(mask)}
    return cls(obs_spec=spec, action_spec=action_spec, hidden=(8,), **options)


def loud(agent):
    """A policy that wants every action: logits up to thousands, the invalid ones most."""
    state = agent.init(KEY)
    head = state.params["policy"]["head"]
    size = head["bias"].shape[0]
    head["kernel"] *= 1e5
    head["bias"] = 1e4 * seeding.normal(KEY, [size])
    return state


class SplitTest(parameterized.TestCase):
    def test_what_the_networks_see(self):
        self.assertEqual(split_mask(1), (1, None))
        self.assertEqual(split_mask({"a": 1}), ({"a": 1}, None))
        self.assertEqual(split_mask({"observation": 1, "action_mask": 2}), (1, 2))
        self.assertEqual(split_mask({"a": 1, "action_mask": 2}), ({"a": 1}, 2))
        both = {"observation": 1, "a": 3, "action_mask": 2}
        self.assertEqual(split_mask(both), ({"observation": 1, "a": 3}, 2))


class MaskedTest(parameterized.TestCase):
    @parameterized.product(kind=list(KINDS), extreme=[False, True])
    def test_no_invalid_action_is_ever_taken(self, kind, extreme):
        agent = made(kind)
        state = loud(agent) if extreme else agent.init(KEY)
        obs = seen(KINDS[kind][1], DRAWS)
        output = agent.compute_actions(state, obs, KEY)
        assert_valid(kind, tf.nest.map_structure(np.asarray, output.action))
        self.assertTrue(np.all(np.isfinite(output.extras["log_prob"])))
        greedy = agent.evaluate_actions(state, obs, KEY)
        assert_valid(kind, tf.nest.map_structure(np.asarray, greedy.action))

    @parameterized.parameters(*KINDS)
    def test_random_play_draws_the_valid_ones_alike(self, kind):
        agent = made(kind)
        agent = RandomAgent(obs_spec=agent.obs_spec, action_spec=agent.action_spec)
        obs = seen(KINDS[kind][1], DRAWS)
        action = agent.compute_actions(agent.init(KEY), obs, KEY).action
        action = tf.nest.map_structure(np.asarray, action)
        assert_valid(kind, action)
        if kind == "discrete":
            self.assertAlmostEqual(float(np.mean(action == 1)), 0.5, delta=0.04)
        if kind == "multi":
            self.assertAlmostEqual(float(np.mean(action[:, 1] == 1)), 0.5, delta=0.04)
        if kind == "binary":
            np.testing.assert_allclose(np.mean(action, 0), [0.5, 0.0, 0.5], atol=0.04)
        if kind == "nested":
            self.assertAlmostEqual(float(np.mean(action["a"] == 2)), 0.5, delta=0.04)
            self.assertEqual(action["b"].dtype, np.int8)

    @parameterized.parameters(
        *((kind, {}) for kind in KINDS),
        ("nested", {"memory": "gru"}),
        ("discrete", {"shared_torso": True}),
    )
    def test_losses_and_gradients_are_finite(self, kind, options):
        agent = made(kind, entropy_coef=0.1, **options)
        state = loud(agent)
        carry = agent.initial_carry(6)
        rows = {"obs": [], "action": [], "policy_extras": []}
        for t in range(4):
            obs = seen(KINDS[kind][1], 6)
            output = agent.compute_actions(state, obs, seeding.fold_in(KEY, t), carry)
            carry = output.carry
            for name, x in zip(rows, (obs, output.action, output.extras), strict=True):
                rows[name].append(x)
        stacked = {n: tf.nest.map_structure(lambda *x: tf.stack(x), *xs) for n, xs in rows.items()}
        no = tf.zeros([4, 6], tf.bool)
        trajectory = Trajectory(
            **stacked,
            next_obs=stacked["obs"],
            reward=tf.ones([4, 6]),
            termination=no,
            truncation=no,
            valid=None,
        )
        batch, _ = agent.learner_batch(state, trajectory)
        batch = agent.prepare_minibatch(state, batch, lambda x: x)

        @functools.partial(tf.function, autograph=False)
        def run(params):
            with tf.GradientTape() as tape:
                tape.watch(params)
                loss, metrics = agent.loss(params, state, batch, KEY)
            return loss, metrics, tape.gradient(loss, params)

        loss, metrics, gradient = run(state.params)
        self.assertTrue(np.isfinite(loss))
        self.assertLess(abs(float(metrics["approx_kl"])), 1e-6)
        for path, g in struct.paths(gradient).items():
            self.assertTrue(np.all(np.isfinite(g)), path)
        if kind in ("discrete", "one_left"):
            # Nothing flows to the logits of invalid actions.
            bias = gradient["policy"]["head"]["bias"].numpy()
            np.testing.assert_array_equal(bias[~KINDS[kind][1]], 0.0)
        if kind == "one_left":
            self.assertEqual(float(metrics["entropy"]), 0.0)

    def test_the_normaliser_leaves_masks_alone(self):
        for dtype in (tf.bool, tf.int8):
            spec = {
                "observation": tf.TensorSpec([2]),
                "action_mask": specs.BoundedTensorSpec([4], dtype, 0, 1)
                if dtype != tf.bool
                else tf.TensorSpec([4], dtype),
            }
            agent = PPO(
                obs_spec=spec, action_spec=specs.DiscreteSpec(4), hidden=(4,), normalize_obs=True
            )
            obs = seen(KINDS["discrete"][1], 50, (10,))
            obs["action_mask"] = tf.cast(obs["action_mask"], dtype)
            no = tf.zeros([10, 50], tf.bool)
            state = agent.update_normalizer(
                agent.init(KEY),
                Trajectory(
                    obs=obs, action=None, reward=None, next_obs=None, termination=no,
                    truncation=no, valid=None,
                ),
            )  # fmt: skip
            found = agent.normalized(state, obs)
            self.assertEqual(found["action_mask"].dtype, dtype)
            np.testing.assert_array_equal(found["action_mask"], obs["action_mask"])
            np.testing.assert_allclose(np.std(found["observation"], (0, 1)), 1.0, atol=1e-2)
            action = agent.compute_actions(
                state, tf.nest.map_structure(lambda x: x[0], obs), KEY
            ).action
            self.assertTrue(set(np.unique(action)) <= {1, 3})

    def test_networks_see_the_rest(self):
        agent = made("discrete")
        self.assertEqual(agent.init(KEY).params["policy"]["torso"]["layer_0"]["kernel"].shape[0], 2)

    def test_a_mask_of_continuous_actions_is_refused(self):
        spec = {"observation": tf.TensorSpec([2]), "action_mask": tf.TensorSpec([2], tf.bool)}
        with pytest.raises(UserError, match="action mask .: expected None for a continuous action"):
            PPO(obs_spec=spec, action_spec=BOX, hidden=(4,))

    @parameterized.parameters(
        (PPO, "NEXT_STEP", "gru"),
        *((c, m, None) for c, m in zip(registered.ON_POLICY, itertools.cycle(MODES), strict=False)),
    )
    def test_in_a_rollout_every_paid_action_was_valid(self, cls, mode, memory):
        env = make_masked(mode)
        agent = cls(
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            hidden=(4,),
            memory=memory,
            **({"memory_size": 4} if memory else {}),
        )
        state = agent.init(KEY)

        @functools.partial(tf.function, autograph=False)
        def run():
            trajectory, _, _ = rollout(env, agent, env.reset(KEY), state, KEY, 12)
            batch, _ = agent.learner_batch(state, trajectory)
            return trajectory, agent.loss(state.params, state, batch, KEY)

        trajectory, (loss, metrics) = run()
        valid = trajectory.valid.numpy()
        np.testing.assert_array_equal(trajectory.reward.numpy()[valid], 1.0)
        self.assertTrue(np.isfinite(loss))
        # Where one action is left there is nothing to choose.
        self.assertLess(abs(float(metrics["entropy"])), 1e-6)


class SeveralAgentsTest(parameterized.TestCase):
    def test_masks_within_each_agents_observation(self):
        only = {"a": 1, "b": 0}

        @struct.logic_dataclass
        class Masked(Two):
            @property
            def obs_spec(self):
                mask = tf.TensorSpec([2], tf.bool)
                inner = super().obs_spec
                return {
                    "a": {"observation": inner["a"], "action_mask": mask},
                    "b": {**inner["b"], "action_mask": mask},
                }

            def observe(self, start, age):
                inner = super().observe(start, age)
                shape = [self.num_envs, 2]
                mask = {a: tf.broadcast_to(tf.equal(tf.range(2), only[a]), shape) for a in IDS}
                return {
                    "a": {"observation": inner["a"], "action_mask": mask["a"]},
                    "b": {**inner["b"], "action_mask": mask["b"]},
                }

        env = finish(
            Masked(num_envs=3),
            autoreset=Autoreset.SAME_STEP,
            max_episode_steps=None,
            task_limit=None,
        )
        for cls in (RandomAgent, functools.partial(PPO, hidden=(4,))):
            agent = MultiAgent(
                obs_spec=env.obs_spec, action_spec=env.action_spec, policies={"a": cls, "b": cls}
            )
            state = agent.init(KEY)
            run = tf.function(
                lambda env=env, agent=agent, state=state: rollout(
                    env, agent, env.reset(KEY), state, KEY, 10, ("agents",)
                )[0],
                autograph=False,
            )
            trajectory = run()
            for name, action in only.items():
                self.assertEqual(set(np.unique(trajectory.action[name])), {action})
        batches, metrics = agent.learner_batch(state, trajectory)
        for m in IDS:
            module = agent.modules[m]
            loss, found = module.loss(state[m].params, state[m], batches[m], KEY)
            self.assertTrue(np.isfinite(loss))
            self.assertEqual(float(found["entropy"]), 0.0)
            self.assertIn(f"{m}/value_mean", metrics)
