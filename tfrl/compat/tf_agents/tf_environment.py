"""TF-Agents' `TFEnvironment` of a device environment: operations of the graph and variables."""

import numpy as np
import tensorflow as tf
from tf_agents.environments.tf_environment import TFEnvironment
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import TimeStep

from tfrl import seeding
from tfrl.compat.tf_agents import specs
from tfrl.compat.tf_agents.players import as_tensors, check_reward
from tfrl.compat.tf_agents.trajectories import time_step, time_step_spec
from tfrl.envs.core import Env, carrying
from tfrl.types import EnvState, Nest


class GraphEnvironment(TFEnvironment):
    """A device environment whose state is held in variables.

    The episodes of the first `reset` are those of `env.reset(tfrl.seeding.key(seed))`; they are
    what the environment begins with when it is not reset. Further resets begin others.
    """

    def __init__(self, env: Env, seed: int, discount: float):
        """Makes the variables, and starts an episode.

        Args:
          env: An environment with autoreset NEXT_STEP.
          seed: As of `as_tf_environment`.
          discount: As of `as_tf_environment`.
        """
        super().__init__(
            tensor_spec.from_spec(time_step_spec(env.obs_spec)),
            specs.tensor_spec(env.action_spec, "action"),
            env.num_envs,
        )
        self._env, self._discount = env, discount
        with tf.init_scope():
            self._key = tf.Variable(seeding.key(seed), trainable=False, name="key")
            self._resets = tf.Variable(0, trainable=False, dtype=tf.int64, name="resets")
            begun = tf.function(self._begun, autograph=False)()
            self._shape = begun
            self._variables = [
                tf.Variable(leaf, trainable=False, name="state") for leaf in tf.nest.flatten(begun)
            ]
        self._reset_fn = tf.function(self._restart, autograph=False)
        self._step_fn = tf.function(self._go_on, autograph=False)

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated, or None."""
        return self._env.max_episode_steps

    def seed(self, seed: int) -> None:
        """Sets what the next `reset` begins with."""
        self._key.assign(seeding.key(seed))
        self._resets.assign(0)

    def _told(self, state: EnvState) -> tuple[Nest, TimeStep]:
        check_reward(state.reward)
        return state.env_state, time_step(state, self._env.obs_spec, self._discount)

    def _begun(self) -> tuple[Nest, TimeStep]:
        number = self._resets.read_value()
        key = tf.where(number == 0, self._key, seeding.fold_in(self._key, number))
        return self._told(self._env.reset(key))

    def _values(self) -> tuple[Nest, TimeStep]:
        values = [variable.read_value() for variable in self._variables]
        return tf.nest.pack_sequence_as(self._shape, values)

    def _keep(self, told: tuple[Nest, TimeStep]) -> TimeStep:
        for variable, value in zip(self._variables, tf.nest.flatten(told), strict=True):
            variable.assign(value)
        return told[1]

    def _restart(self) -> TimeStep:
        seen = self._keep(self._begun())
        self._resets.assign_add(1)
        return seen

    def _go_on(self, action: Nest) -> TimeStep:
        return self._keep(self._told(self._env.step(carrying(self._values()[0]), action)))

    def _current_time_step(self) -> TimeStep:
        return self._values()[1]

    def _reset(self) -> TimeStep:
        return self._reset_fn()

    def _step(self, action: Nest) -> TimeStep:
        return self._step_fn(as_tensors(action, self._env.action_spec))

    def render(self) -> tf.Tensor:
        """Draws the environments as they are now, uint8 RGB `[B, H, W, 3]`; not in a graph."""
        state = carrying(self._values()[0])
        return tf.constant(
            np.stack([self._env.render(state, i) for i in range(self._env.num_envs)])
        )
