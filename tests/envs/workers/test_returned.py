import gymnasium
import numpy as np
import pytest

from tfrl.envs.workers import returned
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
    checked = returned.observation_check(space)(obs, "reset()")
    np.testing.assert_equal(checked, obs)
    assert type(checked) is type(obs)


@pytest.mark.parametrize("obs", [2, np.int32(2), np.uint8(2), np.array(2)])
def test_integers_get_the_dtype_of_their_space(obs):
    checked = returned.observation_check(spaces.Discrete(3))(obs, "reset()")
    assert checked == 2 and checked.dtype == np.int64 and checked.shape == ()


CAST = "Cast or reshape it in the environment or a gymnasium.ObservationWrapper, or correct "
CAST += "observation_space."
DIVISION = "Find the division or the diverging simulation; np.nan_to_num or a clip in a "
DIVISION += "gymnasium.ObservationWrapper if it is meant."
NEST = "Make the observation and observation_space the same nest."
WRONG_ONES = [
    (
        BOX,
        np.zeros([2, 2]),
        "step(): obs: expected float32 [2, 2], as the observation space says, "
        f"got float64 [2, 2]. {CAST}",
    ),
    (
        BOX,
        np.zeros([2], np.float32),
        "step(): obs: expected float32 [2, 2], as the observation space says, "
        f"got float32 [2]. {CAST}",
    ),
    (
        BOX,
        [[0.0, 0.0], [0.0, 0.0]],
        "step(): obs: expected a NumPy array float32 [2, 2], as the observation space says, "
        "got [[0.0, 0.0], [0.0, 0.0]] of type list. Return np.asarray(..., np.float32).",
    ),
    (
        BOX,
        holes(0, np.nan, np.inf, -np.inf),
        "step(): obs: expected finite numbers, got nan at [0, 1], inf at [1, 0], -inf at [1, 1]. "
        + DIVISION,
    ),
    (
        spaces.Box(-1, 1, [9], np.float32),
        np.full([9], np.nan, np.float32),
        "step(): obs: expected finite numbers, got nan at [0], nan at [1], nan at [2], nan at [3], "
        f"nan at [4] and 4 more. {DIVISION}",
    ),
    (
        spaces.Discrete(3),
        1.0,
        "step(): obs: expected an integer, as the observation space is Discrete, got 1.0 of type "
        "float. Return int(...) or correct observation_space.",
    ),
    (
        spaces.Text(3),
        "abcdef",
        "step(): obs: expected an element of Text(1, 3, charset=0123456789ABCDEFGHIJKLMNOPQRSTUVWXY"
        "Zabcdefghijklmnopqrstuvwxyz), got 'abcdef' of type str. Correct the observation or "
        "observation_space.",
    ),
    (
        NESTED,
        {"a": RIGHT["a"]},
        "step(): obs: expected a dict with the keys ['a', 'b'], as the observation space says, got "
        f"['a']. {NEST}",
    ),
    (
        NESTED,
        (1, 2),
        "step(): obs: expected a dict with the keys ['a', 'b'], as the observation space says, got "
        f"tuple. {NEST}",
    ),
    (
        NESTED,
        nested(b=(1,)),
        f"step(): obs/b: expected a tuple of 2, as the observation space says, got 1 items. {NEST}",
    ),
    (
        NESTED,
        nested(b=[1, np.int8([0, 1])]),
        f"step(): obs/b: expected a tuple of 2, as the observation space says, got list. {NEST}",
    ),
    (
        NESTED,
        nested(b=(1, np.int64([0, 1]))),
        "step(): obs/b/1: expected int8 [2], as the observation space says, got int64 [2]. " + CAST,
    ),
    (
        NESTED,
        nested(a=holes(np.nan, 0, 0, 0)),
        f"step(): obs/a: expected finite numbers, got nan at [0, 0]. {DIVISION}",
    ),
]


@pytest.mark.parametrize(("space", "obs", "message"), WRONG_ONES)
def test_what_does_not_fit_is_told_by_its_path(space, obs, message):
    with pytest.raises(UserError) as error:
        returned.observation_check(space)(obs, "step()")
    assert str(error.value) == message


OLD_API = "Return both end flags; an environment of the old gym API with one `done` needs a "
OLD_API += "gymnasium.Wrapper that tells termination from truncation."
FLAGS = "step returns obs, reward, terminated, truncated, info."
STEPS = [
    (
        (0, 1.0, False, {}),
        "step(): expected a tuple (obs, reward, terminated, truncated, info), got a tuple of 4: "
        f"int, float, bool, dict. {OLD_API}",
    ),
    (
        None,
        "step(): expected a tuple (obs, reward, terminated, truncated, info), got NoneType. "
        + OLD_API,
    ),
    (
        (0, 1.0, False, False, None),
        "step(): info: expected a dict, got NoneType. Return {} if there is none.",
    ),
    (
        (0, 1.0, 0, False, {}),
        "step(): terminated: expected True or False, got 0 of type int. Return bool(terminated); "
        + FLAGS,
    ),
    (
        (0, 1.0, False, np.array([True]), {}),
        "step(): truncated: expected True or False, got array([ True]) of type ndarray. "
        f"Return bool(truncated); {FLAGS}",
    ),
    (
        (0, np.float32([1.0]), False, False, {}),
        "step(): reward: expected one number, got array([1.], dtype=float32) of type ndarray and "
        "shape [1]. Return float(reward).",
    ),
    (
        (0, None, False, False, {}),
        "step(): reward: expected one number, got None of type NoneType. Return float(reward).",
    ),
    (
        (0, np.float32("nan"), False, False, {}),
        "step(): reward: expected a finite number, got nan. Find the division or the diverging "
        "simulation that it comes from.",
    ),
    (
        (0, -np.inf, False, False, {}),
        "step(): reward: expected a finite number, got -inf. Find the division or the diverging "
        "simulation that it comes from.",
    ),
]


@pytest.mark.parametrize(("values", "message"), STEPS)
def test_a_wrong_step_is_told(values, message):
    with pytest.raises(UserError) as error:
        returned.check_step(values)
    assert str(error.value) == message


@pytest.mark.parametrize("reward", [1, 1.0, True, np.float16(1), np.int32(1), np.array(1.0)])
@pytest.mark.parametrize("flag", [True, np.True_, np.array(True)])
def test_rewards_and_flags_become_plain(reward, flag):
    obs, number, terminated, truncated, info = returned.check_step((3, reward, flag, False, {}))
    assert (obs, number, terminated, truncated, info) == (3, 1.0, True, False, {})
    assert (type(number), type(terminated), type(truncated)) == (float, bool, bool)


@pytest.mark.parametrize(
    ("values", "got"), [(np.zeros(2), "ndarray"), ((1, 2), "a tuple of 2: int, int")]
)
def test_a_wrong_reset_is_told(values, got):
    with pytest.raises(UserError) as error:
        returned.check_reset(values)
    assert str(error.value) == (
        f"reset(): expected a tuple (observation, info dict), got {got}. "
        "Return (obs, {}) as gymnasium's API since 0.26 says."
    )
