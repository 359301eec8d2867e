"""One deliberately broken `gymnasium.Env` for each message of check_env."""

import logging

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics

import tfrl
from tests.envs.adapters.gymnasium_fakes import Spacious
from tests.envs.checker_fakes import INF, NAN, SPACES, Good, agree, message
from tfrl.envs import check_env


def broken(**members):
    return type("Broken", (Good,), members)()


def sees(value, space=Good.observation_space, first=None):
    """Sees a value; with `first`, only after the first step."""

    def see(self):
        now = first if first is not None and self.t == 0 else value
        return now(self) if callable(now) else now

    return lambda: broken(see=see, observation_space=space)


def masked(mask, space=Good.action_space, later=None):
    def info(self):
        now = mask if self.t == 0 or later is None else later
        return {} if now is None else {"action_mask": now}

    return lambda: broken(info=info, action_space=space)


def repeats_its_array(self):
    self.kept = getattr(self, "kept", np.zeros(2, np.float32))
    self.kept[:] = self.t
    return self.kept


def numpys_own_numbers(self):
    numpys_own_numbers.calls += 1
    return np.full(2, numpys_own_numbers.calls % 7 / 2, np.float32)


numpys_own_numbers.calls = 0


def moved_without_seed(self, *, seed=None, options=None):
    """Draws with fresh entropy where there is no seed."""
    Good.reset(self, seed=seed)
    if seed is None:
        moved_without_seed.calls += 1
        self.place[:] = -1 + moved_without_seed.calls / 64
    return self.see(), {}


moved_without_seed.calls = 0


def same_without_seed(self, *, seed=None, options=None):
    self.seed = self.seed if seed is None else seed
    return Good.reset(self, seed=self.seed)


DICT = spaces.Dict({"place": Good.observation_space, "level": spaces.Discrete(3)})
PLACE = np.zeros(2, np.float32)
TUPLE = spaces.Tuple([spaces.Discrete(2), Good.observation_space])
SEEDED = (
    "Call super().reset(seed=seed) and draw random numbers from self.np_random only, never from "
    "numpy.random or random; keep nothing of earlier episodes."
)
SIGNATURE = (
    "Define reset(self, *, seed=None, options=None), and call super().reset(seed=seed) first."
)

