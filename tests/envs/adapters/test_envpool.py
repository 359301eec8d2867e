"""`envpool:*` against pools that are stepped by hand."""

import sys

import numpy as np
import pytest
from absl.testing import absltest, parameterized

import tfrl
from tfrl.envs.adapters.envpool import _is_stack
from tfrl.envs.host_env import row_seeds
from tfrl.errors import UserError

envpool = pytest.importorskip("envpool")
CARTPOLE = "envpool:CartPole-v1"
FIELDS = ("obs", "reward", "termination", "truncation")


def balance(obs):
    """A deterministic policy that keeps some episodes up to the limit."""
    return (obs[:, 2] + 0.3 * obs[:, 3] > 0).astype(np.int64)


def episodes(env, steps, key=3):
    """Runs the policy; returns for each row the episodes' observations and rewards."""
    state = env.reset(key)
    size = env.num_envs
    runs = [[[(0.0, state.obs[i])]] for i in range(size)]
    for _ in range(steps):
        state = env.step(state, balance(state.obs))
        for i in range(size):
            if state.info["autoreset"][i]:
                runs[i].append([(0.0, state.obs[i])])
                continue
            runs[i][-1].append((state.reward[i], state.info["final_obs"][i]))
            if env.autoreset.name == "SAME_STEP" and (state.termination | state.truncation)[i]:
                runs[i].append([(0.0, state.obs[i])])
    return runs


class ContractTest(parameterized.TestCase):
    def test_next_step_is_the_pools_own(self):
        options = dict(num_envs=3, max_episode_steps=15, autoreset="NEXT_STEP")
        pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3, max_episode_steps=15,
                            seed=row_seeds(7, 3).tolist())  # fmt: skip
        with tfrl.make_env(CARTPOLE, **options) as env:
            state, (obs, _) = env.reset(7), pool.reset()
            np.testing.assert_array_equal(state.obs, obs)
            over, returns, lengths, shown = np.zeros(3, bool), np.zeros(3), np.zeros(3), []
            for t in range(60):
                action = np.array([t % 2, 0, 1])
                state = env.step(state, action)
                want = pool.step(action)
                returns = np.where(over, 0, returns + want[1])
                lengths = np.where(over, 0, lengths + 1)
                np.testing.assert_array_equal(state.info["autoreset"], over)
                np.testing.assert_array_equal(state.info["episode_return"], returns)
                np.testing.assert_array_equal(state.info["episode_length"], lengths)
                np.testing.assert_array_equal(state.info["final_obs"], want[0])
                over = want[2] | want[3]
                shown.append((state, [np.copy(x) for x in want[:4]]))
        for state, want in shown:  # nothing that was given out has changed
            for name, x in zip(FIELDS, want, strict=True):
                np.testing.assert_array_equal(getattr(state, name), x, name)
        self.assertTrue(any(s.truncation.any() for s, _ in shown))
        self.assertTrue(any(s.termination.any() for s, _ in shown))

    def test_same_step_has_the_same_episodes(self):
        runs = {}
        for mode in ("NEXT_STEP", "SAME_STEP"):
            options = dict(num_envs=4, max_episode_steps=40, autoreset=mode)
            with tfrl.make_env(CARTPOLE, **options) as env:
                runs[mode] = episodes(env, 150)
        for a, b in zip(runs["NEXT_STEP"], runs["SAME_STEP"], strict=True):
            self.assertGreater(min(len(a), len(b)), 2)
            for x, y in list(zip(a, b, strict=False))[: min(len(a), len(b)) - 1]:
                self.assertEqual(len(x), len(y))
                for (r, o), (s, p) in zip(x, y, strict=True):
                    self.assertEqual(r, s)
                    np.testing.assert_array_equal(o, p)

    def test_disabled_freezes(self):
        with tfrl.make_env(CARTPOLE, num_envs=2, autoreset="DISABLED") as env:
            state = env.reset(0)
            for _ in range(30):
                state = env.step(state, np.zeros(2, np.int64))
        self.assertTrue(state.termination.all())
        np.testing.assert_array_equal(state.info["episode_return"], state.info["episode_length"])
        self.assertLess(state.info["episode_length"].max(), 15)
        np.testing.assert_array_equal(state.reward, [0, 0])

    def test_seeds(self):
        with tfrl.make_env(CARTPOLE, num_envs=4) as env:
            states = [env.reset(k) for k in (1, 2, 1)]
            starts = [s.obs for s in states]
            with env.copy(2) as fewer:
                np.testing.assert_array_equal(fewer.reset(1).obs, starts[0][:2])
            # Also after steps, and the episodes that follow too.
            runs = [episodes(env, 60, key=9) for _ in range(2)]
        np.testing.assert_array_equal(starts[0], starts[2])
        self.assertLen({x.tobytes() for s in starts[:2] for x in s}, 8)
        flat = [[x.tobytes() for row in run for e in row for _, x in e] for run in runs]
        self.assertEqual(*flat)

    @parameterized.parameters((None, 500), (-1, None), (7, 7))
    def test_limits(self, limit, steps):
        with tfrl.make_env(CARTPOLE, max_episode_steps=limit) as env:
            self.assertEqual(env.max_episode_steps, steps)
            state = env.reset(0)
            for _ in range(7):
                state = env.step(state, balance(state.obs))
        self.assertEqual(bool(state.truncation[0]), limit == 7)
        self.assertEqual(int(state.info["episode_length"][0]), 7)


