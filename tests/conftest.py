"""Shared set-up of all tests: quiet logs, divided threads, a clean gin after each test."""

import collections
import ctypes
import gc
import importlib.util
import inspect
import os
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def _limit_threads():
    """Shares the cores between pytest-xdist's processes; must run before TensorFlow starts."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        threads = str(max(1, (os.cpu_count() or 1) // workers))
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
            os.environ.setdefault(name, threads)


_limit_threads()
# Child processes of tests also import this checkout, from any working directory.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("MPLBACKEND", "Agg")
# Keep XLA's optimizations; disable LLVM's, which take longer than the tests' small programs run.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


# Optional packages: the extra that installs them, and the folders and files of their tests.
_OF_2_15 = " on Python 3.10 or 3.11"
_NEEDS = {
    "reverb": (
        f"'tfrl[reverb]'{_OF_2_15}",
        "launch/test_remote.py",
        "launch/test_reverb_server.py",
        "replay/reverb",
        "roles",
        "workflows/test_off_policy_page.py",
        "workflows/test_off_policy_processes.py",
        "workflows/test_off_policy_reverb",
    ),
    "tf_agents": (f"'tfrl[tf-agents]'{_OF_2_15}", "compat"),
    "tensorflow_serving": ("'tfrl[grpc]'", "serving/test_server.py"),
    "uvicorn": ("'tfrl[serve]'", "serving"),
    "mkdocs": ("'tfrl[docs]'",),
    "optuna": ("'tfrl[tune]'", "launch/test_tune.py"),
}


def _missing(module):
    """Returns how to install a missing package; None if it is installed."""
    if importlib.util.find_spec(module) is not None:
        return None
    return f"needs {module}: pip install {_NEEDS[module][0]}"


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path, parent):
    """Skips test files of missing packages, by name, before their import."""
    path = str(module_path.relative_to(ROOT / "tests"))
    for module, (_, *paths) in _NEEDS.items():
        if path.startswith(tuple(paths)) and (reason := _missing(module)):
            made = _SkippedModule.from_parent(parent, path=module_path)
            made.reason = reason
            return made
    return None


class _SkippedModule(pytest.Module):
    """A file of tests that is not imported."""

    def collect(self):
        """Skips."""
        pytest.skip(self.reason, allow_module_level=True)


def pytest_runtest_setup(item):
    """Skips single tests with `@pytest.mark.needs("reverb")`."""
    for mark in item.iter_markers("needs"):
        for module in mark.args:
            if reason := _missing(module):
                pytest.skip(reason)


def pytest_configure(config):
    """Splits the CPU into four devices, before any test module computes."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return  # pytest-xdist's controller runs no test
    import tensorflow as tf

    record_op_stack_traces(False)
    use_grappler(False)
    # As in the binaries: hide TensorFlow's hints, for example about retracing.
    tf.get_logger().setLevel("ERROR")
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(cpu, devices)


def record_op_stack_traces(notes):
    """Sets whether graph operations record the Python stack, 1/12 of the test time."""
    from tensorflow.python.framework import ops

    create = inspect.unwrap(ops._create_c_op)  # defaults of op_def and extract_traceback
    assert create.__defaults__ in ((None, True), (None, False))
    create.__defaults__ = (None, notes)


def use_grappler(on):
    """Sets whether TensorFlow optimizes graphs that run without XLA, 1/10 of the test time."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not on})


@pytest.fixture(scope="module")
def grappler():
    """Optimizes graphs, for tests of their bits or times, also beside those of other processes."""
    use_grappler(True)
    yield
    use_grappler(False)


@pytest.fixture
def op_stack_traces():
    """Records the Python stack of operations, for tests of messages that show it."""
    record_op_stack_traces(True)
    yield
    record_op_stack_traces(False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks the cases that `variants` excludes from the fast tests as slow."""
    cases = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("variants"):
            # absl's parameterized creates a method per case: test_name0, test_name1, ...
            cases[re.sub(r"\d+$", "", item.nodeid.partition("[")[0])].append(item)
    for found in cases.values():
        fast = spread(len(found), found[0].get_closest_marker("variants").args[0])
        for i, item in enumerate(found):
            if i not in fast:
                item.add_marker(pytest.mark.slow)


def spread(cases, n):
    """Returns n indices of a number of cases, evenly spaced from the first on."""
    return {i * cases // n for i in range(n)}


def pytest_collection_finish():
    """Excludes imported modules from garbage collection, which would scan them every time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(autouse=True)
def _clean_gin():
    """Clears gin's bindings after each test that uses gin.

    Also checks that a run folder's names are trusted again; else the next test could not import.
    """
    yield
    loading = sys.modules.get("tfrl.loading")
    assert loading is None or loading.distrusted() is None
    gin = sys.modules.get("gin")
    if gin is not None:
        gin.clear_config()


@pytest.fixture(autouse=True, scope="module")
def _free_memory():
    """Frees the graphs of a file's tests: 30 MB per workflow.

    Traces keep them for equal logic, in reference cycles that Python collects late.
    """
    yield
    if traces := sys.modules.get("tfrl.traces"):
        traces.forget_all()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
