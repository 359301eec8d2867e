"""Two halves of a batch of host environments: one steps while the other's actions are computed."""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.envs.core import Autoreset
from tfrl.envs.host_env import HostEnv, Wrapping, row_seeds
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest


class Halves(HostEnv):
    """A `HostEnv` made of two of half its size, which `rollout` steps in turn.

    While the processes or threads of one half step, the policy acts for the other. It pays where
    both take time and there are cores for both. A reward that is normalised has statistics of its
    own in each half.

    Attributes:
      parts: The halves.
    """

    def __init__(self, *parts: HostEnv):
        """Joins two batches of the same task, the first rows and as many further ones."""
        self.parts = parts
        self.backend = parts[0].backend
        self._mode = parts[0].autoreset
        self.policies: dict[Any, Any] = {}
        self._finalizer = weakref.finalize(self, _close, self.parts)

    @property
    def halves(self) -> tuple[HostEnv, ...]:
        """The two batches."""
        return self.parts

    @property
    def num_envs(self) -> int:
        """How many environments there are."""
        return sum(part.num_envs for part in self.parts)

    def copy(
        self,
        num_envs: int | None = None,
        render: bool = False,
        autoreset: Autoreset | str | None = None,
    ) -> HostEnv:
        """Returns others of the same task, in halves too unless they are odd in number."""
        size = num_envs or self.num_envs
        if size % 2 or render:
            return self.parts[0].copy(size, render, autoreset)
        halves = (part.copy(size // 2, render, autoreset) for part in self.parts)
        return self._of(list(halves))

    def wrapped(self, wrappers: Iterable[Wrapping]) -> HostEnv:
        """Wraps all parts; see `HostEnv.wrapped`."""
        wrappers = list(wrappers)
        for part in self.parts:
            part.wrapped(wrappers)
        return self

    def with_task_rewards(self) -> HostEnv:
        """Returns these environments, or copies that pay the rewards of the task."""
        plain = [part.with_task_rewards() for part in self.parts]
        same = all(p is q for p, q in zip(plain, self.parts, strict=True))
        return self if same else self._of(plain)

    def _of(self, parts: Sequence[HostEnv]) -> HostEnv:
        """Other parts, used as these are."""
        return Halves(*parts)

    def reset(self, key: Any) -> EnvState:
        """Starts an episode in every environment, with the seeds that one batch would have."""
        seeds = np.split(row_seeds(key, self.num_envs), len(self.parts))
        return join([part.begin(own) for part, own in zip(self.parts, seeds, strict=True)])

    def send(self, state: EnvState, action: Nest) -> None:
        """Starts a step in all parts."""
        actions = split(action, len(self.parts))
        for part, own, given in zip(self.parts, self.rows_of(state), actions, strict=True):
            part.send(own, given)

    def receive(self) -> EnvState:
        """Returns the state after the step that `send` began."""
        return join([part.receive() for part in self.parts])

    def states_of(self, state: EnvState) -> list[EnvState]:
        """Splits a state into those of the halves."""
        return self.rows_of(state)

    def rows_of(self, state: EnvState) -> list[EnvState]:
        """Splits a state into those of the parts."""
        tokens = state.env_state["token"]
        rows = split(state.replace(env_state=None), len(self.parts))
        return [own.replace(env_state={"token": t}) for own, t in zip(rows, tokens, strict=True)]

    def close(self) -> None:
        """Frees all parts; a second call does nothing."""
        self.policies.clear()
        self._finalizer()

    def kept_state(self) -> dict[str, Any]:
        """Returns what a checkpoint has to hold of the environments: statistics of rewards."""
        states = {str(i): part.kept_state() for i, part in enumerate(self.parts)}
        return {name: state for name, state in states.items() if state}

    def load_kept_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `kept_state` returned; after `reset`, which forgets it."""
        for name, own in state.items():
            self.parts[int(name)].load_kept_state(own)


def buffered(
    name: str, make: Callable[[int], HostEnv], num_envs: int, double_buffer: Any
) -> HostEnv:
    """Makes a batch of host environments, or two halves of it.

    Args:
      name: The id, for messages.
      make: Makes some number of environments.
      num_envs: How many in all.
      double_buffer: Whether two halves are made.

    Raises:
      UserError: For an odd number of environments in halves.
    """
    if not isinstance(double_buffer, bool) or double_buffer and num_envs % 2:
        raise UserError(
            f"double_buffer of {name}",
            expected="True or False; True for an even number of environments",
            got=f"{double_buffer!r} with num_envs={num_envs}",
            remedy=f"Give num_envs={num_envs + 1}, or leave it out.",
        )
    return Halves(make(num_envs // 2), make(num_envs // 2)) if double_buffer else make(num_envs)


def _close(parts: tuple[HostEnv, ...]) -> None:
    for part in parts:
        part.close()


def split(nest: Nest, count: int = 2) -> list[Nest]:
    """Splits every leaf `[B, ...]` into equal parts."""
    leaves = [np.split(np.asarray(x), count) for x in tf.nest.flatten(nest)]
    return [tf.nest.pack_sequence_as(nest, [x[i] for x in leaves]) for i in range(count)]


def join(states: list[EnvState]) -> EnvState:
    """Puts the rows of states together; the tokens stay side by side."""
    tokens = np.array([s.env_state["token"] for s in states])
    rows = [s.replace(env_state=None) for s in states]
    joined = tf.nest.map_structure(lambda *xs: np.concatenate(xs), *rows)
    return joined.replace(env_state={"token": tokens})
