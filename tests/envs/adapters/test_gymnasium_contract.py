"""Autoreset modes and vectorizations of `gymnasium:*`, against loops over single environments."""

import gymnasium
import numpy as np
import pytest
from absl.testing import absltest, parameterized

import tfrl
from tests.envs.adapters import gymnasium_fakes as fakes
from tfrl.envs.host_env import row_seeds

fakes.register()
KEY = 5
FIELDS = ("obs", "reward", "termination", "truncation")
INFO = ("final_obs", "autoreset", "episode_return", "episode_length")


def assert_shows(state, want):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(state, name), want[name], name)
    for name in INFO:
        np.testing.assert_array_equal(state.info[name], want[name], name)


def check(env, make, seeds, mode, steps=40, num_actions=3):
    """Compares every state; the arrays given out must not be changed by later steps."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, num_actions, [steps, env.num_envs])
    oracle = fakes.by_hand(make, seeds, actions, mode)
    state = env.reset(KEY)
    shown = [(state, next(oracle))]
    for action, want in zip(actions, oracle, strict=True):
        state = env.step(state, action)
        shown.append((state, want))
    for state, want in shown:
        assert_shows(state, want)
    return shown


class ContractTest(parameterized.TestCase):
    @parameterized.product(mode=["NEXT_STEP", "SAME_STEP", "DISABLED"], how=["sync", "async"])
    @pytest.mark.variants(2)
    def test_single_environments(self, mode, how):
        options = dict(autoreset=mode, vectorization=how)
        with tfrl.make_env("gymnasium:tfrl_fakes/Scripted-v0", num_envs=3, **options) as env:
            seeds = row_seeds(KEY, 3)
            shown = check(env, lambda: gymnasium.make("tfrl_fakes/Scripted-v0"), seeds, mode)
            again = env.reset(KEY)
        np.testing.assert_array_equal(again.obs, shown[0][0].obs)
        if mode != "DISABLED":
            self.assertGreater(sum(int(s.termination.sum()) for s, _ in shown), 10)
            self.assertGreater(sum(int(s.truncation.sum()) for s, _ in shown), 10)
            self.assertTrue(any((s.termination & s.truncation).any() for s, _ in shown))

    @parameterized.parameters(
        ("NextStep", "NEXT_STEP"),
        ("SameStep", "SAME_STEP"),
        ("Disabled", "SAME_STEP"),
        ("NextStep", "DISABLED"),
        ("SameStep", "DISABLED"),
        ("Disabled", "DISABLED"),
    )
    def test_native_environments(self, own, mode):
        task = f"gymnasium:tfrl_fakes/Native{own}-v0"
        with tfrl.make_env(task, num_envs=4, autoreset=mode, vectorization="native") as env:
            self.assertIsInstance(env.backend._vector, fakes.ScriptedVector)
            first = int(row_seeds(KEY, 4)[0])
            check(env, fakes.Scripted, first + np.arange(4), mode)

    @parameterized.parameters("NEXT_STEP", "SAME_STEP", "DISABLED")
    def test_cartpole_in_one_process(self, mode):
        options = dict(autoreset=mode, vectorization="sync", max_episode_steps=17)
        with tfrl.make_env("gymnasium:CartPole-v1", num_envs=2, **options) as env:
            make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=17)  # noqa: E731
            shown = check(env, make, row_seeds(KEY, 2), mode, steps=60, num_actions=2)
        self.assertTrue(any(s.truncation.any() for s, _ in shown))
        self.assertEqual(env.max_episode_steps, 17)

    @parameterized.parameters("NEXT_STEP", "SAME_STEP")
    def test_info_of_the_step_that_ended(self, mode):
        options = dict(autoreset=mode, info_fields=("age", "start", "absent"), vectorization="sync")
        with tfrl.make_env("gymnasium:tfrl_fakes/Scripted-v0", num_envs=3, **options) as env:
            state = env.reset(KEY)
            np.testing.assert_array_equal(state.info["start"], state.obs[:, 0])
            for _ in range(12):
                state = env.step(state, np.zeros(3, np.int64))
                fresh = state.info["autoreset"]
                # A step gives its age + 0.5, a reset 0 and the start; a step gives no start.
                age = np.where(fresh, 0.0, state.info["final_obs"][:, 2] + 0.5)
                np.testing.assert_array_equal(state.info["age"], age)
                start = np.where(fresh, state.obs[:, 0], 0.0)
                np.testing.assert_array_equal(state.info["start"], start)
                np.testing.assert_array_equal(state.info["absent"], np.zeros(3))
                self.assertEqual(state.info["age"].dtype, np.float32)
        self.assertEqual(set(env.backend.info_spec), {"age", "start", "absent"})

    def test_a_second_run_repeats_the_first_and_another_seed_does_not(self):
        with tfrl.make_env("gymnasium:tfrl_fakes/Scripted-v0", num_envs=3) as env:
            starts = [env.reset(k).obs[:, 0] for k in (1, 2, 1)]
        np.testing.assert_array_equal(starts[0], starts[2])
        self.assertFalse(np.any(starts[0] == starts[1]))
        self.assertLen(set(starts[0].tolist()), 3)


if __name__ == "__main__":
    absltest.main()
