"""A JobSet without a cluster: its pods run as processes of this machine, by its own rules."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.launch import jobset_pods
from tfrl.launch import job, kubernetes, launch

SECONDS = 400.0


@dataclasses.dataclass
class Running:
    pod: jobset_pods.Pod
    process: subprocess.Popen | None = None
    failures: int = 0
    done: bool = False


class Cluster:
    """Starts pods, and replaces those that fail, as the Jobs of a JobSet would."""

    def __init__(self, job_set, logs):
        self.spec, self.logs = job_set["spec"], logs
        self.running = [Running(pod) for pod in jobset_pods.pods(job_set)]
        self.jobs = {j["name"]: j["template"]["spec"] for j in self.spec["replicatedJobs"]}
        # The DNS of the pods. On one machine, workers cannot share a port.
        hosts = [r.pod.host for r in self.running]
        free = launch.free_ports(len(hosts))
        self.names = {
            f"{h}:{kubernetes.WORKER_PORT}": f"localhost:{p}"
            for h, p in zip(hosts, free, strict=True)
        }
        self.names.update((host, "localhost") for host in hosts)

    def resolved(self, text):
        for name, address in self.names.items():
            text = text.replace(name, address)
        return text

    def start(self, running):
        env = {key: self.resolved(value) for key, value in running.pod.env.items()}
        program, *flags = map(self.resolved, running.pod.command)
        log = open(self.logs / running.pod.host, "a")
        running.process = subprocess.Popen(
            [sys.executable, "-m", "tfrl", program.removeprefix("tfrl-"), *flags],
            env={**os.environ, **env},
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def look(self):
        """Replaces what has failed; returns whether the JobSet has succeeded."""
        for running in self.running:
            code = None if running.done else running.process.poll()
            if code is None:
                continue
            running.done = code == 0
            if code:
                rules = self.jobs[running.pod.kind]["podFailurePolicy"]["rules"]
                fatal = [r["onExitCodes"]["values"] for r in rules if r["action"] == "FailJob"]
                assert not any(code in values for values in fatal), (running.pod.host, code)
                running.failures += 1
                assert running.failures <= self.jobs[running.pod.kind]["backoffLimit"]
                self.start(running)
        targets = self.spec["successPolicy"]["targetReplicatedJobs"]
        return all(r.done for r in self.running if r.pod.kind in targets)

    def of(self, kind):
        return [r for r in self.running if r.pod.kind == kind]

    def end(self):
        for running in self.running:
            if running.process is not None and running.process.poll() is None:
                running.process.terminate()
        for running in self.running:
            if running.process is not None:
                running.process.wait(60.0)


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 2])
def test_the_rendered_commands_solve_cartpole(learners, tmp_path, monkeypatch):
    """One collector, a worker of the learner and the server are killed on the way."""
    monkeypatch.setattr(kubernetes, "PORT", launch.free_ports(1)[0])
    options = job.JobOptions(
        gin_files=("impala/tf_cartpole.gin",),
        gin_bindings=("train.target_return=475", "train.checkpoint_interval=100_000"),
        root_dir=f"{tmp_path}/run",
        seed=0,
        collectors=2,
        learners=learners,
        replay_servers=1,
        evaluators=0,
        wait_seconds=120.0,
    )
    nest = kubernetes.job_set(options, name="cartpole", image="tfrl", volume=f"claim:{tmp_path}")
    logs = tmp_path / "logs"
    logs.mkdir()
    cluster = Cluster(json.loads(kubernetes.text(nest)), logs)
    deadline = time.monotonic() + SECONDS
    victims = [cluster.of("collector")[0], cluster.of("learner")[-1], cluster.of("server")[0]]
    try:
        for running in cluster.running:
            cluster.start(running)
        checkpoints = tmp_path / "run" / "checkpoints"
        while not cluster.look():
            assert time.monotonic() < deadline, _tails(logs)
            if victims and checkpoints.exists() and any(checkpoints.iterdir()):
                victim = victims.pop(0)
                victim.process.send_signal(signal.SIGKILL)
                victim.process.wait()
                time.sleep(1.0)
            time.sleep(0.1)
    finally:
        cluster.end()
    assert not victims
    # Workers of a learner that has lost one end too, and all of them start again.
    failures = [r.failures for r in cluster.running]
    assert failures == [1, 1, 1, 0] if learners == 1 else all(failures[:4]) and not failures[4]
    result = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert result["eval_return_mean"] >= 475.0


def _tails(logs):
    return {path.name: path.read_text()[-500:] for path in logs.iterdir()}
