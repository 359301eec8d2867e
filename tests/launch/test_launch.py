"""`bin/launch.py`: what it would start, and how the local engine runs processes."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import pytest

from tests.launch import jobset_pods
from tests.launch.launch_runs import in_process
from tfrl.launch import collect, job, launch, learn, local_engine, termination

SERVES = """
import signal, sys, time

def end(*_):
    print("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
print("serves", flush=True)
time.sleep(60)
"""


def role(kind, index=0):
    return job.Role(kind, index, "train", ())


def engine(tmp_path, programs, **options):
    """An engine of Python programs by the name of their role; returns it and what it says."""
    said = []
    roles = [role(*name.split("-")) for name in programs]
    made = local_engine.LocalEngine(
        roles,
        tmp_path / "logs",
        command=lambda r: [sys.executable, "-S", "-c", programs[r.name]],
        say=said.append,
        **options,
    )
    return made, said


@pytest.fixture(name="quick", autouse=True)
def fixture_quick(monkeypatch):
    monkeypatch.setattr(local_engine, "_BACK_OFF_SECONDS", 0.05)
    monkeypatch.setattr(termination.Termination, "install", lambda self: None)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_job_ends_with_its_learner_and_servers_last(tmp_path):
    learner = f"""
import pathlib, time
log = pathlib.Path({str(tmp_path / "logs/server-0.log")!r})
while not log.exists() or 'serves' not in log.read_text():
    time.sleep(0.02)
print('learnt')
"""
    made, said = engine(
        tmp_path,
        {
            "server-0": SERVES,
            "learner-0": learner,
            "collector-0": "import time; time.sleep(0.3); print('played')",
        },
    )
    assert made.run(termination.Termination()) == 0
    assert said.index("learner-0 | learnt") < said.index("server-0 | saved")
    assert said.index("collector-0 | played") < said.index("server-0 | saved")
    assert (tmp_path / "logs/learner-0.log").read_text() == "learnt\n"
    assert not any(alive(p.popen.pid) for p in made.processes)


def test_what_breaks_down_is_started_again(tmp_path):
    once = tmp_path / "once"
    program = f"""
import os, pathlib, time
if not pathlib.Path({str(once)!r}).exists():
    pathlib.Path({str(once)!r}).touch()
    os.kill(os.getpid(), 9)
print('again'); time.sleep(60)
"""
    learner = f"""
import pathlib, time
while 'again' not in pathlib.Path({str(tmp_path / "logs/collector-0.log")!r}).read_text():
    time.sleep(0.02)
"""
    made, said = engine(tmp_path, {"collector-0": program, "learner-0": learner})
    made._await_end = lambda termination: None
    assert made.run(termination.Termination()) == 0
    assert "collector-0 has ended with exit code 137; started again in 0.05 s (1 of 3)." in said
    assert not any(alive(p.popen.pid) for p in made.processes)


def test_what_a_process_leaves_behind_ends_with_it(tmp_path):
    program = """
import os, subprocess, sys
left = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
print(left.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    made, said = engine(tmp_path, {"learner-0": program}, max_restarts=0)
    began = time.monotonic()
    assert made.run(termination.Termination()) == 137
    assert time.monotonic() - began < 30.0
    left = int((tmp_path / "logs/learner-0.log").read_text())
    while alive(left):
        assert time.monotonic() - began < 30.0
        time.sleep(0.02)


def counting(path, then):
    """A program that knows the number `n` of its starts before this one."""
    return f"""
import pathlib, sys, time
count = pathlib.Path({str(path)!r})
n = len(count.read_text()) if count.exists() else 0
count.write_text("x" * (n + 1))
{then}
"""


def test_failures_long_after_each_other_are_not_counted_together(tmp_path, monkeypatch):
    monkeypatch.setattr(local_engine, "HEALTHY_SECONDS", 0.6)  # a start may take that long
    count = tmp_path / "count"
    learner = counting(count, "time.sleep(0.7 if n < 3 else 0.0); sys.exit(1)")
    made, said = engine(tmp_path, {"learner-0": learner}, max_restarts=1)
    assert made.run(termination.Termination()) == 1
    # Three after a long time, then one at once, and the last.
    assert sum("(1 of 1)" in line for line in said) == 3
    assert len(count.read_text()) == 4 and made.processes[0].restarts == 3


def test_waiting_in_vain_counts_however_long_it_took(tmp_path, monkeypatch):
    monkeypatch.setattr(local_engine, "HEALTHY_SECONDS", 0.1)
    programs = {"server-0": SERVES, "learner-0": "import sys, time; time.sleep(0.3); sys.exit(75)"}
    made, said = engine(tmp_path, programs, max_restarts=1)
    assert made.run(termination.Termination()) == 75
    assert made.processes[1].restarts == 1


def test_a_wait_in_vain_after_a_long_time_begins_the_count_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(local_engine, "HEALTHY_SECONDS", 0.1)
    learner = counting(
        tmp_path / "count", "time.sleep(0.5 if n < 3 else 0.0); sys.exit(75 * (n < 3))"
    )
    programs = {"server-0": SERVES, "learner-0": learner}
    made, _ = engine(tmp_path, programs, max_restarts=1, wait_seconds=0.2)
    assert made.run(termination.Termination()) == 0
    assert made.processes[1].restarts == 3


def test_what_breaks_down_too_often_ends_all(tmp_path):
    programs = {"server-0": SERVES, "learner-0": "import sys; print('no'); sys.exit(1)"}
    made, said = engine(tmp_path, programs, max_restarts=2)
    assert made.run(termination.Termination()) == 1
    assert sum("started again" in line for line in said) == 2
    assert any("learner-0 has failed with exit code 1 after 2 restarts: no" in x for x in said)
    assert not any(alive(p.popen.pid) for p in made.processes)


def test_a_mistake_is_not_repeated(tmp_path):
    programs = {
        "learner-0": "import time; time.sleep(60)",
        "collector-0": "import sys; sys.exit(2)",
    }
    made, said = engine(tmp_path, programs)
    assert made.run(termination.Termination()) == 2
    assert not any("started again" in line for line in said)


def test_a_mistake_of_an_evaluator_does_not_end_the_job(tmp_path):
    learner = f"""
import os, time
while not os.path.exists({str(tmp_path / "go")!r}):
    time.sleep(0.02)
"""
    mistake = "import sys; print('no episodes'); sys.exit(2)"
    made, said = engine(tmp_path, {"learner-0": learner, "evaluator-0": mistake})
    say = made._say
    made._say = lambda line: (say(line), "without" in line and (tmp_path / "go").touch())
    assert made.run(termination.Termination()) == 0
    assert "The run goes on without evaluator-0." in said


def test_a_signal_ends_all_in_order(tmp_path):
    programs = {
        "server-0": SERVES,
        "learner-0": SERVES.replace("sys.exit(0)", "sys.exit(143)"),
        "collector-0": "import time; print('plays'); time.sleep(60)",
    }
    made, said = engine(tmp_path, programs)
    stop = termination.Termination()

    def press():
        while not {"collector-0 | plays", "learner-0 | serves", "server-0 | serves"} <= set(said):
            time.sleep(0.01)
        time.sleep(0.2)
        stop._signal = signal.SIGTERM

    threading.Thread(target=press).start()
    assert made.run(stop) == 143
    assert [line for line in said if line.endswith("saved")] == [
        "learner-0 | saved",
        "server-0 | saved",
    ]
    assert "Stopped by SIGTERM: the same command goes on." in said
    assert not any(alive(p.popen.pid) for p in made.processes)


def test_children_end_with_a_launcher_that_was_killed(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {os.getcwd()!r})
from tests.launch import test_launch
from tfrl.launch import termination
import pathlib
made, said = test_launch.engine(pathlib.Path({str(tmp_path)!r}), {{
    "learner-0": "import os, time; print(os.getpid(), flush=True); time.sleep(60)"}})
made.run(termination.Termination())
"""
    launcher = subprocess.Popen([sys.executable, "-c", code])
    log = tmp_path / "logs/learner-0.log"
    deadline = time.monotonic() + 60.0
    while not (log.exists() and log.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    launcher.kill()
    launcher.wait()
    while alive(int(log.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


LAUNCHER = """
import pathlib, sys
from tfrl.launch import job, local_engine, termination

programs = {programs!r}
termination.ONE_REQUEST = 0.1
stop = termination.Termination()
stop.install()
made = local_engine.LocalEngine(
    [job.Role(name, 0, "", ()) for name in programs],
    pathlib.Path({folder!r}),
    command=lambda role: [sys.executable, "-S", "-c", programs[role.kind]],
    {say}
)
sys.exit(made.run(stop))
"""


def launcher(tmp_path, programs, say="say=lambda line: print(line, flush=True),"):
    """A launcher in another process, with its signal handlers."""
    code = LAUNCHER.format(programs=programs, folder=str(tmp_path), say=say)
    words = [sys.executable, "-c", code]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said_until(process, end):
    return next(line for line in process.stdout if line.endswith(f"{end}\n"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_kills_all(tmp_path, number):
    stays = "import os, signal, time; signal.signal(15, lambda *_: print('no', flush=True))"
    stays += "; print(os.getpid(), 'there', flush=True)\nwhile True: time.sleep(60)"
    made = launcher(tmp_path, {"learner": stays})
    pid = int(said_until(made, "there").split()[2])
    made.send_signal(number)
    said_until(made, "no")
    time.sleep(0.2)
    made.send_signal(number)
    assert made.wait(timeout=10) == 128 + number
    assert not alive(pid)
    if number == signal.SIGTERM:
        assert made.stderr.read() == "Stopped by a second SIGTERM. The same command resumes.\n"


def test_a_signal_at_the_end_of_a_run_lets_it_end(tmp_path):
    server = SERVES.replace('print("saved")', 'print("saving", flush=True); time.sleep(0.5)')
    server = server.replace("sys.exit(0)", 'print("saved"); sys.exit(0)')
    waits = f"import os, time\nwhile not os.path.getsize({str(tmp_path / 'server-0.log')!r}): "
    made = launcher(tmp_path, {"server": server, "learner": f"{waits}time.sleep(0.02)"})
    said_until(made, "saving")
    made.send_signal(signal.SIGTERM)
    said_until(made, "saved")
    assert made.wait(timeout=10) == 0


def test_a_job_goes_on_without_a_reader(tmp_path):
    learner = f"""
import os, time
print('begins', flush=True)
while not os.path.exists({str(tmp_path / "go")!r}):
    time.sleep(0.02)
print('goes on', flush=True)
"""
    made = launcher(tmp_path, {"learner": learner}, say="")
    said_until(made, "begins")
    made.stdout.close()
    (tmp_path / "go").touch()
    assert made.wait(timeout=10) == 0
    assert (tmp_path / "learner-0.log").read_text() == "begins\ngoes on\n"


def test_a_full_disk_takes_no_process_with_it(tmp_path):
    """Nobody would read its output: it would wait for ever to print."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "learner-0.log").symlink_to("/dev/full")
    learner = "print(10_000 * 'a line of many\\n' + 'learnt')"
    made, said = engine(tmp_path, {"learner-0": learner})
    assert made.run(termination.Termination()) == 0
    missing = [line for line in said if "missing" in line]
    assert missing == [
        "Lines of learner-0 are missing from its log: [Errno 28] No space left on device."
    ]
    assert said[-1] == "learner-0 | learnt"


def test_only_the_learner_sees_the_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    shows = "import os; print('GPUs', os.environ['CUDA_VISIBLE_DEVICES'] or 'none')"
    programs = dict.fromkeys(("learner-0", "collector-0", "evaluator-0"), shows)
    made, said = engine(tmp_path, programs, gpu_kinds=("learner", "evaluator"))
    assert made.run(termination.Termination()) == 0
    shown = {"learner-0 | GPUs 0", "evaluator-0 | GPUs 0", "collector-0 | GPUs none"}
    assert shown <= set(said)


def test_what_belongs_to_other_jobs_or_networks_is_not_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "intern")
    shows = "import os; print(os.environ.get('TF_CONFIG'), os.environ['no_proxy'])"
    made, said = engine(tmp_path, {"learner-0": shows})
    assert made.run(termination.Termination()) == 0
    assert "learner-0 | None intern,localhost,127.0.0.1" in said


def test_a_table_shows_the_processes_while_they_run(tmp_path):
    line = "env steps  5% 1,000/20,000  1,050/s  eta 0:00:20"
    learner = f"import time; print({line!r}, flush=True); time.sleep(0.6)"
    programs = {"learner": learner, "collector": "import sys; sys.exit(1)"}
    made = launcher(tmp_path, programs, say="table_seconds=0.3,")
    lines = [line.strip() for line in made.stdout]
    assert made.wait(timeout=10) == 0
    assert any(re.match(r"learner-0 +runs +0 +0 +1,050 +env steps +5%", x) for x in lines)
    assert any(re.match(r"collector-0 +restarts in \d s +1 +0", x) for x in lines)
    assert re.match(r"learner-0 +exit code 0", lines[-2])
    assert re.match(r"collector-0 +exit code 1", lines[-1])


def test_a_collector_prints_its_rate(capsys, monkeypatch):
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(collect, "_RATE_SECONDS", 60.0)
    monkeypatch.setattr(collect, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    collector = types.SimpleNamespace(task_id=2, env_steps=100)
    look = collect._with_rate(collector, lambda: collector.env_steps > 70_000)
    for env_steps in (20_000, 40_000, 60_100, 80_000):
        collector.env_steps = env_steps
        assert look() == (env_steps == 80_000)
    line = "Collector 2: 60,100 env steps, 1,000/s\n"
    assert capsys.readouterr().out == line
    assert local_engine._RATE.search(line)[1] == "1,000"


def test_what_does_not_end_in_time_is_killed_and_named(tmp_path, monkeypatch):
    monkeypatch.setitem(local_engine._END_SECONDS, "server", 0.2)
    stays = SERVES.replace("sys.exit(0)", "time.sleep(60)")
    waits = f"import os, time\nwhile not os.path.getsize({str(tmp_path / 'logs/server-0.log')!r}): "
    made, said = engine(tmp_path, {"server-0": stays, "learner-0": f"{waits}time.sleep(0.02)"})
    assert made.run(termination.Termination()) == 0
    assert "server-0 did not end within 0.2 s: killed." in said


def call(capsys, *args):
    return in_process(launch.main, capsys, *args)


@pytest.mark.needs("reverb")
def test_dry_run_shows_the_commands(capsys, tmp_path):
    root = tmp_path / "r"
    args = (f"--root_dir={root}", "--gin_file=dqn/gymnasium_cartpole.gin", "--collectors=2")
    budget = "--total_env_steps=900"
    code, out, err = call(capsys, *args, "--evaluators=1", "--seed=3", budget, "--dry_run")
    assert (code, err) == (0, "")
    assert out.count("'--gin_bindings=total_steps = 900'") == 5  # of every process
    names = [line.split()[0] for line in out.splitlines()]
    assert names[:5] == ["server-0", "learner-0", "collector-0", "collector-1", "evaluator-0"]
    server, learner, collector = out.splitlines()[0], out.splitlines()[1], out.splitlines()[3]
    port = server.partition("--port=")[2].split()[0]
    assert f"--num_collectors=2 --num_servers=1 --root_dir={root}/servers/0" in server
    config = "--gin_file=dqn/gymnasium_cartpole.gin '--gin_bindings=total_steps = 900' --seed=3"
    assert f"tfrl-learn {config} --replay_server=loc" in learner
    assert f"--replay_server=localhost:{port}" in collector
    assert collector.endswith("--task_id=1 --num_tasks=2")
    evaluator = out.splitlines()[4]  # its gin files allow it to import what they name
    assert f"tfrl-evaluate {config} --root_dir=" in evaluator
    assert f"--watch --heartbeat_server=localhost:{port} " in evaluator
    assert evaluator.endswith("--wait_seconds=inf")  # the engine notices a learner that fails
    assert not root.exists()
    item = 4 * 4 + 4 * 4 + 8 + 4 + 4 + 8  # observation twice, action, reward, discount, version
    assert item * 51_200 == 2_867_200
    # The network and its target, of 4 x 128, 128 x 128 and 128 x 2 weights; 139.3 kB and a few.
    assert 2 * 4 * (5 * 128 + 129 * 128 + 129 * 2) == 139_280
    assert out.splitlines()[5:] == [
        f"Replay servers: localhost:{port}",
        "Processes: 5 (1 server, 1 learner, 2 collectors, 1 evaluator)",
        "Environments: 16 (8 in each collector)",
        "Parameters: 139 kB, read by each collector",
        "Table 'replay': up to 800 blocks of 64 transitions, each of 3.58 kB, 2.87 MB before "
        "compression",
    ]


@pytest.fixture(name="launched")
def fixture_launched(monkeypatch):
    """The commands of the jobs that the local engine gets; it starts nothing."""
    commands = []

    class Engine:
        def __init__(self, job, log_dir, **options):
            commands.append({role.name: role.flags for role in job})

        def run(self, termination):
            return 0

    monkeypatch.setattr(launch, "LocalEngine", Engine)
    return commands


@pytest.mark.parametrize("if_exists", ["new", "fail"])
def test_an_existing_run_is_handled_once_and_by_the_launcher(capsys, tmp_path, launched, if_exists):
    root = tmp_path / "r"
    root.mkdir()
    args = (f"--root_dir={root}", "--gin_file=dqn/gymnasium_cartpole.gin")
    args = (*args, f"--if_exists={if_exists}")
    assert call(capsys, *args)[0] == 0
    (root / "metadata.json").touch()
    code, _, err = call(capsys, *args)
    if if_exists == "fail":
        assert code == 2 and "expected a folder without a run" in err
    else:
        assert code == 0 and not root.exists()
        assert (tmp_path / "r.old-1/metadata.json").exists()
    assert not any("if_exists" in flag for job in launched for flag in job["learner-0"])


def test_the_logs_of_a_remote_run_have_its_name(capsys, monkeypatch):
    folders = []

    class Engine:
        def __init__(self, job, log_dir, **options):
            folders.append(str(log_dir))

        def run(self, termination):
            return 0

    monkeypatch.setattr(launch, "LocalEngine", Engine)
    monkeypatch.setattr(launch.remote, "connect", lambda url: connected.append(url))
    connected = []
    for root in ("gs://bucket/dqn/a", "gs://bucket/dqn/b/", "runs/c"):
        assert call(capsys, f"--root_dir={root}", f"--gin_file={DQN}")[0] == 0
    assert folders == ["runs/bucket_dqn_a/logs", "runs/bucket_dqn_b/logs", "runs/c/logs"]
    assert connected == ["gs://bucket/dqn/a", "gs://bucket/dqn/b/"]


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("/proc/r", "got a path where no folder can be created"),
        ("ram://r", "--root_dir=ram://r: expected a folder that all processes share"),
    ],
)
def test_folders_that_cannot_be_used_are_refused(capsys, root, message):
    code, _, err = call(capsys, f"--root_dir={root}", "--gin_file=dqn/gymnasium_cartpole.gin")
    assert code == 2 and message in err


