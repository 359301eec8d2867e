"""Ids, arguments, wrappers, limits, vectorizations, copies and pictures of `gymnasium:*`."""

import functools
import logging
import sys

import gymnasium
import numpy as np
from absl.testing import absltest, parameterized
from gymnasium.vector import SyncVectorEnv, VectorEnv

import tfrl
from tests.envs.adapters import gymnasium_fakes as fakes
from tfrl.envs.adapters import gymnasium_vector
from tfrl.envs.wrappers import ActionRepeat, RewardScale
from tfrl.errors import UserError

fakes.register()
SCRIPTED = "gymnasium:tfrl_fakes/Scripted-v0"
LIMITED = "gymnasium:tfrl_fakes/Limited-v0"
LOGGER = gymnasium_vector.__name__


def message(env_id, **options):
    """The paragraph of the UserError that making an environment ends with."""
    try:
        tfrl.make_env(env_id, **options).close()
    except UserError as error:
        return str(error)
    raise AssertionError(f"{env_id} was made")


class IdsTest(parameterized.TestCase):
    def test_a_module_is_imported(self):
        self.addCleanup(gymnasium.registry.pop, "Self-v0", None)
        env_id = "gymnasium:tests.envs.adapters.registers_itself:Self-v0"
        with tfrl.make_env(env_id) as env:
            self.assertEqual(repr(env), f"HostEnv({env_id}, num_envs=1, SAME_STEP)")
            self.assertIsInstance(env.backend._vector.envs[0].unwrapped, fakes.Scripted)

    def test_without_a_version_the_newest_is_taken(self):
        with tfrl.make_env("gymnasium:CartPole") as env:
            self.assertEqual(env.backend._source.spec.id, "CartPole-v1")

    @parameterized.parameters(
        (
            "gymnasium:CartPol-v1",
            "environment gymnasium:CartPol-v1: expected a task of Gymnasium's registry, got "
            "'CartPol-v1'. Did you mean CartPole-v1 or CartPole-v0 or phys2d/CartPole-v1?",
        ),
        (
            "gymnasium:tfrl_fakes/Scriptd-v0",
            "environment gymnasium:tfrl_fakes/Scriptd-v0: expected a task of Gymnasium's registry, "
            "got 'tfrl_fakes/Scriptd-v0'. Did you mean tfrl_fakes/Scripted-v0?",
        ),
        (
            "gymnasium:zzzzzzzz",
            "environment gymnasium:zzzzzzzz: expected a task of Gymnasium's registry, got "
            "'zzzzzzzz'. Use module:Name-v0 if importing your module registers the task.",
        ),
        (
            "gymnasium:no_such:CartPole-v1",
            "environment gymnasium:no_such:CartPole-v1: expected an installed module, got no "
            "module named no_such. Install it, or add its folder to PYTHONPATH.",
        ),
    )
    def test_unknown(self, env_id, want):
        got = message(env_id)
        self.assertTrue(got.startswith(want[:-1]), got)

    def test_a_malformed_id(self):
        self.assertIn("expected a task of Gymnasium's registry", message("gymnasium:a/b/c d-v1"))


