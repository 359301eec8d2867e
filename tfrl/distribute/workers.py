"""The processes that train together, from TF_CONFIG or a strategy; needs no TensorFlow."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tfrl.errors import UserError

_JOBS = ("chief", "worker")
_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)


@dataclasses.dataclass(frozen=True)
class Workers:
    """The processes that train together, and the index of this process.

    Attributes:
      tasks: `(job, index)` of each process, in the order of their replicas; the chief first.
      addresses: `host:port` of each process.
      index: The index of this process in `tasks`.
    """

    tasks: tuple[tuple[str, int], ...] = (("worker", 0),)
    addresses: tuple[str, ...] = ("localhost:0",)
    index: int = 0

    @property
    def count(self) -> int:
        """The number of processes."""
        return len(self.tasks)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.index == 0

    @property
    def others(self) -> tuple[int, ...]:
        """The indices of all other processes."""
        return tuple(i for i in range(self.count) if i != self.index)

    def cluster(self) -> dict[str, list[str]]:
        """Returns `{job: addresses}`, the form of TensorFlow's ClusterSpec."""
        jobs: dict[str, list[str]] = {}
        for (job, _), address in zip(self.tasks, self.addresses, strict=True):
            jobs.setdefault(job, []).append(address)
        return jobs

    def name(self, place: int) -> str:
        """Returns the name of a process for messages, for example `worker 1 (host1:2222)`."""
        job, index = self.tasks[place]
        task = job if job == "chief" else f"{job} {index}"
        return f"{task} ({self.addresses[place]})"

    def names(self, places: Any) -> str:
        """Returns the names of several processes, in their order."""
        return ", ".join(self.name(i) for i in sorted(places))


def from_tf_config(environ: Mapping[str, str]) -> Workers | None:
    """Reads the variable TF_CONFIG.

    Args:
      environ: The environment, usually `os.environ`.

    Returns:
      The processes; None if the variable is missing or names no cluster.

    Raises:
      UserError: The variable is malformed; the message lists all problems.
    """
    text = environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise _malformed(
            [f"invalid JSON: {error.msg} at character {error.pos}: {_short(text)}"]
        ) from error
    if not isinstance(config, dict):
        raise _malformed([f"{_short(text)}, which is not an object"])
    cluster = config.get("cluster")
    if not cluster:
        if "task" in config:
            raise _malformed(["a task, but no cluster"])
        return None
    problems, jobs = _cluster_problems(cluster)
    task, task_problems = _task(config.get("task"), jobs)
    if problems or task_problems:
        raise _malformed(problems + task_problems)
    tasks = tuple((job, i) for job in _JOBS for i in range(len(jobs.get(job, ()))))
    return Workers(
        tasks=tasks,
        addresses=tuple(jobs[job][i] for job, i in tasks),
        index=tasks.index(task),
    )


def workers_of(strategy: Any = None) -> Workers:
    """Returns the processes of a strategy; several only for a MultiWorkerMirroredStrategy.

    Args:
      strategy: A tf.distribute strategy, or None for one process.
    """
    # A TPU strategy also has a cluster, but only one process drives it.
    if strategy is None or not hasattr(strategy.extended, "_id_in_cluster"):
        return Workers()
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec().as_dict()
    tasks = tuple((job, i) for job in _JOBS for i in range(len(spec.get(job, ()))))
    if not tasks:
        return Workers()
    return Workers(
        tasks=tasks,
        addresses=tuple(spec[job][i] for job, i in tasks),
        index=tasks.index((resolver.task_type, resolver.task_id)),
    )


def _cluster_problems(cluster: Any) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the problems of the cluster, and its jobs as far as they are readable."""
    if not isinstance(cluster, dict):
        return [f"cluster {_short(cluster)}, which is not an object of jobs"], {}
    problems: list[str] = []
    jobs: dict[str, list[str]] = {}
    for job, addresses in cluster.items():
        if job not in _JOBS:
            problems.append(f"the job '{job}' (known: {', '.join(_JOBS)})")
        elif not isinstance(addresses, list) or not addresses:
            problems.append(f"addresses of '{job}' that are no list: {_short(addresses)}")
        else:
            jobs[job] = [str(a) for a in addresses]
            problems += [f"the address '{a}', not host:port" for a in jobs[job] if not _valid(a)]
    if len(jobs.get("chief", ())) > 1:
        problems.append(f"{len(jobs['chief'])} chiefs (at most one)")
    every = [a for addresses in jobs.values() for a in addresses]
    twice = sorted({a for a in every if every.count(a) > 1})
    problems += [f"the address {a} more than once" for a in twice]
    return problems, jobs


def _task(task: Any, jobs: dict[str, list[str]]) -> tuple[tuple[str, int], list[str]]:
    """Returns the task of this process, and its problems."""
    none = ("", -1)
    if not isinstance(task, dict) or not {"type", "index"} <= task.keys():
        got = "no task" if task is None else f"the task {_short(task)}"
        return none, [f"{got} (needs type and index of this process)"]
    job, index = task["type"], task["index"]
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    if job not in jobs:
        if isinstance(job, str) and jobs and job in _JOBS:
            return none, [f"the task type '{job}', of which the cluster has none"]
        return none, [f"the task type {_short(job)}"] if jobs else []
    count = len(jobs[job])
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        return none, [f"the task index {_short(index)} of {count} {job}{'s' * (count != 1)}"]
    return (job, index), []


def _valid(address: str) -> bool:
    host, colon, port = address.rpartition(":")
    return bool(host and colon and port.isdecimal() and 0 < int(port) < 65536)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"'{text[:60]}...'" if len(text) > 63 else f"'{text}'"


def _malformed(problems: list[str]) -> UserError:
    return UserError(
        "TF_CONFIG",
        expected=f"a description of the workers like {_EXAMPLE}",
        got="; ".join(problems),
        remedy="Correct the variable, or unset it to train in one process.",
    )
