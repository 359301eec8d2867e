"""The suite `tf_agents`: contract, seeds, masks and limits."""

import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.environments import (
    batched_py_environment,
    random_py_environment,
    suite_gym,
    tf_py_environment,
    wrappers,
)
from tf_agents.specs import array_spec

import tfrl
from tests.compat import tf_agents_fakes as fakes
from tests.envs.checker_fakes import checked
from tfrl import specs
from tfrl.agents import PPO
from tfrl.envs import check_env
from tfrl.envs.host_env import row_seeds
from tfrl.workflows import OnPolicyWorkflow


def make(env=fakes.Corridor, num_envs=1, autoreset="SAME_STEP", **kwargs):
    return tfrl.make_env("tf_agents:x", num_envs, autoreset, env=env, **kwargs)


def play(env, steps, action=1):
    """Returns what is told of `steps` steps: [reward, termination, truncation, obs, final_obs]."""
    state = env.reset(0)
    rows = []
    for _ in range(steps):
        actions = np.full(env.num_envs, action, np.int32)
        state = env.step(state, actions)
        rows.append(state)
    return rows


def steps_of(rows, index=0, of="obs"):
    values = [row.obs if of == "obs" else row.info[of] for row in rows]
    return [v[index, 1:].tolist() for v in values]


class ContractTest(parameterized.TestCase):
    def test_same_step(self):
        with make() as env:
            rows = play(env, 4)
        # Episode 0 has steps 1, 2, 3 and terminates; then episode 1 has begun.
        self.assertEqual(steps_of(rows), [[0, 1], [0, 2], [1, 0], [1, 1]])
        self.assertEqual(steps_of(rows, of="final_obs"), [[0, 1], [0, 2], [0, 3], [1, 1]])
        self.assertEqual([float(r.reward[0]) for r in rows], [2, 3, 4, 12])
        self.assertEqual([bool(r.termination[0]) for r in rows], [False, False, True, False])
        self.assertEqual(float(rows[2].info["episode_return"][0]), 9)

    def test_next_step(self):
        with make(autoreset="NEXT_STEP") as env:
            rows = play(env, 8)
        expected = [[0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2], [1, 3], [2, 0]]
        self.assertEqual(steps_of(rows), expected)
        self.assertEqual([float(r.reward[0]) for r in rows], [2, 3, 4, 0, 12, 13, 14, 0])
        flags = [(bool(r.termination[0]), bool(r.truncation[0])) for r in rows]
        self.assertEqual(flags.index((True, False)), 2)
        # The second episode ends with a discount above 0.
        self.assertEqual(flags.index((False, True)), 6)
        self.assertEqual([bool(r.info["autoreset"][0]) for r in rows][3:5], [True, False])

    def test_disabled(self):
        with make(autoreset="DISABLED") as env:
            rows = play(env, 5)
        self.assertEqual(steps_of(rows), [[0, 1], [0, 2], [0, 3], [0, 3], [0, 3]])
        self.assertEqual([float(r.reward[0]) for r in rows], [2, 3, 4, 0, 0])

    @parameterized.parameters("SAME_STEP", "NEXT_STEP", "DISABLED")
    def test_a_batch_that_can_be_taken_apart_is_as_its_single_environments(self, mode):
        def batched():
            rows = [fakes.Corridor(3), fakes.Corridor(2)]
            return batched_py_environment.BatchedPyEnvironment(rows, multithreading=False)

        lengths = iter([3, 2])
        with (
            make(batched, 2, mode) as one,
            make(lambda: fakes.Corridor(next(lengths)), 2, mode) as other,
        ):
            for a, b in zip(play(one, 9), play(other, 9), strict=True):
                tf.nest.map_structure(np.testing.assert_array_equal, a, b)

    def test_a_batch_of_another_kind_is_stepped_as_it_is(self):
        with make(fakes.Together, 2, "NEXT_STEP") as env:
            rows = play(env, 5)
        self.assertEqual(steps_of(rows, 0), [[0, 1], [0, 2], [0, 3], [1, 0], [1, 1]])
        self.assertEqual(steps_of(rows, 1), [[0, 1], [0, 2], [1, 0], [1, 1], [1, 2]])

    def test_batches_make_larger_ones(self):
        with make(fakes.Together, 4, "NEXT_STEP") as env:
            rows = play(env, 3)
            self.assertEqual(env.copy(2).num_envs, 2)
        self.assertEqual(rows[2].termination.tolist(), [True, False, True, False])

    def test_a_function_of_num_envs_is_called_once(self):
        with make(fakes.pair, 3, "NEXT_STEP") as env:
            self.assertLen(env.backend._parts, 1)
            self.assertEqual(play(env, 3)[2].termination.tolist(), [True] * 3)

    def test_an_environment_that_goes_on_after_its_end_is_reset(self):
        with make(fakes.Stubborn, autoreset="NEXT_STEP") as env:
            self.assertEqual(steps_of(play(env, 5))[3:], [[1, 0], [1, 1]])

    @parameterized.parameters("SAME_STEP", "NEXT_STEP")
    def test_graph_environments(self, mode):
        with make(fakes.GraphCorridor, 2, mode) as env:
            rows = play(env, 7, action=2)
        t = [int(r.obs[0, 0]) for r in rows]
        expected = [1, 2, 0, 1, 2, 0, 1] if mode == "SAME_STEP" else [1, 2, 3, 0, 1, 2, 3]
        self.assertEqual(t, expected)
        self.assertEqual(float(rows[2].info["episode_return"][1]), 6)
        self.assertEqual(float(rows[2].info["final_obs"][1, 0]), 3)

    def test_a_batched_graph_environment(self):
        with make(lambda num_envs: fakes.GraphCorridor(2, num_envs), 2, "NEXT_STEP") as env:
            rows = play(env, 4)
        self.assertEqual([r.obs[:, 0].tolist() for r in rows], [[1, 1], [2, 2], [0, 3], [1, 0]])

    def test_a_tf_py_environment_is_taken_off_its_py_environment(self):
        env = make(
            lambda: tf_py_environment.TFPyEnvironment(fakes.Corridor()), autoreset="NEXT_STEP"
        )
        with env, make(autoreset="NEXT_STEP") as other:
            self.assertEqual(steps_of(play(env, 6)), steps_of(play(other, 6)))

    @parameterized.parameters("SAME_STEP", "NEXT_STEP", "DISABLED")
    def test_check_env(self, mode):
        for kind in (fakes.Corridor, fakes.Masked):
            with make(kind, 2, mode) as env:
                ends = checked(env, steps=30)
            self.assertTrue(ends.any(axis=0).all())

    def test_check_env_of_tf_agents_own(self):
        obs = array_spec.BoundedArraySpec([2], np.float32, -1.0, 1.0)

        def random():
            return random_py_environment.RandomPyEnvironment(obs, fakes.ACTION)

        with make(random, 2) as env:
            self.assertTrue(checked(env, steps=60).any(axis=0).all())
        with tfrl.make_env("tf_agents:suite_gym/Pendulum-v1", num_envs=2) as env:
            self.assertEqual(checked(env, steps=20).shape, (20, 2))