class ArgumentsTest(parameterized.TestCase):
    def test_the_tasks_own(self):
        with tfrl.make_env(SCRIPTED, ends=("T7",)) as env:
            state = env.reset(0)
            for _ in range(7):
                state = env.step(state, np.zeros(1, np.int64))
        self.assertTrue(state.termination[0])

    @parameterized.parameters(
        (
            dict(end=1),
            "make_env('gymnasium:tfrl_fakes/Scripted-v0'): expected arguments of the task (ends) "
            "or of make_env (double_buffer, info_fields, max_wait_time, render_mode, timeout, "
            "vectorization), got end. Did you mean ends?",
        ),
        (
            dict(vectorisation="sync"),
            "make_env('gymnasium:tfrl_fakes/Scripted-v0'): expected arguments of the task (ends) "
            "or of make_env (double_buffer, info_fields, max_wait_time, render_mode, timeout, "
            "vectorization), got vectorisation. Did you mean vectorization?",
        ),
        (
            dict(vectorization="asynch"),
            "vectorization of gymnasium:tfrl_fakes/Scripted-v0: expected one of auto, native, "
            "sync, async, got 'asynch'. Did you mean async or sync?",
        ),
        (
            dict(info_fields="age"),
            "info_fields of gymnasium:tfrl_fakes/Scripted-v0: expected a sequence of names, got "
            "'age'. Pass a tuple, even for a single name: ('lives',).",
        ),
        (
            dict(timeout=0),
            "timeout of gymnasium:tfrl_fakes/Scripted-v0: expected a number above 0, got 0. Pass "
            "the maximum time of a reset or step in seconds.",
        ),
        (
            dict(autoreset="SAME_STEP_CACHED"),
            "autoreset of gymnasium:tfrl_fakes/Scripted-v0: expected NEXT_STEP, SAME_STEP or "
            "DISABLED, got SAME_STEP_CACHED, which restores a stored start state. Choose a "
            "different mode: a host environment cannot restore its state.",
        ),
    )
    def test_mistakes(self, options, want):
        self.assertEqual(message(SCRIPTED, **options), want)

    def test_an_argument_that_only_the_environment_refuses(self):
        gymnasium.register("tfrl_fakes/Any-v0", entry_point=lambda **kw: fakes.Scripted(**kw))
        self.addCleanup(gymnasium.registry.pop, "tfrl_fakes/Any-v0")
        self.assertEqual(
            message("gymnasium:tfrl_fakes/Any-v0", size=3),
            "make_env('gymnasium:tfrl_fakes/Any-v0'): expected arguments of the task, got size. "
            "Leave it out, or check the task's documentation for its arguments.",
        )

    def test_an_info_field_that_is_no_number(self):
        with tfrl.make_env(SCRIPTED, info_fields=("text",)) as env:
            with self.assertRaises(UserError) as caught:
                env.step(env.reset(0), np.zeros(1, np.int64))
        self.assertEqual(
            str(caught.exception),
            "info['text'] of gymnasium:tfrl_fakes/Scripted-v0: expected a number, got 'no number'.",
        )

    def test_a_package_that_is_missing(self):
        def make():
            raise gymnasium.error.DependencyNotInstalled("Box2D is not installed")

        gymnasium.register("tfrl_fakes/Missing-v0", entry_point=make)
        self.addCleanup(gymnasium.registry.pop, "tfrl_fakes/Missing-v0")
        self.assertEqual(
            message("gymnasium:tfrl_fakes/Missing-v0"),
            "gymnasium:tfrl_fakes/Missing-v0: expected the packages that the task requires, got "
            "Box2D is not installed. Install them with -c constraints.txt to keep TensorFlow's "
            "pins.",
        )

    @parameterized.parameters(
        ("HalfCheetah-v5", "mujoco", "mujoco"), ("ALE/Pong-v5", "ale_py", "atari")
    )
    def test_an_extra_that_is_missing(self, task, module, extra):
        with absltest.mock.patch.dict(sys.modules, {module: None}):
            self.assertEqual(
                message(f"gymnasium:{task}"),
                f"Optional dependency {module}: expected the extra '{extra}' to be installed, got "
                f"no module named {module}. Install it with: pip install 'tfrl[{extra}]'",
            )


