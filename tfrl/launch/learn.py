"""`bin/learn.py`: trains from the experience of collectors in other processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from absl import flags

from tfrl.launch import app, shared_flags, train

DOC = """Trains an agent on experience from bin/collect.py in other processes.

  tfrl-reverb-server --gin_file=dqn/gymnasium_cartpole.gin --port=8000 --num_collectors=2 \\
      --root_dir=runs/server
  tfrl-learn --gin_file=dqn/gymnasium_cartpole.gin --replay_server=localhost:8000 \\
      --root_dir=runs/learner
  tfrl-collect --gin_file=dqn/gymnasium_cartpole.gin --replay_server=localhost:8000 \\
      --num_tasks=2 --task_id=0

The other flags are as in tfrl-train, which trains in one process. tfrl-launch starts all
three programs."""

shared_flags.define(
    "replay_server", "variable_server", "synchronous", "max_policy_lag", "wait_seconds"
)

if TYPE_CHECKING:
    from tfrl.workflows import OffPolicyWorkflow, Workflow


def prepare(workflow: Workflow, stops: Callable[[], bool]) -> None:
    """Connects a workflow with its collectors, as the flags say.

    Args:
      workflow: The workflow of the gin file.
      stops: Returns whether a signal came.

    Raises:
      UserError: The workflow cannot be distributed, or other processes time out.
    """
    from tfrl.roles.remote_collectors import ReplayCollectors, RolloutCollectors
    from tfrl.workflows import OnPolicyWorkflow

    values, server = flags.FLAGS, shared_flags.replay_server()
    common: dict[str, Any] = {
        "wait_seconds": shared_flags.wait_seconds(),
        "log": app.say,
        "stops": stops,
    }
    if isinstance(workflow, OnPolicyWorkflow):
        shared_flags.refuse_variable_server()
        asked = {"auto": None, "true": True, "false": False}[values.synchronous]
        RolloutCollectors(
            workflow,
            server,
            synchronous=asked,
            max_policy_lag=values.max_policy_lag,
            **common,
        )
    else:
        shared_flags.check(workflow)
        workflow = cast("OffPolicyWorkflow", workflow)  # ReplayCollectors rejects others
        ReplayCollectors(workflow, server, values.variable_server, **common)


def main() -> int:
    """Trains as the flags say; returns the exit code."""
    shared_flags.replay_server()  # before TensorFlow is imported
    shared_flags.wait_seconds()
    code = train.main(prepare)
    from tfrl.replay.reverb import cancellable_call

    if cancellable_call.has_left_behind():
        cancellable_call.end_process(code)  # an orderly exit could wait for other processes
    return code


def run() -> None:
    """Entry point of `tfrl-learn` and `bin/learn.py`."""
    # Collectors have the environments; --wait_seconds bounds the wait for a lost server.
    app.run(main, doc=DOC, argv=sys.argv, without=("check_env", "replay_reconnect_seconds"))