GYMNASIUM = {
    "no_space": (
        lambda: broken(observation_space=None),
        "observation_space of Broken: expected a space of gymnasium.spaces, got None. Set "
        "self.observation_space in __init__, for example to a Box or Discrete.",
    ),
    "no_gymnasium_space": (
        lambda: broken(action_space=2),
        "action_space of Broken: expected a space of gymnasium.spaces, got a builtins.int. Set "
        "self.action_space in __init__, for example to a Box or Discrete.",
    ),
    "unsupported_space": (
        lambda: broken(observation_space=spaces.Dict({"a": spaces.Text(3)})),
        "observation space a of Broken: expected Box, Discrete, MultiDiscrete, MultiBinary, Dict "
        f"or Tuple, got Text ({spaces.Text(3)!r}). Encode it as a Box or MultiDiscrete of fixed "
        "length, with a wrapper such as gymnasium.wrappers.TransformObservation: "
        "wrappers=(function,).",
    ),
    "reset_signature": (
        lambda: broken(reset=lambda self: None),
        "reset of Broken: expected the keyword arguments seed and options, got no seed and no "
        f"options. {SIGNATURE}",
    ),
    "reset_without_options": (
        lambda: gymnasium.wrappers.TimeLimit(broken(reset=lambda self, *, seed=None: None), 9),
        "reset of Broken: expected the keyword arguments seed and options, got no options. "
        f"{SIGNATURE}",
    ),
    "metadata": (
        lambda: broken(metadata=None),
        "metadata of Broken: expected a dict, got None of type NoneType. Set metadata = "
        "{'render_modes': ['rgb_array'], 'render_fps': 30}.",
    ),
    "render_mode": (
        lambda: broken(render_mode="rgb_array"),
        "render_mode of Broken: expected None or one of metadata['render_modes'], [], got "
        "'rgb_array'. Add the mode to metadata['render_modes'], or leave out render_mode.",
    ),
    "render_fps": (
        lambda: broken(metadata={"render_modes": ["rgb_array"], "render_fps": 0}),
        "metadata['render_fps'] of Broken: expected a positive number of frames per second, got "
        "0. Set the frame rate of real time.",
    ),
    "picture": (
        lambda: broken(
            metadata={"render_modes": ["rgb_array"], "render_fps": 9},
            render_mode="rgb_array",
            render=lambda self: np.zeros((4, 4)),
        ),
        "render of Broken: expected a uint8 frame [H, W, 3] for render_mode='rgb_array', got "
        "float64 [4, 4].",
    ),
    "old_reset": (
        lambda: broken(reset=lambda self, *, seed=None, options=None: PLACE),
        "reset of Broken: expected a tuple (observation, info dict), got ndarray. Follow "
        "Gymnasium's API since 0.26: reset returns obs and info, and step returns obs, reward, "
        "terminated, truncated and info.",
    ),
    "old_step": (
        lambda: broken(step=lambda self, action: (PLACE, 1.0, False, {})),
        "step 1 of Broken: expected a tuple (observation, reward, terminated, truncated, info "
        "dict), got a tuple of 4: ndarray, float, bool, dict. Follow Gymnasium's API since 0.26: "
        "reset returns obs and info, and step returns obs, reward, terminated, truncated and info.",
    ),
    "short_step": (
        lambda: broken(step=lambda self, action: None),
        "step 1 of Broken: expected a tuple (observation, reward, terminated, truncated, info "
        "dict), got NoneType. Follow Gymnasium's API since 0.26: reset returns obs and info, and "
        "step returns obs, reward, terminated, truncated and info.",
    ),
    "raises": (
        lambda: broken(pay=lambda self: {}["speed"]),
        "step 1 of Broken: expected no exception, got KeyError: 'speed'.",
    ),
    "list": (
        sees([0.0, 1.0]),
        "reset of Broken: obs: expected a NumPy array float32 [2], got a list.",
    ),
    "shape": (
        sees(np.zeros((1, 2), np.float32), first=PLACE),
        "step 1 of Broken: obs: expected a NumPy array float32 [2], got float32 [1, 2].",
    ),
    "dtype": (
        sees(np.zeros(2)),
        "reset of Broken: obs: expected a NumPy array float32 [2], got float64 [2]. Cast it with "
        ".astype(np.float32), or change the dtype of the space.",
    ),
    "no_integer": (
        sees(1.0, spaces.Discrete(2)),
        "reset of Broken: obs: expected an integer for a Discrete space, got 1.0 of type float.",
    ),
    "bounds": (
        sees(np.array([-2, 7], np.float32)),
        "reset of Broken: obs: expected values within the bounds of the space, [-1.0, 5.0], got "
        "-2.0 at [0], 7.0 at [1].",
    ),
    "bounds_of_elements": (
        sees(np.array([1, 5], np.float32), spaces.Box(np.array([2, 3.0]), np.array([3, 4.0]))),
        "reset of Broken: obs: expected values within the bounds of the space: at least [2.0, "
        "3.0] and at most [3.0, 4.0], got 1.0 at [0], 5.0 at [1].",
    ),
    "discrete_bounds": (
        sees(3, spaces.Discrete(2, start=1)),
        "reset of Broken: obs: expected values within the bounds of the space, [1, 2], got 3.",
    ),
    "not_finite": (
        sees(np.array([NAN, INF], np.float32), first=PLACE),
        "step 1 of Broken: obs: expected finite values, got nan at [0], inf at [1].",
    ),
    "no_dict": (
        sees(PLACE, DICT),
        "reset of Broken: obs: expected a dict with the keys level, place, got ndarray.",
    ),
    "keys": (
        sees({"place": PLACE, "speed": 1, "time": 2}, DICT, first={"place": PLACE, "level": 0}),
        "step 1 of Broken: obs: expected a dict with the keys level, place, got no level and "
        "unknown speed, time.",
    ),
    "keys_below": (
        sees({"inner": {"level": 0}}, spaces.Dict({"inner": DICT})),
        "reset of Broken: obs/inner: expected a dict with the keys level, place, got no place.",
    ),
    "leaf": (
        sees({"place": PLACE + 9, "level": 0}, DICT),
        "reset of Broken: obs/place: expected values within the bounds of the space, [-1.0, 5.0], "
        "got 9.0 at [0], 9.0 at [1].",
    ),
    "tuple": (
        sees((1,), TUPLE),
        "reset of Broken: obs: expected a tuple of 2, as in the space, got a tuple of 1 (int).",
    ),
    "reward": (
        lambda: broken(pay=lambda self: NAN),
        "step 1 of Broken: reward: expected finite values, got nan.",
    ),
    "terminated": (
        lambda: broken(ends=lambda self: (0, False)),
        "terminated of step 1 of Broken: expected True or False, got 0 of type int. Return "
        "bool(terminated): step returns observation, reward, terminated, truncated, info dict.",
    ),
    "truncated": (
        lambda: broken(ends=lambda self: (False, np.zeros(1, bool))),
        "truncated of step 1 of Broken: expected True or False, got array([False]) of type "
        "ndarray. Return bool(truncated): step returns observation, reward, terminated, "
        "truncated, info dict.",
    ),
    "info": (
        lambda: broken(step=lambda self, action: (PLACE, 1.0, False, False, None)),
        "step 1 of Broken: expected a tuple (observation, reward, terminated, truncated, info "
        "dict), got a tuple of 5: ndarray, float, bool, bool, NoneType. Follow Gymnasium's API "
        "since 0.26: reset returns obs and info, and step returns obs, reward, terminated, "
        "truncated and info.",
    ),
    "array_again": (
        lambda: broken(see=repeats_its_array),
        "reset of Broken: obs: expected an array that later calls do not change, got 1.0 at [0], "
        "1.0 at [1] instead of 0.0 at [0], 0.0 at [1] after step 1 of Broken. Return a copy such "
        "as self._obs.copy(): otherwise a replay buffer stores the last observation repeatedly.",
    ),
    "seed": (
        lambda: broken(see=numpys_own_numbers),
        "reset of Broken: obs: expected the same value from the same seed and actions, got ",
    ),
    "chance_in_steps": (
        lambda: broken(pay=lambda self: float(numpys_own_numbers(self)[0])),
        "step 1 of Broken: reward: expected the same value from the same seed and actions, got ",
    ),
    "entropy_without_seed": (
        lambda: broken(reset=moved_without_seed),
        "reset of Broken without a seed: obs: expected a continuation of the last seed's random "
        "numbers, got ",
    ),
    "one_start": (
        lambda: broken(see=lambda self: PLACE + self.t),
        "reset of Broken: expected different episodes from different seeds, got the same episode "
        "from 33 seeds. Call super().reset(seed=seed) and draw from self.np_random; for a task "
        "without randomness, call check_env(env, stochastic=False).",
    ),
    "one_start_without_seed": (
        lambda: broken(reset=same_without_seed),
        "reset of Broken without a seed: expected starts that differ from the last seed's, got "
        "the same start 32 times. Reseed only if seed is not None, as super().reset(seed=seed) "
        "does.",
    ),
    "mask_shape": (
        masked(np.ones(3, np.int8)),
        "info['action_mask'] of Broken: expected bools or integers of shape [2] for Discrete(2), "
        "got int8 of shape [3].",
    ),
    "mask_dtype": (
        masked(np.ones(2, np.float32)),
        "info['action_mask'] of Broken: expected bools or integers of shape [2] for Discrete(2), "
        "got float32 of shape [2].",
    ),
    "mask_of_an_item": (
        masked({"a": [1, 1]}, spaces.Dict({"a": Good.action_space, "b": Good.action_space})),
        "reset of Broken: info/action_mask: expected a mask for Dict('a': Discrete(2), 'b': "
        "Discrete(2)), got a dict.",
    ),
    "mask_of_a_box": (
        masked(np.ones(2), spaces.Box(-1, 1, (2,))),
        "info['action_mask'] of Broken: expected a mask of Discrete, MultiDiscrete or MultiBinary "
        f"actions, got a mask of {tfrl.specs.to_spec(spaces.Box(-1, 1, (2,)))!r}. Remove the mask "
        "from info, for example with a wrapper.",
    ),
    "mask_of_nothing": (
        masked([1, 0], later=[0, 0]),
        "step 1 of Broken: info/action_mask: expected at least one valid action, got no valid "
        "action. Allow an action that does nothing, or end the episode.",
    ),
    "mask_of_nothing_in_a_row": (
        masked(([1, 0], [0, 0, 0]), spaces.MultiDiscrete([2, 3])),
        "reset of Broken: info/action_mask: expected at least one valid action, got no valid "
        "action at [[1]]. Allow an action that does nothing, or end the episode.",
    ),
    "mask_forgotten": (
        lambda: broken(info=lambda self: {} if self.t else {"action_mask": [1, 1]}),
        "step 1 of Broken: info/action_mask: expected a mask after every reset and non-final "
        "step, as before, got the items [].",
    ),
}