class WrappersTest(parameterized.TestCase):
    def test_order(self):
        scale = lambda k: lambda e: gymnasium.wrappers.TransformReward(e, lambda r: k + 2 * r)  # noqa: E731
        options = dict(wrappers=(scale(1), scale(100)))
        with tfrl.make_env(SCRIPTED, **options) as env:
            state = env.step(env.reset(0), np.zeros(1, np.int64))
        self.assertEqual(state.reward[0], 100 + 2 * (1 + 2 * 1.0))

    def test_outer(self):
        clip = functools.partial(gymnasium.wrappers.vector.ClipReward, max_reward=0.25)
        for how in ("sync", "async"):
            options = dict(outer_wrappers=(clip,), vectorization=how)
            with tfrl.make_env(SCRIPTED, num_envs=2, **options) as env:
                state = env.step(env.reset(0), np.zeros(2, np.int64))
            np.testing.assert_array_equal(state.reward, [0.25, 0.25])

    def test_rewards_are_paid_as_by_device_environments(self):
        scaled = (lambda env: RewardScale(env=env, scale=10.0),)
        plain, paid = (
            tfrl.make_env(SCRIPTED, num_envs=2, outer_wrappers=outer) for outer in ((), scaled)
        )
        with plain, paid:
            want, got = (env.step(env.reset(0), np.zeros(2, np.int64)) for env in (plain, paid))
        np.testing.assert_allclose(got.reward, 10 * want.reward)
        np.testing.assert_array_equal(got.info["episode_return"], want.info["episode_return"])

    @parameterized.parameters(
        (
            dict(wrappers=(ActionRepeat,)),
            "wrappers of gymnasium:tfrl_fakes/Scripted-v0: expected functions gymnasium.Env -> "
            "gymnasium.Env, got ActionRepeat, a wrapper of device environments. Use the "
            "equivalent wrapper of gymnasium.wrappers, or pass RewardScale, RewardClip or "
            "RewardNormalize as outer_wrappers.",
        ),
        (
            dict(wrappers=(lambda env: None,)),
            "wrappers of gymnasium:tfrl_fakes/Scripted-v0: expected functions gymnasium.Env -> "
            "gymnasium.Env, got a function that returns a NoneType.",
        ),
        (
            dict(outer_wrappers=(lambda env: 3,)),
            "outer_wrappers of gymnasium:tfrl_fakes/Scripted-v0: expected functions "
            "gymnasium.vector.VectorEnv -> gymnasium.vector.VectorEnv, got a function that "
            "returns a int. Pass wrappers of gymnasium.wrappers.vector here, and "
            "single-environment wrappers as wrappers.",
        ),
        (
            dict(outer_wrappers=(gymnasium.wrappers.vector.NormalizeObservation,)),
            "outer_wrappers of gymnasium:tfrl_fakes/Scripted-v0: expected wrappers that support "
            "SAME_STEP, got 'NormalizeObservation', which rejects it. Pass autoreset='NEXT_STEP', "
            "or use a single-environment wrapper in wrappers.",
        ),
    )
    def test_mistakes(self, options, want):
        self.assertEqual(message(SCRIPTED, **options), want)


class LimitTest(parameterized.TestCase):
    @parameterized.product(
        limit_steps=[(None, 4), (-1, 9), (6, 6), (2, 2)], mode=["NEXT_STEP", "SAME_STEP"]
    )
    def test_steps_of_an_episode(self, limit_steps, mode):
        limit, steps = limit_steps
        with tfrl.make_env(LIMITED, max_episode_steps=limit, autoreset=mode) as env:
            state = env.reset(0)
            for _ in range(steps - 1):
                state = env.step(state, np.zeros(1, np.int64))
                self.assertFalse((state.termination | state.truncation).any())
            state = env.step(state, np.zeros(1, np.int64))
            self.assertEqual(env.max_episode_steps, None if limit == -1 else steps)
        self.assertEqual(state.info["episode_length"][0], steps)
        self.assertEqual((bool(state.termination[0]), bool(state.truncation[0])),
                         (limit == -1, limit != -1))  # fmt: skip

    @parameterized.parameters((None, 500), (-1, 700), (20, 20))
    def test_of_a_native_environment(self, limit, steps):
        wide = dict(autoreset="NEXT_STEP", max_episode_steps=limit, vectorization="native")
        with tfrl.make_env("gymnasium:CartPole-v1", **wide) as env:
            env.backend._vector.x_threshold = env.backend._vector.theta_threshold_radians = 1e9
            state = env.reset(0)
            for t in range(1, 701):
                state = env.step(state, np.array([t % 2]))
                if state.truncation[0]:
                    break
        self.assertEqual((t, bool(state.truncation[0])), (steps, limit != -1))

    def test_counts_what_is_above_the_wrappers(self):
        class Repeat(gymnasium.Wrapper):
            def step(self, action):
                self.env.step(action)
                return self.env.step(action)

        long = dict(ends=("T100",), wrappers=(Repeat,))
        for limit, steps, age in ((3, 3, 6), (None, 2, 4)):
            with tfrl.make_env(LIMITED, max_episode_steps=limit, **long) as env:
                state = env.reset(0)
                for _ in range(steps):
                    state = env.step(state, np.zeros(1, np.int64))
            self.assertTrue(state.truncation[0])
            self.assertEqual(state.info["final_obs"][0, 2], age)