def test_ports_on_a_machine_without_ipv6(monkeypatch):
    make = socket.socket

    def only_ipv4(family):
        if family == socket.AF_INET6:
            raise OSError("Address family not supported by protocol")
        return make(family)

    monkeypatch.setattr(local_engine.socket, "socket", only_ipv4)
    assert len(set(local_engine.free_ports(3))) == 3


DQN, PPO = "dqn/gymnasium_cartpole.gin", "ppo/tf_cartpole.gin"
# The flag without which an engine renders nothing.
NEEDS = {"local": (), "ray": (), "kubernetes": ("--image=i",), "tpu_vm": ("--zone=z",)}


@pytest.mark.needs("reverb")
@pytest.mark.parametrize("engine", ["local", "kubernetes", "tpu_vm"])
@pytest.mark.parametrize(
    ("file", "flag", "message"),
    [
        (DQN, "--replay_servers=3", "the 3 replay servers: expected a number that divides"),
        (PPO, "--replay_servers=2", "num_servers: expected 1 for on-policy training"),
        (PPO, "--collectors=3", "The number of collectors: expected a divisor of"),
    ],
)
def test_jobs_that_cannot_run_are_refused(capsys, tmp_path, engine, file, flag, message):
    local = engine == "local"
    root = tmp_path if local else "gs://b/r"
    args = (f"--root_dir={root}", f"--gin_file={file}", f"--engine={engine}", flag)
    code, out, err = call(capsys, *args, *NEEDS[engine], f"--dry_run={local}")
    assert (code, out) == (2, "") and message in err


