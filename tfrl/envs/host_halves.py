"""Double buffering: half of the host environments step while the policy acts for the others."""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.envs.core import Autoreset
from tfrl.envs.host_env import HostEnv, Wrapping
from tfrl.envs.host_rewards import HostReward
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest


class Halves(HostEnv):
    """A `HostEnv` of two halves, which `rollout` steps in turn.

    While the processes or threads of one half step, the policy acts for the other. It helps if both
    take time and there are cores for both. Reward normalisation has separate statistics in each
    half.

    Attributes:
      parts: The halves.
    """

    def __init__(self, *parts: HostEnv):
        """Joins two equal batches of the same task."""
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
        """The number of environments."""
        return sum(part.num_envs for part in self.parts)

    def copy(
        self,
        num_envs: int | None = None,
        render: bool = False,
        autoreset: Autoreset | str | None = None,
    ) -> HostEnv:
        """Returns new environments of the same task, in halves if their number is even."""
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

    @property
    def rewards(self) -> tuple[HostReward, ...]:
        """The maps of the rewards, from the innermost on; equal in all parts."""
        return self.parts[0].rewards

    def tolerant(self) -> HostEnv:
        """Returns new environments in one batch, with tolerated failures; see `HostEnv.tolerant`.

        One batch, since the members of a population act together.
        """
        with self.parts[0].tolerant() as part:
            return part.copy(self.num_envs)

    def with_task_rewards(self) -> HostEnv:
        """Returns these environments, or copies with the task's rewards."""
        plain = [part.with_task_rewards() for part in self.parts]
        same = all(p is q for p, q in zip(plain, self.parts, strict=True))
        return self if same else self._of(plain)

    def _of(self, parts: Sequence[HostEnv]) -> HostEnv:
        """The same structure with other parts."""
        return Halves(*parts)

    def begin(self, seeds: np.ndarray) -> EnvState:
        """Starts an episode in every environment with its seed, int64 `[B]`."""
        own_seeds = np.split(seeds, len(self.parts))
        return join([part.begin(own) for part, own in zip(self.parts, own_seeds, strict=True)])

    def send(self, state: EnvState, action: Nest) -> None:
        """Starts a step in all parts."""
        actions = split(action, len(self.parts))
        for part, own, part_action in zip(self.parts, self.rows_of(state), actions, strict=True):
            part.send(own, part_action)

    def receive(self) -> EnvState:
        """Returns the state after the step started by `send`."""
        return join([part.receive() for part in self.parts])

    def states_of(self, state: EnvState) -> list[EnvState]:
        """Splits a state into the states of the halves."""
        return self.rows_of(state)

    def rows_of(self, state: EnvState) -> list[EnvState]:
        """Splits a state into the states of the parts."""
        tokens = state.env_state["token"]
        rows = split(state.replace(env_state=None), len(self.parts))
        return [own.replace(env_state={"token": t}) for own, t in zip(rows, tokens, strict=True)]

    def close(self) -> None:
        """Closes all parts; a second call does nothing."""
        self.policies.clear()
        self._finalizer()

    def kept_state(self) -> dict[str, Any]:
        """Returns the environments' state for a checkpoint: reward statistics."""
        states = {str(i): part.kept_state() for i, part in enumerate(self.parts)}
        return {name: state for name, state in states.items() if state}

    def load_kept_state(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `kept_state`; call it after `reset`, which clears it."""
        for name, own in state.items():
            self.parts[int(name)].load_kept_state(own)


def buffered(
    name: str, make: Callable[[int], HostEnv], num_envs: int, double_buffer: Any
) -> HostEnv:
    """Makes a batch of host environments, or two halves of it.

    Args:
      name: The id, for messages.
      make: Makes a number of environments.
      num_envs: Total number of environments.
      double_buffer: Whether to make two halves.

    Raises:
      UserError: For an odd number of environments in halves.
    """
    if not isinstance(double_buffer, bool) or double_buffer and num_envs % 2:
        raise UserError(
            f"double_buffer of {name}",
            expected="True or False, and an even number of environments if True",
            got=f"{double_buffer!r} with num_envs={num_envs}",
            remedy=f"Pass num_envs={num_envs + 1}, or leave out double_buffer.",
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
    """Concatenates the rows of states; keeps all tokens."""
    tokens = np.array([s.env_state["token"] for s in states])
    rows = [s.replace(env_state=None) for s in states]
    joined = tf.nest.map_structure(lambda *xs: np.concatenate(xs), *rows)
    return joined.replace(env_state={"token": tokens})
