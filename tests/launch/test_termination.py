import os
import signal

import pytest

from tfrl.launch.termination import Termination


@pytest.fixture(name="installed")
def fixture_installed():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    termination = Termination()
    termination.install()
    yield termination
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


def test_a_second_sigterm_still_lets_the_run_save(installed):
    with installed.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert installed.exit_code == 143