def test_a_run_goes_on_with_as_many_servers(capsys, tmp_path):
    for i in range(2):
        (tmp_path / "servers" / str(i) / "replay_checkpoints").mkdir(parents=True)
    code, out, err = call(capsys, f"--root_dir={tmp_path}", f"--gin_file={DQN}")
    assert (code, out) == (2, "") and "--replay_servers=1: expected 2, the servers that" in err


@pytest.mark.needs("reverb")
def test_workers_share_batches_and_collectors(capsys):
    common = ("--root_dir=gs://b/r", "--engine=kubernetes", "--image=i", "--learners=2")
    sizes = (f"--gin_file={DQN}", "--gin_bindings=OffPolicyWorkflow.batch_size=126")
    code, _, err = call(capsys, *common, *sizes, "--replay_servers=2")
    assert code == 2 and "batch_size: expected a multiple of 4" in err
    code, _, err = call(capsys, *common, f"--gin_file={PPO}", "--collectors=1")
    assert code == 2 and "--collectors: expected a multiple of the learner's 2 workers" in err


@pytest.mark.needs("reverb")
def test_dry_run_of_a_cluster_shows_each_learner(capsys):
    common = ("--root_dir=gs://b/r", "--engine=kubernetes", "--image=i", "--learners=2")
    code, out, _ = call(capsys, *common, f"--gin_file={DQN}", "--dry_run", "--quiet")
    assert code == 0
    learners = [line for line in out.splitlines() if line.startswith("learner-")]
    assert len(learners) == 2 and "tfrl-learner-0-1.tfrl:2222" in learners[0]


