"""Environments of TF-Agents whose every answer is known in advance."""

import numpy as np
import tensorflow as tf
from tf_agents.environments.py_environment import PyEnvironment
from tf_agents.environments.tf_environment import TFEnvironment
from tf_agents.specs import array_spec, tensor_spec
from tf_agents.trajectories import time_step as ts

OBS = array_spec.ArraySpec([3], np.float32, "observation")
ACTION = array_spec.BoundedArraySpec([], np.int32, 1, 3, "action")


class Corridor(PyEnvironment):
    """Episodes of `length` steps, which end by termination, truncation, and so on in turn.

    The observation is [start, episode, step], the reward 10 * episode + step + action.
    """

    def __init__(self, length=3, discount=0.9):
        super().__init__(handle_auto_reset=True)
        self.length, self.discount = length, discount
        self.start, self.episode, self.t = 0.0, -1, 0
        self.actions, self.seeds, self.closed = [], [], 0

    def observation_spec(self):
        return OBS

    def action_spec(self):
        return ACTION

    def seed(self, seed):
        self.seeds.append(seed)
        self.start, self.episode = float(seed % 97), -1

    def _obs(self):
        return np.array([self.start, self.episode, self.t], np.float32)

    def _reset(self):
        self.episode, self.t = self.episode + 1, 0
        return ts.restart(self._obs())

    def _step(self, action):
        self.actions.append(action)
        self.t += 1
        reward = np.float32(10 * self.episode + self.t + int(action))
        if self.t < self.length:
            return ts.transition(self._obs(), reward, self.discount)
        if self.episode % 2 == 0:
            return ts.termination(self._obs(), reward)
        return ts.truncation(self._obs(), reward, self.discount)

    def render(self, mode="rgb_array"):
        return np.full((4, 6, 3), 20 * self.t, np.uint8)

    def close(self):
        self.closed += 1


class Together(PyEnvironment):
    """Two corridors as one batch that cannot be taken apart."""

    def __init__(self, lengths=(3, 2)):
        super().__init__()
        self.rows = [Corridor(n) for n in lengths]

    batched = True

    @property
    def batch_size(self):
        return len(self.rows)

    def observation_spec(self):
        return OBS

    def action_spec(self):
        return ACTION

    def seed(self, seed):
        for i, row in enumerate(self.rows):
            row.seed(seed + i)

    def _reset(self):
        return self._stacked([row.reset() for row in self.rows])

    def _step(self, action):
        return self._stacked([row.step(a) for row, a in zip(self.rows, action, strict=True)])

    def _stacked(self, steps):
        return tf.nest.map_structure(lambda *xs: np.stack(xs), *steps)


class Stubborn(Corridor):
    """Goes on after its last frame, where TF-Agents' environments begin anew."""

    def __init__(self):
        super().__init__()
        self._handle_auto_reset = False


class Unseeded(Corridor):
    """Takes no seed."""

    def seed(self, seed):
        raise NotImplementedError


class Masked(Corridor):
    """Shows, in a nest, which actions may be taken: action i where step is not i."""

    def observation_spec(self):
        mask = array_spec.BoundedArraySpec([3], np.int32, 0, 1)
        return {"seen": OBS, "rules": [mask, array_spec.ArraySpec([], np.float64)]}

    def _obs(self):
        mask = np.array([self.t != i for i in range(3)], np.int32)
        return {"seen": super()._obs(), "rules": [mask, np.array(0.5)]}


class GraphCorridor(TFEnvironment):
    """Episodes of `length` steps of a batch, the row i of length + i, that all terminate."""

    def __init__(self, length=3, batch_size=1):
        super().__init__(
            ts.time_step_spec(tensor_spec.from_spec(OBS)), tensor_spec.from_spec(ACTION), batch_size
        )
        self.lengths = tf.constant([length + i for i in range(batch_size)])
        self.t = tf.Variable(tf.zeros([batch_size], tf.int32))
        self.total = tf.Variable(tf.zeros([batch_size], tf.int32))  # of all actions

    def _current_time_step(self, reward=None):
        last = self.t == self.lengths
        step_type = tf.where(self.t == 0, 0, tf.where(last, 2, 1))
        discount = tf.where(last, 0.0, 1.0)
        obs = tf.stack([self.t, self.total, self.lengths], -1)
        reward = tf.zeros_like(discount) if reward is None else reward
        return ts.TimeStep(step_type, reward, discount, tf.cast(obs, tf.float32))

    def _reset(self):
        self.t.assign(tf.zeros_like(self.t))
        return self._current_time_step()

    def _step(self, action):
        last = self.t == self.lengths
        self.t.assign(tf.where(last, 0, self.t + 1))
        self.total.assign_add(tf.where(last, 0, action))
        return self._current_time_step(tf.where(last, 0.0, tf.cast(action, tf.float32)))


def pair(num_envs):
    """Makes a batch of any size."""
    return Together((3,) * num_envs)


def corridor(length=3):
    """Makes a corridor."""
    return Corridor(length)


class Changed(Corridor):
    """A corridor with one answer or spec replaced."""

    def __init__(self, change=None, specs=None, length=3):
        super().__init__(length)
        self.change, self.specs = change or (lambda step: step), specs or {}

    def observation_spec(self):
        return self.specs.get("observation", OBS)

    def action_spec(self):
        return self.specs.get("action", ACTION)

    def reward_spec(self):
        return self.specs.get("reward", super().reward_spec())

    def _reset(self):
        return self.change(super()._reset())

    def _step(self, action):
        return self.change(super()._step(action))
