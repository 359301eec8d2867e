"""Environments in processes: what fails is named, ends in time, and leaves nothing behind."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
from absl.testing import absltest

import tfrl
from tests.envs.adapters import gymnasium_fakes as fakes
from tfrl.envs.adapters import gymnasium_async
from tfrl.envs.adapters.gymnasium_async import VectorWorkerError
from tfrl.envs.env_calls import EnvError

fakes.register()
BROKEN = "gymnasium:tfrl_fakes/Broken-v0"
ROOT = pathlib.Path(__file__).resolve().parents[3]
# Without TensorFlow, so that it starts in a second.
SCRIPT = """
import signal
import time
import gymnasium
from gymnasium.vector import AutoresetMode
from tests.envs.adapters import gymnasium_fakes as fakes
from tfrl.envs.adapters.gymnasium_async import ProcessVectorEnv

def make():
    return fakes.Broken(how="hang", only=1)

if __name__ == "__main__":
    # A shell lets its background jobs ignore it, and all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    envs = ProcessVectorEnv("x", [make] * 2, AutoresetMode.NEXT_STEP, 60.0)
    envs.reset(seed=0)
    for _ in range(2):
        envs.step_async(envs.action_space.sample())
        print(*[p.pid for p in envs.processes], flush=True)
        if _ == 0:
            envs.step_wait()
    {end}