@pytest.mark.needs("reverb")
@pytest.mark.parametrize("flags", [("--tpu_topology=v5e:2x4",), ("--learners=2", "--evaluators=1")])
def test_dry_run_of_a_cluster_shows_the_commands_of_its_pods(capsys, flags):
    common = ("--root_dir=gs://b/r", "--engine=kubernetes", "--image=i", f"--gin_file={DQN}")
    code, text, err = call(capsys, *common, *flags)
    assert code == 0, err
    pods = jobset_pods.pods(json.loads(text))
    code, out, _ = call(capsys, *common, *flags, "--dry_run")
    assert code == 0
    settings = [[f"TF_CONFIG={p.env['TF_CONFIG']}"] if "TF_CONFIG" in p.env else [] for p in pods]
    expected = [[*env, *pod.command] for env, pod in zip(settings, pods, strict=True)]
    assert [shlex.split(line)[1:] for line in out.splitlines()[: len(pods)]] == expected


@pytest.mark.needs("reverb")
def test_dry_run_of_a_tpu_vm(capsys):
    args = ("--root_dir=gs://b/r", "--engine=tpu_vm", "--zone=z", f"--gin_file={DQN}")
    code, out, err = call(capsys, *args, "--strategy=auto", "--dry_run")
    assert code == 0, err
    server, learner = out.splitlines()[:2]
    assert "--port=PORT-OF-SERVER-0 " in server
    assert "--replay_server=localhost:PORT-OF-SERVER-0 " in learner
    assert learner.endswith("--root_dir=gs://b/r --strategy=tpu --tpu=local")
    assert "--strategy=auto" not in learner
    pod = ("--accelerator_type=v3-32", "--job_name=dqn", "--dry_run")
    learner = call(capsys, *args, *pod)[1].splitlines()[1]
    assert learner.endswith("--strategy=tpu --tpu=dqn")


