"""Atari games and MuJoCo through `gymnasium:*`."""

import gymnasium
import numpy as np
import pytest
from absl.testing import absltest, parameterized

import tfrl
from tests.envs.adapters import gymnasium_fakes as fakes
from tfrl.envs.adapters.gymnasium_env import channels_last
from tfrl.envs.host_env import row_seeds
from tfrl.errors import UserError

BREAKOUT = "gymnasium:ALE/Breakout-v5"
# Without chance, so that ALE's own batch of games and single ones do the same.
CERTAIN = dict(noop_max=0, repeat_action_probability=0.0)


def play(env, steps, num_actions=4):
    """States under fixed random actions."""
    rng = np.random.default_rng(3)
    states = [env.reset(0)]
    for _ in range(steps):
        states.append(env.step(states[-1], rng.integers(0, num_actions, env.num_envs)))
    return states


class AtariTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        pytest.importorskip("ale_py")
        pytest.importorskip("cv2")

    @parameterized.parameters(
        (200, dict(autoreset="SAME_STEP", reward_clip=True)),
        (200, dict(autoreset="NEXT_STEP", grayscale=False, screen_size=40, frame_stack=2)),
        (110, dict(autoreset="SAME_STEP", max_episode_steps=50, frame_skip=3)),
    )
    @pytest.mark.variants(1)
    def test_native_and_single_games_agree(self, steps, options):
        runs = []
        for how, kind in (("auto", "AtariVectorEnv"), ("sync", "SyncVectorEnv")):
            with tfrl.make_env(
                BREAKOUT, num_envs=2, vectorization=how, **CERTAIN, **options
            ) as env:
                self.assertEqual(type(env.backend._vector).__name__, kind)
                runs.append(play(env, steps))
                size = options.get("screen_size", 84)
                channels = options.get("frame_stack", 4) * (1 if options.get("grayscale", 1) else 3)
                self.assertEqual(env.obs_spec.shape, [size, size, channels])
        ends = 0
        for a, b in zip(*runs, strict=True):
            for name in ("reward", "termination", "truncation"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)
            for name in ("autoreset", "episode_return", "episode_length"):
                np.testing.assert_array_equal(a.info[name], b.info[name], name)
            # Of the last frame of an episode ALE does not take the maximum with the one before.
            over = a.termination | a.truncation
            frame = a.obs.shape[-1] // options.get("frame_stack", 4)
            last, other = a.info["final_obs"], b.info["final_obs"]
            np.testing.assert_array_equal(last[~over], other[~over])
            np.testing.assert_array_equal(last[over, ..., :-frame], other[over, ..., :-frame])
            if options["autoreset"] == "NEXT_STEP":
                np.testing.assert_array_equal(a.obs[~over], b.obs[~over])
            else:
                np.testing.assert_array_equal(a.obs, b.obs)
            ends += int((a.termination | a.truncation).sum())
            if options.get("reward_clip"):
                self.assertTrue(np.isin(a.reward, [0.0, 1.0]).all())
        self.assertGreaterEqual(ends, 2)

    def test_frames_are_gymnasiums(self):
        single = gymnasium.make(
            "ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0, render_mode=None
        )
        single = gymnasium.wrappers.AtariPreprocessing(single, noop_max=0)
        with tfrl.make_env(BREAKOUT, **CERTAIN) as env:
            states = play(env, 20)
        frames = [single.reset(seed=0)[0]]
        rng = np.random.default_rng(3)
        frames += [single.step(int(rng.integers(0, 4, 1)[0]))[0] for _ in range(20)]
        np.testing.assert_array_equal(states[-1].obs[0], np.stack(frames[-4:], -1))
        np.testing.assert_array_equal(states[0].obs[0, ..., :3], np.zeros((84, 84, 3)))
        np.testing.assert_array_equal(states[0].obs[0, ..., 3], frames[0])

    def test_a_lost_life_ends_an_episode_and_the_game_goes_on(self):
        options = dict(episodic_life=True, info_fields=("lives", "frame_number"), **CERTAIN)
        with tfrl.make_env(BREAKOUT, autoreset="NEXT_STEP", **options) as env:
            states = play(env, 400)
        lives = [int(s.info["lives"][0]) for s in states if s.termination[0]]
        self.assertEqual(lives[:7], [4, 3, 2, 1, 0, 4, 3])
        frames = [int(s.info["frame_number"][0]) for s in states]
        for i, state in enumerate(states[:-2]):
            if state.termination[0] and state.info["lives"][0] > 0:
                self.assertEqual(frames[i + 1] - frames[i], 4)  # a no-op, not a new game
                self.assertTrue(states[i + 1].info["autoreset"][0])

    def test_a_lost_life_begins_a_new_game(self):
        options = dict(terminal_on_life_loss=True, info_fields=("lives",), **CERTAIN)
        with tfrl.make_env(BREAKOUT, autoreset="NEXT_STEP", **options) as env:
            states = play(env, 150)
        self.assertGreater(sum(int(s.termination[0]) for s in states), 2)
        for state in states[1:]:
            want = 4.0 if state.termination[0] else 5.0
            self.assertEqual(state.info["lives"][0], want)

    def test_the_limit_of_a_game_holds_over_lives(self):
        options = dict(episodic_life=True, max_episode_steps=40, **CERTAIN)
        with tfrl.make_env(BREAKOUT, autoreset="SAME_STEP", **options) as env:
            states = play(env, 80)
        cut = [t for t, s in enumerate(states) if s.truncation[0]]
        lost = sum(bool(s.termination[0]) for s in states[: cut[0]])
        self.assertGreater(lost, 0)
        self.assertEqual(cut[0], 40 - lost)  # each new life begins with a no-op

    @pytest.mark.slow
    def test_limits(self):
        for limit, steps in ((None, 27000), (-1, None), (9, 9)):
            for how in ("sync", "native"):
                with tfrl.make_env(BREAKOUT, max_episode_steps=limit, vectorization=how) as env:
                    self.assertEqual(env.max_episode_steps, steps)
                    state = env.step(env.reset(0), np.zeros(1, np.int64))
                    self.assertFalse(state.truncation[0])

    def test_options_of_the_game(self):
        with tfrl.make_env(BREAKOUT, vectorization="sync", repeat_action_probability=0.5) as env:
            ale = env.backend._vector.envs[0].unwrapped.ale
            self.assertEqual(ale.getFloat("repeat_action_probability"), 0.5)
        with tfrl.make_env(BREAKOUT, vectorization="sync") as env:
            ale = env.backend._vector.envs[0].unwrapped.ale
            self.assertEqual(ale.getFloat("repeat_action_probability"), 0.25)
        with tfrl.make_env(BREAKOUT, atari=False, frameskip=2, vectorization="sync") as env:
            self.assertEqual(env.obs_spec.shape, [210, 160, 3])
        with tfrl.make_env("gymnasium:PongNoFrameskip-v4") as env:
            self.assertEqual(env.obs_spec.shape, [84, 84, 4])
            picture = env.copy(1, render=True)
            state = picture.reset(0)
            self.assertEqual(picture.render(state).shape, (210, 160, 3))
            picture.close()

    @pytest.mark.slow
    def test_seeds(self):
        for how in ("native", "sync"):
            with tfrl.make_env(BREAKOUT, num_envs=2, vectorization=how) as env:
                first, again = play(env, 60), play(env, 60)
            np.testing.assert_array_equal(first[-1].obs, again[-1].obs)
            self.assertTrue(np.any(first[-1].obs[0] != first[-1].obs[1]))

    @parameterized.parameters(
        (
            dict(frameskip=4),
            "make_env('gymnasium:ALE/Breakout-v5'): expected raw frames, which the preprocessing "
            "skips, scales and stacks, got frameskip=4. Pass frame_skip=.",
        ),
        (
            dict(obs_type="ram"),
            "make_env('gymnasium:ALE/Breakout-v5'): expected raw frames, which the preprocessing "
            "skips, scales and stacks, got obs_type='ram'. Pass atari=False with it.",
        ),
        (
            dict(frame_skip=0),
            "frame_skip: expected a whole number of at least 1, got 0. Give 1 or more.",
        ),
        (
            dict(episodic_life=True, terminal_on_life_loss=True),
            "episodic_life and terminal_on_life_loss: expected at most one of them, got both. "
            "Leave terminal_on_life_loss out: with episodic_life the game continues after a lost "
            "life.",
        ),
    )
    def test_mistakes(self, options, want):
        with self.assertRaises(UserError) as caught:
            tfrl.make_env(BREAKOUT, **options)
        self.assertEqual(str(caught.exception), want)

    def test_native_games_treat_lives_otherwise(self):
        with self.assertRaisesRegex(
            UserError, "vector environment handles a lost life differently"
        ):
            tfrl.make_env(BREAKOUT, episodic_life=True, vectorization="native")
        with self.assertRaisesRegex(
            UserError, "vector environment returns no info for the last step"
        ):
            tfrl.make_env(BREAKOUT, info_fields=("lives",), vectorization="native")

    def test_misspelt_option(self):
        with self.assertRaisesRegex(UserError, "got frame_stak. Did you mean frame_stack"):
            tfrl.make_env(BREAKOUT, frame_stak=4)


