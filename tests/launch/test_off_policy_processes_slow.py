"""`bin/train.py` off-policy in two processes: interrupted, gone on with, and without its server."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

from tests.distribute.processes import Cluster, free_ports
from tests.launch import launch_runs
from tests.launch.launch_runs import command, run

pytestmark = pytest.mark.slow

SETTINGS = (
    "make_env.num_envs = 2",
    "OffPolicyWorkflow.eval_episodes = 4",
    "eval/make_env.num_envs = 2",
    "train.final_eval_episodes = 4",
    "train.video = False",
    "train.checkpoint_interval = 256",
)
REVERB = ("OffPolicyWorkflow.replay = @ReverbReplay", "ReverbReplay.capacity = 20_000")


def arguments(root, steps, *bindings):
    bindings = (*SETTINGS, f"train.total_env_steps = {steps}", *bindings)
    flags = [f"--gin_bindings={one}" for one in bindings]
    return ["--gin_file=dqn/tf_cartpole.gin", f"--root_dir={root}", *flags]


def spread(root, folder, *args):
    folder.mkdir(exist_ok=True)
    return Cluster(command("train", "--strategy=multi_worker", *args), 2, folder)


def wait_for_a_checkpoint(cluster, root):
    deadline = time.monotonic() + 120.0
    while not list(root.glob("checkpoints/ckpt-*/COMPLETE")):
        assert time.monotonic() < deadline, cluster.report()
        time.sleep(0.1)


@pytest.mark.parametrize("bindings", [(), REVERB], ids=["in_graph", "reverb"])
def test_an_interrupted_run_goes_on(tmp_path, bindings):
    root = tmp_path / "run"
    with spread(root, tmp_path / "logs", *arguments(root, 100_000, *bindings)) as cluster:
        cluster.start()
        wait_for_a_checkpoint(cluster, root)
        cluster.signal(1, signal.SIGTERM)
        assert [cluster.wait(i, 60.0) for i in (0, 1)] == [143, 143], cluster.report()
    done = max(int(p.parent.name[5:]) for p in root.glob("checkpoints/ckpt-*/COMPLETE"))
    steps = done + 512
    with spread(root, tmp_path / "again", *arguments(root, steps, *bindings)) as cluster:
        cluster.start().wait_all()
        assert f"going on at {done:,} of {steps:,} env steps" in cluster.out(0)
    assert steps <= launch_runs.summary(root)["env_steps"] < steps + 64
    assert launch_runs.summary(root)["eval_episodes"] == 4
    found = run("evaluate", f"--root_dir={root}", "--episodes=4", "--checkpoint=latest")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout.splitlines()[-1])["eval_episodes"] == 4


def test_a_run_in_the_graph_goes_on_in_one_process(tmp_path):
    root = tmp_path / "run"
    with spread(root, tmp_path / "logs", *arguments(root, 1024)) as cluster:
        cluster.start().wait_all()
    mirrored = ("--strategy=mirrored", "--num_logical_cpus=2")
    done = run("train", *mirrored, *arguments(root, 1536))
    assert done.returncode == 0, done.stderr
    assert "going on at 1,024 of 1,536 env steps" in done.stdout
    with spread(root, tmp_path / "again", *arguments(root, 2048)) as cluster:
        cluster.start().wait_all()
    assert launch_runs.summary(root)["env_steps"] == 2048


def test_a_run_on_reverb_stays_on_its_processes(tmp_path):
    root = tmp_path / "run"
    with spread(root, tmp_path / "logs", *arguments(root, 512, *REVERB)) as cluster:
        cluster.start().wait_all()
    mirrored = ("--strategy=mirrored", "--num_logical_cpus=2")
    done = run("train", *mirrored, *arguments(root, 1024, *REVERB))
    assert done.returncode == 2
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("Error")]
    assert "expected experience stored in Reverb in the training's process, as" in line
    assert "got experience stored in Reverb in the training's process, of 2 processes each" in line
    anew = "OffPolicyWorkflow.checkpoint_replay = False"  # as the message says
    assert anew in line
    done = run("train", *mirrored, *arguments(root, 2048, *REVERB, anew))
    assert done.returncode == 0, done.stderr
    assert launch_runs.summary(root)["env_steps"] == 2048


def kill_server(cluster, server):
    os.killpg(server.pid, signal.SIGKILL)
    return (0, 1)


def kill_worker(cluster, server):
    cluster.signal(1, signal.SIGKILL)
    return (0,)


@pytest.mark.parametrize("kill", [kill_server, kill_worker])
@pytest.mark.parametrize(
    "reconnect", [(), ("--replay_reconnect_seconds=60",)], ids=["ends", "waits"]
)
def test_who_is_lost_is_told_at_once(tmp_path, kill, reconnect):
    if kill is kill_server and reconnect:
        pytest.skip("it waits for the server, as asked")
    root, served = tmp_path / "run", tmp_path / "served"
    (port,) = free_ports(1)
    bindings = [f"--gin_bindings={one}" for one in (*SETTINGS[:1], *REVERB)]
    serve = command("reverb_server", "--gin_file=dqn/tf_cartpole.gin", *bindings)
    log = pathlib.Path(tmp_path / "server.err").open("wb")
    server = subprocess.Popen(
        [*serve, f"--port={port}", f"--root_dir={served}"],
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    args = (*arguments(root, 100_000, *REVERB), f"--replay_server=localhost:{port}", *reconnect)
    try:
        with spread(root, tmp_path / "logs", *args) as cluster:
            cluster.start()
            wait_for_a_checkpoint(cluster, root)
            start = time.monotonic()
            left = kill(cluster, server)
            assert {cluster.wait(i, 60.0) for i in left} == {75}, cluster.report()
            assert time.monotonic() - start < (15.0 if kill is kill_server else 30.0)
            (line,) = [x for x in cluster.err(0).splitlines() if x.startswith("Error")]
            name = f"Reverb server at localhost:{port}"
            assert f"Error: {name if kill is kill_server else 'Worker 1 ('}" in line
            assert ("Restart all workers" in line) == (kill is kill_worker)
    finally:
        log.close()
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
