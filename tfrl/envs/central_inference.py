"""Environments in processes, for which one policy acts as they become ready.

The central inference of SEED RL (https://arxiv.org/abs/1910.06591) on one host.
"""

import time
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any

from tfrl import checks
from tfrl.envs.core import Autoreset
from tfrl.envs.host_env import HostEnv
from tfrl.envs.host_halves import Halves
from tfrl.types import EnvState


class CentralInference(Halves):
    """A `HostEnv` of single environments, each in a process, which a rollout does not hold up.

    `rollout` calls the policy once for all environments that have answered; it waits for others no
    longer than `max_wait_time`. Everything else steps all of them together, as it would others.

    Attributes:
      parts: The environments.
      max_wait_time: Seconds between the first answer and the call of the policy, at most.
    """

    def __init__(self, parts: Sequence[HostEnv], max_wait_time: float):
        """Joins environments of the same task.

        Args:
          parts: One environment each, in a process of its own.
          max_wait_time: Seconds; 0 to wait for none.

        Raises:
          UserError: For a time that is no number of at least 0.
        """
        remedy = "It counts seconds; with 0 no environment waits for others."
        name = f"max_wait_time of {parts[0].backend.name}"
        self.max_wait_time = float(checks.number(name, max_wait_time, 0, remedy=remedy))
        super().__init__(*parts)

    def logic(self) -> Any:
        """Returns what compiled functions may depend on."""
        return type(self), [part.form() for part in self.parts]

    @property
    def halves(self) -> tuple[HostEnv, ...]:
        """All in one: a policy acts for every row."""
        return (self,)

    def copy(
        self,
        num_envs: int | None = None,
        render: bool = False,
        autoreset: Autoreset | str | None = None,
    ) -> HostEnv:
        """Returns others of the same task; with `render` in this process."""
        size, first = num_envs or self.num_envs, self.parts[0]
        if render:
            return first.copy(size, render, autoreset)
        return self._of([first.copy(1, False, autoreset) for _ in range(size)])

    def _of(self, parts: Sequence[HostEnv]) -> HostEnv:
        return CentralInference(parts, self.max_wait_time)

    def states_of(self, state: EnvState) -> list[EnvState]:
        """Returns the state, of which there is one; see `rows_of`."""
        return [state]

    def ready(self, running: Sequence[int]) -> list[int]:
        """Returns which environments have answered, at least one; see `max_wait_time`.

        One that does not answer in its own time counts too: receiving its answer raises.

        Args:
          running: The numbers of those that step.
        """
        backends: list[Any] = [part.backend for part in self.parts]
        pipes = {backends[i].pipe: i for i in running}
        readable = connection.wait(pipes, timeout=backends[0].timeout)
        if not readable:
            return list(running)
        deadline = time.monotonic() + self.max_wait_time
        arrived = {pipes[pipe] for pipe in readable}
        while (left := deadline - time.monotonic()) > 0 and len(arrived) < len(pipes):
            rest = [pipe for pipe, i in pipes.items() if i not in arrived]
            arrived |= {pipes[pipe] for pipe in connection.wait(rest, timeout=left)}
        return sorted(arrived)
