"""Spaces and action masks of `gymnasium:*`: what is seen, taken, and refused."""

import itertools

import gymnasium
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from gymnasium import spaces

import tfrl
from tests.envs.adapters import gymnasium_fakes as fakes
from tfrl import seeding, specs
from tfrl.envs.host_env import row_seeds
from tfrl.errors import UserError

fakes.register()
TASK = "gymnasium:tfrl_fakes/Spacious-v0"
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
NESTED = spaces.Dict(
    {
        "b": spaces.Tuple((spaces.Discrete(4, start=2), spaces.MultiBinary(3))),
        "a": spaces.Dict({"x": spaces.Box(0, 255, (2, 3), np.uint8)}),
    }
)
SPACES = {
    "float64": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "float32": BOX,
    "float16": spaces.Box(-1.0, 1.0, (2, 2), np.float16),
    "uint8": spaces.Box(0, 255, (4, 4, 1), np.uint8),
    "bool": spaces.Box(np.zeros(2, bool), np.ones(2, bool), dtype=np.bool_),
    "int32": spaces.Box(-7, 9, (), np.int32),
    "discrete": spaces.Discrete(3, start=-1),
    "multi_discrete": spaces.MultiDiscrete([3, 2, 4], start=[0, 5, -2]),
    "multi_binary": spaces.MultiBinary((2, 3)),
    "tuple": spaces.Tuple((BOX, spaces.Discrete(3))),
    "nested": NESTED,
}
NAMES = sorted(SPACES)


