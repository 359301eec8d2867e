import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import tfrl
from tfrl.launch import processes

# Counts the SIGTERMs of half a second, and ends.
CHILD = """
import pathlib, signal, sys, time
came = []
signal.signal(signal.SIGTERM, lambda *_: came.append(1))
pathlib.Path(sys.argv[1]).write_text("started")
deadline = time.monotonic() + 240
while not came and time.monotonic() < deadline:
    time.sleep(0.02)
time.sleep(0.5)
pathlib.Path(sys.argv[1]).write_text(f"{len(came)} SIGTERM")
"""

PARENT = """
import functools, pathlib, sys
from tfrl.launch import processes

def run(name, call):
    print(call([sys.executable, "-S", "-c", sys.argv[1], name]), flush=True)

names = sys.argv[2:]
processes.run_parallel([functools.partial(run, name) for name in names], 2)
"""


def texts(paths):
    return [path.read_text() if path.exists() else "" for path in paths]


def until(paths, end):
    deadline = time.monotonic() + 120
    while not all(text.endswith(end) for text in texts(paths)):
        assert time.monotonic() < deadline, texts(paths)
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "group", "code"),
    [
        (signal.SIGTERM, False, 143),
        (signal.SIGTERM, True, 143),  # as from timeout(1) and systemd
        (signal.SIGINT, False, -signal.SIGINT),  # as from kill(1)
        (signal.SIGINT, True, -signal.SIGINT),  # as from a terminal
        (signal.SIGKILL, False, -signal.SIGKILL),
    ],
)
def test_commands_get_one_signal_and_no_further_command_starts(tmp_path, number, group, code):
    paths = [tmp_path / name for name in ("a", "b", "c")]
    command = [sys.executable, "-c", PARENT, CHILD, *map(str, paths)]
    with subprocess.Popen(command, process_group=0) as parent:
        until(paths[:2], "started")
        (os.killpg if group else os.kill)(parent.pid, number)
        assert parent.wait(120) == code
    if number == signal.SIGKILL:  # Linux signals at the end of each thread that had the child
        until(paths[:2], " SIGTERM")
    else:
        until(paths[:2], "1 SIGTERM")
    assert not paths[2].exists()


def test_the_error_of_a_job_ends_the_others(tmp_path):
    path = tmp_path / "a"
    program = f"""
import sys, time
from tfrl.launch import processes

def fails(call):
    while not __import__("pathlib").Path({str(path)!r}).exists():
        time.sleep(0.02)
    raise RuntimeError("this job")

processes.run_parallel(
    [fails, lambda call: call([sys.executable, "-S", "-c", {CHILD!r}, {str(path)!r}])], 2
)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1 and "RuntimeError: this job" in done.stderr
    assert path.read_text() == "1 SIGTERM"


def test_modules_of_the_working_directory_do_not_shadow_libraries(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(tfrl.__file__).parents[1]))
    command = [*processes.program("report"), "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    safe = sys.version_info >= (3, 11)
    assert (told.stdout == f"tfrl {tfrl.__version__}\n") == safe