class TasksTest(parameterized.TestCase):
    def test_atari(self):
        options = dict(
            num_envs=2, episodic_life=True, info_fields=("lives",), autoreset="NEXT_STEP"
        )
        pool = envpool.make("Breakout-v5", env_type="gymnasium", num_envs=2, episodic_life=True,
                            seed=row_seeds(5, 2).tolist())  # fmt: skip
        with tfrl.make_env("envpool:Breakout-v5", **options) as env:
            self.assertEqual((env.obs_spec.shape, env.obs_spec.dtype.name), ([84, 84, 4], "uint8"))
            self.assertEqual(env.max_episode_steps, 27000)
            state, (obs, _) = env.reset(5), pool.reset()
            ends = 0
            for t in range(200):
                np.testing.assert_array_equal(state.obs, np.moveaxis(obs, 1, -1))
                action = np.array([t % 4, (t // 3) % 4])
                state = env.step(state, action)
                obs, reward, termination, truncation, info = pool.step(action)
                np.testing.assert_array_equal(state.reward, reward)
                np.testing.assert_array_equal(state.termination, termination)
                np.testing.assert_array_equal(state.info["lives"], info["lives"])
                ends += int(termination.sum())
        self.assertGreater(ends, 1)

    def test_mujoco(self):
        options = dict(num_envs=2, info_fields=("x_velocity",))
        with tfrl.make_env("envpool:HalfCheetah-v4", **options) as env:
            state = env.step(env.reset(0), np.zeros((2, 6)))
            self.assertEqual((state.obs.shape, env.action_spec.shape), ((2, 17), [6]))
            self.assertTrue(np.all(state.info["x_velocity"] != 0.0))
            with env.copy(1, render=True) as drawn:
                with self.assertRaisesRegex(NotImplementedError, "use the suite gymnasium"):
                    drawn.render(drawn.reset(0))

    def test_pictures(self):
        with tfrl.make_env(CARTPOLE) as env, env.copy(2, render=True) as drawn:
            picture = drawn.render(drawn.reset(0), 1)
            self.assertEqual((picture.shape, picture.dtype), ((400, 600, 3), np.uint8))
            with self.assertRaises(NotImplementedError):
                env.render(env.reset(0))


def message(env_id, **options):
    with pytest.raises(UserError) as caught:
        env = tfrl.make_env(env_id, **options)
        env.step(env.reset(0), np.array([7]))
    return str(caught.value)


class MistakesTest(parameterized.TestCase):
    @parameterized.parameters(
        (
            "envpool:CartPol-v1",
            {},
            f"environment envpool:CartPol-v1: expected one of the {len(envpool.list_all_envs())} "
            "tasks of envpool.list_all_envs(), got 'CartPol-v1'. Did you mean CartPole-v1 or "
            "CartPole-v0",
        ),
        (
            CARTPOLE,
            dict(thread=2),
            "make_env('envpool:CartPole-v1'): expected arguments of the task (num_threads, "
            "thread_affinity_offset) or of make_env (double_buffer, info_fields), got thread. Did "
            "you mean num_threads?",
        ),
        (
            CARTPOLE,
            dict(seed=2),
            "make_env('envpool:CartPole-v1'): expected options of the task without seed, which "
            "tfrl sets, got seed=2. Pass the seed to reset.",
        ),
        (
            CARTPOLE,
            dict(wrappers=(print,)),
            "outer_wrappers of envpool:CartPole-v1: expected RewardScale, RewardClip or "
            "RewardNormalize, got unsupported wrappers (1). Use EnvPool's own options.",
        ),
        (
            CARTPOLE,
            dict(autoreset="SAME_STEP_CACHED"),
            "autoreset of envpool:CartPole-v1: expected NEXT_STEP, SAME_STEP or DISABLED, got "
            "SAME_STEP_CACHED, which restores a stored start state. Choose a different mode: a "
            "host environment cannot restore its state.",
        ),
        (
            CARTPOLE,
            dict(info_fields=("players",)),
            "info_fields of envpool:CartPole-v1: expected names of numeric info items "
            "(elapsed_step, env_id), got 'players'.",
        ),
        (
            CARTPOLE,
            {},
            "action for envpool:CartPole-v1: expected whole numbers from 0 to 1, got 7 at [0]. "
            "Pass actions that match env.action_spec.",
        ),
    )
    def test_messages(self, env_id, options, want):
        self.assertStartsWith(message(env_id, **options), want)

    def test_not_installed(self):
        with absltest.mock.patch.dict(sys.modules, {"envpool": None}):
            self.assertEqual(
                message(CARTPOLE),
                "Optional dependency envpool: expected the extra 'envpool' to be installed, got no "
                "module named envpool. Install it with: pip install 'tfrl[envpool]'",
            )


class ChannelsTest(absltest.TestCase):
    def test_which_leaves_are_pictures(self):
        from tfrl import specs

        kinds = [([4, 84, 84], "uint8"), ([96, 96, 3], "uint8"), ([4, 84, 84], "float32")]
        found = [_is_stack(specs.BoundedTensorSpec(shape, dtype, 0, 255)) for shape, dtype in kinds]
        self.assertEqual(found, [True, False, False])


if __name__ == "__main__":
    absltest.main()
