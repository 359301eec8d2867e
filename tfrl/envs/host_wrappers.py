"""Tells the wrappers of device environments from those of other libraries."""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from tfrl.envs.backend import Backend, Step
from tfrl.envs.core import Autoreset, Wrapper
from tfrl.envs.host_env import HostEnv, Wrapping
from tfrl.types import Nest


class _Nothing(Backend):
    """Environments that wrappers are tried on, to see what they are."""

    name, num_envs, info_spec = "nothing", 1, {}
    obs_spec, action_spec = tf.TensorSpec([1]), tf.TensorSpec([1])

    def __init__(self, autoreset: Autoreset):
        self.autoreset = autoreset

    def reset(self, seeds: np.ndarray) -> Step:
        raise NotImplementedError

    def send(self, action: Nest) -> None:
        raise NotImplementedError

    def receive(self) -> Step:
        raise NotImplementedError

    def copy(
        self, num_envs: int, render: bool = False, autoreset: Autoreset | None = None
    ) -> Backend:
        raise NotImplementedError

    def close(self) -> None:
        return


def split_wrappers(wrappers: Iterable[Wrapping]) -> tuple[list[Wrapping], list[Wrapping]]:
    """Parts the wrappers of device environments, which `HostEnv.wrapped` takes, from all others.

    Args:
      wrappers: Functions from environments to environments.

    Returns:
      Those of device environments, and the others.
    """
    ours: list[Wrapping] = []
    others: list[Wrapping] = []
    for wrapper in wrappers:
        probe = HostEnv(_Nothing(Autoreset.SAME_STEP), Autoreset.SAME_STEP)
        try:
            found = wrapper(probe)
        except Exception:  # noqa: BLE001  (others refuse what is not theirs, each in its own way)
            found = None
        (ours if isinstance(found, Wrapper) else others).append(wrapper)
    return ours, others
