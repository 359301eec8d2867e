"""`bin/reverb_server.py`: a process that serves a gin file's tables until a signal comes."""

import pathlib
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from unittest import mock

import pytest
import reverb

from tests.launch import launch_runs
from tests.launch.launch_runs import in_process
from tfrl.errors import UserError
from tfrl.launch import reverb_server, settings, termination, train
from tfrl.replay import ReverbReplay

# The part of a training that the server needs, registered as users register their own.
_PART = """
    import gin
    from tfrl.replay.reverb import ReverbReplay

    @gin.configurable
    def tiny_replay(
        obs_spec, action_spec, num_envs, n_step, discount, capacity: int = 50, timeout: float = 60.0
    ):
        return ReverbReplay(
            obs_spec=obs_spec,
            action_spec=action_spec,
            num_envs=num_envs,
            n_step=n_step,
            discount=discount,
            capacity=capacity,
            timeout=timeout,
        )
"""
_GIN = """
    import tiny_replay_part
    include 'sac/tf_pendulum.gin'
    OffPolicyWorkflow.replay = @tiny_replay
    OffPolicyWorkflow.batch_size = 4
"""


@pytest.fixture(name="experiment")
def fixture_experiment(tmp_path, monkeypatch):
    """A working directory with a gin file, `tiny.gin`, whose replay is on Reverb."""
    (tmp_path / "tiny_replay_part.py").write_text(textwrap.dedent(_PART))
    (tmp_path / "tiny.gin").write_text(textwrap.dedent(_GIN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(name="call")
def fixture_call(capsys, monkeypatch):
    monkeypatch.setattr(termination.Termination, "install", lambda self: None)
    return lambda *args: in_process(reverb_server.main, capsys, "--root_dir=r", *args)


def paragraph(result):
    code, out, err = result
    assert (code, out) == (2, ""), err
    assert err.startswith("Error: ") and err.count("\n") == 1
    return err.removeprefix("Error: ").rstrip("\n")


def first_line(process, log):
    """Waits for the line with the address."""
    deadline = time.monotonic() + launch_runs.IN_TIME
    while "\n" not in (text := log.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline, "no line in time"
        time.sleep(0.02)
    return text.splitlines()[0]


def serve(log, *args):
    process = launch_runs.start("reverb_server", "--gin_file=tiny.gin", *args, log=log)
    return process, first_line(process, log)


def end(process, number):
    process.send_signal(number)
    return process.wait(launch_runs.IN_TIME)


def test_it_serves_saves_and_restores(experiment):
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    args = (f"--port={port}", "--root_dir=runs/r")
    process, line = serve(experiment / "1.log", *args)
    assert line == f"Serving replay at localhost:{port}, with empty tables."
    (info,) = reverb.Client(f"localhost:{port}").server_info(20).values()
    assert (info.name, info.max_size, info.current_size) == ("replay", 50, 0)
    assert info.signature["obs"].shape.as_list()[-1] == 3
    assert end(process, signal.SIGTERM) == 0
    folder = pathlib.Path("runs/r").absolute() / "replay_checkpoints"
    newest = max(folder.glob("ckpt-*"))
    assert (experiment / "1.log").read_text().splitlines() == [
        line,
        "Stopped by SIGTERM: saving the tables, which may take a while.",
        f"Saved the tables in {newest}.",
    ]
    args += ("--checkpoint_interval=0.5", "--signal_exit_code=143")
    process, line = serve(experiment / "2.log", *args)
    assert line == f"Serving replay at localhost:{port}, restored from {newest}: replay 0 items."
    deadline = time.monotonic() + launch_runs.IN_TIME
    while "Saved" not in (experiment / "2.log").read_text():
        assert time.monotonic() < deadline, "no line in time"
        time.sleep(0.05)
    assert end(process, signal.SIGINT) == 143
    log = (experiment / "2.log").read_text().splitlines()
    assert log[1] == f"Saved the tables in {folder / 'ckpt-000002'}."
    *_, stopped, last = log
    assert stopped == "Stopped by Ctrl-C: saving the tables, which may take a while."
    assert last == f"Saved the tables in {max(folder.glob('ckpt-*'))}."


def test_help_is_quick():
    """It comes without TensorFlow, which is most of what a start takes."""
    code = (
        "import sys; from tfrl.launch import reverb_server; sys.argv[0] = 'reverb_server'\n"
        "try:\n    reverb_server.run()\n"
        "finally:\n    assert not {'tensorflow', 'reverb'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("Serves the replay tables", "--port=<value>", "--checkpoint_interval=<value>"):
        assert text in done.stdout


def test_served_tables(experiment):
    assembled = settings.assemble(["tiny.gin"], ["tiny_replay.capacity = 7"])
    (table,) = reverb_server.served_tables(assembled)
    assert (table.info.name, table.info.max_size) == ("replay", 7)


@pytest.mark.parametrize(
    ("num_collectors", "num_servers", "size"),
    [(0, None, 1000), (1, None, 1000), (0, 1, 2000), (1, 1, 2000)],
)
def test_a_server_has_its_share_by_the_gin_file_or_the_flag(num_collectors, num_servers, size):
    bindings = [
        "OffPolicyWorkflow.replay = @ReverbReplay",
        "OffPolicyWorkflow.batch_size = 4",
        "ReverbReplay.capacity = 2000",
        "ReverbReplay.block_size = 1",
        "ReverbReplay.num_servers = 2",
        "make_env.num_envs = 2",
    ]
    assembled = settings.assemble(["sac/tf_pendulum.gin"], bindings)
    served = reverb_server.served_tables(assembled, num_collectors, num_servers)
    assert {t.name: t for t in served}["replay"].info.max_size == size


def test_environments_are_closed():
    def make_tables():
        events.append("tables")
        return (1, 2)

    class Workflow:
        replay = mock.Mock(spec=ReverbReplay, num_servers=1)
        replay.replace.return_value.of_one_server.make_tables = make_tables

        def close(self):
            events.append("closed")

    class Settings:
        workflow = Workflow()

    events = []
    assert reverb_server.served_tables(Settings()) == [1, 2]
    assert events == ["tables", "closed"]
    Workflow.replay = None
    with pytest.raises(UserError):
        reverb_server.served_tables(Settings())
    assert events == ["tables", "closed", "closed"]


def test_mistakes_before_tensorflow(call, capsys):
    assert paragraph(call()).startswith("--gin_file: expected the gin file of a training, got no ")
    text = paragraph(in_process(reverb_server.main, capsys, "--gin_file=sac/tf_pendulum.gin"))
    assert text.startswith("--root_dir: expected a folder for the checkpoints of the tables, got")
    text = paragraph(call("--gin_file=no_such.gin"))
    assert text.startswith("Gin file 'no_such.gin' (--gin_file): expected a file in")
    for flag in ("--port=0", "--port=65536", "--port=a", "--checkpoint_interval=-1"):
        name = flag.partition("=")[0]
        assert paragraph(call(flag)).startswith(f"Flag {name}: expected")
    assert not pathlib.Path("r").exists()


@pytest.mark.parametrize("gin_file", ["sac/tf_pendulum.gin", "dqn/gymnasium_cartpole.gin"])
def test_a_buffer_in_the_graph_becomes_tables(gin_file):
    assembled = settings.assemble([gin_file], [])
    replay = assembled.workflow.replay
    (table,) = reverb_server.served_tables(assembled)
    assert type(replay).__name__ == "InGraphReplay"
    assert (table.info.name, table.info.max_size) == ("replay", replay.capacity)


def test_a_training_without_replay(call):
    assert paragraph(call("--gin_file=ppo/tf_cartpole.gin")) == (
        "The gin file: expected an off-policy training, which has a replay buffer, got "
        "OnPolicyWorkflow, a workflow without one. For tfrl-learn and collectors pass "
        "--num_collectors=N."
    )


def test_a_training_that_waits_for_a_server_in_vain(experiment, capsys, monkeypatch):
    """It says so at once, and leaves no folder."""
    monkeypatch.setattr(termination.Termination, "install", lambda self: None)
    with socket.socket() as probe:
        probe.bind(("", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    args = ("--gin_file=tiny.gin", "--root_dir=run", "--gin_bindings=tiny_replay.timeout = 0.7")
    code, out, err = in_process(train.main, capsys, *args, f"--replay_server={address}")
    assert (code, out) == (
        75,
        f"Waiting up to 0.7 s for the replay server at {address}: connection refused.\n",
    )
    assert err.startswith(f"Error: Reverb server at {address}: expected a server that answers")
    assert err.count("\n") == 1
    server = reverb.Server([reverb.Table.queue("other", 10)])
    address = f"localhost:{server.port}"
    code, out, err = in_process(train.main, capsys, *args, f"--replay_server={address}")
    server.stop()
    assert (code, out) == (2, "")
    assert err.startswith("Error: Reverb table 'replay': expected a table of this name on the ser")
    assert not pathlib.Path("run").exists()


def test_a_port_that_is_taken(call, experiment, monkeypatch):
    """With one that a launcher chose, the same command may succeed: it is started again."""
    with socket.socket() as other:
        other.bind(("localhost", 0))
        other.listen()
        port = other.getsockname()[1]
        text = paragraph(call("--gin_file=tiny.gin", f"--port={port}"))
        monkeypatch.setenv("TFRL_ROLE", "server-0")
        code, out, err = call("--gin_file=tiny.gin", f"--port={port}")
    assert text.startswith(
        f"port {port} of the Reverb server: expected an unused port from 1 to 65535"
    )
    assert (code, out) == (75, "")
    assert err.startswith(
        f"Error: port {port} of the Reverb server: expected an unused port, as it was when the "
        "launcher chose it, got one that another program listens on. The same command"
    )


def test_other_limits_and_damage(call, experiment):
    from tfrl.replay.reverb.server import ReverbServer

    tables = reverb_server.served_tables(settings.assemble(["tiny.gin"], []))
    ReverbServer(tables, checkpoint_dir="r/replay_checkpoints").stop()
    text = paragraph(call("--gin_file=tiny.gin", "--gin_bindings=tiny_replay.capacity = 7"))
    assert "got table 'replay' with capacity = 50 (asked: 7)." in text
    (checkpoint,) = pathlib.Path("r/replay_checkpoints").glob("ckpt-*")
    (checkpoint / "items.tfrecord").unlink()
    code, out, err = call("--gin_file=tiny.gin")
    assert code == 2
    assert re.fullmatch("Replay checkpoint .*ckpt-000001 is damaged .no items.tfrecord.*\n", out)
    assert err.startswith("Error: replay checkpoints in ")
    assert "expected a usable checkpoint, got ckpt-000001: no items.tfrecord." in err
