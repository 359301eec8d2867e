"""The processes of a distributed run and their command lines, for every engine."""

import dataclasses
import json
import shlex
from collections.abc import Sequence

SERVER, LEARNER, COLLECTOR, EVALUATOR = "server", "learner", "collector", "evaluator"
# Subfolder of `JobOptions.root_dir`, the learner's run folder.
SERVERS = "servers"
# Subfolder of a server's --root_dir, which may also be the run folder of a training.
SERVER_CHECKPOINTS = "replay_checkpoints"
# Environment variable with the name of the process, which the engines of this machine set.
ROLE_VARIABLE = "TFRL_ROLE"


@dataclasses.dataclass(frozen=True)
class Role:
    """One process of a job.

    Attributes:
      kind: "server", "learner", "collector" or "evaluator".
      index: Its number among the processes of its kind, from 0.
      binary: The module of `tfrl.launch` that it runs.
      flags: The arguments of the binary.
      environment: Names and values of environment variables.
    """

    kind: str
    index: int
    binary: str
    flags: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The name, for example "collector-1"."""
        return f"{self.kind}-{self.index}"

    @property
    def command(self) -> tuple[str, ...]:
        """The command that a user would type."""
        return (f"tfrl-{self.binary.replace('_', '-')}", *self.flags)

    @property
    def typed(self) -> str:
        """The command with its environment variables, quoted for a shell."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in self.environment]
        return " ".join([*assignments, shlex.join(self.command)])

    def as_worker(self, addresses: Sequence[str]) -> "Role":
        """Returns the role with TF_CONFIG for the worker of its index.

        Args:
          addresses: "host:port" of each worker.
        """
        task = {"type": "worker", "index": self.index}
        config = json.dumps({"cluster": {"worker": list(addresses)}, "task": task})
        return dataclasses.replace(self, environment=(("TF_CONFIG", config),))


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """The configuration of a job.

    Attributes:
      gin_files: See `tfrl-train`.
      gin_bindings: See `tfrl-train`.
      root_dir: The run folder.
      seed: The run's seed.
      collectors: The number of collectors.
      replay_servers: The number of servers that share the replay buffer.
      evaluators: The number of processes that evaluate checkpoints: 0 or 1.
      wait_seconds: Seconds that processes wait for each other.
      common_flags: More flags of all processes.
      learner_flags: More flags of the learner.
      collector_flags: More flags of each collector.
      learners: The number of workers of the learner; several connect through TF_CONFIG.
    """

    gin_files: tuple[str, ...]
    gin_bindings: tuple[str, ...]
    root_dir: str
    seed: int
    collectors: int
    replay_servers: int
    evaluators: int
    wait_seconds: float
    common_flags: tuple[str, ...] = ()
    learner_flags: tuple[str, ...] = ()
    collector_flags: tuple[str, ...] = ()
    learners: int = 1

    def learner_flag(self, name: str) -> str | None:
        """Returns the value of a flag in `learner_flags`; None without it."""
        values = [f.partition("=")[2] for f in self.learner_flags if f.startswith(f"--{name}=")]
        return values[-1] if values else None

    def on_tpu(self, tpu: str) -> "JobOptions":
        """Returns the options with a learner on a TPU.

        Args:
          tpu: The value of its flag `--tpu`.
        """
        kept = [f for f in self.learner_flags if not f.startswith(("--strategy=", "--tpu="))]
        return dataclasses.replace(self, learner_flags=(*kept, "--strategy=tpu", f"--tpu={tpu}"))


def roles(
    options: JobOptions,
    addresses: Sequence[str],
    *,
    bind: str = "",
    learner_addresses: Sequence[str] = (),
) -> list[Role]:
    """Returns the processes of a job, servers first.

    Args:
      options: The configuration of the job.
      addresses: "host:port" of each server, as other processes reach it.
      bind: The servers' bind address, see `bin/reverb_server.py --bind`; "" for this machine only.
      learner_addresses: "host:port" of each of several workers of the learner; empty if the engine
        sets TF_CONFIG.
    """
    experiment = [
        *(f"--gin_file={file}" for file in options.gin_files),
        *(f"--gin_bindings={binding}" for binding in options.gin_bindings),
        *options.common_flags,
    ]
    seed = f"--seed={options.seed}"
    meeting = [
        *experiment,
        seed,
        f"--replay_server={','.join(addresses)}",
        f"--wait_seconds={options.wait_seconds:g}",
    ]
    root, count = options.root_dir, options.collectors
    result = []
    for i, address in enumerate(addresses):
        serving = [
            f"--port={address.rpartition(':')[2]}",
            f"--num_collectors={count}",
            f"--num_servers={len(addresses)}",
            f"--root_dir={root.rstrip('/')}/{SERVERS}/{i}",
        ]
        if bind:
            serving.append(f"--bind={bind}")
        result.append(Role(SERVER, i, "reverb_server", (*experiment, *serving)))
    learning = [f"--root_dir={root}", *options.learner_flags]
    for i in range(max(len(learner_addresses), 1)):
        learner = Role(LEARNER, i, "learn", (*meeting, *learning))
        result.append(learner.as_worker(learner_addresses) if learner_addresses else learner)
    for i in range(count):
        flags = [*meeting, f"--task_id={i}", f"--num_tasks={count}", *options.collector_flags]
        result.append(Role(COLLECTOR, i, "collect", tuple(flags)))
    if options.evaluators:
        # The gin files allow it to import the modules that the run folder names; until the learner
        # writes the folder, it has an earlier start's configuration. The engine watches the
        # learner, so the evaluator waits for checkpoints without a limit.
        heartbeats = f"--heartbeat_server={addresses[0]}"
        flags = [*experiment, seed, f"--root_dir={root}", "--watch", heartbeats]
        flags.append("--wait_seconds=inf")
        result.append(Role(EVALUATOR, 0, "evaluate", tuple(flags)))
    return result