@pytest.mark.needs("reverb")
def test_dry_run_of_ray(capsys, tmp_path):
    args = (f"--root_dir={tmp_path}/r", "--engine=ray", f"--gin_file={DQN}", "--dry_run")
    code, out, err = call(capsys, *args, "--ray_address=auto", "--replay_servers=2")
    assert code == 0, err
    servers, learner = out.splitlines()[:2], out.splitlines()[2]
    assert all("--port=PORT " in x and x.endswith("--bind=0.0.0.0") for x in servers)
    assert "--replay_server=NODE-OF-SERVER-0:PORT,NODE-OF-SERVER-1:PORT" in learner
    _, out, _ = call(capsys, *args)  # a cluster of this machine
    assert "--replay_server=localhost:" in out and "--bind" not in out


@pytest.mark.parametrize("engine", ["local", "kubernetes", "tpu_vm"])
def test_flags_of_learner_and_collectors_are_passed_on(capsys, launched, tmp_path, engine):
    root = tmp_path if engine == "local" else "gs://b/r"
    args = (f"--root_dir={root}", "--gin_file=impala/tf_cartpole.gin", f"--engine={engine}")
    asked = ("--synchronous=true", "--max_policy_lag=3", "--pull_seconds=1.5")
    code, out, err = call(capsys, *args, *asked, *NEEDS[engine])
    assert (code, err) == (0, "")
    if engine == "local":
        (job,) = launched
        assert {*asked[:2]} <= {*job["learner-0"]} and asked[2] not in job["learner-0"]
        assert asked[2] in job["collector-1"]
    else:
        assert all(flag in out for flag in asked)


