"""Processes of Python that begin with TensorFlow imported, which is most of what a short one does.

They are forks of one process that has imported it and what a training imports of tfrl, and nothing
else. What is about the imports of these or about quiet starts runs in processes of its own.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from tfrl.keras import api as keras

ROOT = pathlib.Path(__file__).resolve().parents[1]
_lock = threading.Lock()


class Process:
    """What `subprocess.Popen` is, of a fork."""

    def __init__(self, command, *, stdout, stderr, cwd=None, env=None):
        """Starts.

        Args:
          command: `[sys.executable, "-c", code, ...]` or `[sys.executable, script, ...]`.
          stdout: The file to append to.
          stderr: Another or the same.
          cwd: The folder to run in.
          env: All environment variables; by default those of this process.
        """
        self.returncode = None
        self._status = pathlib.Path(tempfile.mkdtemp(prefix="forked")) / "status"
        request = {
            "args": list(map(str, command[1:])),
            "files": [str(stdout), str(stderr)],
            "cwd": str(cwd or pathlib.Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "status": str(self._status),
        }
        with _lock:
            server = _server()
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            self.pid = int(server.stdout.readline())

    def poll(self):
        if self.returncode is None:
            with contextlib.suppress(FileNotFoundError):
                self.returncode = int(self._status.read_text())
                shutil.rmtree(self._status.parent)
        return self.returncode

    def wait(self, timeout=None):
        deadline = time.monotonic() + (timeout or 1e9)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


def run(command, *, cwd=None, env=None, timeout=400):
    """As `subprocess.run` with `capture_output` and `text`; kills what takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, name) for name in ("out", "err")]
        process = Process(command, stdout=paths[0], stderr=paths[1], cwd=cwd, env=env)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, code, *(p.read_text() for p in paths))


@functools.cache
def _server():
    code = "from tests import forked; exec(forked.serve())"
    server = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},  # NumPy starts none
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    atexit.register(server.communicate)  # it ends with its input
    return server


def serve():
    """Forks for each request on standard input; returns, in the fork, what it shall execute."""

    import tfrl.launch.training
    import tfrl.workflows
    from tests import conftest

    assert tfrl.launch.training and tfrl.workflows
    assert keras.layers  # it is loaded when it is used
    conftest.record_op_stack_traces(False)
    gc.collect()
    gc.freeze()  # a fork that ends would look through all that is imported: a second
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has none of the other threads"
    running = {}
    while True:
        for ready in select.select([0, *running], [], [])[0]:
            if ready:
                pid, status = running.pop(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                part = pathlib.Path(f"{status}.part")
                part.write_text(str(code))
                part.rename(status)
                continue
            line = _line()
            if not line:
                os._exit(0)
            request = json.loads(line)
            pid = os.fork()
            if not pid:
                for other in running:
                    os.close(other)
                return _begin(**request)
            running[os.pidfd_open(pid)] = pid, request["status"]
            os.write(1, f"{pid}\n".encode())


def _line():
    """A line of standard input, without a buffer that `select` would not see."""
    line = b""
    while not line.endswith(b"\n"):
        if not (more := os.read(0, 65536)):
            return b""
        line += more
    return line


def _begin(args, files, cwd, env, status):
    """Makes a fork what a new process of Python is, and returns its code."""
    del status
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.modules["tfrl._log_filter"].install()  # as importing tfrl would
    null = os.open(os.devnull, os.O_RDONLY)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for old, new in zip((null, *(os.open(f, flags) for f in files)), range(3), strict=True):
        os.dup2(old, new)
        os.close(old)
    while args[0] in ("-u",):
        args.pop(0)
    main = sys.modules["__main__"].__dict__
    for name in set(main) - {"__name__", "__builtins__", "__spec__", "__doc__", "__loader__"}:
        del main[name]
    if args[0] == "-c":
        code, sys.argv, sys.path[0] = args[1], ["-c", *args[2:]], ""
        return code
    sys.argv, sys.path[0] = args, str(pathlib.Path(args[0]).resolve().parent)
    main["__file__"] = args[0]
    return compile(pathlib.Path(args[0]).read_text(), args[0], "exec")
