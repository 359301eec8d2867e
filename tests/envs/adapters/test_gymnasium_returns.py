"""What one environment of a batch returns is looked at before the batch is made of it."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple

import tfrl
from tfrl.envs.adapters.gymnasium_async import VectorWorkerError
from tfrl.envs.gymnasium_values import check_layout, observation_fits
from tfrl.errors import UserError

UINT8 = Box(0, 255, (3,), np.uint8)


class Returning(gymnasium.Env):
    """Answers what it is given; three steps are one episode."""

    observation_space = UINT8
    action_space = Discrete(2)

    def __init__(self, first, later, answer=None):
        self._first, self._later, self._answer = first, later, answer

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._first, {}

    def step(self, action):
        return self._answer or (self._later, 0.0, False, False, {})


gymnasium.register("Returning-v0", Returning, max_episode_steps=3)
GOOD = np.arange(3, dtype=np.uint8)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_dtype_that_would_wrap_is_an_error_in_every_vectorization(vectorization):
    make = functools.partial(
        tfrl.make_env, "gymnasium:Returning-v0", 2, vectorization=vectorization
    )
    with pytest.raises((UserError, VectorWorkerError)) as error:
        make(first=np.array([300, 1, 2]), later=GOOD)
    said = str(error.value).replace("environment 1, step", "environment 0, step")
    assert (
        "observation of gymnasium:Returning-v0, environment 0, step 0: expected uint8 [3], as in "
        "the observation space, got int64 [3]. Cast or reshape it in the environment" in said
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((GOOD, 0.0, False, {}), "got not enough values to unpack (expected 5, got 4)."),
        ((np.zeros((1, 3), np.uint8), 0.0, False, False, {}), "got uint8 [1, 3]."),
        ((GOOD.astype(np.float32), 0.0, False, False, {}), "got float32 [3]."),
    ],
)
@pytest.mark.filterwarnings("ignore")  # Gymnasium's own, of the old API
def test_a_step_that_does_not_fit_is_one_paragraph(answer, said):
    with tfrl.make_env("gymnasium:Returning-v0", 2, first=GOOD, later=GOOD, answer=answer) as env:
        state = env.reset(0)
        with pytest.raises(UserError) as error:
            env.step(state, np.zeros(2, np.int64))
    assert said in str(error.value)


def test_what_can_be_cast_within_its_kind_passes():
    box = observation_fits(Box(-1, 1, (2,), np.float32), "o")
    assert box(np.zeros(2)).tolist() == [0, 0] and box([0.5, 1]).tolist() == [0.5, 1]
    number = observation_fits(Discrete(3), "o")(np.int8(2))
    assert (number, number.dtype) == (2, np.int64)
    assert observation_fits(Text(5), "o")("anything") == "anything"
    nest = Tuple((Dict({"a": Discrete(2), "b": MultiBinary(2)}),))
    (found,) = observation_fits(nest, "o")(({"a": 1, "b": np.ones(2, np.int8), "more": 0},))
    assert {k: v.tolist() for k, v in found.items()} == {"a": 1, "b": [1, 1]}


@pytest.mark.parametrize(
    ("space", "obs", "said"),
    [
        (Dict({"a": UINT8}), {}, "o: expected a dict with the keys ['a'], as in the observation "
         "space, got []."),
        (Dict({"a": UINT8}), GOOD, "got ndarray."),
        (Dict({"a": UINT8}), {"a": GOOD[:2]}, "o/a: expected uint8 [3], as in the observation "
         "space, got uint8 [2]."),
        (Tuple((UINT8,)), (), "o: expected a tuple of 1, as in the observation space, got 0 items"),
        (Tuple((UINT8,)), (None,), "o/0: expected uint8 [3], as in the observation space, got "
         "object []."),
        (UINT8, [[1], [1, 2]], "got object []."),
        (Discrete(3), 1.0, "o: expected int64 [], as in the observation space, got float64 []."),
    ],
)  # fmt: skip
def test_nests(space, obs, said):
    with pytest.raises(UserError) as error:
        observation_fits(space, "o")(obs)
    assert said in str(error.value)


def test_layout():
    check_layout("reset() of x", (1, {}), ("observation", "info dict"))
    with pytest.raises(UserError) as error:
        check_layout("reset() of x", GOOD, ("observation", "info dict"))
    assert str(error.value).startswith(
        "reset() of x: expected a tuple (observation, info dict), got ndarray. Follow "
    )


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((GOOD, None, False, False, {}), "reward of gymnasium:Returning-v0, environment 0, "
         "step 1: expected a number, got None of type NoneType."),
        ((GOOD, "1", False, False, {}), "expected a number, got '1' of type str."),
        ((GOOD, np.ones(2), False, False, {}), "got array([1., 1.]) of type ndarray."),
        ((GOOD, 0.0, "yes", False, {}), "terminated of gymnasium:Returning-v0, environment 0, "
         "step 1: expected True or False, got 'yes' of type str. Return bool(terminated): step "),
        ((GOOD, 0.0, False, None, {}), "truncated of gymnasium:Returning-v0, environment 0, "),
        ((GOOD, np.nan, False, False, {}), "reward of gymnasium:Returning-v0, environment 0, step "
         "1: expected finite numbers, got nan, and in 1 more environments. "),
        ((GOOD, 1e300, False, False, {}), "expected finite numbers, got inf, and in 1 more"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
@pytest.mark.variants(2)
def test_rewards_and_ends_of_the_wrong_type(vectorization, answer, said):
    if vectorization == "async" and said.startswith("got"):
        pytest.skip("one process test of a kind is enough")
    made = dict(first=GOOD, later=GOOD, answer=answer, vectorization=vectorization)
    with tfrl.make_env("gymnasium:Returning-v0", 2, **made) as env:
        state = env.reset(0)
        with pytest.raises(UserError) as error:
            env.step(state, np.zeros(2, np.int64))
    # Of processes any may be the first to tell.
    assert said in str(error.value).replace("environment 1, step", "environment 0, step")


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.array([1.0]), np.int8(1)])
@pytest.mark.filterwarnings("ignore")
def test_rewards_of_any_number_type_pass(reward):
    answer = (GOOD, reward, np.bool_(False), np.array(False), {})
    with tfrl.make_env("gymnasium:Returning-v0", 2, first=GOOD, later=GOOD, answer=answer) as env:
        state = env.step(env.reset(0), np.zeros(2, np.int64))
    assert state.reward.tolist() == [1.0, 1.0]
    assert not state.termination.any()


class Vector(gymnasium.vector.VectorEnv):
    """A vector environment of a user's own, which answers what it is given."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
    single_observation_space, single_action_space = Box(-1, 1, (1,)), Discrete(2)

    def __init__(self, num_envs, obs=0.0, reward=0.0, termination=False):
        self.num_envs = num_envs
        self.observation_space = Box(-1, 1, (num_envs, 1))
        self.action_space = gymnasium.spaces.MultiDiscrete([2] * num_envs)
        self._answer = obs, reward, termination

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 1), np.float32), {}

    def step(self, actions):
        obs, reward, end = self._answer
        if reward == "raise":
            raise ZeroDivisionError("of a user")
        last = np.zeros((self.num_envs, 1), np.float32)
        last[1] = obs
        no = [False] * self.num_envs
        return last, [0.0, reward], [False, end], no, {}


