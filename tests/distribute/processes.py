"""Real processes with TF_CONFIG on loopback, for tests of several workers."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import time

from tests import forked

ROOT = pathlib.Path(__file__).resolve().parents[2]
IN_TIME = 120.0


def free_ports(count):
    """Ports that nobody uses at the moment; held together, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def tf_config(ports, index):
    """The TF_CONFIG of one worker of those that listen on `ports` of this machine."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})


def _started(command, env, out, err):
    if command[0] == sys.executable:
        return forked.Process(command, env=env, stdout=out, stderr=err)
    with out.open("ab") as output, err.open("ab") as errors:
        return subprocess.Popen(
            command, env=env, stdout=output, stderr=errors, start_new_session=True
        )


class Cluster:
    """Workers that run one program, each with its own TF_CONFIG; all are killed on exit.

    The program is Python source, or a command. Output goes to files, so that no pipe fills up.
    """

    def __init__(self, program, num_workers, folder, *, args=(), env=None):
        self.folder = pathlib.Path(folder)
        self.ports = free_ports(num_workers)
        self._command = program
        if isinstance(program, str):
            script = self.folder / "worker.py"
            script.write_text(textwrap.dedent(program))
            self._command = [sys.executable, "-u", str(script)]
        self._command = [*map(str, self._command), *map(str, args)]
        self._env = env or {}
        self._processes = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, *indices):
        """Starts these workers, by default all."""
        for i in indices or range(len(self.ports)):
            env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **self._env}
            env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
            env["TF_CONFIG"] = tf_config(self.ports, i)
            out, err = self._log(i, "out"), self._log(i, "err")
            for log in (out, err):
                log.touch()
            self._processes[i] = _started(self._command, env, out, err)
        return self

    def signal(self, index, number=signal.SIGKILL):
        self._processes[index].send_signal(number)

    def wait(self, index, timeout=IN_TIME):
        """Waits for the end of a worker; returns its exit code."""
        try:
            return self._processes[index].wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"worker {index} still runs\n{self.report()}") from None

    def wait_all(self, timeout=IN_TIME):
        """Waits for all workers; asserts that every exit code is 0, and returns their output."""
        deadline = time.monotonic() + timeout
        codes = [self.wait(i, max(0.1, deadline - time.monotonic())) for i in self._processes]
        assert not any(codes), f"exit codes {codes}\n{self.report()}"
        return [self.out(i) for i in self._processes]

    def wait_for(self, index, text, timeout=IN_TIME):
        """Waits until a worker has printed a text."""
        deadline = time.monotonic() + timeout
        while text not in self.out(index):
            ended = self._processes[index].poll()
            assert ended is None, f"worker {index} ended with {ended}\n{self.report()}"
            assert time.monotonic() < deadline, f"no '{text}' in time\n{self.report()}"
            time.sleep(0.02)

    def out(self, index):
        return self._log(index, "out").read_text()

    def err(self, index):
        return self._log(index, "err").read_text()

    def report(self):
        """Everything that every worker said."""
        return "\n".join(
            f"--- worker {i}, standard {name}:\n{self._log(i, short).read_text()}"
            for i in self._processes
            for name, short in (("output", "out"), ("error", "err"))
        )

    def _log(self, index, kind):
        return self.folder / f"worker_{index}.{kind}"
