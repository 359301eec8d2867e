import gymnasium
import numpy as np
import pytest

from tfrl.envs.gymnasium_values import observation_fits
from tfrl.envs.workers import runner
from tfrl.errors import UserError

spaces = gymnasium.spaces
BOX = spaces.Box(-1.0, 1.0, [2, 2], np.float32)
NESTED = spaces.Dict(a=BOX, b=spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)]))
RIGHT = {"a": np.zeros([2, 2], np.float32), "b": (1, np.int8([0, 1]))}


def nested(**changed):
    return {**RIGHT, **changed}


def holes(*values):
    return np.float32(values).reshape(2, 2)


RIGHT_ONES = [
    (BOX, np.full([2, 2], 7.0, np.float32)),  # bounds are check_env's
    (spaces.Box(0, 255, [3], np.uint8), np.uint8([1, 2, 3])),
    (spaces.Box(-1, 1, [], np.float32), np.float32(0.5)),
    (spaces.MultiDiscrete([2, 3]), np.int64([1, 2])),
    (spaces.Text(3), "abc"),
    (NESTED, RIGHT),
]


@pytest.mark.parametrize(("space", "obs"), RIGHT_ONES)
def test_what_fits_its_space_passes_as_it_is(space, obs):
    checked = observation_fits(space, "obs", exact=True)(obs)
    np.testing.assert_equal(checked, obs)
    assert type(checked) is type(obs)


@pytest.mark.parametrize("obs", [2, np.int32(2), np.uint8(2), np.array(2)])
def test_integers_get_the_dtype_of_their_space(obs):
    checked = observation_fits(spaces.Discrete(3), "obs", exact=True)(obs)
    assert checked == 2 and checked.dtype == np.int64 and checked.shape == ()


CAST = "Cast or reshape it in the environment or a gymnasium.ObservationWrapper, or correct "
CAST += "observation_space."
DIVISION = "Look for a division by zero or a diverging simulation; if intended, use "
DIVISION += "np.nan_to_num or np.clip in a gymnasium.ObservationWrapper."
WRONG_ONES = [
    (
        BOX,
        np.zeros([2, 2]),
        f"obs: expected float32 [2, 2], as in the observation space, got float64 [2, 2]. {CAST}",
    ),
    (
        BOX,
        np.zeros([2], np.float32),
        f"obs: expected float32 [2, 2], as in the observation space, got float32 [2]. {CAST}",
    ),
    (
        BOX,
        [[0.0, 0.0], [0.0, 0.0]],
        f"obs: expected float32 [2, 2], as in the observation space, got float64 [2, 2]. {CAST}",
    ),
    (
        BOX,
        holes(0, np.nan, np.inf, -np.inf),
        "obs: expected finite numbers, got nan at [0, 1], inf at [1, 0], -inf at [1, 1]. "
        + DIVISION,
    ),
    (
        spaces.Box(-1, 1, [9], np.float32),
        np.full([9], np.nan, np.float32),
        "obs: expected finite numbers, got nan at [0], nan at [1], nan at [2], nan at [3], "
        f"nan at [4] and 4 more. {DIVISION}",
    ),
    (
        spaces.Discrete(3),
        1.0,
        f"obs: expected int64 [], as in the observation space, got float64 []. {CAST}",
    ),
    (
        spaces.Text(3),
        "abcdef",
        "obs: expected an element of Text(1, 3, charset=0123456789ABCDEFGHIJKLMNOPQRSTUVWXY"
        "Zabcdefghijklmnopqrstuvwxyz), got 'abcdef' of type str.",
    ),
    (
        NESTED,
        {"a": RIGHT["a"]},
        "obs: expected a dict with the keys ['a', 'b'], as in the observation space, got ['a'].",
    ),
    (
        NESTED,
        (1, 2),
        "obs: expected a dict with the keys ['a', 'b'], as in the observation space, got tuple.",
    ),
    (
        NESTED,
        nested(b=(1,)),
        "obs/b: expected a tuple of 2, as in the observation space, got 1 items.",
    ),
    (
        NESTED,
        nested(b=(1, np.int64([0, 1]))),
        "obs/b/1: expected int8 [2], as in the observation space, got int64 [2]. " + CAST,
    ),
    (
        NESTED,
        nested(a=holes(np.nan, 0, 0, 0)),
        f"obs/a: expected finite numbers, got nan at [0, 0]. {DIVISION}",
    ),
]


@pytest.mark.parametrize(("space", "obs", "message"), WRONG_ONES)
def test_what_does_not_fit_is_told_by_its_path(space, obs, message):
    with pytest.raises(UserError) as error:
        observation_fits(space, "obs", exact=True)(obs)
    assert str(error.value) == message


API = "Follow Gymnasium's API since 0.26: reset returns obs and info, and step returns obs, "
API += "reward, terminated, truncated and info."
PARTS = "observation, reward, terminated, truncated, info dict"
STEPS = [
    *(
        (values, f"step() of the environment: expected a tuple ({PARTS}), got {got}. {API}")
        for values, got in (
            ((0, 1.0, False, {}), "a tuple of 4: int, float, bool, dict"),
            (None, "NoneType"),
            ((0, 1.0, False, False, None), "a tuple of 5: int, float, bool, bool, NoneType"),
        )
    ),
    (
        (0, 1.0, 0, False, {}),
        "terminated of the environment: expected True or False, got 0 of type int. Return "
        f"bool(terminated): step returns {PARTS}.",
    ),
    (
        (0, 1.0, False, np.array([True]), {}),
        "truncated of the environment: expected True or False, got array([ True]) of type "
        f"ndarray. Return bool(truncated): step returns {PARTS}.",
    ),
    (
        (0, None, False, False, {}),
        "reward of the environment: expected a number, got None of type NoneType.",
    ),
    *(
        (
            (0, bad, False, False, {}),
            f"reward of the environment: expected a finite number, got {float(bad)}.",
        )
        for bad in (np.float32("nan"), -np.inf)
    ),
]


@pytest.mark.parametrize(("values", "message"), STEPS)
def test_a_wrong_step_is_told(values, message):
    with pytest.raises(UserError) as error:
        runner.check_step(values)
    assert str(error.value) == message


@pytest.mark.parametrize("reward", [1, 1.0, True, np.float16(1), np.int32(1), np.array(1.0)])
@pytest.mark.parametrize("flag", [True, np.True_, np.array(True)])
def test_rewards_and_flags_become_plain(reward, flag):
    obs, number, terminated, truncated, info = runner.check_step((3, reward, flag, False, {}))
    assert (obs, number, terminated, truncated, info) == (3, 1.0, True, False, {})
    assert (type(number), type(terminated), type(truncated)) == (float, bool, bool)


@pytest.mark.parametrize(
    ("values", "got"), [(np.zeros(2), "ndarray"), ((1, 2), "a tuple of 2: int, int")]
)
def test_a_wrong_reset_is_told(values, got):
    with pytest.raises(UserError) as error:
        runner.check_reset(values)
    assert str(error.value) == (
        f"reset() of the environment: expected a tuple (observation, info dict), got {got}. {API}"
    )