@pytest.mark.parametrize(
    ("engine", "flag", "engines"),
    [
        ("local", "tpu_topology=v5e:2x4", "kubernetes"),
        ("local", "ray_address=auto", "ray"),
        ("local", "job_name=a", "kubernetes, tpu_vm"),
        ("ray", "volume=claim:/runs", "kubernetes"),
        ("kubernetes", "spot", "tpu_vm"),
        ("kubernetes", "zone=z", "tpu_vm"),
        ("tpu_vm", "resources=learner:cpu=4", "local, ray, kubernetes"),
        ("tpu_vm", "tpu=local", "local, ray, kubernetes"),
        ("tpu_vm", "image=i", "kubernetes"),
    ],
)
def test_flags_of_other_engines_are_refused(capsys, engine, flag, engines):
    args = ("--root_dir=gs://b/r", f"--gin_file={DQN}", f"--engine={engine}", *NEEDS[engine])
    code, out, err = call(capsys, *args, f"--{flag}")
    name = flag.partition("=")[0]
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: --{name}: expected no value with --engine={engine}, got ")
    assert err.endswith(f"Leave it out: it is a flag of --engine={engines}.\n")


def test_the_local_engine_gives_gpus_only(capsys, tmp_path, launched):
    args = (f"--root_dir={tmp_path}", f"--gin_file={DQN}")
    assert call(capsys, *args, "--resources=collector:gpu=1")[0] == 0
    code, out, err = call(capsys, *args, "--resources=collector:gpu=1,cpu=2")
    assert code == 2 and "--resources: expected only gpu with --engine=local" in err
    assert "got cpu, gpu." in err


@pytest.mark.parametrize("engine", ["kubernetes", "tpu_vm"])
def test_a_rendered_job_always_resumes(capsys, engine):
    args = ("--root_dir=gs://b/r", "--gin_file=dqn/gymnasium_cartpole.gin")
    code, _, err = call(capsys, *args, f"--engine={engine}", "--if_exists=new")
    assert code == 2 and f"--if_exists=new: expected resume with --engine={engine}" in err