class VectorizationTest(parameterized.TestCase):
    @parameterized.parameters(
        (SCRIPTED, {}, "the task has no native vector environment"),
        (
            "gymnasium:CartPole-v1",
            {},
            "its native vector environment resets by NEXT_STEP, not by SAME_STEP (pass "
            "autoreset='NEXT_STEP' to use it)",
        ),
        (
            "gymnasium:tfrl_fakes/NativeDisabled-v0",
            dict(autoreset="NEXT_STEP"),
            "its native vector environment resets by DISABLED, not by NEXT_STEP (pass "
            "autoreset='DISABLED' to use it)",
        ),
        (
            "gymnasium:tfrl_fakes/NativeNone-v0",
            {},
            "its native vector environment does not declare its autoreset mode",
        ),
        (
            "gymnasium:CartPole-v1",
            dict(autoreset="NEXT_STEP", wrappers=(lambda env: env,)),
            "wrappers apply to single environments",
        ),
        (
            "gymnasium:tfrl_fakes/NativeSameStep-v0",
            dict(max_episode_steps=5),
            "its native vector environment has no argument max_episode_steps",
        ),
    )
    def test_why_not_native(self, env_id, options, reason):
        with self.assertLogs(LOGGER, logging.INFO) as logged:
            with tfrl.make_env(env_id, num_envs=2, **options) as env:
                self.assertIsInstance(env.backend._vector, SyncVectorEnv)
        self.assertEqual(
            [r.getMessage() for r in logged.records],
            [f"{env_id}: stepping 2 environments sequentially (vectorization='sync'): {reason}."],
        )
        self.assertEqual(
            message(env_id, vectorization="native", **options),
            f"vectorization of {env_id}: expected a task whose native vector environment supports "
            f"these options, got 'native', but {reason}. Pass vectorization='sync', or 'auto' to "
            "fall back to it.",
        )

    def test_known_wrong(self):
        self.assertIn("pauses all environments", message(
            "gymnasium:phys2d/CartPole-v1", vectorization="native", autoreset="NEXT_STEP"
        ))  # fmt: skip

    def test_native_where_it_knows_the_mode(self):
        with self.assertNoLogs(LOGGER, logging.INFO):
            for mode in ("NEXT_STEP", "DISABLED"):
                with tfrl.make_env("gymnasium:CartPole-v1", autoreset=mode) as env:
                    self.assertEqual(type(env.backend._vector).__name__, "CartPoleVectorEnv")

    def test_the_metadata_of_classes_stay_as_they_are(self):
        before = dict(fakes.Scripted.metadata)
        with tfrl.make_env(SCRIPTED):
            self.assertEqual(fakes.Scripted.metadata, before)

    def test_the_shared_metadata_say_nothing(self):
        class Silent(fakes.ScriptedVector):
            metadata = VectorEnv.metadata

            def __init__(self):
                super().__init__(2)
                del self.metadata

        try:
            VectorEnv.metadata["autoreset_mode"] = gymnasium.vector.AutoresetMode.SAME_STEP
            self.assertIsNone(gymnasium_vector.declared_mode(Silent()))
        finally:
            VectorEnv.metadata.clear()

    @parameterized.parameters("NEXT_STEP", "NextStep", gymnasium.vector.AutoresetMode.NEXT_STEP)
    def test_forms_of_the_mode(self, mode):
        vector = fakes.ScriptedVector(2)
        vector.metadata = {"autoreset_mode": mode}
        got = gymnasium_vector.declared_mode(vector)
        self.assertIs(got, gymnasium.vector.AutoresetMode.NEXT_STEP)


class CopiesTest(absltest.TestCase):
    def test_another_number(self):
        with tfrl.make_env(SCRIPTED, num_envs=2, autoreset="NEXT_STEP", ends=("T7",)) as env:
            with env.copy(3) as other:
                self.assertEqual((other.num_envs, other.autoreset.name), (3, "NEXT_STEP"))
                obs = other.reset(4).obs
            np.testing.assert_array_equal(env.reset(4).obs, obs[:2])  # seed i is the key's and i's

    def test_pictures(self):
        with tfrl.make_env(SCRIPTED, num_envs=2) as env, env.copy(2, render=True) as drawn:
            state = drawn.reset(0)
            state = drawn.step(state, np.zeros(2, np.int64))
            age = int(state.obs[1, 2])
            np.testing.assert_array_equal(drawn.render(state, 1), np.full((4, 6, 3), age))
            self.assertEqual(drawn.render_fps, 7.0)
            with self.assertRaisesRegex(NotImplementedError, f"{SCRIPTED} has no renderer"):
                env.render(env.reset(0))

    def test_closing_twice_and_making_anew(self):
        env = tfrl.make_env(SCRIPTED)
        env.close()
        env.close()
        self.assertTrue(env.backend._vector.closed)


if __name__ == "__main__":
    absltest.main()
