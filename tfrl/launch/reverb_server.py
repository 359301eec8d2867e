"""`bin/reverb_server.py`: serves the replay tables of an experiment's gin file."""

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from absl import flags

from tfrl.errors import UnavailableError, UserError
from tfrl.launch import app
from tfrl.launch import flags as common_flags
from tfrl.launch.job import ROLE_VARIABLE, SERVER_CHECKPOINTS
from tfrl.launch.termination import Termination

if TYPE_CHECKING:
    from tfrl.replay.reverb.server import ReverbServer

DOC = """Serves the replay tables of a training, for tfrl-train --replay_server=host:port.

  tfrl-reverb-server --gin_file=my_experiment.gin --port=8000 --root_dir=runs/replay

With --num_collectors=N it serves bin/learn.py and N processes of bin/collect.py, and also has a
table of parameters.

The training's gin file defines the tables. The same command resumes from the last checkpoint under
--root_dir; SIGTERM and Ctrl-C also write a checkpoint. On-policy there is nothing to keep."""

_LOOK_SECONDS = 0.2
# Seconds between two looks for checkpoints of clients: each is read once, on a full disk again.
_ADOPT_SECONDS = 2.0

flags.DEFINE_integer(
    "port",
    None,
    "Port of the server; a free port by default.",
    lower_bound=1,
    upper_bound=65535,
)
flags.DEFINE_string(
    "bind",
    "127.0.0.1",
    "Address to listen on: 127.0.0.1 for local clients only, 0.0.0.0 for any machine.",
)
flags.DEFINE_float(
    "checkpoint_interval",
    600.0,
    "Seconds between checkpoints, which block requests; 0 for only the last one.",
    lower_bound=0.0,
)
flags.DEFINE_integer(
    "num_collectors",
    0,
    "Serve a learner and this many collectors; 0 for a training without collectors.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "num_servers",
    None,
    "This many servers share the replay buffer; default: ReverbReplay.num_servers.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "signal_exit_code",
    0,
    "Exit code after SIGTERM or Ctrl-C; nonzero for an engine that restarts only failed processes.",
)


def main() -> int:
    """Serves until a signal ends it; returns the exit code."""
    termination = Termination()
    termination.install()
    values = common_flags.common()
    _check_flags(values)
    from tfrl.launch import gin_files

    # Reports a missing file or a typo before TensorFlow is imported.
    gin_files.read(values.gin_file, values.gin_bindings)
    common_flags.configure_tensorflow(values)
    from tfrl.launch import settings

    num_collectors = flags.FLAGS.num_collectors
    assembled = settings.assemble(values.gin_file, values.gin_bindings)
    tables = served_tables(assembled, num_collectors, flags.FLAGS.num_servers)
    from tfrl.replay.reverb.server import ReverbServer
    from tfrl.roles.tables import shared_settings

    # Rollouts and parameters are of no use after a restart.
    keeps = hasattr(assembled.workflow, "replay")

    if flags.FLAGS.port is not None and ROLE_VARIABLE in os.environ:
        _check_free(flags.FLAGS.port)
    with termination.deferred():
        server = ReverbServer(
            tables,
            port=flags.FLAGS.port,
            bind=flags.FLAGS.bind,
            checkpoint_dir=os.path.join(values.root_dir or "", SERVER_CHECKPOINTS)
            if keeps
            else None,
            checkpoint_interval=flags.FLAGS.checkpoint_interval or None if keeps else None,
            log=app.say,
            on_checkpoint=lambda path: app.say(f"Saved the tables in {path}."),
            settings=shared_settings(cast("Any", assembled.workflow), num_collectors)
            if num_collectors
            else None,
        )
        if num_collectors:
            forget_ended(server)
        app.say(_first_line(server))
        if flags.FLAGS.bind != "127.0.0.1":
            app.say(
                "It listens on all addresses and asks nobody who they are: whoever reaches the "
                "port can read, change and empty the experience."
            )
        _wait(termination, server)
        saving = ": saving the tables, which may take a while" if keeps else ""
        app.say(f"Stopped by {termination.name}{saving}.")
        server.stop()
    return int(flags.FLAGS.signal_exit_code)


