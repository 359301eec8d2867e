"""Environments stepped by other processes."""

from typing import NoReturn

import tensorflow as tf

from tfrl import struct
from tfrl.envs.core import Autoreset, Env
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class RemoteEnv(Env):
    """A learner's view of its collectors' environments: their specs.

    Attributes:
      name: The task, for messages.
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      num_envs: Environments of one collector.
      autoreset: Theirs.
      max_episode_steps: Theirs.
    """

    name: str
    obs_spec: Nest = None
    action_spec: Nest = None
    num_envs: int = 1
    autoreset: Autoreset | None = None
    max_episode_steps: int | None = None

    @classmethod
    def of(cls, env: Env, name: str) -> "RemoteEnv":
        """Returns the specs of environments, without keeping them."""
        return cls(
            name=name,
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            num_envs=env.num_envs,
            autoreset=env.autoreset,
            max_episode_steps=env.max_episode_steps,
        )

    def reset(self, key: tf.Tensor) -> Nest:
        """Returns an empty state."""
        return ()

    def step(self, state: EnvState, action: Nest) -> NoReturn:
        """Not supported.

        Raises:
          UserError: Always.
        """
        raise UserError(
            f"{self.name} of a learner",
            expected="steps in the collectors' processes",
            got="a step in the learner's process",
            remedy="Step the environments of a workflow without collectors.",
        )