@pytest.mark.parametrize("name", GYMNASIUM)
def test_broken_gymnasium_environments(name):
    make, expected = GYMNASIUM[name]
    found = message(make(), steps=8)
    assert agree(found, expected), found


def test_remedies_of_chance():
    assert message(broken(see=numpys_own_numbers), steps=3).endswith(
        "such as self.np_random after super().reset(seed=seed), and keep no state of earlier "
        "episodes."
    )
    assert message(broken(reset=moved_without_seed), steps=3).endswith(
        "after the same episode. Call super().reset(seed=seed) and draw from self.np_random, "
        "which a reset without a seed leaves unchanged."
    )


def unlimited(low, high):
    return lambda: broken(action_space=spaces.Box(np.array(low), np.array(high), dtype=float))


RANGE = (
    "Set the useful range with gymnasium.wrappers.RescaleAction or ClipAction: initial policies "
    "act near 0 with a standard deviation of about 1."
)
NOTES = {
    "infinite_actions": (
        unlimited([-INF, -1.0, -INF], [INF, 1.0, 3.0]),
        "action_space of Broken: expected finite bounds, got [-inf, inf] at [0], [-inf, 3.0] at "
        f"[2]. {RANGE}",
    ),
    "infinite_action_of_a_dict": (
        lambda: broken(action_space=spaces.Dict({"a": spaces.Box(0, INF, (1,))})),
        f"action_space of Broken a: expected finite bounds, got [0.0, inf] at [0]. {RANGE}",
    ),
    "goes_on_after_its_end": (
        lambda: broken(ends=lambda self: (self.t == 3, False)),
        "a step of Broken after the end: expected an exception, or terminated or truncated again, "
        "got both False. Raise gymnasium.error.ResetNeeded there: an environment that resets "
        "itself hides ends from the library, and one that continues hides errors of its caller.",
    ),
    "no_fps": (
        lambda: broken(metadata={"render_modes": ["rgb_array"]}),
        "metadata['render_fps'] of Broken: expected frames per second, since the environment "
        "renders, got no value. Set the frame rate of real time; videos use 30 by default.",
    ),
}


