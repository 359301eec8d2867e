import os
import signal
import subprocess
import sys
import time

import pytest

from tests.launch import launch_runs
from tfrl.envs.env_calls import RunningCall
from tfrl.launch import termination as termination_lib
from tfrl.launch.termination import Termination


@pytest.fixture(name="installed")
def fixture_installed():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ended = []
    termination = Termination(end=ended.append)
    termination.ended = ended
    termination.install()
    yield termination
    os.close(signal.set_wakeup_fd(-1))  # the thread reads the end of its pipe
    for number, handler in before.items():
        signal.signal(number, handler)


CASES = [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")]


@pytest.mark.parametrize(("number", "code", "name"), CASES)
def test_outside_of_training_the_process_ends(installed, capfd, number, code, name):
    assert not installed.requested
    with pytest.raises(SystemExit) as end:
        os.kill(os.getpid(), number)
    assert end.value.code == code
    assert capfd.readouterr().err == f"Stopped by {name}.\n"


@pytest.mark.parametrize(("number", "code", "name"), CASES)
def test_while_training_it_is_a_request(installed, number, code, name):
    with installed.deferred():
        os.kill(os.getpid(), number)
        assert installed.requested
    assert (installed.exit_code, installed.name) == (code, name)


def test_a_second_ctrl_c_does_not_wait(installed):
    with pytest.raises(SystemExit) as end, installed.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert end.value.code == 130


def until(condition):
    deadline = time.monotonic() + 5.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_a_second_sigterm_ends_at_once(installed, capfd, monkeypatch):
    monkeypatch.setattr(termination_lib, "ONE_REQUEST", 0.5)
    installed.last_saved = "The last checkpoint has 64 env steps; the same command goes on."
    with installed.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # of the same request
        time.sleep(0.6)
        assert not installed.ended
        os.kill(os.getpid(), signal.SIGTERM)
        assert until(lambda: installed.ended)
    assert installed.ended == [143]
    assert capfd.readouterr().err == (
        "Stopped by a second SIGTERM. The last checkpoint has 64 env steps; the same command goes "
        "on.\n"
    )


@pytest.fixture(name="short_grace")
def fixture_short_grace(monkeypatch):
    monkeypatch.setattr(termination_lib, "GRACE", 0.3)
    monkeypatch.setattr(termination_lib, "_LOOK", 0.02)


@pytest.mark.parametrize(("number", "code", "name"), CASES)
def test_an_environment_that_hangs_is_ended(installed, short_grace, capfd, number, code, name):
    with installed.deferred(), RunningCall("gymnasium:Hangs-v0"):
        os.kill(os.getpid(), number)
        assert until(lambda: installed.ended)
    assert installed.ended == [code]
    assert capfd.readouterr().err == (
        f"Stopped by {name}: gymnasium:Hangs-v0 did not come back within 0.3 s. Nothing was "
        "trained.\n"
    )


def test_nothing_but_a_single_long_call_of_an_environment_is_ended(installed, short_grace):
    running = RunningCall("gymnasium:Slow-v0")
    with running:
        time.sleep(0.4)  # without a signal
    with installed.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(6):  # steps that come back
            with running:
                time.sleep(0.1)
        time.sleep(0.5)  # a save, or a long compiled call
    assert not installed.ended
    assert installed.exit_code == 143


SAVES = """
import sys, time
from tfrl.launch import app, termination

asked = termination.Termination()
asked.install()
with asked.deferred():
    app.say("serves")
    while not asked.requested:
        time.sleep(0.01)
    app.say("saving")
    print("Warning: saving", file=sys.stderr, flush=True)
    open(sys.argv[1], "w").close()
"""


def test_a_process_saves_after_its_launcher_was_killed(tmp_path):
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    words = [sys.executable, script, tmp_path / "saved"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout.readline() == "serves\n"
    process.stdout.close()  # as the end of the process that read it
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    assert (tmp_path / "saved").exists()


HANGS_IN_C = """
import ctypes, sys
from tfrl.envs.env_calls import RunningCall
from tfrl.launch import termination

termination.GRACE = 0.5
asked = termination.Termination()
asked.install()
assert "tensorflow" not in sys.modules
with asked.deferred(), RunningCall("gymnasium:Hangs-v0"):
    print("hangs", flush=True)
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # never comes back, and no signal interrupts it
"""


def test_a_hang_in_c_never_runs_the_handler_and_is_ended(tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text(HANGS_IN_C)
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "hangs\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 143
        assert "gymnasium:Hangs-v0 did not come back within 0.5 s." in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


_HANGS = """
import os, pathlib, time
import gymnasium, numpy as np

class Hanging(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, [2], np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Hanging.steps += 1
        mark = pathlib.Path(os.environ["HANGS"])
        if Hanging.steps > 600 and mark.exists():
            mark.write_text("now")
            while True:
                time.sleep(0.1)
        return np.zeros(2, np.float32), 1.0, False, Hanging.steps % 9 == 0, {}

gymnasium.register("Hanging-v0", Hanging)
"""


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_a_training_whose_environment_hangs_obeys_and_goes_on(tmp_path, signals):
    (tmp_path / "hanging.py").write_text(_HANGS)
    mark = tmp_path / "mark"
    mark.write_text("")
    words = launch_runs.command(
        "train",
        *launch_runs.arguments(
            tmp_path / "run", 1024, "train.video=False", "train.checkpoint_interval=32",
            "env_id='gymnasium:hanging:Hanging-v0'", "make_env.max_episode_steps=10",
        ),
        "--nocheck_env",
    )  # fmt: skip
    env = {**launch_runs.environment(), "PYTHONPATH": str(tmp_path), "HANGS": str(mark)}
    process = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)
    while not mark.read_text() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.5)
    started = time.monotonic()
    for _ in range(signals):
        process.send_signal(signal.SIGTERM)
        time.sleep(1.2)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 143, error
    assert time.monotonic() - started < (11.0 if signals == 1 else 3.0)
    kept = sorted(p.name for p in (tmp_path / "run" / "checkpoints").glob("ckpt-*"))
    assert kept
    mark.unlink()
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "going on at" in done.stdout
