"""Processes of a distributed run are killed and stopped; the run ends as if nothing had been."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.faults import roles
from tfrl.launch import settings
from tfrl.launch.local_engine import free_ports
from tfrl.replay.reverb.connection import await_server
from tfrl.replay.reverb.library import reverb
from tfrl.roles import parameters, tables

DQN = "dqn/gymnasium_cartpole.gin"
STOPS = [f"stop:{kind}" for kind in roles.KINDS if kind != "launch"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*roles.KINDS, *STOPS, "other-file"])
def test_on_policy(tmp_path, kind):
    outcome = roles.run(kind, [3.0], str(tmp_path / "run"), seed=1)
    assert outcome.code == 0, outcome.output
    assert (outcome.faults, outcome.left) == (1, [])
    assert outcome.summary["eval_return_mean"] > 475.0, outcome.output
    assert 1_000_000 <= outcome.summary["env_steps"] < 1_001_024
    if kind in ("collect", "learn", "evaluate", "reverb-server"):
        assert "has ended with exit code 137; started again in 1 s (1 of 4)." in outcome.output


@pytest.mark.slow
def test_one_of_two_replay_servers_is_killed(tmp_path):
    outcome = roles.run(
        "reverb-server",
        [3.0],
        str(tmp_path / "run"),
        gin_file=DQN,
        bindings=["train.total_env_steps = 9_000"],
        replay_servers=2,
    )
    assert not roles.problems(outcome), outcome.output
    assert "server-1 has ended with exit code 137" in outcome.output
    assert 9_000 <= outcome.summary["env_steps"] < 10_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("collect", "reverb-server", "variable-server", "learn", "launch"),
        "stop:variable-server",
    ],
)
def test_off_policy(tmp_path, kind):
    steps = "train.total_env_steps = 9_000"
    outcome = roles.run(kind, [3.0], str(tmp_path / "run"), gin_file=DQN, bindings=[steps])
    assert outcome.code == 0, outcome.output
    assert (outcome.faults, outcome.left) == (1, [])
    # A call of an iteration goes over the budget by what collectors had ahead, at most.
    assert 9_000 <= outcome.summary["env_steps"] < 10_000


def start(binary, *flags, gin_file=roles.IMPALA):
    command = [sys.executable, "-m", "tfrl", binary, f"--gin_file={gin_file}", *flags]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=roles.ROOT
    )


@pytest.mark.slow
@pytest.mark.parametrize("gin_file", [roles.IMPALA, DQN])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_signal_ends_a_collector_whose_server_is_lost_or_stopped(tmp_path, gin_file, sent):
    (port,) = free_ports(1)
    address = f"localhost:{port}"
    flags = (f"--port={port}", "--num_collectors=1", f"--root_dir={tmp_path}/server")
    processes = [start("reverb-server", *flags, gin_file=gin_file)]
    try:
        client = reverb().Client(address)
        await_server(address, client, 120.0)
        state = tables.agent_form(settings.assemble([gin_file], []).workflow)
        parameters.publish(client, parameters.Published(state, 0, 0, False))
        processes.append(start("collect", f"--replay_server={address}", gin_file=gin_file))
        deadline = time.monotonic() + 120.0
        while not client.server_info(20)[tables.HEARTBEATS].current_size:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        time.sleep(2.0)
        server, collector = processes
        server.send_signal(sent)
        time.sleep(5.0)
        assert collector.poll() is None
        began = time.monotonic()
        collector.terminate()
        _, said = collector.communicate(timeout=60.0)
        assert time.monotonic() - began < 15.0
        assert collector.returncode == 143, said
        assert "Traceback" not in said
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=60.0)


@pytest.mark.slow
@pytest.mark.parametrize("sent, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_collector_at_a_wrong_port(sent, code):
    """Another program listens there, and does not answer."""
    with socket.create_server(("localhost", 0)) as other:
        other.settimeout(120.0)
        address = f"localhost:{other.getsockname()[1]}"
        process = start("collect", f"--replay_server={address}")
        try:
            other.accept()[0].close()  # to see who listens
            time.sleep(5.0)
            assert process.poll() is None
            process.send_signal(sent)
            _, said = process.communicate(timeout=10.0)
        finally:
            process.kill()
            process.communicate(timeout=60.0)
    assert process.returncode == code, said


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")
def test_a_full_disk():
    with roles.folder_of("disk") as folder:
        outcome = roles.run("disk", [3.0], f"{folder}/run", seed=1)
    assert (outcome.code, outcome.faults, outcome.left) == (0, 1, []), outcome.output
    assert outcome.summary["eval_return_mean"] > 475.0, outcome.output
    assert "got a full disk. Free disk space" in outcome.output
    assert "Traceback" not in outcome.output


@pytest.mark.slow
def test_others_of_another_file_end_with_the_leaf_that_differs(tmp_path):
    """A real server; a learner whose network is another, and a collector whose rollouts are."""
    (port,) = free_ports(1)
    address = f"localhost:{port}"
    server = start(
        "reverb-server", f"--port={port}", "--num_collectors=1", f"--root_dir={tmp_path}/server"
    )
    try:
        common = (f"--replay_server={address}", "--wait_seconds=120")
        for binary, binding, leaf in (
            ("learn", "OnPolicyWorkflow.rollout_length=16", "table 'rollouts'"),
            ("collect", "Impala.hidden=(8,)", "Impala.hidden: expected None"),
        ):
            root = (f"--root_dir={tmp_path}/learner",) if binary == "learn" else ()
            began = time.monotonic()
            process = start(binary, *common, *root, f"--gin_bindings={binding}")
            _, said = process.communicate(timeout=200.0)
            assert process.returncode == 2, said
            assert time.monotonic() - began < 120.0
            assert leaf in said and said.count("Error: ") == 1, said
            assert "Start all processes of a run with the same gin file" in said
        assert not (tmp_path / "learner" / "checkpoints").exists()
    finally:
        server.terminate()
        server.communicate(timeout=60.0)
    assert server.returncode in (0, 143)
