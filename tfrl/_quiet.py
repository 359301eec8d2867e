"""Keeps TensorFlow's, CUDA's and gym's start-up lines away from users.

Everything here yields to the user: a variable that is already set stays as it is, and with
`TF_CPP_MIN_LOG_LEVEL=0` all of TensorFlow's lines are back.
"""

import ctypes
import importlib.machinery
import importlib.util
import logging
import os
import pathlib
import sys
import types
from collections.abc import Sequence
from importlib.abc import MetaPathFinder

_DEFAULTS = {
    # 3, since TF 2.15 reports cuDNN, cuFFT and cuBLAS being registered twice as errors.
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    # pygame, which draws some environments, else complains of machines without a sound card.
    "SDL_AUDIODRIVER": "dummy",
}

# The flag behind "Compiled cluster using XLA!", which ignores TF_CPP_MIN_LOG_LEVEL, and the value
# that absl::call_once stores when its function has run.
_XLA_ONCE = "_ZZN10tensorflow24device_compiler_internal30LogOnceXlaCompiledFirstClusterEvE8log_once"
_ABSL_ONCE_DONE = 221


def install() -> None:
    """Sets the quieting environment; safe to call more than once."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    _drop_gym_notice()
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0":
        return
    if "tensorflow" in sys.modules:
        _after_tensorflow(sys.modules["tensorflow"])
    elif not any(isinstance(finder, _TensorFlowHook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TensorFlowHook())


def _drop_gym_notice() -> None:
    """Empties the table from which gym, that tf_agents imports, prints its banner."""
    if importlib.util.find_spec("gym_notices") is not None:
        notices = importlib.import_module("gym_notices.notices")
        notices.notices.clear()


def _after_tensorflow(tensorflow: types.ModuleType) -> None:
    """Silences what is decided only once TensorFlow is loaded."""
    logger = logging.getLogger("tensorflow")
    if logger.level == logging.NOTSET or logger.level == logging.INFO:
        logger.setLevel(logging.WARNING)
    library = pathlib.Path(str(tensorflow.__file__)).parent / "libtensorflow_cc.so.2"
    if library.exists():
        once = ctypes.c_uint32.in_dll(ctypes.CDLL(str(library)), _XLA_ONCE)
        once.value = _ABSL_ONCE_DONE


class _TensorFlowHook(MetaPathFinder):
    """Runs `_after_tensorflow` when somebody imports TensorFlow, then is gone."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds TensorFlow's own spec and adds the step after its execution."""
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then_quieten(module: types.ModuleType) -> None:
                execute(module)
                _after_tensorflow(module)

            spec.loader.exec_module = execute_then_quieten  # type: ignore[method-assign]
        return spec