gymnasium.register("ReturningVector-v0", vector_entry_point=Vector, max_episode_steps=None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reward": None}, "rewards of gymnasium:ReturningVector-v0: expected numbers [2], one "
         "per environment, got object [2], None of environment 1."),
        ({"termination": "yes"}, "terminations of gymnasium:ReturningVector-v0: expected bools"),
        ({"reward": np.nan}, "reward of gymnasium:ReturningVector-v0, environment 1, step 1: "
         "expected finite numbers, got nan. Look for a division"),
        ({"obs": np.inf}, "observation of gymnasium:ReturningVector-v0, environment 1, step 1: "
         "expected finite numbers, got inf at index [0]."),
        ({"reward": "raise"}, "step() of gymnasium:ReturningVector-v0: expected no exception, got "
         "ZeroDivisionError: of a user. Reproduce it "),
    ],
)  # fmt: skip
def test_vector_environments(given, said):
    with tfrl.make_env("gymnasium:ReturningVector-v0", 2, autoreset="NEXT_STEP", **given) as env:
        state = env.reset(0)
        with pytest.raises(UserError) as error:
            env.step(state, np.zeros(2, np.int64))
    assert said in str(error.value)


def test_a_cast_to_a_narrower_type_is_said_once():
    check = observation_fits(Box(-1, 1, (2,), np.float32), "observation of x")
    with pytest.warns(UserWarning, match="observation of x: casting float64 to float32") as told:
        check(np.zeros(2))
        check(np.zeros(2))
    assert len(told) == 1


def test_integers_that_would_wrap_are_an_error():
    check = observation_fits(Box(-5, 5, (2,), np.int32), "o")
    with pytest.raises(UserError, match="got int64 from 0 to 1099511627776."):
        check(np.array([0, 2**40]))


class HandsOn(Returning):
    """Its class takes some arguments and hands on the rest."""

    def __init__(self, length=1, **kwargs):
        super().__init__(**kwargs)


gymnasium.register("HandsOn-v0", HandsOn, kwargs={"first": GOOD, "later": GOOD, "length": 2})


@pytest.mark.parametrize(("slip", "near"), [("lenght", "length"), ("answr", "answer")])
def test_a_misspelt_argument_of_an_id_registered_with_arguments(slip, near):
    with pytest.raises(UserError) as error:
        tfrl.make_env("gymnasium:HandsOn-v0", 1, max_episode_steps=3, **{slip: 3})
    assert f"got {slip}. Did you mean {near}?" in str(error.value)
