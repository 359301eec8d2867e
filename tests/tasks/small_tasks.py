"""Tasks whose every number is known."""

import gymnasium
import numpy as np
import tensorflow as tf

from tests.tasks.scripted import SEED, Scripted, choose
from tfrl.keras import api as keras
from tfrl.tasks import RLTask, RLTaskConfig


def config(**changes):
    """Ten env steps of one synchronous environment, then two updates."""
    numbers = {
        "num_env_workers": 0,
        "env_seed": SEED,
        "max_steps": 9,
        "num_update_steps": 2,
        "batch_size": 4,
        "num_collect_steps": 10,
        "replay_buffer_sample_size": 40,
    }
    return RLTaskConfig(**{**numbers, **changes})


class Weight(tf.Module):
    """A single number."""

    def __init__(self, value=0.0):
        super().__init__()
        self.w = tf.Variable(value, name="w")


class Drawn(Scripted):
    """The scripted environment, whose frame shows its step as a grey value."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}

    def __init__(self, lengths=(5,), shape=(3, 4, 3), info=None):
        super().__init__(lengths)
        self.render_mode = "rgb_array"
        self._shape = shape
        self._info = info or {}
        self.renders = 0

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self._info

    def render(self):
        self.renders += 1
        return np.full(self._shape, 10 * self._obs[1], np.uint8)


class ScriptedTask(RLTask):
    """Moves w towards 3 by gradient descent: loss (w - 3)^2, rate 0.25, so the error halves.

    Written in the forms of two arguments, without a state.
    From w = 0: losses 9, 2.25, 0.5625; w = 1.5, 2.25, 2.625.
    """

    def __init__(self, config, env=Drawn, **env_options):
        super().__init__(config)
        self._env, self._env_options = env, env_options
        self.envs = []
        self.batches = []
        self.optimal = set()

    def get_environment(self):
        self.envs.append(self._env(**self._env_options))
        return self.envs[-1]

    def get_model(self):
        return Weight()

    def get_optimizer(self):
        return keras.optimizers.SGD(0.25)

    def get_actions(self, model, states, optimal):
        self.optimal.add(optimal)
        extras = {"step": states[:, 1] * 2, "net": {"tag": states[:, 0]}}
        return choose(states), {**extras, "w": np.repeat(model.w.numpy(), len(states))}

    def run_model(self, model, batch):
        tf.py_function(lambda *leaves: self.batches.append(leaves), tf.nest.flatten(batch.obs), [])
        return model.w

    def compute_loss(self, outputs, batch):
        return tf.square(outputs - 3.0), {"mean_reward": tf.reduce_mean(batch.reward)}


class KerasTask(RLTask):
    """A small network on CartPole, trained to return what it is told: something to be saved."""

    def get_environment(self):
        return gymnasium.make("CartPole-v1", render_mode="rgb_array")

    def get_model(self):
        return keras.Sequential([keras.layers.Dense(8, "tanh", input_shape=[4]), _head()])

    def get_optimizer(self):
        return keras.optimizers.Adam(1e-2)

    def get_actions(self, model, states, optimal):
        logits = model(tf.convert_to_tensor(states))
        return tf.argmax(logits, -1) if optimal else tf.random.categorical(logits, 1)[:, 0]

    def compute_loss(self, model, batch, state, output):
        return tf.reduce_mean(tf.square(output - batch.obs[..., :2]))


def _head():
    return keras.layers.Dense(2)