class SeedTest(parameterized.TestCase):
    def test_every_environment_has_its_own(self):
        made = []

        def corridor():
            made.append(fakes.Corridor())
            return made[-1]

        with make(corridor, 3) as env:
            env.reset(7)
        self.assertEqual([c.seeds for c in made], [[int(s)] for s in row_seeds(7, 3)])
        self.assertEqual([c.closed for c in made], [1, 1, 1])

    def test_rows_of_a_batch_have_their_own(self):
        rows = [fakes.Corridor(), fakes.Corridor()]
        with make(lambda: batched_py_environment.BatchedPyEnvironment(rows), 2) as env:
            env.reset(7)
        self.assertEqual([c.seeds for c in rows], [[int(s)] for s in row_seeds(7, 2)])

    def test_the_first_goes_to_a_batch_that_cannot_be_taken_apart(self):
        batch = fakes.Together()
        with make(lambda: batch, 2, "NEXT_STEP") as env:
            env.reset(7)
        first = int(row_seeds(7, 2)[0])
        self.assertEqual([c.seeds for c in batch.rows], [[first], [first + 1]])

    def test_without_seeds_it_says_so(self):
        with self.assertLogs("absl", "WARNING") as logs, make(fakes.Unseeded) as env:
            env.reset(0)
        self.assertIn("ignores seeds, so its episodes are not reproducible", logs.output[0])


