"""Action masks of environments on the host, in rows that are frozen and go on unseen below."""

import copy

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfrl
from tfrl import seeding, specs
from tfrl.agents import RandomAgent
from tfrl.envs import check_env
from tfrl.envs.action_masks import first_valid, real_choices
from tfrl.rollout import rollout

PAIR = spaces.MultiDiscrete([2, 3], start=[4, -1])
ACTIONS = {
    "discrete": spaces.Discrete(3, start=5),
    "multi_discrete": PAIR,
    "bits": spaces.MultiBinary(3),
    "nested": spaces.Dict({"a": spaces.Tuple([PAIR, spaces.MultiBinary(2)]), "b": PAIR}),
}


class Picky(gymnasium.Env):
    """Refuses what its mask does not allow; an episode has 2 to 5 steps."""

    observation_space = spaces.Box(0, 9, (1,), np.float32)

    def __init__(self, kind):
        self.action_space = copy.deepcopy(ACTIONS[kind])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self.left = int(self.np_random.integers(2, 6))
        return self._seen()

    def _seen(self):
        # A random valid action decides; its mask allows it and, of bits, nothing more.
        self.only = self.action_space.sample() if self.left else None
        mask = _mask_of(self.action_space, self.only)
        return np.array([self.left], np.float32), {"action_mask": mask}

    def step(self, action):
        if self.left == 0:
            raise AssertionError("a step after the end")
        if not _keeps_to(self.action_space, self.only, action):
            raise AssertionError(f"{action} where only {self.only} is valid")
        self.left -= 1
        obs, info = self._seen()
        return obs, 1.0, self.left == 0, False, info


def _mask_of(space, value):
    """The mask that allows one value; all that a nest's parts allow is none at the end."""
    if isinstance(space, spaces.Dict):
        return {k: _mask_of(s, None if value is None else value[k]) for k, s in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            _mask_of(s, None if value is None else value[i]) for i, s in enumerate(space.spaces)
        )
    if isinstance(space, spaces.Discrete):
        mask = np.zeros(space.n, np.int8)
        if value is not None:
            mask[value - space.start] = 1
        return mask
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.n, np.int8) if value is None else np.array(value, np.int8)
    mask = np.zeros((2, 3), np.int8)
    if value is not None:
        mask[[0, 1], value - space.start] = 1
    return mask


def _keeps_to(space, only, action):
    if isinstance(space, spaces.Dict):
        return all(_keeps_to(s, only[k], action[k]) for k, s in space.items())
    if isinstance(space, spaces.Tuple):
        parts = zip(space.spaces, only, action, strict=True)
        return all(_keeps_to(s, o, a) for s, o, a in parts)
    if isinstance(space, spaces.MultiBinary):
        return bool(np.all(np.asarray(action) <= only))
    return bool(np.all(np.asarray(action) == only))


@pytest.fixture(autouse=True, scope="module")
def _registered():
    gymnasium.register("tfrl_masks/Picky-v0", Picky, disable_env_checker=True)
    yield
    gymnasium.registry.pop("tfrl_masks/Picky-v0")


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("mode", ["DISABLED", "SAME_STEP", "NEXT_STEP"])
@pytest.mark.variants(4)
def test_valid_actions_are_never_refused(kind, mode):
    """Under DISABLED rows that are over are stepped on below, by the masks of what is below."""
    with tfrl.make_env("gymnasium:tfrl_masks/Picky-v0", 4, mode, kind=kind) as env:
        check_env(env, steps=25)
        agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        key = seeding.key(3)
        state = env.reset(key)
        trajectory, state, _ = rollout(env, agent, state, agent.init(key), key, 12)
        over = state.termination | state.truncation
        assert over.all() == (mode == "DISABLED")
        if mode == "DISABLED":
            # The mask of a frozen row is that of its end: nothing is valid.
            frozen = [np.asarray(m) for m in tf.nest.flatten(state.obs["action_mask"])]
            assert not any(m.any() for m in frozen)
            assert (np.asarray(trajectory.valid).sum(0) >= 2).all()


def test_first_valid():
    spec = specs.MultiDiscreteSpec([2, 3], [4, -1])
    mask = np.array(
        [
            [[0, 1, 1], [0, 0, 1]],
            [[1, 1, 0], [1, 1, 1]],
            [[0, 0, 1], [0, 1, 0]],  # the first element's third value does not exist
        ],
        bool,
    )
    action = np.array([[4, -1]] * 3, np.int64)
    found = first_valid(spec, mask, action, np.array([True, False, True]))
    np.testing.assert_array_equal(found, [[5, 1], [4, -1], [4, 0]])
    assert found.dtype == np.int64
    np.testing.assert_array_equal(
        real_choices(spec, mask)[2], [[False, False, False], [False, True, False]]
    )


def test_first_valid_of_a_nest():
    spec = {
        "bits": specs.BinarySpec(2),
        "one": specs.DiscreteSpec(3, start=7),
        "rest": (specs.BoundedTensorSpec([1], tf.float32, -1, 1),),
    }
    mask = {"bits": np.ones((2, 2), bool), "one": np.array([[0, 0, 1]] * 2), "rest": None}
    action = {
        "bits": np.ones((2, 2), np.int8),
        "one": np.array([7, 7]),
        "rest": (np.full((2, 1), 0.5, np.float32),),
    }
    found = first_valid(spec, mask, action, np.array([False, True]))
    np.testing.assert_array_equal(found["bits"], [[1, 1], [0, 0]])
    np.testing.assert_array_equal(found["one"], [7, 9])
    assert found["rest"] is action["rest"]


def test_a_mask_in_another_form_is_left_to_the_agent():
    spec, rows = specs.MultiDiscreteSpec([2, 3]), np.array([True])
    action = np.array([[1, 2]])
    flat = np.ones((1, 5), bool)  # one row for both elements, as some libraries have it
    np.testing.assert_array_equal(first_valid(spec, flat, action, rows), action)
