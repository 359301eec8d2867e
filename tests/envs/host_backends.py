"""A scripted batch of host environments, whose every answer is known in advance."""

import numpy as np
import tensorflow as tf

from tfrl import specs
from tfrl.envs.backend import Backend, Step
from tfrl.envs.core import Autoreset


class Scripted(Backend):
    """Row i plays episodes of lengths[i], which end by termination, truncation, and so on in turn.

    The observation is [row, episode, step], the reward 100 * row + 10 * episode + step + action.
    """

    name = "testing:ScriptedHost"
    render_fps = 10.0

    def __init__(self, lengths, autoreset="SAME_STEP", max_episode_steps=50):
        self.lengths = np.array(lengths)
        self.num_envs = len(lengths)
        self.autoreset = Autoreset.parse(autoreset)
        self.max_episode_steps = max_episode_steps
        self.obs_spec = tf.TensorSpec([3], tf.float32)
        self.action_spec = specs.DiscreteSpec(2)
        self.info_spec = {"twice": tf.TensorSpec([], tf.float32)}
        self.closed = 0
        self.copies = []
        self.seeds = []
        self.taken = []

    def reset(self, seeds):
        self.seeds.append(seeds.tolist())
        self.episode = np.zeros(self.num_envs, int)
        self.t = np.zeros(self.num_envs, int)
        self.ended = np.zeros(self.num_envs, bool)
        no = np.zeros(self.num_envs, bool)
        return Step(self._obs(), no * 0.0, no, no, None, self._info())

    def _obs(self):
        rows = np.arange(self.num_envs)
        return np.stack([rows, self.episode, self.t], -1).astype(np.float32)

    def _info(self):
        return {"twice": 2 * self.t.astype(np.float32)}

    def send(self, action):
        self.taken.append(np.asarray(action))

    def receive(self):
        action = self.taken[-1]
        first = self.ended if self.autoreset is Autoreset.NEXT_STEP else self.ended & False
        self.episode, self.t = self.episode + first, np.where(first, 0, self.t + 1)
        reward = 100.0 * np.arange(self.num_envs) + 10 * self.episode + self.t + action
        ended = ~first & (self.t == self.lengths)
        termination = ended & (self.episode % 2 == 0)
        self.ended = ended
        final, obs, info = None, self._obs(), self._info()
        if self.autoreset is Autoreset.SAME_STEP and ended.any():
            final = obs
            self.episode, self.t = self.episode + ended, np.where(ended, 0, self.t)
            obs = self._obs()
        reward = np.where(first, 0.0, reward)
        return Step(obs, reward, termination, ended & ~termination, final, info)

    def copy(self, num_envs, render=False, autoreset=None):
        lengths = np.resize(self.lengths, num_envs)
        mode = autoreset or (Autoreset.NEXT_STEP if render else self.autoreset)
        self.copies.append(Scripted(lengths, mode, self.max_episode_steps))
        return self.copies[-1]

    def render(self, index):
        return np.full((32, 48, 3), 20 * self.t[index], np.uint8)

    def close(self):
        self.closed += 1