def test_a_file_that_is_missing_is_told_at_once(capsys, tmp_path):
    code, out, err = call(capsys, f"--root_dir={tmp_path}", "--gin_file=none.gin")
    assert code == 2 and err.startswith("Error: ") and "none.gin" in err


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--wait_seconds=0", "--wait_seconds: expected a number above 0 and at most 1e+06, got 0"),
        ("--wait_seconds=inf", "above 0 and at most 1e+06, got inf. It is the time in seconds"),
        ("--wait_seconds=nan", "--wait_seconds: expected a number above 0"),
        (
            "--pull_seconds=inf",
            "--pull_seconds: expected a number of at least 0.01 and at most 1e+06",
        ),
    ],
)
def test_seconds_that_no_process_could_wait(capsys, tmp_path, flag, message):
    args = (f"--root_dir={tmp_path}/r", f"--gin_file={DQN}", "--replay_server=localhost:1")
    mains = (launch.main, collect.main, *([learn.main] if "--wait" in flag else []))
    for main in mains:
        code, out, err = in_process(main, capsys, *args, flag)
        assert (code, out) == (2, "") and message in err


def test_jobs_need_a_file(capsys, tmp_path):
    code, out, err = call(capsys, f"--root_dir={tmp_path}")
    assert code == 2 and err.startswith("Error: --gin_file: expected the gin file of a training")


def test_workers_of_a_learner_are_started_together(tmp_path):
    marks = tmp_path / "starts"
    marks.mkdir()
    survivor = f"""
import os, pathlib, sys, time
marks = pathlib.Path({str(marks)!r})
(marks / f"0-{{os.getpid()}}").touch()
while True:
    if len(list(marks.glob("1-*"))) == 2:
        sys.exit(0)
    if list(marks.glob("lost")):
        (marks / "lost").unlink()
        sys.exit(75)  # as a worker that has lost another one
    time.sleep(0.01)
"""
    victim = f"""
import os, pathlib, signal
marks = pathlib.Path({str(marks)!r})
(marks / f"1-{{os.getpid()}}").touch()
if len(list(marks.glob("1-*"))) < 2:
    (marks / "lost").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    made, said = engine(tmp_path, {"learner-0": survivor, "learner-1": victim})
    assert made.run(termination.Termination()) == 0
    assert [p.restarts for p in made.processes] == [1, 1]
    assert len(list(marks.glob("0-*"))) == 2
    told = [line for line in said if "started again" in line]
    assert len(told) == 1
    assert told[0].endswith("(1 of 3), with all 2 workers of the learner.")


def test_a_mistake_of_a_worker_is_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(local_engine, "_FALL_SECONDS", 0.2)
    mistake = "import sys; print('no such file'); sys.exit(2)"
    programs = {"learner-0": "import time; time.sleep(60)", "learner-1": mistake}
    made, said = engine(tmp_path, programs)
    assert made.run(termination.Termination()) == 2
    assert [p.restarts for p in made.processes] == [0, 0]
    assert "learner-1 has failed with exit code 2: no such file" in said[-1]


def test_workers_that_have_lost_each_other_are_started_again(tmp_path):
    marks = tmp_path / "starts"
    marks.mkdir()
    lost = f"""
import os, pathlib, sys
marks = pathlib.Path({str(marks)!r})
(marks / str(os.getpid())).touch()
sys.exit(75 if len(list(marks.glob("*"))) <= 2 else 0)
"""
    made, said = engine(tmp_path, dict.fromkeys(("learner-0", "learner-1"), lost))
    assert made.run(termination.Termination()) == 0
    assert [p.restarts for p in made.processes] == [1, 1]
    assert "with exit code 75; started again" in said[0]


def test_workers_that_do_not_meet_are_started_at_other_ports(tmp_path):
    taken = socket.create_server(("127.0.0.1", 0))
    addresses = [f"localhost:{taken.getsockname()[1]}", "localhost:1"]
    meets = """
import json, os, socket, sys
config = json.loads(os.environ["TF_CONFIG"])
port = int(config["cluster"]["worker"][int(config["task"]["index"])].rpartition(":")[2])
try:
    socket.create_server(("", port)).close()
except OSError:
    sys.exit(75)  # as `RendezvousError`