@pytest.mark.parametrize("name", NOTES)
def test_what_is_allowed_but_seldom_meant_is_logged(name, caplog):
    make, expected = NOTES[name]
    with caplog.at_level(logging.WARNING, "tfrl"):
        check_env(make(), steps=8)
    assert [r.getMessage() for r in caplog.records] == [expected]


def test_an_episode_without_end_is_noted_only(caplog):
    with caplog.at_level(logging.INFO, "tfrl"):
        check_env(broken(ends=lambda self: (False, False), metadata={}), steps=4)
    assert [r.getMessage() for r in caplog.records] == [
        "Broken: no episode ended within 4 steps, so ends were not checked; pass more steps to "
        "check_env."
    ]


def refuses(self):
    if self.t > 3:
        raise gymnasium.error.ResetNeeded("over")
    return 1.0


RIGHT = {
    "good": Good,
    "raises_after_its_end": lambda: broken(pay=refuses),
    "numpy_scalars": lambda: broken(
        ends=lambda self: (np.bool_(self.t == 3), np.bool_(self.t >= 3)),
        pay=lambda self: np.float32(2),
    ),
    "casts_safely": lambda: broken(
        observation_space=spaces.Box(-1.0, 5.0, (2,), np.float64), pay=lambda self: 1
    ),
    "python_integer": sees(lambda self: int(self.place[0] * 4), spaces.Discrete(8)),
    "dict": sees(lambda self: {"level": np.int32(1), "place": self.place.copy()}, DICT),
    "tuple": sees(lambda self: (1, self.place.copy()), TUPLE),
    "truncated": lambda: gymnasium.wrappers.TimeLimit(
        broken(ends=lambda self: (False, False)), 4
    ),
    "kwargs": lambda: broken(reset=lambda self, **kwargs: Good.reset(self, seed=kwargs["seed"])
                             if "seed" in kwargs else Good.reset(self)),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_correct_environments_pass_without_a_word(name, caplog):
    with caplog.at_level(logging.WARNING, "tfrl"):
        check_env(RIGHT[name](), steps=12)
    assert [r.getMessage() for r in caplog.records] == []


@pytest.mark.parametrize("name", SPACES)
def test_environments_of_all_spaces_pass(name):
    env = Spacious(*SPACES[name])
    check_env(env, steps=10)
    # The steps twice, and an episode of 3 with a step after its end.
    assert len(env.taken) == 24


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "Taxi-v4"])
def test_gymnasiums_own_tasks_pass(name):
    env = RecordEpisodeStatistics(gymnasium.make(name, max_episode_steps=25))
    check_env(env, steps=60)
    assert env.episode_count >= 2


def test_mujoco_passes():
    pytest.importorskip("mujoco")
    env = RecordEpisodeStatistics(gymnasium.make("Hopper-v5", max_episode_steps=25))
    check_env(env, steps=50)
    assert env.episode_count >= 2
