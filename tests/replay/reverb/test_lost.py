"""How a process ends that has left something behind."""

import pathlib
import subprocess
import sys
import textwrap
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
LOST = ROOT / "tfrl" / "replay" / "reverb" / "cancellable_call.py"

# The module alone, so that these processes need not import TensorFlow.
_LOAD = f"""
import atexit, importlib.util, sys, threading, time
spec = importlib.util.spec_from_file_location("lost", {str(LOST)!r})
lost = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lost)

class Slow:
    def __del__(self):
        print("deleting", flush=True)
        time.sleep(60)
"""


def run(code):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _LOAD + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=50,
    )
    return done, time.monotonic() - began


def test_what_was_left_behind_does_not_hold_the_process():
    done, seconds = run("lost.leave_behind(Slow())")
    assert (done.returncode, done.stdout, done.stderr) == (1, "deleting\n", "")
    assert 1.5 < seconds < 5 + 5  # The interpreter's start, on busy cores.


@pytest.mark.parametrize("code", [0, 2])
def test_an_orderly_end_keeps_its_code(code):
    done, _ = run(f"""
        lost.leave_behind(threading.Lock())
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        sys.exit({code})
    """)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_nothing_left_behind_does_not_bound_the_exit():
    done, _ = run("""
        lost.leave_behind()
        assert not lost.has_left_behind()
        atexit.register(time.sleep, lost.ORDERLY_EXIT_SECONDS + 1)
        sys.exit(75)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (75, "", "")


def test_end_process():
    done, seconds = run("""
        slow = Slow()
        sys.stdout.write("said")
        sys.stderr.write("told")
        lost.end_process(7)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (7, "said", "told")
    assert seconds < 30


def test_end_process_with_a_stream_that_was_closed():
    done, _ = run("""
        sys.stdout.close()
        lost.end_process(3)
    """)
    assert done.returncode == 3


def test_the_error_tells_binaries_to_end_at_once():
    done, _ = run("""
        for kind in (lost.ServerLostError, lost.ServerSilentError):
            error = kind("a", expected="b", got="c", remedy="d.")
            print(error, error.exit_code, error.exit_at_once)
    """)
    assert done.stdout == 2 * "a: expected b, got c. d. 75 True\n"