class LimitTest(parameterized.TestCase):
    def test_the_limit_of_a_wrapper_truncates_and_is_known(self):
        limited = lambda: wrappers.TimeLimit(fakes.Corridor(9), 4)  # noqa: E731
        with make(limited, autoreset="NEXT_STEP") as env:
            self.assertEqual(env.max_episode_steps, 4)
            rows = play(env, 6)
        self.assertEqual([bool(r.truncation[0]) for r in rows], [False] * 3 + [True] + [False] * 2)
        self.assertFalse(rows[3].termination[0])
        self.assertEqual(steps_of(rows)[4:], [[1, 0], [1, 1]])

    @parameterized.parameters("SAME_STEP", "NEXT_STEP")
    def test_a_limit_given_resets_in_the_middle(self, mode):
        with make(num_envs=2, autoreset=mode, max_episode_steps=2) as env:
            self.assertEqual(env.max_episode_steps, 2)
            rows = play(env, 4)
        expected = [[0, 1], [1, 0], [1, 1], [2, 0]]
        if mode == "NEXT_STEP":
            expected = [[0, 1], [0, 2], [1, 0], [1, 1]]
        self.assertEqual(steps_of(rows), expected)
        self.assertEqual([bool(r.truncation[1]) for r in rows[:3]], [False, True, False])

    def test_a_limit_given_in_a_batch(self):
        rows = [fakes.Corridor(3), fakes.Corridor(4)]
        batch = lambda: batched_py_environment.BatchedPyEnvironment(rows)  # noqa: E731
        with make(batch, 2, "NEXT_STEP", max_episode_steps=2) as env:
            states = play(env, 4)
        for i in range(2):
            self.assertEqual(steps_of(states, i), [[0, 1], [0, 2], [1, 0], [1, 1]])

    def test_the_limit_of_a_batch_that_cannot_be_taken_apart_is_told(self):
        with make(fakes.Together, 2, "NEXT_STEP", max_episode_steps=3) as env:
            self.assertEqual(env.max_episode_steps, 3)
            last = play(env, 3)[2]
        # Row 0 has ended at the limit, row 1 begins its second episode.
        self.assertEqual(last.truncation.tolist(), [True, False])

    def test_an_end_at_the_limit_is_both(self):
        with make(max_episode_steps=3) as env:
            last = play(env, 3)[2]
        self.assertTrue(last.termination[0] and last.truncation[0])

    def test_gyms_own_limit_is_a_truncation(self):
        # TF-Agents' GymWrapper gives it the discount 0.
        self.assertEqual(float(_last_of_gym().discount), 0)
        with tfrl.make_env("tf_agents:suite_gym/MountainCar-v0", autoreset="NEXT_STEP") as env:
            self.assertEqual(env.max_episode_steps, 200)
            last = play(env, 200)[-1]
        self.assertEqual((bool(last.termination[0]), bool(last.truncation[0])), (False, True))


def _last_of_gym():
    env = suite_gym.load("MountainCar-v0")
    step = env.reset()
    while not step.is_last():
        step = env.step(np.array(1))
    return step


