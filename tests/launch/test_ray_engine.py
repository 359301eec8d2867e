"""`--engine=ray`: how actors are placed, and what is started again; Ray itself is played."""

import contextlib
import itertools
import re
import shlex
import sys
import types

import pytest

from tests.launch.launch_runs import ROOT, in_process
from tfrl.errors import UserError
from tfrl.launch import job, launch, local_engine, ray_engine, resources, termination

SERVES = "import time; print('serves'); time.sleep(60)"


class RayError(Exception):
    pass


class GetTimeoutError(RayError):
    pass


class PlayedRay:
    """What the engine calls of Ray, with actors in this process."""

    exceptions = types.SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError)

    def __init__(self):
        self.placed, self.dead, self.ports = [], set(), itertools.count(8000)
        self.full = False
        self.started = {}  # the environment by the name of a role

    def remote(self, kind):
        return types.SimpleNamespace(options=lambda **o: types.SimpleNamespace(remote=self.make(o)))

    def make(self, options):
        def made():
            self.placed.append(options)
            return Actor(self, ray_engine.RoleProcess())

        return made

    def get(self, references, timeout=None):
        if isinstance(references, list):
            return [self.get(reference) for reference in references]
        actor, call = references
        if self.full:
            raise GetTimeoutError
        if actor in self.dead:
            raise RayError("The actor died.\nMore of it")
        return call()

    def nodes(self):
        lost = {"Alive": False, "Resources": {"CPU": 128.0}}
        return [lost, {"Alive": True, "Resources": {"CPU": 4.0, "memory": 2.0**33}}]

    def kill(self, actor):
        self.dead.add(actor)
        actor.process.kill()


class Actor:
    def __init__(self, ray, process):
        self.ray, self.process = ray, process

    def __getattr__(self, name):
        def remote(*args):
            if name == "address":
                return self, lambda: f"node:{next(self.ray.ports)}"
            if name == "poll":
                return self, self.process.poll
            if name == "start":
                self.ray.started[args[1]] = args[3]
            if self not in self.ray.dead:
                getattr(self.process, name)(*args)
            return self, lambda: None

        return types.SimpleNamespace(remote=remote)


