"""Environments in processes, with one policy that acts as they become ready.

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
    """A `HostEnv` of single environments, each in its own process, stepped asynchronously.

    `rollout` calls the policy once for all environments that have answered; it waits at most
    `max_wait_time` for others. All other code steps all of them together.

    Attributes:
      parts: The environments.
      max_wait_time: Maximum seconds between the first answer and the policy call.
    """

    def __init__(self, parts: Sequence[HostEnv], max_wait_time: float):
        """Joins environments of the same task.

        Args:
          parts: One environment each, in its own process.
          max_wait_time: Seconds; 0 to not wait.

        Raises:
          UserError: For a time that is not a number >= 0.
        """
        remedy = "Pass the time in seconds, or 0 to not wait."
        name = f"max_wait_time of {parts[0].backend.name}"
        self.max_wait_time = float(checks.number(name, max_wait_time, 0, remedy=remedy))
        super().__init__(*parts)

    def logic(self) -> Any:
        """Returns the key of compiled functions."""
        return type(self), [part.form() for part in self.parts]

    @property
    def halves(self) -> tuple[HostEnv, ...]:
        """A single batch: the policy acts for every row."""
        return (self,)

    def copy(
        self,
        num_envs: int | None = None,
        render: bool = False,
        autoreset: Autoreset | str | None = None,
    ) -> HostEnv:
        """Returns new environments of the same task; with `render`, in this process."""
        size, first = num_envs or self.num_envs, self.parts[0]
        if render:
            return first.copy(size, render, autoreset)
        return self._of([first.copy(1, False, autoreset) for _ in range(size)])

    def _of(self, parts: Sequence[HostEnv]) -> HostEnv:
        return CentralInference(parts, self.max_wait_time)

    def states_of(self, state: EnvState) -> list[EnvState]:
        """Returns the single state; see `rows_of`."""
        return [state]

    def ready(self, running: Sequence[int]) -> list[int]:
        """Returns the indices of at least one environment that has answered.

        Waits up to `max_wait_time` for the others. A timed-out environment is included: receiving
        from it raises.

        Args:
          running: The indices of the stepping environments.
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