def member(space, batch, i):
    """Row i of a batch, as an element of a space."""
    if isinstance(space, spaces.Dict):
        return {k: member(s, batch[k], i) for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(member(s, b, i) for s, b in zip(space.spaces, batch, strict=True))
    return batch[i]


def host(observation, action, num_envs=3, **options):
    given = dict(observation=observation, action=action)
    given |= {k: options.pop(k) for k in ("masked", "forget") if k in options}
    return tfrl.make_env(TASK, num_envs=num_envs, **given, **options)


class SpacesTest(parameterized.TestCase):
    @parameterized.product(name=NAMES, mode=["NEXT_STEP", "SAME_STEP"])
    def test_observations(self, name, mode):
        space = SPACES[name]
        with host(space, spaces.Discrete(2), autoreset=mode) as env:
            self.assertEqual(specs.to_space(env.obs_spec), space)
            state = env.reset(3)
            singles = [fakes.Spacious(space, spaces.Discrete(2)) for _ in range(3)]
            want = [e.reset(seed=int(i))[0] for e, i in zip(singles, row_seeds(3, 3), strict=True)]
            last = want
            for t in range(8):
                for seen, expected in ((state.obs, want), (state.info["final_obs"], last)):
                    tf.nest.map_structure(self.assert_fits, env.obs_spec, seen)
                    for i in range(3):
                        row = member(space, seen, i)
                        tf.nest.map_structure(np.testing.assert_array_equal, row, expected[i])
                state = env.step(state, np.full(3, t % 2))
                if mode == "NEXT_STEP" and t % 4 == 3:  # an episode has three steps
                    want = last = [e.reset()[0] for e in singles]
                    continue
                want = last = [e.step(t % 2)[0] for e in singles]
                if mode == "SAME_STEP" and t % 3 == 2:
                    want = [e.reset()[0] for e in singles]

    def assert_fits(self, spec, value):
        self.assertEqual(value.dtype, spec.dtype.as_numpy_dtype)
        self.assertEqual(value.shape, (3, *spec.shape))

    @parameterized.parameters(*NAMES)
    def test_actions(self, name):
        space = SPACES[name]
        with host(BOX, space) as env:
            self.assertEqual(specs.to_space(env.action_spec), space)
            state = env.reset(0)
            drawn = specs.sample(env.action_spec, seeding.key(2), [3])
            action = tf.nest.map_structure(lambda x: x.numpy(), drawn)
            env.step(state, action)
            for i, e in enumerate(env.backend._vector.envs):
                taken = e.unwrapped.taken[-1]  # the environment itself checked that it is valid
                tf.nest.map_structure(
                    np.testing.assert_array_equal, taken, member(space, action, i)
                )

    def test_discrete_actions_are_int64_scalars_and_copies(self):
        with host(BOX, SPACES["discrete"]) as env:
            env.step(env.reset(0), np.array([-1, 0, 1], np.int32))
            taken = [e.unwrapped.taken[-1] for e in env.backend._vector.envs]
        self.assertEqual([type(a) for a in taken], [np.int64] * 3)
        with host(BOX, BOX) as env:
            action = np.zeros((3, 2), np.float32)
            env.step(env.reset(0), action)
            env.backend._vector.envs[0].unwrapped.taken[-1][:] = 1.0
        self.assertEqual(action.sum(), 0.0)

    @parameterized.parameters(
        (
            spaces.Text(5),
            "observation space . of gymnasium:tfrl_fakes/Spacious-v0: expected Box, Discrete, "
            "MultiDiscrete, MultiBinary, Dict or Tuple, got Text (Text(1, 5, "
            "charset=0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz)). Encode it "
            "as a Box or MultiDiscrete of fixed length, with a wrapper such as "
            "gymnasium.wrappers.TransformObservation: wrappers=(function,).",
        ),
        (
            spaces.Dict({"a": BOX, "b": spaces.Tuple((BOX, spaces.Sequence(BOX)))}),
            "observation space b/1 of gymnasium:tfrl_fakes/Spacious-v0: expected Box, Discrete, "
            "MultiDiscrete, MultiBinary, Dict or Tuple, got Sequence (Sequence(Box(-1.0, 1.0, "
            "(2,), float32), stack=False)). Pad it to a Box of fixed length, with a wrapper such "
            "as gymnasium.wrappers.TransformObservation: wrappers=(function,).",
        ),
    )
    def test_refused_observations(self, space, message):
        with self.assertRaises(UserError) as caught:
            host(space, spaces.Discrete(2))
        self.assertEqual(str(caught.exception), message)

    @parameterized.parameters(
        (spaces.Graph(BOX, None), "space . of", "Represent its nodes and edges as Box items"),
        (spaces.OneOf((BOX, BOX)), "space . of", "Use a Dict of all of its spaces"),
        (spaces.Tuple((BOX, spaces.Text(3))), "space 1 of", "gymnasium.wrappers.TransformAction"),
    )
    def test_refused_actions(self, space, *parts):
        with self.assertRaises(UserError) as caught:
            host(BOX, space)
        for part in ("action ", *parts):
            self.assertIn(part, str(caught.exception))


class ShapeTest(absltest.TestCase):
    def test_an_observation_that_is_not_of_its_space(self):
        class Wrong(gymnasium.ObservationWrapper):
            def observation(self, observation):
                return observation[:1]

        class Wide(gymnasium.vector.VectorWrapper):
            def step(self, actions):
                obs, *rest = self.env.step(actions)
                return np.tile(obs, 2), *rest

        with self.assertRaises(ValueError):  # Gymnasium's own
            host(BOX, spaces.Discrete(2), wrappers=(Wrong,))
        with host(BOX, spaces.Discrete(2), outer_wrappers=(Wide,)) as env:
            with self.assertRaises(UserError) as caught:
                env.step(env.reset(0), np.zeros(3, np.int64))
        self.assertEqual(
            str(caught.exception),
            "observation of gymnasium:tfrl_fakes/Spacious-v0: expected shape [3, 2], as in the "
            "space, got [3, 4].",
        )

    def test_a_dtype_that_would_lose_something(self):
        class Floats(gymnasium.vector.VectorWrapper):
            def reset(self, *, seed=None, options=None):
                obs, infos = self.env.reset(seed=seed, options=options)
                return obs + 0.5, infos

        with self.assertRaises(UserError) as caught:
            host(SPACES["uint8"], spaces.Discrete(2), outer_wrappers=(Floats,))
        self.assertEqual(
            str(caught.exception),
            "observation of gymnasium:tfrl_fakes/Spacious-v0: expected uint8, as in the space, "
            "got float64.",
        )


class MaskTest(parameterized.TestCase):
    @parameterized.parameters(
        *itertools.product(["NEXT_STEP", "SAME_STEP", "DISABLED"], ["sync"], [False, True]),
        ("NEXT_STEP", "async", False),
        ("SAME_STEP", "async", False),
    )
    def test_masks_are_of_the_observation_that_they_stand_with(self, mode, how, keyed):
        seen = spaces.Dict({"see": BOX}) if keyed else BOX
        options = dict(masked=True, autoreset=mode, vectorization=how, num_envs=2)
        with host(seen, spaces.Discrete(4, start=1), **options) as env:
            inner = {"see"} if keyed else {"observation"}
            self.assertEqual(set(env.obs_spec), inner | {"action_mask"})
            self.assertEqual(env.obs_spec["action_mask"], tf.TensorSpec([4], tf.bool))
            state, age = env.reset(0), np.zeros(2, int)
            for _ in range(9):
                for i in range(2):
                    want = np.arange(4) == age[i] % 4
                    np.testing.assert_array_equal(state.obs["action_mask"][i], want)
                state = env.step(state, np.full(2, 1))
                age = {"SAME_STEP": (age + 1) % 3, "NEXT_STEP": (age + 1) % 4}.get(
                    mode, np.minimum(age + 1, 3)
                )
                if mode == "SAME_STEP" and age[0] == 0:
                    last = state.info["final_obs"]["action_mask"]
                    np.testing.assert_array_equal(last, np.tile(np.arange(4) == 3, (2, 1)))

    @parameterized.parameters(
        (spaces.MultiDiscrete([3, 2]), np.eye(2, 3)),
        (spaces.MultiBinary(3), np.eye(3)[0]),
        (spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2))), (np.eye(2)[0], np.eye(2)[0])),
        (spaces.Dict({"k": spaces.Discrete(3)}), {"k": np.eye(3)[0]}),
    )
    def test_masks_of_other_actions(self, space, want):
        with host(BOX, space, num_envs=1, masked=True, autoreset="SAME_STEP") as env:
            state = first = env.reset(0)
            zeros = tf.nest.map_structure(
                lambda s: np.zeros([1, *s.shape], s.dtype.as_numpy_dtype), env.action_spec
            )
            for _ in range(3):
                state = env.step(state, zeros)

            def check(spec, mask, again, want):
                self.assertEqual(spec, tf.TensorSpec(want.shape, tf.bool))
                np.testing.assert_array_equal(mask, want[np.newaxis] == 1, strict=True)
                np.testing.assert_array_equal(again, mask)  # of a first observation too

            masks = [s["action_mask"] for s in (env.obs_spec, first.obs, state.obs)]
            tf.nest.map_structure(check, *masks, want)

    def test_an_end_without_a_mask_allows_everything(self):
        with host(BOX, spaces.Discrete(3), num_envs=1, masked=True, wrappers=(NoLast,)) as env:
            state = env.reset(0)
            for _ in range(3):
                state = env.step(state, np.zeros(1, np.int64))
        np.testing.assert_array_equal(state.info["final_obs"]["action_mask"], [[True] * 3])
        np.testing.assert_array_equal(state.obs["action_mask"], [[True, False, False]])

    def test_mistakes(self):
        def message(step=True, **options):
            with self.assertRaises(UserError) as caught:
                with host(BOX, **{"action": spaces.Discrete(3), "masked": True} | options) as env:
                    env.step(env.reset(0), np.zeros(3, np.int64))
            return str(caught.exception)

        self.assertEqual(
            message(forget=True),
            "info of gymnasium:tfrl_fakes/Spacious-v0: expected 'action_mask' after every reset "
            "and step, as after the first reset, got the items [].",
        )
        self.assertEqual(
            message(wrappers=(Floaty,)),
            "info['action_mask'] of gymnasium:tfrl_fakes/Spacious-v0: expected bools or integers "
            "of shape [3] for Discrete(3), got float64 of shape [3].",
        )
        self.assertEqual(
            message(action=BOX),
            "info['action_mask'] of gymnasium:tfrl_fakes/Spacious-v0: expected a mask of "
            "Discrete, MultiDiscrete or MultiBinary actions, got a mask of "
            "BoundedTensorSpec(shape=(2,), dtype=tf.float32, name=None, minimum=array([-1., -1.], "
            "dtype=float32), maximum=array([1., 1.], dtype=float32)). Remove the mask from info, "
            "for example with a wrapper.",
        )

    def test_two_masks(self):
        seen = spaces.Dict({"action_mask": BOX})
        with self.assertRaisesRegex(
            UserError, "no item 'action_mask' in addition to the one in info"
        ):
            host(seen, spaces.Discrete(2), masked=True)

    def test_taxi(self):
        with tfrl.make_env("gymnasium:Taxi-v4", num_envs=2) as env:
            state = env.reset(0)
            self.assertEqual(env.obs_spec["observation"], specs.DiscreteSpec(500))
            for i, e in enumerate(env.backend._vector.envs):
                want = e.unwrapped.action_mask(state.obs["observation"][i])
                np.testing.assert_array_equal(state.obs["action_mask"][i], want == 1)


class NoLast(gymnasium.Wrapper):
    """Gives no mask at an end."""

    def step(self, action):
        *answer, info = self.env.step(action)
        return *answer, ({} if answer[2] else info)


class Floaty(gymnasium.Wrapper):
    """Gives a mask of floats."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return obs, {"action_mask": info["action_mask"] * 1.0}


if __name__ == "__main__":
    absltest.main()
