"""TF-Agents' `PyEnvironment` over the player of an environment, with and without a batch axis."""

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.environments.py_environment import PyEnvironment
from tf_agents.trajectories import TimeStep

from tfrl.compat.tf_agents import specs, trajectories
from tfrl.compat.tf_agents.players import Player
from tfrl.envs.adapters import host_spaces
from tfrl.types import Nest


class BatchedEnvironment(PyEnvironment):
    """A batch of environments as one batched PyEnvironment."""

    def __init__(self, player: Player):
        """Reads the specs; nothing is reset yet.

        Args:
          player: What plays the environments.
        """
        super().__init__()
        self._player = player
        env = player.env
        self._specs = trajectories.time_step_spec(env.obs_spec)
        self._action_spec = specs.array_spec(env.action_spec, "action")
        self._copy = host_spaces.copier(
            specs.plain(env.action_spec), "action for the environment", env.num_envs
        )

    @property
    def batched(self) -> bool:
        """True."""
        return True

    @property
    def batch_size(self) -> int | None:
        """How many environments there are."""
        return self._player.env.num_envs

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated, or None."""
        return self._player.env.max_episode_steps

    def observation_spec(self) -> Nest:
        """The nest of array specs of one observation."""
        return self._specs.observation

    def action_spec(self) -> Nest:
        """The nest of array specs of one action."""
        return self._action_spec

    def seed(self, seed: int) -> None:
        """Sets what the next reset begins with."""
        self._player.seed(seed)

    def get_info(self) -> dict[str, Any]:
        """What the last `EnvState.info` has, but for the observations."""
        return self._player.info

    def render(self, mode: str = "rgb_array") -> np.ndarray:
        """Draws the environments as they are now, uint8 RGB `[B, H, W, 3]`."""
        if mode != "rgb_array":
            raise NotImplementedError("only rgb_array")
        return np.stack([self._player.render(i) for i in range(self._player.env.num_envs)])

    def close(self) -> None:
        """Closes environments on the host."""
        self._player.close()

    def _reset(self) -> TimeStep:
        return self._player.reset()

    def _step(self, action: Nest) -> TimeStep:
        return self._player.step(self._copy(action))


class SingleEnvironment(BatchedEnvironment):
    """One environment as a PyEnvironment without a batch axis."""

    @property
    def batched(self) -> bool:
        """False."""
        return False

    @property
    def batch_size(self) -> None:
        """None, as of all that have no batch axis."""
        return None

    def get_info(self) -> dict[str, Any]:
        """What the last `EnvState.info` has, but for the observations."""
        return tf.nest.map_structure(lambda x: x[0], self._player.info)

    def render(self, mode: str = "rgb_array") -> np.ndarray:
        """Draws the environment as it is now, uint8 RGB `[H, W, 3]`."""
        return super().render(mode)[0]

    def _reset(self) -> TimeStep:
        return _row(super()._reset())

    def _step(self, action: Nest) -> TimeStep:
        return _row(super()._step(tf.nest.map_structure(lambda a: np.asarray(a)[None], action)))


def _row(batch: TimeStep) -> TimeStep:
    # Arrays even of numbers: TF-Agents' specs know no NumPy scalars.
    return tf.nest.map_structure(lambda x: np.asarray(x[0]), batch)
