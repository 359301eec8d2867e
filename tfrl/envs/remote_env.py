"""Environments that other processes step."""

from typing import NoReturn

import tensorflow as tf

from tfrl import struct
from tfrl.envs.core import Autoreset, Env
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class RemoteEnv(Env):
    """What a learner knows of the environments of its collectors: their specs.

    Attributes:
      name: The task, for messages.
      obs_spec: Of one observation.
      action_spec: Of one action.
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
        """Returns the form of environments, which are not kept."""
        return cls(
            name=name,
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            num_envs=env.num_envs,
            autoreset=env.autoreset,
            max_episode_steps=env.max_episode_steps,
        )

    def reset(self, key: tf.Tensor) -> Nest:
        """Returns no state at all."""
        return ()

    def step(self, state: EnvState, action: Nest) -> NoReturn:
        """Is not to be called.

        Raises:
          UserError: Always.
        """
        raise UserError(
            f"{self.name} of a learner",
            expected="steps that collectors take",
            got="one in the learner's process",
            remedy="Step the environments of a workflow that has not been given collectors.",
        )
