import signal
import sys
import textwrap
import time

from tests import forked

CODE = """
    import ctypes, time
    from tfrl.distribute import multi_worker
    from tfrl.errors import UserError
    error = UserError("The wait", expected="an end", got="none", remedy="Do something.")
    with multi_worker.ends_after({seconds}, error):
        {body}
    print("came back")
"""


def run(seconds, body):
    code = textwrap.dedent(CODE).format(seconds=seconds, body=body)
    return forked.run([sys.executable, "-c", code], timeout=60)


def test_ends_a_call_that_holds_the_interpreter():
    # PyDLL keeps the interpreter's lock, as TensorFlow does while it waits for the others.
    done = run(1.0, "ctypes.PyDLL(None).sleep(50)")
    assert done.returncode == -signal.SIGKILL
    assert done.stderr == "Error: The wait: expected an end, got none. Do something.\n"
    assert done.stdout == ""


def test_a_call_that_comes_back_is_left_alone():
    started = time.monotonic()
    done = run(30.0, "time.sleep(0.1)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "came back\n", "")
    assert time.monotonic() - started < 20.0  # the second process ended with it


def test_an_error_passes():
    done = run(30.0, "raise KeyError('mine')")
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 'mine'\n")
