"""What a batch is made of: TF-Agents' environments, single, batched or in the graph."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.environments.batched_py_environment import BatchedPyEnvironment
from tf_agents.environments.parallel_py_environment import (
    ParallelPyEnvironment,
    ProcessPyEnvironment,
)
from tf_agents.environments.py_environment import PyEnvironment
from tf_agents.environments.tf_environment import TFEnvironment
from tf_agents.environments.tf_py_environment import TFPyEnvironment
from tf_agents.trajectories import StepType

from tfrl.errors import UserError

FIRST, MID, LAST = (int(t) for t in (StepType.FIRST, StepType.MID, StepType.LAST))
_GYM_TRUNCATED = "TimeLimit.truncated"  # in the info of gym's own TimeLimit


class Frames(NamedTuple):
    """Time steps of a part, leaves of observations in the order of `tf.nest`."""

    step_type: np.ndarray  # [B]
    reward: np.ndarray  # [B]
    discount: np.ndarray  # [B]
    obs: list[np.ndarray]  # of [B, ...]


def frames(leaves: list[np.ndarray]) -> Frames:
    """Makes frames of the leaves of time steps: three numbers, then observations."""
    step_type, reward, discount, *obs = leaves
    return Frames(step_type, reward, discount, obs)


def _leaves(time_step: Any) -> list[Any]:
    """Step type, reward, discount, then the leaves of the observation."""
    numbers = [time_step.step_type, time_step.reward, time_step.discount]
    return numbers + tf.nest.flatten(time_step.observation)


class Part(abc.ABC):
    """One environment object of TF-Agents, which is a batch of at least one.

    Attributes:
      name: The id, for messages.
      num_envs: How many environments it has.
    """

    def __init__(self, name: str, env: Any, num_envs: int):
        """Keeps the environment.

        Args:
          name: The id, for messages.
          env: TF-Agents' environment.
          num_envs: How many environments it has.
        """
        self.name, self.env, self.num_envs = name, env, num_envs
        self._action_spec = env.action_spec()

    @property
    def resets_rows(self) -> bool:
        """Whether one environment can be reset while the others stand still."""
        return self.num_envs == 1

    @abc.abstractmethod
    def reset(self) -> Frames:
        """Starts an episode in every environment."""

    @abc.abstractmethod
    def step(self, action: list[np.ndarray], first: np.ndarray) -> Frames:
        """Takes a step; rows that are `first` begin a new episode and ignore their action.

        Args:
          action: Leaves `[B, ...]`, in the order of `tf.nest`.
          first: bool `[B]`.
        """

    def reset_row(self, index: int) -> list[np.ndarray]:
        """Starts an episode in one environment; returns the leaves of its first observation."""
        return [leaf[0] for leaf in self.reset().obs]

    def seed(self, seeds: np.ndarray) -> bool:
        """Gives the environments their seeds, `[B]`; returns whether they take any."""
        seed = getattr(self.env, "seed", None)
        return seed is not None and _implemented(seed, int(seeds[0]))

    def truncated(self, index: int) -> bool:
        """Tells whether the end of an episode with discount 0 was a time limit of gym's."""
        return False

    def render(self, index: int) -> Any:
        """Draws environment `index`."""
        picture = np.asarray(self.env.render())
        return picture[index] if picture.ndim == 4 else picture

    def close(self) -> None:
        """Frees the environment; those of TF-Agents' graph need not have a method for it."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()


class SinglePart(Part):
    """A PyEnvironment without a batch axis."""

    def __init__(self, name: str, env: PyEnvironment):
        """Keeps the environment."""
        super().__init__(name, env, 1)

    def reset(self) -> Frames:
        """Starts an episode."""
        return self._frames(self.env.reset())

    def step(self, action: list[np.ndarray], first: np.ndarray) -> Frames:
        """Takes a step, or starts an episode."""
        if first[0]:
            return self.reset()
        # A copy: the environment may keep or change what it is given.
        own = [np.array(leaf[0]) for leaf in action]
        return self._frames(self.env.step(tf.nest.pack_sequence_as(self._action_spec, own)))

    def _frames(self, time_step: Any) -> Frames:
        return frames([np.asarray(x)[None] for x in _leaves(time_step)])

    def truncated(self, index: int) -> bool:
        """Asks gym."""
        return _told(self.env)


class BatchedPart(Part):
    """A PyEnvironment with a batch axis."""

    def __init__(self, name: str, env: PyEnvironment):
        """Keeps the environment, and those that it is made of where they can be reached."""
        super().__init__(name, env, int(env.batch_size))
        known = isinstance(env, BatchedPyEnvironment | ParallelPyEnvironment)
        self._rows: Sequence[Any] = env.envs if known else ()

    @property
    def resets_rows(self) -> bool:
        """Where its environments can be reached, or there is one only."""
        return bool(self._rows) or self.num_envs == 1

    def reset(self) -> Frames:
        """Starts an episode in every environment."""
        return self._frames(self.env.reset())

    def step(self, action: list[np.ndarray], first: np.ndarray) -> Frames:
        """Takes a step; an environment of TF-Agents starts anew by itself after its last frame."""
        own = [np.array(leaf) for leaf in action]
        seen = self._frames(self.env.step(tf.nest.pack_sequence_as(self._action_spec, own)))
        late = first & (seen.step_type != FIRST)
        if late.any() and self.resets_rows:
            seen = Frames(
                np.where(late, FIRST, seen.step_type),
                seen.reward,
                seen.discount,
                [np.array(x) for x in seen.obs],
            )
            for i in np.flatnonzero(late):
                for leaf, value in zip(seen.obs, self.reset_row(i), strict=True):
                    leaf[i] = value
        return seen

    def _frames(self, time_step: Any) -> Frames:
        return frames([np.asarray(x) for x in _leaves(time_step)])

    def reset_row(self, index: int) -> list[np.ndarray]:
        """Starts an episode in one environment."""
        if not self._rows:
            return super().reset_row(index)
        # TF-Agents' processes may hand time steps over as flat lists: observations come last.
        leaves = tf.nest.flatten(self._rows[index].reset())
        return [np.asarray(x) for x in leaves[3:]]

    def seed(self, seeds: np.ndarray) -> bool:
        """Gives each its seed where they can be reached, else the first seed to all of them."""
        if isinstance(self.env, ParallelPyEnvironment):
            return _implemented(self.env.seed, [int(s) for s in seeds])
        if self._rows:
            return all(
                _implemented(row.seed, int(s)) for row, s in zip(self._rows, seeds, strict=True)
            )
        return super().seed(seeds)

    def truncated(self, index: int) -> bool:
        """Asks gym."""
        return bool(self._rows) and _told(self._rows[index])


class GraphPart(Part):
    """A TFEnvironment: its operations are compiled into one call a step."""

    def __init__(self, name: str, env: TFEnvironment):
        """Keeps the environment."""
        super().__init__(name, env, int(env.batch_size))
        leaves = [
            tf.TensorSpec([self.num_envs, *leaf.shape.as_list()], leaf.dtype)
            for leaf in tf.nest.flatten(self._action_spec)
        ]
        self._dtypes = [leaf.dtype for leaf in leaves]
        self._reset = tf.function(lambda: _leaves(env.reset()), input_signature=[])
        self._step = tf.function(
            lambda *own: _leaves(env.step(tf.nest.pack_sequence_as(self._action_spec, own))),
            input_signature=leaves,
        )

    def reset(self) -> Frames:
        """Starts an episode in every environment."""
        return self._frames(self._reset())

    def step(self, action: list[np.ndarray], first: np.ndarray) -> Frames:
        """Takes a step; it starts anew by itself after its last frame."""
        own = [tf.constant(a, d) for a, d in zip(action, self._dtypes, strict=True)]
        seen = self._frames(self._step(*own))
        if self.num_envs == 1 and first[0] and seen.step_type[0] != FIRST:
            return self.reset()
        return seen

    def _frames(self, leaves: list[tf.Tensor]) -> Frames:
        return frames([leaf.numpy() for leaf in leaves])


def make_part(name: str, env: Any) -> Part:
    """Returns the part of an environment of TF-Agents.

    Args:
      name: The id, for messages.
      env: A PyEnvironment or a TFEnvironment. A TFPyEnvironment is taken off its PyEnvironment.

    Raises:
      UserError: For anything else, and for a TFPyEnvironment that has a thread of its own.
    """
    if isinstance(env, TFPyEnvironment):
        # It hands unknown attributes on to the PyEnvironment: ask its own dict.
        if env.__dict__["_pool"] is not None:
            raise UserError(
                name,
                expected="a TFPyEnvironment without a thread of its own",
                got="one with isolation",
                remedy="Return its PyEnvironment: it is called from one thread only.",
            )
        env = env.pyenv
    if isinstance(env, TFEnvironment):
        return GraphPart(name, env)
    if not isinstance(env, PyEnvironment):
        raise UserError(
            name,
            expected="a function that returns a PyEnvironment or TFEnvironment of TF-Agents",
            got=f"one that returns {env!r}",
            remedy="Return such an environment; for others there are the suites gymnasium and "
            "envpool.",
        )
    return BatchedPart(name, env) if env.batched else SinglePart(name, env)


def _implemented(seed: Any, *args: Any) -> bool:
    """Calls a method; tells whether it is implemented."""
    try:
        seed(*args)
    except NotImplementedError:
        return False
    return True


def _told(env: Any) -> bool:
    """What gym's TimeLimit tells of the last step; TF-Agents' GymWrapper forgets it."""
    ask = env.call("get_info") if isinstance(env, ProcessPyEnvironment) else env.get_info
    try:
        info = ask()
    except NotImplementedError:
        return False
    return isinstance(info, Mapping) and bool(info.get(_GYM_TRUNCATED, False))
