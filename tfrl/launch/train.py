"""`bin/train.py`: trains the workflow of gin files in a run folder, which it can resume."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags

from tfrl.distribute.choice import choose
from tfrl.errors import UserError
from tfrl.launch import api, app, gin_files, run_config, shared_flags
from tfrl.launch import flags as common_flags
from tfrl.launch.termination import Termination
from tfrl.storage import working_copy

DOC = """Trains an agent. Without --gin_file: PPO on CartPole (ppo/tf_cartpole.gin).

  tfrl-train --gin_file=ppo/tf_pendulum.gin --root_dir=runs/pendulum
  tfrl-train --gin_bindings='make_env.num_envs=128' --total_env_steps=1_000_000
  tfrl-train --root_dir=runs/pendulum --total_env_steps=2_000_000

The same command resumes a stopped run. --root_dir alone also resumes it, on any machine: the folder
holds the configuration and the seed. Without --root_dir the folder is named after the gin file:
runs/ppo_tf_cartpole."""

DEFAULT_GIN_FILE = "ppo/tf_cartpole.gin"

shared_flags.define("replay_server", "total_env_steps")
flags.DEFINE_boolean("check_env", True, "Check the environments shortly before training.")
flags.DEFINE_integer(
    "video_interval",
    None,
    "Env steps between videos of the policy in training, as train.video_interval; 0 for only the "
    "last one.",
    lower_bound=0,
)
flags.DEFINE_float(
    "replay_reconnect_seconds",
    None,
    "Seconds to wait for a lost --replay_server; by default its loss ends the training.",
    lower_bound=0.0,
)

if TYPE_CHECKING:
    from tfrl.workflows import Workflow


def main(prepare: Callable[[Any, Callable[[], bool]], None] | None = None) -> int:
    """Trains as the flags say; returns the exit code.

    Args:
      prepare: Called before the training, in the place of --replay_server, with the workflow and
        with a function that returns whether a signal came.
    """
    started = time.monotonic()
    termination = Termination()
    termination.install()
    values = common_flags.common()
    chosen = choose(values.strategy, tpu=values.tpu, num_logical_cpus=values.num_logical_cpus)
    # Reports a missing file or a typo before TensorFlow is imported.
    if not values.gin_file and values.if_exists == "resume" and run_config.holds(values.root_dir):
        files = run_config.read(
            values.root_dir, (), values.gin_bindings, allow_code=values.allow_code
        )
        seed = None if flags.FLAGS["seed"].present else run_config.seed(values.root_dir)
        values = values if seed is None else dataclasses.replace(values, seed=seed)
    else:
        files = list(values.gin_file) or [DEFAULT_GIN_FILE]
        gin_files.read(files, values.gin_bindings)
    bindings = shared_flags.with_budget(files, values.gin_bindings)
    values = dataclasses.replace(values, gin_bindings=bindings)
    common_flags.configure_tensorflow(values)
    from tfrl.launch import settings

    assembled, strategy = api.assemble(
        lambda: settings.assemble(files, values.gin_bindings),
        lambda: common_flags.strategy_from_flags(values, log=app.say),
        chosen,
        values.root_dir if values.if_exists == "resume" else None,
    )
    if flags.FLAGS.quiet:
        assembled = assembled.replace(progress=False)
    if flags.FLAGS.video_interval is not None:
        assembled = assembled.replace(video_interval=flags.FLAGS.video_interval)
    if prepare is not None:
        # A folder that cannot be reached is an error before a wait for servers.
        working_copy.local(values.root_dir or api.default_root_dir(files))
        prepare(assembled.workflow, lambda: termination.requested)
    elif flags.FLAGS.replay_server is not None:
        reconnect_seconds = flags.FLAGS.replay_reconnect_seconds
        use_replay_server(assembled.workflow, flags.FLAGS.replay_server, reconnect_seconds)
    return api.start(
        assembled,
        values,
        values.root_dir or api.default_root_dir(files),
        strategy,
        termination,
        started,
        check_env=prepare is None and flags.FLAGS.check_env,
    )


def use_replay_server(
    workflow: Workflow, address: str, reconnect_seconds: float | None = None
) -> None:
    """Sets a workflow's replay server, and waits for it.

    Args:
      workflow: The workflow.
      address: "host:port".
      reconnect_seconds: Seconds to wait for a lost server.

    Raises:
      UserError: The workflow has no replay buffer; the server does not answer in time, or has
        other tables.
    """
    from tfrl.workflows import OffPolicyWorkflow
    from tfrl.workflows.checks import on_reverb

    if not isinstance(workflow, OffPolicyWorkflow):
        raise UserError(
            "--replay_server",
            expected="a workflow with a replay buffer: OffPolicyWorkflow",
            got=type(workflow).__name__,
        )
    workflow.use_replay_server(address, reconnect_seconds)
    replay = on_reverb(workflow.replay)
    from tfrl.replay.reverb.connection import await_server, await_tables
    from tfrl.replay.reverb.library import reverb
    from tfrl.replay.reverb.tables import HEARTBEATS

    # Waits here, so that a wrong address creates no folder.
    info = await_server(address, reverb().Client(address), replay.timeout, app.say)
    if HEARTBEATS in info:
        raise UserError(
            f"--replay_server={address}",
            expected="the server of a training in one process",
            got="one of a training with collectors",
            remedy="Use tfrl-learn, or start tfrl-reverb-server without --num_collectors.",
        )
    await_tables(replay, app.say)


def run() -> None:
    """Entry point of `tfrl-train` and `bin/train.py`."""
    app.run(main, doc=DOC, argv=sys.argv)
