"""A task whose copies take their time in turn."""

import time

import gymnasium
import numpy as np

SECONDS = 0.06
PERIOD = 4  # of so many steps, one takes its time


class Staggered(gymnasium.Env):
    """Counts its steps; an episode has five of them. Copies are slow at different steps."""

    observation_space = gymnasium.spaces.Box(0, 1e6, [2], np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, slow=True):
        self._slow = slow
        self._steps = self._episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self._number = seed % PERIOD
        self._episode += 1
        self._at = 0
        return self._obs(), {}

    def _obs(self):
        return np.array([self._episode, self._at], np.float32)

    def step(self, action):
        self._steps += 1
        self._at += 1
        if self._slow and self._steps % PERIOD == self._number:
            time.sleep(SECONDS)
        return self._obs(), float(self._at), self._at == 5, False, {}


gymnasium.register("Staggered-v0", entry_point=Staggered)
