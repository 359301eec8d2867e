"""Ends this process when a call into TensorFlow does not come back.

Some calls that wait for another process have no timeout and hold Python's interpreter lock, so
that neither a thread nor a signal handler of this process would ever run. A small second process
counts the seconds instead.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, cast

from tfrl.errors import UserError

# Waits until its standard input closes: then the call came back, or this process is gone.
_CODE = """
import os, select, signal, sys
seconds, pid, message = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if not select.select([0], [], [], seconds)[0]:
    sys.stderr.write(message)
    sys.stderr.flush()
    os.kill(pid, signal.SIGKILL)
"""


@contextlib.contextmanager
def ends_after(seconds: float, error: UserError) -> Iterator[None]:
    """Kills this process, with a message, if the body takes longer than `seconds`.

    Args:
      seconds: How long the body may take.
      error: What standard error then says.

    Yields:
      Nothing.
    """
    command = [sys.executable, "-I", "-S", "-c", _CODE, str(seconds), str(os.getpid())]
    with subprocess.Popen([*command, f"Error: {error}\n"], stdin=subprocess.PIPE) as process:
        line = cast(IO[bytes], process.stdin)  # it was asked for
        try:
            yield
        finally:
            line.close()
