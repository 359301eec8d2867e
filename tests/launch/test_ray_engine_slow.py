"""`--engine=ray` on a cluster of two nodes of this machine, of which one is killed."""

import json
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import time

import pytest

from tests.launch.launch_runs import ROOT

SECONDS = 400.0
NODE = {"include_dashboard": False, "object_store_memory": 80 * 2**20}


@pytest.fixture(name="two_nodes")
def fixture_two_nodes(monkeypatch):
    """A head with room for server, learner and one collector, and a node for the other one."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray.cluster_utils import Cluster

    pathlib.Path("/tmp/ray").mkdir(exist_ok=True)  # Ray notes a cluster's address there
    # Its path stands in the names of sockets, which are short.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        head = {"num_cpus": 4, "num_gpus": 2, "temp_dir": folder, **NODE}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        node = cluster.add_node(num_cpus=2, **NODE)
        yield cluster, node
        cluster.shutdown()


def await_line(log, text, launcher, times=1):
    deadline = time.monotonic() + SECONDS
    while log.read_text().count(text) < times:
        assert time.monotonic() < deadline and launcher.poll() is None, log.read_text()[-3000:]
        time.sleep(0.2)


@pytest.mark.slow
def test_a_job_goes_on_when_a_node_is_killed(two_nodes, tmp_path):
    cluster, node = two_nodes
    log = tmp_path / "launch.log"
    command = [
        *(sys.executable, str(ROOT / "bin" / "launch.py"), "--engine=ray", "--collectors=2"),
        f"--ray_address={cluster.address}",
        "--resources=server:gpu=1",
        "--resources=learner:gpu=1",
        "--resources=collector:cpu=2",
        "--gin_file=impala/tf_cartpole.gin",
        "--synchronous=true",  # it goes on only with both collectors
        "--gin_bindings=train.target_return=475",
        f"--root_dir={tmp_path}/run",
    ]
    with open(log, "w") as output:
        launcher = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    try:
        await_line(log, " plays.", launcher, times=2)
        cluster.remove_node(node, allow_graceful=False)
        await_line(log, "Its actor is lost", launcher)
        cluster.add_node(num_cpus=2, **NODE)
        await_line(log, " plays.", launcher, times=3)
        assert launcher.wait(SECONDS) == 0, log.read_text()[-3000:]
    finally:
        launcher.kill()
        launcher.wait()
    text = log.read_text()
    assert text.count("Its actor is lost") == 1 and "(1 of 3)" in text
    assert json.loads((tmp_path / "run/summary.json").read_text())["eval_return_mean"] >= 475.0
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in running.replace(str(os.getpid()), "")
