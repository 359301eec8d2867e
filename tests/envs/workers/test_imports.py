"""Neither the package nor a worker's process imports TensorFlow, whatever the main script does."""

import ast
import pathlib
import subprocess
import sys
import textwrap

import pytest

FAKE = """
import os, pathlib
with open(os.environ["TENSORFLOW_IMPORTS"], "a") as file:
    file.write(f"{os.getpid()}\\n")
"""


@pytest.fixture(name="run")
def fixture_run(tmp_path, monkeypatch):
    """Runs a script beside a module `tensorflow` that notes who imports it."""
    (tmp_path / "tensorflow.py").write_text(FAKE)
    noted = tmp_path / "imports"
    noted.write_text("")
    monkeypatch.setenv("TENSORFLOW_IMPORTS", str(noted))

    def run(code, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr, noted.read_text().split()

    return run


def test_the_package_imports_no_tensorflow(run):
    out, error, imports = run(
        """
        import sys
        import tfrl.envs.workers
        print(sorted({"tensorflow", "keras", "gin", "jax"} & set(sys.modules)))
        print(tfrl.envs.workers.WorkerPool.__name__)
        """
    )
    assert (out, error, imports) == ("[]\nWorkerPool\n", "", [])


SCRIPT = """
    import os
    import sys
    import gymnasium
    import tensorflow
    from tfrl.envs.workers import WorkerPool

    print("main", os.getpid())

    class Told(gymnasium.Wrapper):
        def reset(self, **options):
            obs, _ = super().reset(**options)
            return obs, {"tensorflow": "tensorflow" in sys.modules, "pid": os.getpid()}

    def make():
        return Told(gymnasium.make("CartPole-v1"))

    # No guard of the main module: workers do not run it.
    with WorkerPool(make, 1) as pool:
        pool.reset()
        info = pool.get_state(120.0).info
        print(info["tensorflow"], info["pid"] == pool.pids[0] != os.getpid())
"""


def test_a_main_script_that_imports_tensorflow_does_so_alone(run):
    out, error, imports = run(SCRIPT)
    main, pid, *rest = out.split()
    assert (main, rest) == ("main", ["False", "True"])
    assert imports == [pid]
    assert error == ""


def test_a_factory_whose_module_imports_tensorflow_is_told(run):
    out, error, imports = run(
        """
        import my_environment
        from tfrl.envs.workers import WorkerPool

        with WorkerPool(my_environment.make, 1) as pool:
            pool.reset()
            assert pool.get_state(120.0).first
        """,
        my_environment="""
        import gymnasium
        import tensorflow

        def make():
            return gymnasium.make("CartPole-v1")
        """,
    )
    assert len(imports) == 2
    assert error == (
        "Each environment worker imports TensorFlow, which takes seconds and hundreds of MB, "
        "since the module of env_factory imports it. Move the environment and its factory to a "
        "module without TensorFlow.\n"
    )


def test_the_package_imports_only_what_a_worker_may_load():
    """No module of the package names TensorFlow, or anything of the library that needs it."""
    folder = pathlib.Path(__file__).parents[3] / "tfrl" / "envs" / "workers"
    nodes = [node for path in folder.glob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    ours = {name for name in imports if name.startswith("tfrl")}
    free = ("tfrl.envs.workers", "tfrl.envs.gymnasium_values", "tfrl.errors")
    assert all(name == "tfrl" or name.startswith(free) for name in ours)
    names = {a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
    assert not {"specs", "struct", "types"} & names
    allowed = {*sys.stdlib_module_names, "numpy", "gymnasium", "cloudpickle", "tfrl"}
    assert {name.partition(".")[0] for name in imports} <= allowed
    assert len(ours) > 5
