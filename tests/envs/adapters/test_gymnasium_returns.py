"""What one environment of a batch returns is looked at before the batch is made of it."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple

import tfrl
from tfrl.envs.adapters.gymnasium_async import WorkerError
from tfrl.envs.adapters.gymnasium_returns import check_layout, observation_fits
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
    with pytest.raises((UserError, WorkerError)) as error:
        make(first=np.array([300, 1, 2]), later=GOOD)
    assert (
        "observation of gymnasium:Returning-v0: expected uint8 [3], as the observation space says, "
        "got int64 [3]. Cast or reshape it in the environment" in str(error.value)
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
    observation_fits(Box(-1, 1, (2,), np.float32), "o")(np.zeros(2))
    observation_fits(Box(-1, 1, (2,), np.float32), "o")([0.5, 1])
    observation_fits(Discrete(3), "o")(2)
    observation_fits(Text(5), "o")("anything")
    nest = Tuple((Dict({"a": Discrete(2), "b": MultiBinary(2)}),))
    observation_fits(nest, "o")(({"a": 1, "b": np.ones(2, np.int8), "more": 0},))


@pytest.mark.parametrize(
    ("space", "obs", "said"),
    [
        (Dict({"a": UINT8}), {}, "o: expected a dict with the keys ['a'], as the observation space "
         "says, got []. Make the observation and observation_space the same nest."),
        (Dict({"a": UINT8}), GOOD, "got ndarray. Make"),
        (Dict({"a": UINT8}), {"a": GOOD[:2]}, "o/a: expected uint8 [3], as the observation space "
         "says, got uint8 [2]."),
        (Tuple((UINT8,)), (), "o: expected a tuple of 1, as the observation space says, "
         "got 0 items"),
        (Tuple((UINT8,)), (None,), "o/0: expected uint8 [3], as the observation space says, got "
         "object []."),
        (UINT8, [[1], [1, 2]], "got object []."),
        (Discrete(3), 1.0, "o: expected int64 [], as the observation space says, got float64 []."),
    ],
)  # fmt: skip
def test_nests(space, obs, said):
    with pytest.raises(UserError) as error:
        observation_fits(space, "o")(obs)
    assert said in str(error.value)


def test_layout():
    check_layout("x", "reset", (1, {}), ("observation", "info dict"))
    with pytest.raises(UserError) as error:
        check_layout("x", "reset", GOOD, ("observation", "info dict"))
    assert str(error.value).startswith(
        "reset() of x: expected a tuple (observation, info dict), got ndarray. Return what "
    )
