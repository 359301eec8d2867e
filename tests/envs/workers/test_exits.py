"""However a program ends, its workers end with it."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.envs.workers import processes

# What the workers are doing when the program ends.
DOING = {
    "waiting": 'Fault("none")',
    "sleeping": 'Fault("hangs")',
    "holding_the_lock": 'Fault("holds_the_lock")',
    "stopped": 'Fault("stops")',
    "resetting": 'Fault("hangs", "reset")',
    "importing": 'Fault("hangs", "factory")',
}
PROGRAM = """
    import os, signal, sys, threading, time
    from tests.envs.workers.environments import Fault, Faulty
    from tfrl.envs.workers import WorkerPool

    fault = {fault}
    pool = WorkerPool(lambda: Faulty(fault), 2, cleanup_time=0.5)
    if fault.where != "factory":
        pool.reset()
    if fault.where == "step":
        for _ in range(2):
            pool.send_action(0, pool.get_state(120.0).worker_id)
        if fault.kind == "none":
            pool.get_state(120.0), pool.get_state(120.0)
    # So that the workers are where they shall be.
    time.sleep(0.3 if fault.where == "step" else 1.5)
    print(*pool.pids, flush=True)
    {end}
"""
ENDS = {
    "normal": "pass",
    "exception": "raise ValueError('the end')",
    "sys_exit": "sys.exit(5)",
    "os_exit": "os._exit(6)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "os.kill(os.getpid(), signal.SIGINT); time.sleep(10)",
    "crash": "os.abort()",
}
CODES = {
    "normal": 0,
    "exception": 1,
    "sys_exit": 5,
    "os_exit": 6,
    "killed": -signal.SIGKILL,
    "terminated": -signal.SIGTERM,
    "interrupted": -signal.SIGINT,
    "crash": -signal.SIGABRT,
}


def start(code, **options):
    command = [sys.executable, "-c", textwrap.dedent(code)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **options)


def run_to_the_end(fault, end):
    """Runs a program; returns its workers' process ids, its exit code and its standard error."""
    program = start(PROGRAM.format(fault=fault, end=end))
    try:
        out, error = program.communicate(timeout=300)
    finally:
        program.kill()
    pids = [int(word) for word in out.split()]
    assert len(pids) == 2, error
    return pids, program.returncode, error


# Each way to end with the most common work, each work with the hardest way to end.
COMBINED = [*((doing, "killed") for doing in DOING), *(("sleeping", e) for e in ENDS)]
FAST = {("waiting", "killed"), ("holding_the_lock", "killed")}
CASES = [
    pytest.param(*case, marks=[] if case in FAST else pytest.mark.slow)
    for case in dict.fromkeys([*COMBINED, ("waiting", "normal"), ("holding_the_lock", "os_exit")])
]


@pytest.mark.parametrize(("doing", "end"), CASES)
def test_no_process_outlives_its_program(doing, end):
    pids, code, error = run_to_the_end(DOING[doing], ENDS[end])
    assert code == CODES[end], error
    assert processes.gone(pids)


def test_a_program_that_is_killed_while_its_workers_start_leaves_none():
    code = """
        import os, signal
        from tests.envs.workers.environments import Walk
        from tfrl.envs.workers import WorkerPool

        pool = WorkerPool(Walk, 2)
        print(*pool.pids, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    out, error = start(code).communicate(timeout=300)
    pids = list(map(int, out.split()))
    assert len(pids) == 2, error
    # They look as soon as they have imported what they need.
    assert processes.gone(pids)


@pytest.mark.slow
def test_workers_started_by_a_thread_live_on_when_it_ends():
    """The kernel kills children when the THREAD that started them ends."""
    code = """
        import threading
        from tests.envs.workers.environments import Walk
        from tests.envs.workers import processes
        from tfrl.envs.workers import WorkerPool

        pools = []
        thread = threading.Thread(target=lambda: pools.append(WorkerPool(Walk, 1)))
        thread.start()
        thread.join()
        with pools[0] as pool:
            pool.reset()
            state = pool.get_state(120.0)
            processes.kill(pool.pids)
            assert processes.wait_for(lambda: pool.get_state(0.0))
            thread = threading.Thread(target=pool.get_state)  # restarts it
            thread.start()
            thread.join()
            pids = pool.pids
            pool.send_action(0, 0)
            assert pool.get_state(120.0).step == 1
            print(pool.restarts, pids == pool.pids)
    """
    program = start(code)
    out, error = program.communicate(timeout=300)
    assert (program.returncode, out) == (0, "1 True\n"), error


@pytest.mark.slow
def test_what_an_environment_starts_is_killed_with_it():
    code = """
        import subprocess, time
        from tests.envs.workers.environments import Walk
        from tfrl.envs.workers import WorkerPool

        class Simulator(Walk):
            def reset(self, **options):
                obs, info = super().reset(**options)
                return obs, {"pid": subprocess.Popen(["sleep", "1000"]).pid}

        with WorkerPool(Simulator, 1) as pool:
            pool.reset()
            print(pool.get_state(120.0).info["pid"], *pool.pids)
    """
    program = start(code)
    out, error = program.communicate(timeout=300)
    assert program.returncode == 0, error
    assert len(out.split()) == 2 and processes.gone(map(int, out.split()))


@pytest.mark.slow
def test_ctrl_c_reaches_the_program_alone():
    """A terminal signals all of a process group; the workers are in another, and say nothing."""
    code = PROGRAM.format(fault=DOING["waiting"], end=ENDS["interrupted"])
    code = code.replace("os.kill(os.getpid(), signal.SIGINT)", "os.killpg(0, signal.SIGINT)")
    program = start(code, start_new_session=True)
    out, error = program.communicate(timeout=300)
    pids = list(map(int, out.split()))
    assert len(pids) == 2 and processes.gone(pids)
    assert error.count("Traceback") == 1 and error.count("KeyboardInterrupt") == 1


def test_without_the_kernels_help_the_watch_finds_a_dead_parent(tmp_path):
    """What other systems than Linux rely on."""
    (tmp_path / "child.py").write_text(
        "import os, time\n"
        "from tfrl.envs.workers import child\n"
        "child.sys.platform = 'other'\n"
        "child.die_with_parent(os.getppid())\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(1000)\n"
    )
    program = start(f"""
        import subprocess, sys
        command = [sys.executable, {str(tmp_path / "child.py")!r}]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        print(child.stdout.readline(), flush=True)
        """)
    out, error = program.communicate(timeout=300)
    assert program.returncode == 0 and int(out) > 0, error
    assert processes.gone([int(out)])


@pytest.mark.slow
def test_a_fork_of_the_program_leaves_the_workers_alone():
    code = """
        import os, sys
        from tests.envs.workers.environments import Walk
        from tfrl.envs.workers import WorkerPool

        pool = WorkerPool(Walk, 1)
        pool.reset()
        state = pool.get_state(120.0)
        if os.fork() == 0:
            # Its exit handlers run, and a pool of its own works.
            with WorkerPool(Walk, 1) as mine:
                mine.reset()
                assert mine.get_state(120.0).first
            pool.close()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        pool.send_action(0, 0)
        print(pool.get_state(120.0).step, pool.restarts)
        pool.close()
    """
    program = start(code)
    out, error = program.communicate(timeout=300)
    assert (program.returncode, out) == (0, "1 0\n"), error
    assert not os.path.exists(f"/proc/{program.pid}")