"""


def processes(env):
    return list(env.backend._vector.processes)


def step_twice(env):
    state = env.reset(0)
    for _ in range(2):
        state = env.step(state, np.zeros(env.num_envs, np.int64))


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def gone(pids, seconds):
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [p for p in pids if alive(p)]


class FailuresTest(absltest.TestCase):
    def fails(self, how, timeout=60.0, **options):
        """The error of the second step, after which no process may be left."""
        made = dict(num_envs=2, vectorization="async", how=how, **options)
        with tfrl.make_env(BROKEN, **made) as env:
            children = processes(env)
            env.backend._vector._timeout = timeout
            with self.assertRaises(VectorWorkerError) as caught:
                step_twice(env)
            self.assertFalse(any(p.is_alive() for p in children))
        self.user_traceback = caught.exception.user_traceback
        return str(caught.exception)

    def test_one_raises(self):
        with tfrl.make_env(BROKEN, num_envs=2) as env:  # the seeds that a reset gives
            state = env.reset(0)
            seeds = [e.unwrapped._seed for e in env.backend._vector.envs]
            with tfrl.make_env(BROKEN, only=seeds[1], how="raise", num_envs=2) as sync:
                with self.assertRaises(EnvError) as caught:
                    step_twice(sync)
        self.assertIsInstance(caught.exception.__cause__, fakes.Odd)
        self.assertIn(
            f"step() of {BROKEN}, environment 1, step 2: expected no exception, got Odd: boom 3. "
            "Reproduce it: gymnasium.make('tfrl_fakes/Broken-v0') with the same arguments and "
            f"wrappers, reset(seed={seeds[1]}), then the same actions; this was step 2 of episode "
            "1 from that seed, its action 0.",
            str(caught.exception),
        )
        trace = caught.exception.user_traceback
        self.assertIn('raise Odd("boom", code=3)', trace)
        self.assertEqual(trace.count("  File "), 1, trace)  # the user's frame alone
        del state
        # The same words from a process.
        self.assertEqual(self.fails("raise", only=seeds[1]), str(caught.exception))
        self.assertEqual(self.user_traceback.count("  File "), 1, self.user_traceback)

    def test_all_die(self):
        self.assertEqual(
            self.fails("die"),
            f"{BROKEN}: expected worker processes that run until close(), got the end of worker 0 "
            "(exit code 9), 1 (exit code 9) during step. A negative exit code is the number of "
            "the signal that killed it.",
        )

    def test_all_hang(self):
        with absltest.mock.patch.object(gymnasium_async, "CLEANUP_TIME", 0.3):
            started = time.monotonic()
            text = self.fails("hang", timeout=1.0)
        self.assertEqual(
            text,
            f"{BROKEN}: expected an answer to step within 1 s, got no answer from worker 0, 1. "
            "Fix the hanging environment, or pass a larger timeout (in seconds).",
        )
        self.assertLess(time.monotonic() - started, 30.0)

    def test_one_cannot_be_made_in_its_process(self):
        options = dict(how="import", main=os.getpid(), num_envs=2, vectorization="async")
        with self.assertRaises(VectorWorkerError) as caught:
            tfrl.make_env(BROKEN, **options)
        self.assertRegex(
            str(caught.exception),
            rf"^worker [01] of {BROKEN}: expected no exception, got ImportError: no such simulator",
        )

    def test_killed_from_outside(self):
        with tfrl.make_env(BROKEN, how="none", num_envs=2, vectorization="async") as env:
            state, children = env.reset(0), processes(env)
            os.kill(children[1].pid, signal.SIGKILL)
            children[1].join()
            with self.assertRaisesRegex(
                VectorWorkerError, r"end of worker 1 \(exit code -9\) during"
            ) as caught:
                env.step(state, np.zeros(2, np.int64))
            self.assertEqual(caught.exception.exit_code, 75)  # a launcher restarts its process
            self.assertFalse(any(p.is_alive() for p in children))

    def outlives(self, how, timeout=60.0):
        """The states of four steps of a tolerant pool, whose second process fails in the second."""
        made = dict(num_envs=2, vectorization="async", how=how, only=4)
        with tfrl.make_env(BROKEN, **made) as strict, strict.tolerant() as env:
            first = processes(env)
            env.backend._vector._timeout = timeout
            states = [env.begin(np.array([3, 4]))]
            for _ in range(3):
                states.append(env.step(states[-1], np.zeros(2, np.int64)))
            self.assertFalse(first[1].is_alive())
            self.assertIs(processes(env)[0], first[0])
            states.append(env.begin(np.array([3, 5])))
            last = processes(env)
        self.assertFalse(any(p.is_alive() for p in last))
        return states

    def check_one_lost_episode(self, states):
        """The episode is lost up to the next seed."""
        lost = [s.info["lost"].tolist() for s in states]
        self.assertEqual(lost, [[0, 0], [0, 0], [0, 1], [0, 1], [0, 0]])
        self.assertEqual(
            [bool(s.termination[1]) for s in states], [False, False, True, True, False]
        )
        self.assertEqual([s.obs[0, 2] for s in states], [0, 1, 2, 3, 0])  # the other goes on
        self.assertEqual([states[i].obs[1, 2] for i in (0, 1, 4)], [0, 1, 0])

    def test_a_tolerant_pool_outlives_a_process(self):
        self.check_one_lost_episode(self.outlives("die"))

    @pytest.mark.slow
    def test_a_tolerant_pool_outlives_a_process_that_hangs(self):
        self.check_one_lost_episode(self.outlives("hang", timeout=10.0))


class EndsTest(absltest.TestCase):
    def test_no_tensorflow_in_the_processes(self):
        task = "gymnasium:tfrl_fakes/Scripted-v0"
        with tfrl.make_env(task, vectorization="async") as env:
            vector = env.backend._vector
            self.assertEqual(vector.call("loaded", "tensorflow"), (False,))
            self.assertEqual(vector.call("loaded", "gymnasium"), (True,))

    def test_closed_while_a_step_is_under_way(self):
        with tfrl.make_env(BROKEN, how="none", num_envs=2, vectorization="async") as env:
            children = processes(env)
            env.send(env.reset(0), np.zeros(2, np.int64))
        self.assertEqual([p.exitcode for p in children], [0, 0])

    def test_reset_while_a_step_is_under_way(self):
        with tfrl.make_env(BROKEN, how="none", vectorization="async") as env:
            first = env.reset(0)
            env.send(first, np.zeros(1, np.int64))
            np.testing.assert_array_equal(env.reset(0).obs, first.obs)

    def run_and(self, end, kill=None):
        """Runs the script, whose second environment hangs; the processes must go with it."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        script = pathlib.Path(folder.name, "script.py")
        script.write_text(SCRIPT.replace("{end}", end))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as parent:
            lines = [parent.stdout.readline() for _ in range(2)]
            pids = [int(p) for p in lines[-1].split()]
            self.assertLen(pids, 2)
            if kill is not None:
                parent.send_signal(kill)
            try:
                parent.wait(30)
            except subprocess.TimeoutExpired:
                parent.kill()
                raise
        self.assertEmpty(gone(pids, 10.0))

    def test_the_parent_is_killed(self):
        self.run_and("time.sleep(600)", signal.SIGKILL)

    def test_the_parent_is_interrupted(self):
        # In naps: Python itself misses a signal that comes between its last look for one and the
        # start of a sleep, until that sleep is over.
        self.run_and("while True: time.sleep(0.1)", signal.SIGINT)

    def test_the_parent_just_ends(self):
        self.run_and("pass")


if __name__ == "__main__":
    absltest.main()