class SpaceTest(parameterized.TestCase):
    def test_a_mask_by_path_and_by_function(self):
        def split(obs):
            rest, mask = obs["seen"], obs["rules"][0]
            return rest, mask

        with (
            make(fakes.Masked, 2, action_mask="rules/0") as env,
            make(fakes.Masked, 2, action_mask=split) as other,
        ):
            self.assertEqual(list(env.obs_spec), ["seen", "rules", "action_mask"])
            self.assertEqual(env.obs_spec["rules"], tf.TensorSpec([], tf.float64))
            self.assertEqual(env.obs_spec["action_mask"], tf.TensorSpec([3], tf.bool))
            self.assertEqual(set(other.obs_spec), {"observation", "action_mask"})
            for masked in (env, other):
                state = play(masked, 1, action=3)[0]
                mask = state.obs["action_mask"]
                np.testing.assert_array_equal(mask, [[True, False, True]] * 2)
                check_env(masked, 20)

    def test_actions_arrive_as_their_spec_says(self):
        made = []

        def corridor():
            made.append(fakes.Corridor())
            return made[-1]

        with make(corridor) as env:
            self.assertEqual(env.action_spec, specs.DiscreteSpec(3, 1, tf.int32))
            play(env, 1, action=3)
        action = made[0].actions[0]
        self.assertEqual((action.dtype, action.shape, int(action)), (np.int32, (), 3))

    def test_nests_of_actions(self):
        # As TF-Agents may have them: lists, and dicts in any order.
        choice = array_spec.BoundedArraySpec([2], np.int32, 0, 1)
        nest = {"b": [fakes.ACTION, choice], "a": array_spec.ArraySpec([], np.float32)}
        made = []

        class Nested(fakes.Corridor):
            def action_spec(self):
                return nest

            def _step(self, action):
                made.append(action)
                return super()._step(action["b"][0])

        with make(Nested, 2) as env:
            bits = specs.MultiDiscreteSpec([2, 2], None, tf.int32)
            expected = specs.DiscreteSpec(3, 1, tf.int32), bits
            self.assertEqual(env.action_spec, {"b": expected, "a": tf.TensorSpec([], tf.float32)})
            pairs = np.array([[0, 1], [1, 1]])
            action = {"a": np.array([0.5, 1.5]), "b": (np.array([2, 3]), pairs)}
            state = env.step(env.reset(0), action)
        self.assertEqual(state.reward.tolist(), [3, 4])
        tf.nest.assert_same_structure(made[1], nest)
        self.assertEqual((float(made[1]["a"]), made[1]["b"][1].tolist()), (1.5, [1, 1]))

    def test_wrappers(self):
        clip = lambda env: wrappers.ActionClipWrapper(env)  # noqa: E731
        limit = lambda env: wrappers.TimeLimit(env, 5)  # noqa: E731
        env = tfrl.make_env("tf_agents:suite_gym/Pendulum-v1", wrappers=(clip, limit))
        with env:
            self.assertEqual(env.max_episode_steps, 5)
            self.assertIsInstance(env.backend._parts[0].env, wrappers.TimeLimit)

    def test_pictures(self):
        with make(num_envs=2) as env, env.copy(render=True) as drawn:
            state = drawn.reset(0)
            state = drawn.step(state, np.ones(2, np.int32))
            picture = drawn.render(state, 1)
        self.assertEqual(picture.tolist(), np.full((4, 6, 3), 20).tolist())

    def test_gym_is_drawn_without_a_screen(self):
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
            self.enter_context(mock.patch.dict(os.environ))
            os.environ.pop(name, None)
        env = tfrl.make_env("tf_agents:suite_gym/CartPole-v1")
        with env, env.copy(render=True) as drawn:
            self.assertEqual(drawn.render_fps, 50)
            picture = drawn.render(drawn.reset(0))
        self.assertEqual((picture.shape, picture.dtype), ((400, 600, 3), np.uint8))


class TrainingTest(parameterized.TestCase):
    def _train(self, env, **kwargs):
        workflow = OnPolicyWorkflow(
            env=env,
            agent=lambda **given: PPO(**given, hidden=(8,)),
            rollout_length=16,
            num_epochs=2,
            num_minibatches=2,
            eval_episodes=2,
            compile="graph",
            **kwargs,
        )
        state = workflow.setup(0)
        done = workflow.advance(state, 2)
        metrics, _ = workflow.evaluate(done.state)
        return done.rows[-1], metrics

    def test_gym(self):
        with tfrl.make_env("tf_agents:suite_gym/CartPole-v1", num_envs=4) as env:
            row, metrics = self._train(env)
        self.assertEqual(row["env_steps"], 2 * 16 * 4)
        self.assertEqual(row["learner_steps"], 2 * 2 * 2)
        self.assertTrue(all(np.isfinite(v) for v in metrics.values()))

    def test_masks(self):
        more = dict(action_mask="rules/0", max_episode_steps=5)
        with make(fakes.Masked, 2, "NEXT_STEP", **more) as env:
            row, _ = self._train(env)
        # Episodes of three steps take four rows: 2 * 16 rows hold 2 * 12 steps.
        self.assertEqual(row["env_steps"], 2 * 2 * 12)


if __name__ == "__main__":
    pytest.main([__file__])