class ChannelsTest(absltest.TestCase):
    def test_against_a_transposition(self):
        rng = np.random.default_rng(0)
        grey = rng.integers(0, 255, (2, 4, 5, 6), np.uint8)
        np.testing.assert_array_equal(channels_last(grey), np.moveaxis(grey, 1, -1))
        colour = rng.integers(0, 255, (4, 5, 6, 3), np.uint8)
        want = np.concatenate(list(colour), -1)  # frame after frame, each RGB
        np.testing.assert_array_equal(channels_last(colour, 3), want)


class MujocoTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        pytest.importorskip("mujoco")

    @parameterized.parameters(("HalfCheetah-v5", 1000), ("Hopper-v5", 1000))
    def test_against_single_environments(self, task, limit):
        options = dict(num_envs=2, autoreset="SAME_STEP", info_fields=("x_velocity",))
        with tfrl.make_env(f"gymnasium:{task}", **options) as env:
            self.assertEqual(env.max_episode_steps, limit)
            shape = env.action_spec.shape
            actions = np.random.default_rng(0).uniform(-1, 1, (60, 2, *shape)).astype(np.float32)
            make = lambda: gymnasium.make(task)  # noqa: E731
            oracle = fakes.by_hand(make, row_seeds(1, 2), actions, "SAME_STEP")
            state, want = env.reset(1), next(oracle)
            for action, want in zip(actions, oracle, strict=True):
                state = env.step(state, action)
                np.testing.assert_array_equal(state.obs, want["obs"])
                np.testing.assert_array_equal(state.reward, want["reward"].astype(np.float32))
                np.testing.assert_array_equal(state.info["final_obs"], want["final_obs"])
                np.testing.assert_array_equal(state.termination, want["termination"])
            np.testing.assert_allclose(
                state.info["episode_return"], want["episode_return"], rtol=1e-5
            )
            self.assertTrue(np.all(state.info["x_velocity"] != 0.0))
            del want

    def test_an_argument_that_a_base_class_refuses(self):
        with self.assertRaisesRegex(UserError, "got forward_weight. Did you mean forward_reward"):
            tfrl.make_env("gymnasium:HalfCheetah-v5", forward_weight=2.0)


if __name__ == "__main__":
    absltest.main()
