"""A correct environment to be broken, and what tests of `check_env` share."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tfrl.envs import check_env
from tfrl.envs.checker import MaskContract
from tfrl.envs.contract import Contract
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError

INF, NAN = np.inf, np.nan


class Good(gymnasium.Env):
    """Drifts from a random start; ends at its third step. Subclasses break one thing each."""

    metadata = {"render_modes": []}
    observation_space = spaces.Box(-1.0, 5.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    render_mode = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.place = self.np_random.random(2).astype(np.float32)
        return self.see(), self.info()

    def see(self):
        return self.place.copy()

    def info(self):
        return {}

    def pay(self):
        return 1.0

    def ends(self):
        return self.t >= 3, False

    def step(self, action):
        self.t += 1
        self.place = self.place + np.float32(0.25)
        return self.see(), self.pay(), *self.ends(), self.info()


BOX = spaces.Box(-1, 1, (2, 2), np.float32)
SPACES = {
    "box": (BOX, BOX, False),
    "uint8": (spaces.Box(0, 255, (3, 2, 1), np.uint8), spaces.Box(-1, 1, (), np.float32), False),
    "unbounded": (spaces.Box(-INF, INF, (2,), np.float64), spaces.Discrete(2), False),
    "half_bounded": (spaces.Box(0, INF, (2,), np.float32), spaces.Discrete(3, start=-1), False),
    "discrete": (spaces.Discrete(50, start=3), spaces.Discrete(3, start=5), True),
    "multi_discrete": (spaces.MultiDiscrete([20, 30]), spaces.MultiDiscrete([2, 3]), True),
    "multi_binary": (spaces.MultiBinary((4, 5)), spaces.MultiBinary(3), True),
    "nested": (
        spaces.Dict({"a": spaces.Tuple([BOX, spaces.Discrete(9)]), "b": spaces.MultiBinary(3)}),
        spaces.Dict({"c": spaces.Tuple([BOX, spaces.Discrete(3)]), "d": spaces.MultiBinary(2)}),
        False,
    ),
    "masked_nest": (
        BOX,
        spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([3, 2])])}),
        True,
    ),
}


def checked(env, check=check_env, **kwargs):
    """Checks an environment; returns where the steps that were looked at had ended, bool [T, B]."""
    ends = []
    contract = Contract if isinstance(env, HostEnv) else MaskContract  # which sees every step
    look = contract.check

    def looks(self, state, where):
        look(self, state, where)
        if where != "reset":
            ends.append(state.termination.numpy() | state.truncation.numpy())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contract, "check", looks)
        check(env, **kwargs)
    return np.array(ends)


def message(env, **kwargs):
    with pytest.raises(UserError) as error:
        check_env(env, **kwargs)
    return str(error.value)


def agree(found, expected):
    """Whether a message is the expected one; if that ends with "got ", up to there."""
    return found[: len(expected)] == expected if expected.endswith("got ") else found == expected
