"""`bin/collect.py`: collects experience for a learner in another process."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from absl import flags

from tfrl.errors import UserError
from tfrl.launch import app, shared_flags
from tfrl.launch import flags as common_flags
from tfrl.launch.termination import Termination

if TYPE_CHECKING:
    from tfrl.workflows import OffPolicyWorkflow, Workflow

DOC = """Collects experience for tfrl-learn, with its parameters, into tfrl-reverb-server.

  tfrl-collect --gin_file=dqn/gymnasium_cartpole.gin --replay_server=localhost:8000 \\
      --num_tasks=2 --task_id=0

A collector ends with its run. The same command restarts a collector that was killed. If the run
has ended by then, it waits for the learner of the next one, at most --wait_seconds."""

_RATE_SECONDS = 30.0  # between two lines with the rate

shared_flags.define("replay_server", "variable_server", "pull_seconds", "wait_seconds")
flags.DEFINE_integer("task_id", 0, "Index of this collector, from 0.", lower_bound=0)
flags.DEFINE_integer("num_tasks", 1, "Number of collectors.", lower_bound=1)


def main() -> int:
    """Plays until the run has ended or a signal comes; returns the exit code."""
    termination = Termination()
    termination.install()
    values, server = common_flags.common(), shared_flags.replay_server()
    task_id, num_tasks = flags.FLAGS.task_id, flags.FLAGS.num_tasks
    if task_id >= num_tasks:
        raise UserError(
            f"--task_id={task_id}",
            expected=f"a number below --num_tasks={num_tasks}",
            got=str(task_id),
            remedy="Number the collectors from 0.",
        )
    if not values.gin_file:
        raise UserError(
            "--gin_file",
            expected="the gin file of the training",
            got="no value",
            remedy="Pass the same file as to tfrl-learn.",
        )
    shared_flags.pull_seconds()
    shared_flags.wait_seconds()
    from tfrl.launch import gin_files

    # Reports a missing file or a typo before TensorFlow is imported.
    gin_files.read(values.gin_file, values.gin_bindings)
    common_flags.configure_tensorflow(values)
    from tfrl.launch import settings

    assembled = settings.assemble(values.gin_file, values.gin_bindings)
    # A signal while it waits for other processes ends it at once.
    with (
        contextlib.closing(_collector(assembled.workflow, server)) as collector,
        termination.deferred(),
    ):
        app.say(f"Collector {task_id} of {num_tasks} plays.")
        collector.run(_with_rate(collector, lambda: termination.requested))
        app.say(
            f"Collector {task_id}: {collector.env_steps:,} env steps, "
            f"{collector.episodes:,} episodes."
        )
    code = termination.exit_code if termination.requested else 0
    from tfrl.replay.reverb import cancellable_call

    if cancellable_call.has_left_behind():
        cancellable_call.end_process(code)  # an orderly exit could wait for a lost server
    return code


def _with_rate(collector: Any, stops: Callable[[], bool]) -> Callable[[], bool]:
    """Returns `stops`, whose calls also print the collector's env steps/s now and then."""
    began, steps = time.monotonic(), collector.env_steps

    def look() -> bool:
        nonlocal began, steps
        seconds = time.monotonic() - began
        if seconds >= _RATE_SECONDS:
            rate = (collector.env_steps - steps) / seconds
            count = f"{collector.env_steps:,} env steps"
            app.say(f"Collector {collector.task_id}: {count}, {rate:,.0f}/s")
            began, steps = time.monotonic(), collector.env_steps
        return stops()

    return look


def _collector(workflow: Workflow, server: str) -> Any:
    from tfrl.roles.collector import ReplayCollector, RolloutCollector
    from tfrl.workflows import OnPolicyWorkflow

    values = flags.FLAGS
    common: dict[str, Any] = {
        "task_id": values.task_id,
        "num_tasks": values.num_tasks,
        "seed": common_flags.common().seed,
        "pull_seconds": shared_flags.pull_seconds(),
        "wait_seconds": shared_flags.wait_seconds(),
        "log": app.say,
    }
    if isinstance(workflow, OnPolicyWorkflow):
        shared_flags.refuse_variable_server()
        return RolloutCollector(workflow, server, **common)
    workflow = cast("OffPolicyWorkflow", workflow)  # ReplayCollector rejects others
    return ReplayCollector(workflow, server, values.variable_server, **common)


def run() -> None:
    """Entry point of `tfrl-collect` and `bin/collect.py`."""
    without = ("root_dir", "if_exists", "strategy", "tpu", "num_logical_cpus", "allow_code")
    app.run(main, doc=DOC, argv=sys.argv, without=without)
