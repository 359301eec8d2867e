"""Environments of this library under TF-Agents' own drivers, buffers and checks; and back."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.drivers import dynamic_step_driver, py_driver
from tf_agents.environments import tf_py_environment, utils
from tf_agents.metrics import tf_metrics
from tf_agents.policies import random_py_policy, random_tf_policy
from tf_agents.replay_buffers import tf_uniform_replay_buffer
from tf_agents.trajectories import StepType
from tf_agents.utils import common

import tfrl
from tests.envs.host_backends import Scripted
from tfrl import seeding, specs
from tfrl.compat import tf_agents as compat
from tfrl.envs import check_env
from tfrl.envs.host_env import HostEnv, row_seeds
from tfrl.errors import UserError

FIRST, MID, LAST = (int(t) for t in (StepType.FIRST, StepType.MID, StepType.LAST))
VALID = {
    "cartpole": "tf:CartPole-v1",
    "pendulum": "tf:Pendulum-v1",
    "frames_of_bool": "tf:Breakout-MinAtar",
    "masked": "tf:Masked",
    "gym_cartpole": "gymnasium:CartPole-v1",
    "gym_pendulum": "gymnasium:Pendulum-v1",
    "gym_dict_with_mask": "gymnasium:Taxi-v4",
    "gym_tuple": "gymnasium:Blackjack-v1",
    "envpool": "envpool:CartPole-v1",
    "theirs": "tf_agents:suite_gym/CartPole-v1",
}


def make(env_id, num_envs=1, autoreset="NEXT_STEP", **kwargs):
    if env_id.startswith("envpool"):
        pytest.importorskip("envpool")
    return tfrl.make_env(env_id, num_envs, autoreset, **kwargs)


def splitter(env):
    masked = isinstance(env.obs_spec, dict) and "action_mask" in env.obs_spec
    return compat.split_action_mask if masked else None


def random_policy(env):
    return random_py_policy.RandomPyPolicy(env.time_step_spec(), env.action_spec(), seed=1)


def scripted(lengths=(3, 2), mode="NEXT_STEP", native=None):
    return HostEnv(Scripted(lengths, native or mode), mode)


class ValidateTest(parameterized.TestCase):
    @parameterized.product(env_id=list(VALID.values()), num_envs=[1, 3])
    @pytest.mark.variants(7)
    def test_by_tf_agents(self, env_id, num_envs):
        ours = make(env_id, num_envs, max_episode_steps=20)
        with compat.as_py_environment(ours) as env:
            self.assertEqual(env.batched, num_envs > 1)
            utils.validate_py_environment(env, 3, splitter(ours))

    @parameterized.parameters(
        ("tf:CartPole-v1", "SAME_STEP"),
        ("tf:CartPole-v1", "SAME_STEP_CACHED"),
        ("tf:CartPole-v1", "DISABLED"),
        ("gymnasium:CartPole-v1", "SAME_STEP"),
        ("gymnasium:CartPole-v1", "DISABLED"),
    )
    def test_in_every_mode(self, env_id, mode):
        with compat.as_py_environment(make(env_id, 1, mode)) as env:
            utils.validate_py_environment(env, 3)
            kinds = [env.current_time_step().step_type, env.step(0).step_type]
        self.assertEqual(kinds, [LAST, FIRST])  # it did not stay at the end

    def test_a_batch_of_one(self):
        with compat.as_py_environment(make("tf:CartPole-v1"), batched=True) as env:
            self.assertEqual((env.batched, env.batch_size), (True, 1))
            utils.validate_py_environment(env, 2)


class FramesTest(parameterized.TestCase):
    def _played(self, env, steps=9):
        frames = [env.reset()]
        for _ in range(steps):
            action = np.ones(env.batch_size or (), np.int64)
            frames.append(env.step(action))
        return frames

    def test_a_batch_row_by_row(self):
        env = compat.as_py_environment(scripted())
        frames = self._played(env, 7)
        kinds = np.stack([f.step_type for f in frames])
        # Row 0 has episodes of 3 steps, row 1 of 2; the step after LAST shows FIRST.
        self.assertEqual(kinds[:, 0].tolist(), [FIRST, MID, MID, LAST] * 2)
        self.assertEqual(kinds[:, 1].tolist(), [FIRST, MID, LAST] * 2 + [FIRST, MID])
        # Episodes terminate, are truncated, and so on in turn.
        self.assertEqual([float(f.discount[1]) for f in frames], [1, 1, 0, 1, 1, 1, 1, 1])
        self.assertEqual([float(f.reward[1]) for f in frames], [0, 102, 103, 0, 112, 113, 0, 122])
        self.assertEqual([f.observation[0, 2] for f in frames], [0, 1, 2, 3, 0, 1, 2, 3])

    @parameterized.parameters("SAME_STEP", "NEXT_STEP")
    def test_one_row_is_the_same_in_every_mode(self, mode):
        expected = self._played(compat.as_py_environment(scripted((3,))))
        frames = self._played(compat.as_py_environment(scripted((3,), mode)))
        for a, b in zip(expected, frames, strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, a, b)
            self.assertEqual(b.reward.dtype, np.float32)

    def test_disabled_begins_an_episode_that_follows_from_the_seed(self):
        def play():
            env = compat.as_py_environment(make("gymnasium:CartPole-v1", 1, "DISABLED"), seed=3)
            with env:
                return self._played(env, 30)

        frames, again = play(), play()
        starts = [f.observation for f in frames if f.is_first()]
        self.assertGreater(len(starts), 1)
        self.assertFalse(np.array_equal(starts[0], starts[1]))
        for a, b in zip(frames, again, strict=True):
            np.testing.assert_array_equal(a.observation, b.observation)

    def test_discount_of_steps_and_truncations(self):
        env = compat.as_py_environment(scripted((2,)), discount=0.5)
        told = [float(f.discount) for f in self._played(env, 5)]
        self.assertEqual(told, [1, 0.5, 0, 1, 0.5, 0.5])

    def test_step_before_reset_begins(self):
        env = compat.as_py_environment(scripted((2,)))
        self.assertEqual(int(env.step(np.array(1)).step_type), FIRST)

    def test_actions_keep_start_dtype_and_nest(self):
        class Nested(Scripted):
            def __init__(self, *args):
                super().__init__(*args)
                self.action_spec = {"a": (specs.DiscreteSpec(2, start=3, dtype=tf.int32),)}

            def send(self, action):
                super().send(action["a"][0])

        for num_envs in (1, 2):
            ours = HostEnv(Nested((3,) * num_envs, "NEXT_STEP"), "NEXT_STEP")
            env = compat.as_py_environment(ours)
            driver = py_driver.PyDriver(env, random_policy(env), [], max_steps=20)
            driver.run(env.reset())
            taken = np.stack(ours.backend.taken)
            self.assertEqual(set(np.ravel(taken)), {3, 4})
            self.assertEqual((taken.dtype, taken.shape[1:]), (np.int32, (num_envs,)))

    def test_info(self):
        env = compat.as_py_environment(scripted((2,)))
        self._played(env, 2)
        info = env.get_info()
        self.assertEqual((info["episode_length"], info["episode_return"]), (2, 5))
        self.assertNotIn("final_obs", info)

    def test_seed_and_resets(self):
        env = compat.as_py_environment(make("tf:CartPole-v1", 2), seed=5)
        starts = [env.reset().observation for _ in range(2)]
        np.testing.assert_array_equal(
            starts[0], make("tf:CartPole-v1", 2).reset(seeding.key(5)).obs
        )
        self.assertFalse(np.array_equal(*starts))
        env.seed(5)
        np.testing.assert_array_equal(env.reset().observation, starts[0])
        np.testing.assert_array_equal(env.reset().observation, starts[1])

    def test_pictures(self):
        env = compat.as_py_environment(make("tf:CartPole-v1", 2))
        env.reset()
        self.assertEqual(env.render().shape[0], 2)
        single = compat.as_py_environment(make("tf:CartPole-v1"))
        single.reset()
        self.assertEqual((single.render().ndim, single.render().dtype), (3, np.uint8))

    def test_close(self):
        env = scripted()
        with compat.as_py_environment(env):
            pass
        self.assertEqual(env.backend.closed, 1)


class DriverTest(parameterized.TestCase):
    @parameterized.parameters(
        ("tf:CartPole-v1", 1), ("gymnasium:CartPole-v1", 1), ("gymnasium:CartPole-v1", 3)
    )
    def test_py_driver(self, env_id, num_envs):
        with compat.as_py_environment(make(env_id, num_envs), seed=2) as env:
            policy = random_py_policy.RandomPyPolicy(
                env.time_step_spec(), env.action_spec(), seed=1
            )
            seen = []
            driver = py_driver.PyDriver(env, policy, [seen.append], max_episodes=4)
            driver.run(env.reset())
        actions = np.stack([t.action for t in seen]).reshape(len(seen), num_envs)
        rewards = np.stack([t.reward for t in seen]).reshape(len(seen), num_envs)
        self._compare(make(env_id, num_envs), 2, actions, rewards)

    def _compare(self, env, seed, actions, rewards):
        """Compares rewards, summed up to the returns of episodes, with those of this library."""
        on_host = isinstance(env, HostEnv)
        state = env.reset(seed if on_host else seeding.key(seed))
        totals = np.zeros(env.num_envs)
        ends = 0
        for action, reward in zip(actions, rewards, strict=True):
            given = action if on_host else tf.constant(action)
            state = env.step(state, given)
            np.testing.assert_array_equal(np.asarray(state.reward), reward)
            totals += reward
            for i in np.flatnonzero(np.asarray(state.termination | state.truncation)):
                self.assertEqual(float(state.info["episode_return"][i]), totals[i])
                totals[i], ends = 0, ends + 1
        self.assertGreaterEqual(ends, 4)

    @parameterized.parameters("tf:CartPole-v1", "gymnasium:CartPole-v1")
    def test_dynamic_step_driver_and_buffer(self, env_id):
        ours = make(env_id, 4)
        env = compat.as_tf_environment(ours, seed=2)
        on_device = env_id.startswith("tf:")
        self.assertEqual(isinstance(env, tf_py_environment.TFPyEnvironment), not on_device)
        policy = random_tf_policy.RandomTFPolicy(env.time_step_spec(), env.action_spec())
        buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(
            policy.trajectory_spec, env.batch_size, 200
        )
        steps, returns = tf_metrics.EnvironmentSteps(), tf_metrics.AverageReturnMetric(batch_size=4)
        driver = dynamic_step_driver.DynamicStepDriver(
            env, policy, [buffer.add_batch, steps, returns], num_steps=300
        )
        env.reset()
        run = common.function(driver.run)
        run()
        self.assertGreaterEqual(int(steps.result()), 300)
        stored = buffer.gather_all()  # [B, T]
        actions, rewards = stored.action.numpy().T, stored.reward.numpy().T
        self._compare(make(env_id, 4), 2, actions, rewards)
        boundary = stored.step_type.numpy() == LAST
        np.testing.assert_array_equal(stored.next_step_type.numpy()[boundary], FIRST)
        self.assertGreater(float(returns.result()), 5)
        ops = {op.type for op in _operations(run.get_concrete_function().graph)}
        self.assertEqual(any("PyFunc" in op for op in ops), not on_device)

    def test_a_loop_over_a_device_environment(self):
        env = compat.as_tf_environment(make("tf:CartPole-v1", 2), seed=1)
        time_step = env.reset()
        body = lambda t: [env.step(tf.ones([2], tf.int64))]  # noqa: E731
        going_on = lambda t: tf.reduce_all(~t.is_last())  # noqa: E731
        last = tf.function(lambda t: tf.while_loop(going_on, body, [t]))(time_step)[0]
        self.assertTrue(bool(tf.reduce_any(last.is_last())))
        np.testing.assert_array_equal(env.current_time_step().observation, last.observation)
        after = env.step(tf.zeros([2], tf.int64))
        np.testing.assert_array_equal(after.is_first(), last.is_last())

    def test_tf_py_environment_of_a_device_environment(self):
        ours = make("tf:CartPole-v1", 2)
        env = tf_py_environment.TFPyEnvironment(compat.as_py_environment(ours, seed=4))
        other = compat.as_tf_environment(ours, seed=4)
        frames = [env.reset()], [other.reset()]
        for _ in range(12):
            for made, e in zip(frames, (env, other), strict=True):
                made.append(e.step(tf.ones([2], tf.int64)))
        self.assertEqual(env.time_step_spec(), other.time_step_spec())
        for a, b in zip(*frames, strict=True):
            np.testing.assert_array_equal(a.step_type, b.step_type)
            _close(a.observation, b.observation)

    def test_a_graph_environment_begins_by_itself_and_is_seeded(self):
        env = compat.as_tf_environment(make("tf:CartPole-v1", 2), seed=6)
        first = env.current_time_step()
        self.assertEqual(first.step_type.numpy().tolist(), [FIRST, FIRST])
        np.testing.assert_array_equal(env.reset().observation, first.observation)
        self.assertFalse(np.array_equal(env.reset().observation, first.observation))
        env.seed(6)
        np.testing.assert_array_equal(env.reset().observation, first.observation)
        self.assertEqual(env.render().shape[0], 2)


def _operations(graph):
    yield from graph.get_operations()
    for function in graph._functions.values():
        yield from function.graph.get_operations()


class RoundTripTest(parameterized.TestCase):
    @parameterized.product(
        env_id=["tf:CartPole-v1", "gymnasium:CartPole-v1", "gymnasium:Pendulum-v1"],
        mode=["SAME_STEP", "NEXT_STEP", "DISABLED"],
    )
    @pytest.mark.variants(3)
    def test_ours_theirs_ours(self, env_id, mode):
        def inner():
            return compat.as_py_environment(make(env_id, max_episode_steps=15))

        with make("tf_agents:x", 2, mode, env=inner) as env:
            self.assertEqual(env.max_episode_steps, 15)
            check_env(env, 40)
            singles = [make(env_id, 1, mode, max_episode_steps=15) for _ in range(2)]
            self.assertEqual(env.obs_spec, singles[0].obs_spec)
            self.assertEqual(env.action_spec, singles[0].action_spec)
            state = env.reset(3)
            seeds = [int(s) for s in row_seeds(3, 2)]
            others = [
                e.reset(s if isinstance(e, HostEnv) else seeding.key(s))
                for e, s in zip(singles, seeds, strict=True)
            ]
            rng = np.random.default_rng(0)
            ended = [0, 0]
            for _ in range(40):
                action = _random(env.action_spec, rng)
                state = env.step(state, action)
                for i, single in enumerate(singles):
                    others[i] = single.step(others[i], tf.constant(action[i : i + 1]))
                    # A second explicit reset begins another episode than an autoreset: compare
                    # the first episode of each row, its end included.
                    if ended[i] == 0:
                        self._same(state, others[i], i)
                    ended[i] += bool(state.termination[i] | state.truncation[i])
            self.assertTrue(all(ended))
            for single in singles:
                if isinstance(single, HostEnv):
                    single.close()

    def _same(self, state, other, i):
        names = ("reward", "termination", "truncation")
        for name in names:
            _close(getattr(state, name)[i], getattr(other, name)[0])
        _close(state.info["final_obs"][i], other.info["final_obs"][0])
        for name in ("episode_return", "episode_length"):
            _close(state.info[name][i], other.info[name][0])

    @parameterized.product(
        env_id=["gymnasium:CartPole-v1", "gymnasium:Pendulum-v1", "envpool:CartPole-v1"],
        mode=["SAME_STEP", "DISABLED"],
    )
    def test_a_batch_on_the_host_of_another_mode_is_made_anew(self, env_id, mode):
        given = make(env_id, 3, mode, max_episode_steps=7)
        with compat.as_py_environment(given, seed=5) as env:
            utils.validate_py_environment(env, episodes=2)
            want = compat.as_py_environment(make(env_id, 3, max_episode_steps=7), seed=5)
            rng = np.random.default_rng(0)
            env.seed(5)
            steps = [env.reset(), want.reset()]
            for _ in range(20):
                tf.nest.map_structure(_close, *steps)
                spec = env.action_spec()
                action = rng.integers(0, 2, (3, *spec.shape)).astype(spec.dtype)
                steps = [env.step(action), want.step(action)]
            want.close()

    @parameterized.parameters("tf:CartPole-v1", "gymnasium:CartPole-v1", "tf:Masked")
    @pytest.mark.variants(1)
    def test_a_whole_batch(self, env_id):
        # A batch begins anew by itself: all episodes are the same.
        def inner(num_envs):
            return compat.as_py_environment(make(env_id, num_envs, max_episode_steps=10))

        def graph(num_envs):
            return compat.as_tf_environment(make(env_id, num_envs, max_episode_steps=10))

        plain = make(env_id, 3, max_episode_steps=10)
        host = isinstance(plain, HostEnv)
        step = plain.step if host else tf.function(plain.step, autograph=False)
        for maker in [inner] if host else [inner, graph]:
            with make("tf_agents:x", 3, env=maker) as env:
                self.assertEqual(env.obs_spec, plain.obs_spec)
                self.assertEqual(env.max_episode_steps, plain.max_episode_steps)
                state = env.reset(3)
                seed = int(row_seeds(3, 3)[0])
                other = plain.reset(seed if host else seeding.key(seed))
                for t in range(25):
                    action = np.full(3, t % 2, np.int64)
                    state = env.step(state, action)
                    other = step(other, action if host else tf.constant(action))
                    for name in ("obs", "reward", "termination", "truncation", "info"):
                        a, b = getattr(state, name), getattr(other, name)
                        b = {k: b[k] for k in a} if name == "info" else b
                        tf.nest.map_structure(_close, a, b)
        self.assertGreater(int(np.asarray(other.info["episode_length"]).max()), 0)


def _close(a, b):
    # A compiled step and one that is not differ in the last bit.
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def _random(spec, rng):
    if spec.dtype.is_integer:
        return rng.integers(0, 2, 2)
    return rng.uniform(-1, 1, [2, 1]).astype(np.float32)


class ErrorTest(parameterized.TestCase):
    @parameterized.parameters(
        (
            lambda: compat.as_py_environment(make("tf:CartPole-v1", 2), batched=False),
            "as_py_environment: batched: expected True for several environments, got False for 2. "
            "Leave it out, or create the environment with num_envs=1.",
        ),
        (
            lambda: compat.as_tf_environment(make("tf:CartPole-v1"), discount=0.0),
            "discount: expected a number above 0 and at most 1, since 0 marks a termination, got "
            "0.0. Leave it out, and set the agent's gamma.",
        ),
        (
            lambda: compat.as_py_environment(3),
            "environment for TF-Agents: expected a single-agent environment from tfrl.make_env, "
            "got 3. Register your task and create it with make_env; TF-Agents supports one agent "
            "per environment.",
        ),
        (
            lambda: compat.as_py_environment(make("tf:CartPole-v1").unwrapped),
            "environment for TF-Agents: expected a single-agent environment from tfrl.make_env, "
            "got a CartPole. Register your task and create it with make_env; TF-Agents supports "
            "one agent per environment.",
        ),
        (
            lambda: compat.as_tf_environment(make("tf:Relay-v0")),
            "environment for TF-Agents: expected a single-agent environment from tfrl.make_env, "
            "got a Episode. Register your task and create it with make_env; TF-Agents supports "
            "one agent per environment.",
        ),
    )
    def test_message(self, call, expected):
        with self.assertRaises(UserError) as told:
            call()
        self.assertEqual(str(told.exception), expected)


if __name__ == "__main__":
    pytest.main([__file__])