@pytest.fixture(name="ray", autouse=True)
def fixture_ray(monkeypatch):
    monkeypatch.setattr(local_engine, "_BACK_OFF_SECONDS", 0.05)
    monkeypatch.setattr(ray_engine, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(termination.Termination, "install", lambda self: None)
    return PlayedRay()


def engine(ray, tmp_path, programs, *asked):
    said, addresses = [], []

    def make_job(given):
        addresses.extend(given)
        return [job.Role(*name.split("-"), "train", ()) for name in programs]

    made = ray_engine.RayEngine(
        ray,
        make_job,
        tmp_path,
        num_servers=1,
        host=None,
        resources=resources.parsed(asked),
        wait_seconds=5.0,
        command=lambda role: [sys.executable, "-S", "-c", programs[role.name]],
        say=said.append,
    )
    return made, said, addresses


def test_a_job_with_a_process_that_breaks_down(ray, tmp_path):
    (tmp_path / "collector-0.log").touch()
    learner = f"""
import pathlib, time
while 'again' not in pathlib.Path({str(tmp_path / "collector-0.log")!r}).read_text():
    time.sleep(0.02)
"""
    once = str(tmp_path / "once")
    collector = f"""
import os, pathlib
if not pathlib.Path({once!r}).exists():
    pathlib.Path({once!r}).touch()
    os.kill(os.getpid(), 9)
print('again')
"""
    programs = {"server-0": SERVES, "learner-0": learner, "collector-0": collector}
    asked = ("learner:gpu=1,memory=2Gi", "collector:cpu=2,tpu=4")
    made, said, addresses = engine(ray, tmp_path, programs, *asked)
    assert made.run(termination.Termination()) == 0
    assert addresses == ["node:8000"]
    assert any("collector-0 has ended with exit code 137; started again" in x for x in said)
    alone = {"max_restarts": 0}
    collector = {"num_cpus": 2.0, "resources": {"TPU": 4}, **alone}
    assert ray.placed == [
        {"num_cpus": 1.0, **alone},
        {"num_cpus": 1.0, "num_gpus": 1, "memory": 2 * 2**30, **alone},
        collector,
        collector,
    ]
    assert all(process.popen.poll() is not None for process in made.processes)
    # Ray hides no GPU from a process that asks for none.
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    assert ray.started == {"server-0": hidden, "learner-0": {}, "collector-0": hidden}


def test_a_server_that_breaks_down_is_started_again_at_its_address(ray, tmp_path):
    once, log = str(tmp_path / "once"), str(tmp_path / "server-0.log")
    server = f"""
import os, pathlib, time
if not pathlib.Path({once!r}).exists():
    pathlib.Path({once!r}).touch()
    os.kill(os.getpid(), 9)
print('again', flush=True); time.sleep(60)
"""
    learner = f"""
import pathlib, time
log = pathlib.Path({log!r})
while not log.exists() or 'again' not in log.read_text():
    time.sleep(0.02)
"""
    made, said, addresses = engine(ray, tmp_path, {"server-0": server, "learner-0": learner})
    assert made.run(termination.Termination()) == 0
    assert "server-0 has ended with exit code 137; started again in 0.05 s (1 of 3)." in said
    assert (made.server_lost, len(addresses), len(ray.placed)) == (False, 1, 2)
    assert len(ray.dead) == 2  # no actor is left


@pytest.mark.parametrize("lost", ["server-0", "collector-0"])
def test_a_lost_node(ray, tmp_path, lost):
    """A collector's is replaced; with that of a server the addresses are gone."""
    programs = {
        "server-0": SERVES,
        "collector-0": SERVES,
        "learner-0": "import time; time.sleep(1.5)",
    }
    made, said, _ = engine(ray, tmp_path, programs)
    made._await_end = lambda termination: None
    spawn = made._spawn

    def spawned(role):
        popen = spawn(role)
        if role.name == lost and not any("actor is lost" in line for line in said):
            ray.dead.add(popen._actor)
        return popen

    made._spawn = spawned
    code = made.run(termination.Termination())
    assert f"{lost} | Its actor is lost: The actor died." in said
    assert (code, made.server_lost) == ((137, True) if lost == "server-0" else (0, False))
    assert made.processes[1].restarts == (lost == "collector-0")


@pytest.mark.parametrize("seconds, lines", [(600.0, ["1 of 1", "failed"]), (0.0, ["1 of 1"] * 3)])
def test_a_job_whose_servers_are_lost_again_and_again(seconds, lines, tmp_path, monkeypatch):
    """It starts again `max_restarts` times, and anew after a long time."""
    said, ends = [], iter([True, True, True, False])

    class Engine(ray_engine.RayEngine):
        def __init__(self, ray, make_job, log_dir, *, max_restarts, **options):
            self._max_restarts, self._tell = max_restarts, said.append

        def run(self, termination):
            self.server_lost = next(ends)
            return 137 if self.server_lost else 0

    monkeypatch.setattr(local_engine, "HEALTHY_SECONDS", seconds)
    monkeypatch.setattr(ray_engine, "RayEngine", Engine)
    flags = types.SimpleNamespace(FLAGS=types.SimpleNamespace(ray_address=None))
    monkeypatch.setattr(ray_engine, "flags", flags)
    monkeypatch.setattr(ray_engine, "require", lambda *_: None)
    monkeypatch.setattr(ray_engine, "cluster", lambda *_: contextlib.nullcontext())
    code = ray_engine.run(
        lambda addresses, bind: [],
        tmp_path,
        termination.Termination(),
        num_servers=1,
        resources=resources.parsed([]),
        max_restarts=1,
        wait_seconds=1.0,
        table_seconds=1.0,
    )
    assert code == (137 if seconds else 0)
    assert all(part in line for part, line in zip(lines, said, strict=True))


def test_a_cluster_without_room(ray, tmp_path):
    """It is a mistake if no node has so much, else the process is awaited again."""
    ray.full = True
    for cores, code in ((64, 2), (4, 75)):
        with pytest.raises(UserError) as error:
            engine(ray, tmp_path, {"server-0": SERVES}, f"server:cpu={cores}")
        assert f"expected a node with room for cpu={cores} within 5 s" in str(error.value)
        assert error.value.exit_code == code
    for cores, code, restarts in ((64, 2, 0), (1, 75, 3)):
        ray.full = False
        programs = {"server-0": SERVES, "learner-0": SERVES}
        made, said, _ = engine(ray, tmp_path, programs, f"learner:cpu={cores}")
        ray.full = True
        assert made.run(termination.Termination()) == code
        assert f"learner-0 | No node had room for it within 5 s: cpu={cores}." in said
        # The server, which has no room either, may be the first to fail for good.
        counts = [process.restarts for process in made.processes]
        assert (counts[1] if code == 2 else max(counts)) == restarts


def test_a_cluster_that_is_not_there():
    def init(**options):
        raise ConnectionError("Could not find any running Ray instance.\nMore of it")

    with pytest.raises(UserError) as error:
        with ray_engine.cluster(types.SimpleNamespace(init=init), "auto", 1):
            pass
    assert str(error.value).startswith("--ray_address=auto: expected a running Ray cluster, got Co")


def test_a_cluster_that_does_not_answer():
    def init(**options):
        raise AssertionError("it would wait for minutes")

    with pytest.raises(UserError, match="expected a running Ray cluster, got .*refused"):
        address = f"127.0.0.1:{local_engine.free_ports(1)[0]}"
        with ray_engine.cluster(types.SimpleNamespace(init=init), address, 1):
            pass


def test_without_ray_the_command_to_install_it_is_told(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    args = (f"--root_dir={tmp_path}", "--gin_file=dqn/gymnasium_cartpole.gin", "--engine=ray")
    code, out, err = in_process(launch.main, capsys, *args)
    assert code == 2
    assert "Install it with: pip install 'tfrl[ray]'" in err


def page():
    """The RayJob of docs/cloud.md."""
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "docs/cloud.md").read_text()
    (block,) = re.findall(r"```yaml\n(apiVersion: ray.io.*?)```", text, re.DOTALL)
    return yaml.safe_load(block)


def test_the_page_of_kuberay_has_pods_for_all_processes():
    nest = page()
    assert (nest["apiVersion"], nest["kind"]) == ("ray.io/v1", "RayJob")
    cluster = nest["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    for part in (cluster["headGroupSpec"], group):
        (container,) = part["template"]["spec"]["containers"]
        (volume,), (mount,) = part["template"]["spec"]["volumes"], container["volumeMounts"]
        assert volume["name"] == mount["name"] and mount["mountPath"] == "/runs"
        assert container["image"] == "REGISTRY/tfrl-kuberay"
    words = shlex.split(nest["spec"]["entrypoint"])
    asked = [w.partition("=")[2] for w in words if w.startswith("--resources=")]
    options = job.JobOptions((), (), "/runs/impala", 0, 16, 1, 0, 600.0)
    roles = [role.kind for role in job.roles(options, ["a:1"])]
    assert "--root_dir=/runs/impala" in words and "--collectors=16" in words
    amounts = [resources.parsed(asked).of(kind) for kind in roles]
    cores = sum(float(amount["cpu"]) for amount in amounts)
    memory = sum(resources.in_bytes(amount.get("memory", "1")) for amount in amounts)
    (worker,) = group["template"]["spec"]["containers"]
    limits = worker["resources"]["limits"]
    assert cores <= group["replicas"] * float(limits["cpu"])
    assert memory <= group["replicas"] * resources.in_bytes(limits["memory"])


def test_kubernetes_takes_the_pods_of_the_page():
    validate = pytest.importorskip("kubernetes_validate")
    cluster = page()["spec"]["rayClusterSpec"]
    for part in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
        validate.validate({**pod, "spec": part["template"]["spec"]}, "1.31", strict=True)
        part["template"]["spec"]["containers"][0]["comand"] = []
        with pytest.raises(validate.ValidationError, match="comand"):
            validate.validate({**pod, "spec": part["template"]["spec"]}, "1.31", strict=True)


@pytest.mark.needs("reverb")
def test_the_command_of_the_page(capsys):
    words = shlex.split(page()["spec"]["entrypoint"])
    assert words[0] == "tfrl-launch"
    code, out, err = in_process(launch.main, capsys, *words[1:], "--dry_run")
    assert (code, err) == (0, "")
    assert "Processes: 18 (1 server, 1 learner, 16 collectors)" in out
