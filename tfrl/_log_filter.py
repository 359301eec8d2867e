"""Keeps TensorFlow's, CUDA's and gym's start-up lines away from users, by their own settings.

Everything here yields to the user: a variable or level that is already set stays as it is, and with
`TF_CPP_MIN_LOG_LEVEL=0` all of TensorFlow's lines are back. Two lines of the first function that
XLA compiles in a process ("Compiled cluster using XLA!") know no setting, and stay. Nor do lines
that newer TensorFlows write while they are imported; these are held back.
"""

import contextlib
import importlib
import importlib.abc
import importlib.util
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_DEFAULTS = {
    # 3, since TF 2.15 reports cuDNN, cuFFT and cuBLAS being registered twice as errors.
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    # pygame, which draws some environments, else complains of machines without a sound card.
    "SDL_AUDIODRIVER": "dummy",
}

# "I0000 00:00:1795623256.068091    4149 port.cc:153] oneDNN custom operations are on."
_STARTING = re.compile(rb"WARNING: All log messages before absl::InitializeLog|I0000 00:00:\d")
_lock = threading.RLock()


@contextlib.contextmanager
def without_lines(pattern: re.Pattern[bytes]) -> Iterator[None]:
    """Holds standard error back; at the end come the lines that a pattern does not match.

    With `TF_CPP_MIN_LOG_LEVEL=0` nothing is held back.

    Args:
      pattern: Of the beginnings of lines.

    Yields:
      Nothing.
    """
    real = None
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0" and sys.stderr is not None:
        with contextlib.suppress(OSError):  # a daemon may have closed it
            real = os.dup(2)
    if real is None:
        yield
        return
    with _lock, tempfile.TemporaryFile() as held:
        sys.stderr.flush()
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            for line in held.read().splitlines(keepends=True):
                if not pattern.match(line):
                    os.write(2, line)


class _QuietTensorFlow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports TensorFlow without the lines of its start; then it is as if this were not there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._loader
        with without_lines(_STARTING):
            self._loader.exec_module(module)


def install() -> None:
    """Sets the variables and levels; safe to call more than once."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("gym_notices") is not None:
        # The table from which gym, that tf_agents imports, prints its banner.
        importlib.import_module("gym_notices.notices").notices.clear()
    if "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _QuietTensorFlow())
    logger = logging.getLogger("tensorflow")
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] != "0" and logger.level in (logging.NOTSET, logging.INFO):
        logger.setLevel(logging.WARNING)
