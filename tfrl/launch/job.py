"""The processes of a distributed run: what each is called with, whatever starts it."""

import dataclasses
import json
import shlex
from collections.abc import Sequence

SERVER, LEARNER, COLLECTOR, EVALUATOR = "server", "learner", "collector", "evaluator"
# Of `JobOptions.root_dir`, which is the learner's run folder.
SERVERS = "servers"


@dataclasses.dataclass(frozen=True)
class Role:
    """One process of a job.

    Attributes:
      kind: "server", "learner", "collector" or "evaluator".
      index: Its number among those of its kind, from 0.
      binary: The module of `tfrl.launch` that it runs.
      flags: Its command line, behind the binary.
      environment: Names and values of environment variables.
    """

    kind: str
    index: int
    binary: str
    flags: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Such as "collector-1"."""
        return f"{self.kind}-{self.index}"

    @property
    def command(self) -> tuple[str, ...]:
        """The command that a user would type."""
        return (f"tfrl-{self.binary.replace('_', '-')}", *self.flags)

    @property
    def typed(self) -> str:
        """The command with its environment variables, as a shell takes it."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in self.environment]
        return " ".join([*assignments, shlex.join(self.command)])

    def as_worker(self, addresses: Sequence[str]) -> "Role":
        """Returns it as the worker of its number among others.

        Args:
          addresses: "host:port" of each of them.
        """
        task = {"type": "worker", "index": self.index}
        config = json.dumps({"cluster": {"worker": list(addresses)}, "task": task})
        return dataclasses.replace(self, environment=(("TF_CONFIG", config),))


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """What a job is made of.

    Attributes:
      gin_files: As of `tfrl-train`.
      gin_bindings: Likewise.
      root_dir: The run folder.
      seed: Of the run.
      collectors: How many processes play.
      replay_servers: How many servers share the replay buffer.
      evaluators: How many follow the checkpoints: 0 or 1.
      wait_seconds: How long processes wait for each other.
      learner_flags: More flags of the learner.
      learners: How many workers the learner has; several meet through TF_CONFIG.
    """

    gin_files: tuple[str, ...]
    gin_bindings: tuple[str, ...]
    root_dir: str
    seed: int
    collectors: int
    replay_servers: int
    evaluators: int
    wait_seconds: float
    learner_flags: tuple[str, ...] = ()
    learners: int = 1


def roles(
    options: JobOptions,
    addresses: Sequence[str],
    *,
    bind: str = "",
    learner_addresses: Sequence[str] = (),
) -> list[Role]:
    """Returns the processes of a job, servers first.

    Args:
      options: What it is made of.
      addresses: "host:port" of each server, as the others reach it.
      bind: Who may reach it, as `bin/reverb_server.py --bind`; "" for this machine alone.
      learner_addresses: "host:port" of each worker of the learner, where there are several; empty
        where the engine gives them TF_CONFIG.
    """
    experiment = [
        *(f"--gin_file={file}" for file in options.gin_files),
        *(f"--gin_bindings={binding}" for binding in options.gin_bindings),
        f"--seed={options.seed}",
    ]
    meeting = [
        *experiment,
        f"--replay_server={','.join(addresses)}",
        f"--wait_seconds={options.wait_seconds:g}",
    ]
    root, count = options.root_dir, options.collectors

    def made(kind: str, index: int, binary: str, flags: Sequence[str]) -> Role:
        return Role(kind, index, binary, tuple(flags))

    result = []
    for i, address in enumerate(addresses):
        serving = [
            f"--port={address.rpartition(':')[2]}",
            f"--num_collectors={count}",
            f"--root_dir={root.rstrip('/')}/{SERVERS}/{i}",
        ]
        if len(addresses) > 1:
            serving.append(f"--num_servers={len(addresses)}")
        if bind:
            serving.append(f"--bind={bind}")
        result.append(made(SERVER, i, "reverb_server", [*experiment, *serving]))
    learning = [f"--root_dir={root}", *options.learner_flags]
    for i in range(max(len(learner_addresses), 1)):
        learner = made(LEARNER, i, "learn", [*meeting, *learning])
        result.append(learner.as_worker(learner_addresses) if learner_addresses else learner)
    for i in range(count):
        flags = [*meeting, f"--task_id={i}", f"--num_tasks={count}"]
        result.append(made(COLLECTOR, i, "collect", flags))
    if options.evaluators:
        flags = [f"--root_dir={root}", "--watch", f"--wait_seconds={options.wait_seconds:g}"]
        result.append(made(EVALUATOR, 0, "evaluate", flags))
    return result
