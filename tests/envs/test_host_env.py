"""Tests of `HostEnv` itself; its rollouts are in tests/rollout/test_host.py."""

import gc
import subprocess
import sys

import numpy as np
from absl.testing import parameterized

from tests.envs.host_backends import Scripted
from tfrl import seeding
from tfrl.envs.core import Autoreset
from tfrl.envs.host_env import HostEnv, row_seeds
from tfrl.errors import UserError


class SeedTest(parameterized.TestCase):
    @parameterized.parameters(0, 7, -3, 2**40)
    def test_rows_have_distinct_seeds_that_follow_from_the_key(self, key):
        seeds = row_seeds(key, 500)
        self.assertLen(set(seeds.tolist()), 500)
        self.assertTrue(((seeds >= 0) & (seeds < 2**31)).all())
        np.testing.assert_array_equal(seeds, row_seeds(key, 500))
        np.testing.assert_array_equal(seeds[:3], row_seeds(key, 3))

    def test_keys_of_devices_are_taken_too(self):
        keys = seeding.split(seeding.key(0), 2)
        first, second = (set(row_seeds(k, 50).tolist()) for k in keys)
        self.assertEmpty(first & second)


class HostEnvTest(parameterized.TestCase):
    def test_a_reset_begins_every_row_with_its_seed(self):
        env = HostEnv(Scripted((2, 3)), "SAME_STEP")
        for key in (3, 4):
            env.reset(key)
            self.assertEqual(env.backend.seeds[-1], row_seeds(key, 2).tolist())

    def test_a_reset_looks_like_one_of_a_device_environment(self):
        state = HostEnv(Scripted((2, 3), "NEXT_STEP"), "NEXT_STEP").reset(0)
        np.testing.assert_array_equal(state.reward, [0, 0])
        self.assertEqual(state.reward.dtype, np.float32)
        for flag in (state.termination, state.truncation, state.info["autoreset"]):
            np.testing.assert_array_equal(flag, [False, False])
        np.testing.assert_array_equal(state.info["final_obs"], state.obs)
        np.testing.assert_array_equal(state.info["episode_length"], [0, 0])
        self.assertEqual(state.info["episode_length"].dtype, np.int32)

    def test_what_was_given_out_does_not_change(self):
        env = HostEnv(Scripted((2, 3)), "SAME_STEP")
        state = env.step(env.reset(0), np.zeros(2, np.int64))
        kept = {n: np.copy(x) for n, x in state.info.items()}
        later = state
        for _ in range(4):
            later = env.step(later, np.zeros(2, np.int64))
        for name, x in kept.items():
            np.testing.assert_array_equal(state.info[name], x, err_msg=name)

    @parameterized.parameters(
        ("SAME_STEP", "NEXT_STEP", "expected SAME_STEP or DISABLED, got NEXT_STEP. Pass auto"),
        ("NEXT_STEP", "SAME_STEP", "expected NEXT_STEP or DISABLED, got SAME_STEP. Pass auto"),
        ("SAME_STEP", "SAME_STEP_CACHED", "got SAME_STEP_CACHED. Choose a different mode"),
    )
    def test_a_mode_that_it_cannot_do(self, native, asked, message):
        with self.assertRaisesRegex(UserError, f"autoreset of testing:ScriptedHost: .*{message}"):
            HostEnv(Scripted((2,), native), asked)

    def test_copies_are_others_of_the_same_task(self):
        env = HostEnv(Scripted((2, 3)), "SAME_STEP")
        copy = env.with_num_envs(5)
        self.assertEqual((copy.num_envs, copy.autoreset), (5, Autoreset.SAME_STEP))
        self.assertIsNot(copy.backend, env.backend)
        self.assertIs(env.with_num_envs(2), env)
        self.assertIs(env.copy(autoreset="DISABLED").autoreset, Autoreset.DISABLED)

    def test_it_is_closed_once_by_with_by_close_and_when_forgotten(self):
        backend = Scripted((2,))
        with HostEnv(backend, "SAME_STEP") as env:
            env.reset(0)
        env.close()
        self.assertEqual(backend.closed, 1)
        forgotten = Scripted((2,))
        env = HostEnv(forgotten, "SAME_STEP")
        del env
        gc.collect()
        self.assertEqual(forgotten.closed, 1)

    def test_it_says_what_it_is(self):
        env = HostEnv(Scripted((2, 3)), "SAME_STEP")
        self.assertEqual(repr(env), "HostEnv(testing:ScriptedHost, num_envs=2, SAME_STEP)")
        self.assertEqual((env.render_fps, env.max_episode_steps), (10.0, 50))
        env.reset(0)
        self.assertEqual(env.render(index=1).shape, (32, 48, 3))


class LazyImportTest(parameterized.TestCase):
    def test_the_package_of_environments_loads_tensorflow_only_when_asked(self):
        code = (
            "import sys, tfrl.envs; assert 'tensorflow' not in sys.modules; "
            "print('make_env' in dir(tfrl.envs), len(tfrl.envs.env_ids()) > 10, "
            "tfrl.envs.testing.__name__, 'tensorflow' in sys.modules); tfrl.envs.nothing"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.stdout.split(), ["True", "True", "tfrl.envs.testing", "True"])
        self.assertIn("module 'tfrl.envs' has no attribute 'nothing'", done.stderr)