"""
    made, said = engine(tmp_path, dict.fromkeys(("learner-0", "learner-1"), meets))
    for process in made.processes:
        process.role = process.role.as_worker(addresses)
    with taken:
        assert made.run(termination.Termination()) == 0
    assert [p.restarts for p in made.processes] == [1, 1]
    clusters = [
        json.loads(dict(p.role.environment)["TF_CONFIG"])["cluster"] for p in made.processes
    ]
    assert clusters[0] == clusters[1]
    assert not set(clusters[0]["worker"]) & set(addresses)


@pytest.mark.needs("reverb")
def test_several_learners_know_each_other(capsys, tmp_path):
    args = (f"--root_dir={tmp_path}/r", "--gin_file=impala/gymnasium_cartpole.gin", "--dry_run")
    code, out, _ = call(capsys, *args, "--learners=2", "--collectors=2")
    assert code == 0
    learners = [line for line in out.splitlines() if line.startswith("learner-")]
    clusters = []
    for index, line in enumerate(learners):
        name, setting, command, *_ = shlex.split(line)
        assert (name, command) == (f"learner-{index}", "tfrl-learn")
        config = json.loads(setting.removeprefix("TF_CONFIG="))
        assert config["task"] == {"type": "worker", "index": index}
        clusters.append(config["cluster"]["worker"])
    assert clusters[0] == clusters[1]
    assert len(set(clusters[0])) == 2


def test_workers_of_a_learner_have_no_strategy_of_one_process(capsys, tmp_path):
    args = (f"--root_dir={tmp_path}/r", "--gin_file=impala/gymnasium_cartpole.gin", "--dry_run")
    code, _, err = call(capsys, *args, "--learners=2", "--strategy=mirrored")
    assert code == 2
    assert "--strategy=mirrored: expected auto or multi_worker for the 2 workers" in err
    code, _, err = call(capsys, *args, "--learners=2", "--num_logical_cpus=4")
    assert (code, "expected 1 with --learners=2" in err) == (2, True)
    code, _, err = call(capsys, *args, "--strategy=multi_worker")
    assert (code, "expected several workers, got --learners=1" in err) == (2, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--learners=2", "--tpu=grpc://a:8470"), "--tpu=grpc://a:8470: expected --learners=1"),
        (("--tpu=a", "--num_logical_cpus=2"), "--num_logical_cpus=2: expected --strategy=mirrored"),
        (
            ("--engine=tpu_vm", "--zone=z", "--num_logical_cpus=2"),
            "--num_logical_cpus=2: expected --strategy=mirrored",
        ),
        (
            ("--engine=kubernetes", "--image=i", "--tpu_topology=v5e:2x4", "--num_logical_cpus=2"),
            "--num_logical_cpus=2: expected --strategy=mirrored",
        ),
    ],
)
def test_devices_that_exclude_each_other_are_refused(capsys, flags, message):
    code, out, err = call(capsys, "--root_dir=gs://b/r", f"--gin_file={DQN}", "--dry_run", *flags)
    assert (code, out) == (2, "") and message in err


@pytest.mark.needs("reverb")
def test_a_mirrored_learner_has_several_devices(capsys, tmp_path):
    args = (f"--root_dir={tmp_path}", f"--gin_file={DQN}", "--dry_run", "--strategy=mirrored")
    code, _, err = call(capsys, *args, "--num_logical_cpus=3")
    assert code == 2 and "batch_size: expected a multiple of 3" in err


@pytest.mark.needs("reverb")
def test_each_learner_has_its_gpus(capsys):
    common = ("--root_dir=gs://b/r", "--engine=kubernetes", "--image=i")
    code, _, err = call(capsys, *common, f"--gin_file={DQN}", "--resources=learner:gpu=3")
    assert code == 2 and "batch_size: expected a multiple of 3" in err


@pytest.mark.needs("reverb")
def test_each_worker_evaluates(capsys, tmp_path):
    args = (f"--root_dir={tmp_path}", "--gin_file=mappo/tf_relay.gin", "--collectors=4")
    code, _, err = call(capsys, *args, "--learners=2", "--dry_run")
    assert code == 2 and "num_envs of eval_env: expected a multiple of the 2 replicas" in err


@pytest.mark.needs("reverb")
def test_the_gin_file_says_how_many_servers(capsys, tmp_path):
    file = tmp_path / "sharded.gin"
    file.write_text(
        "include 'dqn/gymnasium_cartpole.gin'\n"
        "OffPolicyWorkflow.replay = @ReverbReplay\n"
        "ReverbReplay.capacity = 10_000\n"
        "ReverbReplay.num_servers = 2\n"
    )
    args = (f"--root_dir={tmp_path}/r", f"--gin_file={file}", "--dry_run")
    code, out, err = call(capsys, *args)
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()][:3] == [
        "server-0",
        "server-1",
        "learner-0",
    ]
    assert "up to 156 blocks of 32 transitions, " in out  # a batch of 128 takes one of each
    code, out, _ = call(capsys, *args, "--replay_servers=1")
    assert code == 0
    assert "server-1" not in out
    macro = ("--gin_bindings=N = 4", "--gin_bindings=ReverbReplay.num_servers = %N")
    code, out, err = call(capsys, *args, *macro)
    assert code == 0, err
    assert "server-3" in out and "server-4" not in out
    code, _, err = call(capsys, *args, "--gin_bindings=ReverbReplay.num_servers='two'")
    assert code == 2
    assert "ReverbReplay.num_servers (--gin_bindings)" in err
    assert "got 'two'" in err