def _check_free(port: int) -> None:
    """Checks that a port that a launcher chose is still free.

    Raises:
      UnavailableError: Another program has taken it since; a restart may find it free.
    """
    from tfrl.replay.reverb.server import check_port

    try:
        check_port(port)
    except UserError as error:
        raise UnavailableError(
            error.thing,
            expected="an unused port, as it was when the launcher chose it",
            got=error.got,
            remedy="The same command of tfrl-launch chooses other ports.",
        ) from error


def served_tables(
    assembled: Any, num_collectors: int = 0, num_servers: int | None = None
) -> list[Any]:
    """Returns the empty Reverb tables of a training.

    Args:
      assembled: The `Settings` of its gin file. The workflow's environments are closed.
      num_collectors: The number of collectors; 0 for a training without collectors.
      num_servers: The number of servers that share the replay buffer; None for the gin file's.

    Raises:
      UserError: The training has no replay buffer, or one that Reverb does not support.
    """
    from tfrl.workflows.checks import on_reverb

    workflow = assembled.workflow
    with contextlib.closing(workflow):
        if num_collectors:
            from tfrl.roles import tables

            return tables.make_tables(workflow, num_collectors, num_servers)
        if not hasattr(workflow, "replay"):
            raise UserError(
                "The gin file",
                expected="an off-policy training, which has a replay buffer",
                got=f"{type(workflow).__name__}, a workflow without one",
                remedy="For tfrl-learn and collectors pass --num_collectors=N.",
            )
        replay = on_reverb(workflow.replay)
        replay = replay.replace(num_servers=num_servers or replay.num_servers)
        return list(replay.of_one_server.make_tables())


def forget_ended(server: Any) -> None:
    """Removes the parameters and rollouts of the checkpoint after a restore.

    A checkpoint may have parameters of an ended run, and rollouts that the learner has taken since.
    Others that have arrived by now stay.

    Args:
      server: A `ReverbServer` with the tables of a distributed run.
    """
    from tfrl.replay.reverb.library import reverb
    from tfrl.replay.reverb.tables import read_keys
    from tfrl.roles import parameters, tables

    if server.restored is None:
        return
    client = reverb().Client(server.address)
    names = {parameters.TABLE, tables.ROLLOUTS} & server.restored.keys()
    keys = read_keys(server.restored_from, {name: server.restored[name] for name in names})
    for table, old in keys.items():
        client.mutate_priorities(table, deletes=old)


def _check_flags(values: common_flags.CommonFlags) -> None:
    if not values.gin_file:
        raise UserError(
            "--gin_file",
            expected="the gin file of a training",
            got="no value",
            remedy="Pass the same file as to tfrl-train, which defines the tables.",
        )
    if values.root_dir is None:
        raise UserError(
            "--root_dir",
            expected="a folder for the checkpoints of the tables",
            got="no value",
            remedy="Pass --root_dir=runs/..., and the same folder to resume.",
        )


def _first_line(server: Any) -> str:
    line = f"Serving replay at {server.address}"
    if server.restored is None:
        return f"{line}, with empty tables."
    return f"{line}, restored from {server.restored_from}: {_items(server.restored)}."


def _items(sizes: Mapping[str, int]) -> str:
    return ", ".join(
        f"{name} {size:,} item{'' if size == 1 else 's'}" for name, size in sizes.items()
    )


def _wait(termination: Termination, server: "ReverbServer") -> None:
    """Waits for a signal; takes the learner's checkpoints meanwhile."""
    looked = time.monotonic()
    while not termination.requested:
        time.sleep(_LOOK_SECONDS)
        if time.monotonic() - looked >= _ADOPT_SECONDS:
            server.adopt_checkpoints()
            looked = time.monotonic()


def run() -> None:
    """Entry point of `tfrl-reverb-server` and `bin/reverb_server.py`."""
    learning = ("seed", "strategy", "tpu", "num_logical_cpus", "deterministic_ops")
    app.run(main, doc=DOC, argv=sys.argv, without=(*learning, "if_exists", "allow_code"))
