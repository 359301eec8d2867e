"""Environments for the tests of workers: one that is right, and one with any fault asked for."""

import ctypes
import dataclasses
import os
import pathlib
import signal
import sys
import time

import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    """A random walk pushed left (0) or right (1) until it leaves [-1, 1].

    Observations are (position, steps), and the buffer is the same at every step.
    """

    def __init__(self, push=0.2):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, [2], np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._push = push
        self._obs = np.zeros([2], np.float32)
        self.seed = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = seed
        self._obs[:] = self.np_random.uniform(-0.2, 0.2), 0
        return self._obs, {"seed": seed}

    def step(self, action):
        noise = self.np_random.normal(0.0, 0.1)
        self._obs += np.float32([self._push * (2 * action - 1) + noise, 1])
        x = float(self._obs[0])
        return self._obs, x, abs(x) > 1.0, False, {"noise": noise}


@dataclasses.dataclass(frozen=True)
class Fault:
    """What goes wrong, and when.

    Attributes:
      kind: A method of `Faulty`, `_<kind>`.
      where: `factory`, `reset`, `step` or `close`.
      at: The step at which it goes wrong; for resets, the episode of the process.
      once: A file that marks that it has happened; None: always.
      until: A file that `waits` waits for.
    """

    kind: str
    where: str = "step"
    at: int = 0
    once: str | None = None
    until: str | None = None

    def due(self, where, at):
        if where != self.where or at != self.at:
            return False
        if self.once is None:
            return True
        marker = pathlib.Path(self.once)
        if marker.exists():
            return False
        marker.write_text("x")
        return True


class Faulty(Walk):
    """A walk with a fault."""

    def __init__(self, fault, push=0.0):
        super().__init__(push)
        self._fault, self._episodes, self._steps = fault, 0, 0
        if fault.due("factory", 0):
            getattr(self, f"_{fault.kind}")(None)

    def reset(self, *, seed=None, options=None):
        returned = super().reset(seed=seed)
        self._episodes, self._steps = self._episodes + 1, 0
        if self._fault.due("reset", self._episodes - 1):
            return getattr(self, f"_{self._fault.kind}")(returned)
        return returned

    def step(self, action):
        returned = super().step(action)
        self._steps += 1
        if self._fault.due("step", self._steps - 1):
            return getattr(self, f"_{self._fault.kind}")(returned)
        return returned

    def close(self):
        if self._fault.due("close", 0):
            getattr(self, f"_{self._fault.kind}")(None)

    def _none(self, returned):
        return returned

    # Faults that are exceptions.

    def _raises(self, _):
        raise ZeroDivisionError("the walk broke")

    def _exits(self, _):
        sys.exit(3)

    # Faults of what is returned.

    def _nan(self, returned):
        return np.float32([0.5, np.nan]), *returned[1:]

    def _shape(self, returned):
        return np.zeros([3], np.float32), *returned[1:]

    def _dtype(self, returned):
        return np.zeros([2], np.float64), *returned[1:]

    def _unpicklable(self, returned):
        return *returned[:-1], {"function": lambda: 0}

    # Faults that end or stop the process.

    def _dies(self, _):
        os._exit(7)

    def _killed(self, _):
        os.kill(os.getpid(), signal.SIGKILL)

    def _segfaults(self, _):
        ctypes.string_at(0)

    def _hangs(self, _):
        time.sleep(1000)

    def _waits(self, returned):
        while not os.path.exists(self._fault.until):
            time.sleep(0.01)
        return returned

    def _holds_the_lock(self, _):
        # Unlike CDLL, PyDLL keeps the interpreter's lock: no other thread of the process runs.
        ctypes.PyDLL(None).sleep(1000)

    def _stops(self, _):
        os.kill(os.getpid(), signal.SIGSTOP)


class Chosen(Faulty):
    """A walk whose fault depends on the seed of the episode; in most episodes there is none."""

    def __init__(self, faults, push=0.0):
        self._faults = faults
        super().__init__(Fault("none", "nowhere"), push)

    def reset(self, *, seed=None, options=None):
        self._episodes = 0
        self._fault = self._faults.get(seed, Fault("none", "nowhere"))
        return super().reset(seed=seed)


class Pictures(gymnasium.Env):
    """Large observations: the pipe is full before one is through."""

    def __init__(self, size=1_000_000):
        self.observation_space = gymnasium.spaces.Box(0, 255, [size], np.uint8)
        self.action_space = gymnasium.spaces.Discrete(256)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(self.observation_space.shape, np.uint8), {}

    def step(self, action):
        self._steps += 1
        obs = np.full(self.observation_space.shape, action, np.uint8)
        return obs, 0.0, self._steps == 3, False, {}


class Numbered(gymnasium.Env):
    """Every kind of space at once; short episodes."""

    def __init__(self):
        spaces = gymnasium.spaces
        self.observation_space = spaces.Dict(
            image=spaces.Box(0, 255, [4, 4], np.uint8),
            parts=spaces.Tuple([spaces.Discrete(5, start=2), spaces.MultiBinary(3)]),
            grid=spaces.MultiDiscrete([2, 3]),
            word=spaces.Text(4),
        )
        self.action_space = spaces.Box(-1.0, 1.0, [2], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self._obs(), {}

    def step(self, action):
        return self._obs(), np.float32(action.sum()), np.bool_(False), np.bool_(True), {}

    def _obs(self):
        obs = self.observation_space.sample()
        number, flags = obs["parts"]
        # Samples of Text depend on Python's hashes, which differ between processes.
        return {**obs, "parts": (int(number), flags), "word": "abc"}
