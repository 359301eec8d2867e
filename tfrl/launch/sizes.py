"""The sizes of a job: processes, environments, replay and parameters."""

import collections
import math
from collections.abc import Sequence
from typing import Any

from tfrl.launch import settings, shared_flags
from tfrl.launch.job import COLLECTOR, LEARNER, JobOptions, Role


def checked_workflow(options: JobOptions, num_replicas: int) -> Any:
    """Returns the workflow of a job.

    Args:
      options: The configuration of the job.
      num_replicas: The number of devices of the learner; 1 if it is not known.

    Raises:
      UserError: The gin file's training cannot be distributed over these processes.
    """
    from tfrl.roles import tables

    assembled = settings.assemble(list(options.gin_files), list(options.gin_bindings))
    workflow: Any = assembled.workflow
    shared_flags.check(workflow)
    tables.check_job(
        workflow, options.collectors, options.replay_servers, options.learners, num_replicas
    )
    return workflow


def described(options: JobOptions, job: Sequence[Role], num_replicas: int = 1) -> str:
    """Returns lines with the sizes of a job, for the user.

    Args:
      options: The configuration of the job.
      job: The roles of the job.
      num_replicas: See `checked_workflow`.

    Raises:
      UserError: The gin file's training cannot be distributed.
    """
    from tfrl.replay.reverb.signature import block_of, leaves_of
    from tfrl.roles import parameters, tables

    workflow = checked_workflow(options, num_replicas)
    count = options.collectors
    each = tables.collector_env(workflow, count).num_envs
    numbers = collections.Counter(role.kind for role in job)
    numbers[LEARNER] = options.learners
    kinds = ", ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in numbers.items())
    lines = [
        f"Processes: {sum(numbers.values())} ({kinds})",
        f"Environments: {count * each:,} ({each:,} in each {COLLECTOR})",
    ]
    reports = (tables.HEARTBEATS, tables.EPISODES, tables.STATISTICS)
    servers = options.replay_servers
    each_server = " on each server" if servers > 1 else ""
    for table in tables.make_tables(workflow, count, servers):
        info = table.info
        size = _bytes(info.signature)
        if info.name == parameters.TABLE:
            lines.append(f"Parameters: {_format_bytes(size)}, read by each {COLLECTOR}")
        elif info.name not in reports:
            block = int(block_of(info.signature)) if leaves_of(info.signature)[1] else 1
            items = f"blocks of {block} transitions, each" if block > 1 else "items"
            lines.append(
                f"Table {info.name!r}: up to {info.max_size:,} {items} of {_format_bytes(size)}"
                f"{each_server}, {_format_bytes(size * info.max_size)} before compression"
            )
    return "\n".join(lines)


def _bytes(signature: Any) -> int:
    """Returns the bytes of one item."""
    import tensorflow as tf

    specs = tf.nest.flatten(signature)
    return sum(math.prod(spec.shape.as_list()) * spec.dtype.size for spec in specs)


def _format_bytes(size: float) -> str:
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"
