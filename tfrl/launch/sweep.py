"""`bin/sweep.py`: trains a grid of settings over seeds, and compares the runs."""

import ast
import functools
import itertools
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from tfrl.errors import UserError
from tfrl.launch import api, app, gin_files, processes, shared_flags
from tfrl.launch import flags as common_flags
from tfrl.storage import remote

DOC = """Trains every combination of a grid with every seed, and compares the runs.

  tfrl-sweep --gin_file=ppo/tf_cartpole.gin --root_dir=runs/rates --seeds=5 --parallel=2 \\
      --grid='ModuleConfig.lr=[1e-3, 3e-4]'

Each run is a tfrl-train process with a folder and a log below --root_dir. The same command resumes
stopped runs. At the end, tfrl-report compares all runs in <root_dir>/comparison."""

shared_flags.define("parallel", "total_env_steps")
flags.DEFINE_multi_string(
    "grid", [], "name.parameter=[value, ...]; may be repeated, which gives all combinations."
)
flags.DEFINE_integer("seeds", 1, "Number of seeds per combination, from --seed on.", lower_bound=1)


def main() -> int:
    """Sweeps as the flags say; returns the exit code."""
    values = common_flags.common()
    remote.check_local("root_dir", values.root_dir)
    files = list(values.gin_file) or ["ppo/tf_cartpole.gin"]
    grid = [read_axis(text) for text in flags.FLAGS.grid]
    gin_files.read(files, values.gin_bindings)  # reports a typo before TensorFlow is imported
    common = shared_flags.with_budget(files, values.gin_bindings)
    first, *_ = combinations(grid)
    # Reports an unknown name of the grid before any process starts.
    gin_files.parse(files, (*common, *first), ("tfrl.launch.settings",))
    root = pathlib.Path(values.root_dir or f"{api.default_root_dir(files)}_sweep").expanduser()
    root.mkdir(parents=True, exist_ok=True)
    seeds = range(values.seed, values.seed + flags.FLAGS.seeds)
    jobs = {}
    for bindings in combinations(grid):
        for seed in seeds:
            folder = root / folder_name(bindings, seed)
            jobs[folder] = command(files, (*common, *bindings), seed, folder)
    failed = _run(jobs, flags.FLAGS.parallel)
    done = [folder for folder in jobs if folder not in failed]
    if done:
        from tfrl.experiment import comparison
        from tfrl.launch.training import MAY_CHANGE

        target = root.absolute() / comparison.NAME
        app.say(str(comparison.write(done, target, may_differ=MAY_CHANGE, log=app.say)))
    return 1 if failed else 0


def read_axis(text: str) -> tuple[str, list[Any]]:
    """Reads one value of --grid.

    Raises:
      UserError: The form is not `name.parameter=[value, ...]`.
    """
    name, _, value = text.partition("=")
    try:
        values = ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        values = None
    if "." not in name or not isinstance(values, (list, tuple)) or not values:
        raise UserError(
            f"--grid='{text}'",
            expected="name.parameter=[value, ...], a list of Python literals",
            got=repr(value.strip()),
            remedy="Write for example --grid='ModuleConfig.lr=[1e-3, 3e-4]'; strings and "
            "references need quotes: ['@MLP()'].",
        )
    return name.strip(), list(values)


def combinations(grid: Sequence[tuple[str, Sequence[Any]]]) -> list[list[str]]:
    """Returns the bindings of every combination of a grid."""

    def line(name: str, value: Any) -> str:
        reference = isinstance(value, str) and value.startswith(("@", "%"))
        return f"{name}={value if reference else repr(value)}"

    axes = [[line(name, value) for value in values] for name, values in grid]
    return [list(chosen) for chosen in itertools.product(*axes)]


def folder_name(bindings: Sequence[str], seed: int) -> str:
    """Returns the name of a run's folder: `lr=0.001,seed=0`."""
    pairs = [binding.split("=", 1) for binding in bindings]
    short = [name.rpartition(".")[2] for name, _ in pairs]
    if len(set(short)) < len(short):  # two parameters with one name
        short = [name for name, _ in pairs]
    words = [f"{name}={value}" for name, (_, value) in zip(short, pairs, strict=True)]
    return re.sub(r"[^\w.,=+-]+", "_", ",".join([*words, f"seed={seed}"]))


def command(
    files: Sequence[str], bindings: Sequence[str], seed: int, folder: pathlib.Path
) -> list[str]:
    """Returns the command that trains one run."""
    arguments = [f"--gin_file={file}" for file in files]
    arguments += [f"--gin_bindings={binding}" for binding in bindings]
    arguments += [f"--seed={seed}", f"--root_dir={folder}"]
    return [*processes.program("train"), *arguments]


def _run(jobs: dict[pathlib.Path, list[str]], parallel: int) -> list[pathlib.Path]:
    """Runs commands, `parallel` at a time; returns the folders of failed runs."""
    failed: list[pathlib.Path] = []

    def train(folder: pathlib.Path, call: processes.Call) -> None:
        log = folder.with_name(f"{folder.name}.log")
        code = call(jobs[folder], log)
        if code:
            failed.append(folder)
        app.say(f"{folder}: {'done' if code == 0 else f'ended with {code}, see {log}'}")

    processes.run_parallel([functools.partial(train, folder) for folder in jobs], parallel)
    return failed


def run() -> None:
    """Entry point of `tfrl-sweep` and `bin/sweep.py`."""
    app.run(main, doc=DOC, argv=sys.argv)
