"""Reverb itself, imported when it is needed and not before."""

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from tfrl import extras

# "[reverb/cc/platform/default/server.cc:71] Started replay server on port 8000"
_LINE = re.compile(
    rb"\[reverb/cc/((platform|reverb_service_impl)[^\]]*\]|client\.cc:\d+\] Sampler and server are)"
)
_lock = threading.RLock()


@contextlib.contextmanager
def without_progress_lines() -> Iterator[None]:
    """Holds standard error back while Reverb starts, saves or stops; all other lines come after.

    With `TF_CPP_MIN_LOG_LEVEL=0` nothing is held back.

    Yields:
      Nothing.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    with _lock, tempfile.TemporaryFile() as held:
        sys.stderr.flush()
        real = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            for line in held.read().splitlines(keepends=True):
                if not _LINE.match(line):
                    os.write(2, line)


def reverb() -> Any:
    """Returns the module `reverb`.

    Raises:
      UserError: Where it is not installed.
    """
    return extras.require_reverb()
