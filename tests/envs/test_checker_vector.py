"""One deliberately broken vector environment for each message of check_env."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from tests.envs.adapters.gymnasium_fakes import ScriptedVector, Spacious
from tests.envs.checker_fakes import NAN, SPACES, Good, agree, message
from tfrl.envs import check_env


def vector(mode="NEXT_STEP", num_envs=2, **members):
    return type("Broken", (ScriptedVector,), members)(num_envs, mode=mode)


def stepping(change, mode="NEXT_STEP", declared=None):
    """A vector environment whose `step` answers what `change(self, *answer)` makes of it."""

    def make():
        env = vector(mode, step=lambda self, a: change(self, *ScriptedVector.step(self, a)))
        if declared:
            env.metadata = {"autoreset_mode": AutoresetMode[declared]}
        return env

    return make


def resetting(self, *, seed=None, options=None):
    """Resets every row, whatever the mask."""
    return ScriptedVector.reset(self, seed=seed)


def one_seed(self, *, seed=None, options=None):
    for env in self._envs:
        obs, _ = env.reset(seed=seed)
        self._obs[:] = obs
    self._over[:] = False
    return self._obs, {}


def add(place, value):
    """Adds to the answer at a place: 0 obs, 1 rewards, ..."""

    def change(self, *answer):
        answer = list(answer)
        answer[place] = answer[place] + np.asarray(value, answer[place].dtype)
        return tuple(answer)

    return change


def with_info(**infos):
    return lambda self, *answer: (*answer[:4], {**answer[4], **infos})


def first_as_last(self, *answer):
    """Gives the array of observations itself, in which the rows are reset by now."""
    infos = {"final_obs": self._obs} if answer[4] else {}
    return (*answer[:4], infos)


DECLARE = "or declare the actual mode in metadata['autoreset_mode']."
VECTOR = {
    "num_envs": (
        lambda: setattr(env := vector(), "num_envs", 0) or env,
        "num_envs: expected a whole number of at least 1, got 0. Give 1 or more.",
    ),
    "no_single_space": (
        lambda: setattr(env := vector(), "single_action_space", None) or env,
        "single_action_space of Broken: expected a space of gymnasium.spaces, got None. Set "
        "self.single_action_space in __init__, for example to a Box or Discrete.",
    ),
    "batch_space": (
        lambda: setattr(env := vector(), "action_space", env.single_action_space) or env,
        "action_space of Broken: expected int64 [2], got int64 []. Create it with "
        "gymnasium.vector.utils.batch_space(single space, num_envs).",
    ),
    "no_mode": (
        lambda: vector(None),
        "metadata['autoreset_mode'] of Broken: expected AutoresetMode.NEXT_STEP, "
        "AutoresetMode.SAME_STEP, AutoresetMode.DISABLED, got None. Declare the mode: "
        "self.metadata = {'autoreset_mode': "
        "gymnasium.vector.AutoresetMode.NEXT_STEP}.",
    ),
    "old_reset": (
        lambda: vector(reset=lambda self, *, seed=None, options=None: self._obs),
        "reset of Broken: expected a tuple (observation, info dict), got ndarray. Follow "
        "Gymnasium's API since 0.26: reset returns obs and info, and step returns obs, reward, "
        "terminated, truncated and info.",
    ),
    "old_step": (
        stepping(lambda self, *answer: answer[:4]),
        "step 1 of Broken: expected a tuple (observation, reward, terminated, truncated, info "
        "dict), got a tuple of 4: ndarray, ndarray, ndarray, ndarray. Follow Gymnasium's API "
        "since 0.26: reset returns obs and info, and step returns obs, reward, terminated, "
        "truncated and info.",
    ),
    "shape": (
        stepping(lambda self, obs, *rest: (obs[0], *rest)),
        "step 1 of Broken: obs: expected a NumPy array float32 [2, 3], got float32 [3].",
    ),
    "rewards": (
        stepping(lambda self, obs, reward, *rest: (obs, reward[:, None], *rest)),
        "step 1 of Broken: rewards: expected a NumPy array of numbers [2], got float64 [2, 1].",
    ),
    "rewards_not_finite": (
        stepping(add(1, [0, NAN])),
        "step 1 of Broken: rewards: expected finite values, got nan at [1].",
    ),
    "flags": (
        stepping(lambda self, o, r, end, cut, i: (o, r, end.astype(int), cut, i)),
        "step 1 of Broken: terminations: expected a NumPy array of bools [2], got int64 [2].",
    ),
    "next_step_is_same_step": (
        stepping(add(1, 0), "SAME_STEP", "NEXT_STEP"),
        "step 3 of Broken under NEXT_STEP: expected reward 0 and both flags False in rows that "
        "ended in the previous step, got reward [1.0], termination [True], truncation [True] in "
        "rows [1]. Ignore their action and reset them in this step, " + DECLARE,
    ),
    "same_step_is_next_step": (
        stepping(add(1, 0), "NEXT_STEP", "SAME_STEP"),
        "step 2 of Broken under SAME_STEP: infos['final_obs']: expected the last observation of "
        "every ended row, got no observation in rows [1]. Store it before the row is reset, "
        + DECLARE,
    ),
    "final_obs_of_another_row": (
        stepping(with_info(_final_obs=np.array([True, False])), "SAME_STEP"),
        "step 2 of Broken under SAME_STEP: infos['final_obs']: expected the last observation of "
        "every ended row, got no observation in rows [1]. Store it before the row is reset, "
        + DECLARE,
    ),
    "final_obs": (
        stepping(with_info(final_obs=np.full((2, 3), NAN, np.float32)), "SAME_STEP"),
        "step 2 of Broken: infos['final_obs'] of row 1: expected finite values, got nan at [0], "
        "nan at [1], nan at [2].",
    ),
    "final_obs_is_the_next_start": (
        stepping(first_as_last, "SAME_STEP"),
        "infos['final_obs'] of Broken: expected the last observation of the ended episode, got "
        "the first observation of the next episode (11 different starts). Copy it before the row "
        "is reset.",
    ),
    "disabled_is_same_step": (
        stepping(add(1, 0), "SAME_STEP", "DISABLED"),
        "step 2 of Broken under DISABLED: infos: expected no 'final_obs', since obs is the last "
        "observation, got 'final_obs', with rows [1] ended. Declare SAME_STEP in "
        "metadata['autoreset_mode'] if rows reset in the step that ends them.",
    ),
    "reset_mask": (
        lambda: vector("DISABLED", reset=resetting),
        "reset of Broken by reset_mask after step 2 of Broken: obs: expected unchanged values in "
        "the other rows, [0], got ",
    ),
    "seed": (
        stepping(lambda self, obs, *rest: (obs + np.random.random(), *rest)),
        "step 1 of Broken: obs: expected the same value from the same seed and actions, got ",
    ),
    "one_start": (
        lambda: vector(reset=lambda self, *, seed=None, options=None: one_seed(self, seed=0)),
        "reset of Broken: expected different starts from different seeds, got the same start from "
        "33 seeds. Use the seed; for a task with a single start, call check_env(env, "
        "stochastic=False).",
    ),
    "one_seed": (
        lambda: vector(reset=one_seed),
        "reset of Broken: expected different starts in the environments of a batch, got the same "
        "row 2 times, from 33 seeds. Give each environment its own seed, or draw rows from one "
        "generator.",
    ),
    "mask": (
        stepping(with_info(action_mask=np.ones((2, 4), bool))),
        "step 1 of Broken: infos['action_mask']: expected a NumPy array of bools or integers "
        "[2, 3], got bool [2, 4].",
    ),
    "mask_of_nothing": (
        stepping(with_info(action_mask=np.array([[1, 0, 0], [0, 0, 0]]))),
        "step 1 of Broken: infos['action_mask']: expected at least one valid action, got no valid "
        "action at [[1]]. Allow an action that does nothing, or end the episode.",
    ),
}


@pytest.mark.parametrize("name", VECTOR)
def test_broken_vector_environments(name):
    make, expected = VECTOR[name]
    found = message(make(), steps=12)
    assert agree(found, expected), found


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_right_vector_environments_pass(mode):
    env = RecordEpisodeStatistics(vector(mode))
    check_env(env, steps=20)
    # Two rows, twice; episodes of 2 steps, with a reset after each, or none.
    assert env.episode_count == (4 * 7 if mode == "NEXT_STEP" else 4 * 10)


@pytest.mark.parametrize("name", SPACES)
def test_vectors_of_all_spaces_pass(name):
    seen, taken, _ = SPACES[name]
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        with_mode = [lambda: Spacious(seen, taken)] * 2
        env = SyncVectorEnv(with_mode, autoreset_mode=mode)
        check_env(env, steps=8)
        # Twice; episodes of 3 steps, with a reset after each, or none.
        steps = 2 * 6 if mode is AutoresetMode.NEXT_STEP else 2 * 8
        assert [len(one.taken) for one in env.envs] == [steps] * 2


def test_masks_of_vectors_are_obeyed():
    for mode in AutoresetMode:
        env = SyncVectorEnv([lambda: Obeyed()] * 2, autoreset_mode=mode)
        check_env(env, steps=12)
        assert env.envs[0].steps > 12


class Obeyed(Good):
    """Allows one action at a time, and none at the end."""

    action_space = spaces.Discrete(3)
    steps = 0

    def info(self):
        return {} if self.t == 3 else {"action_mask": (np.arange(3) == self.t % 3).astype(np.int8)}

    def step(self, action):
        assert action == self.t % 3, (action, self.t)
        self.steps += 1
        return super().step(action)


@pytest.mark.parametrize("vectorization", ["sync", "vector_entry_point"])
def test_gymnasiums_own_tasks_pass(vectorization):
    env = RecordEpisodeStatistics(gymnasium.make_vec("CartPole-v1", 2, vectorization))
    check_env(env, steps=60)
    assert env.episode_count >= 2
