"""`bin/tune.py`: searches hyperparameters with optuna, and writes the best to a gin file."""

import dataclasses
import pathlib
import sys
from typing import Any

from absl import flags

from tfrl import extras
from tfrl.errors import UserError
from tfrl.launch import (
    api,
    app,
    best_gin,
    gin_files,
    processes,
    search_space,
    shared_flags,
    trial,
)
from tfrl.launch import flags as common_flags
from tfrl.launch import study as studies
from tfrl.storage import remote

DOC = """Searches hyperparameters with optuna (pip install 'tfrl[tune]').

  tfrl-tune --gin_file=ppo/tf_cartpole.gin --root_dir=runs/search --trials=40 --parallel=2
  tfrl-train --gin_file=runs/search/best.gin

Each trial is a training in <root_dir>/trials. It reports every evaluation, and the study prunes
trials with low returns. The same command resumes a stopped study, and several processes can share
one. It ends with best.gin, search.html and search.csv."""

DEFAULT_GIN_FILE = "ppo/tf_cartpole.gin"
_STRIKES = 3  # processes in a row without a result

shared_flags.define("parallel", "total_env_steps")
flags.DEFINE_string(
    "space",
    None,
    "Search space: a gin file whose values are ranges, or module:name of a dict or of a function "
    "of an optuna trial. Default: tune/<algorithm>.gin of the package.",
)
flags.DEFINE_integer("trials", 40, "Number of trials, including pruned ones.", lower_bound=1)
flags.DEFINE_enum(
    "sampler",
    "tpe",
    ["tpe", "random"],
    "The optuna sampler, which chooses the settings of a trial.",
)
flags.DEFINE_enum(
    "pruner",
    "median",
    ["median", "hyperband", "none"],
    "The optuna pruner, which ends trials early.",
)
flags.DEFINE_integer(
    "startup_trials", 10, "Trials before the sampler learns and the pruner prunes.", lower_bound=1
)
flags.DEFINE_string(
    "storage",
    None,
    "URL of the study's database, for example sqlite:///study.db. Default: <root_dir>/study.log, "
    "which several processes may share.",
)
flags.DEFINE_boolean("one_trial", False, "Run only one trial, in this process.")


def main() -> int:
    """Searches as the flags say; returns the exit code."""
    values = common_flags.common()
    remote.check_local("root_dir", values.root_dir)
    if not values.gin_file:
        values = dataclasses.replace(values, gin_file=(DEFAULT_GIN_FILE,))
    bindings = shared_flags.with_budget(values.gin_file, values.gin_bindings)
    values = dataclasses.replace(values, gin_bindings=bindings)
    options = _options(values)
    space = _space(values)
    options.trials_dir.mkdir(parents=True, exist_ok=True)
    if flags.FLAGS.one_trial:
        return trial.run(options, space, values)
    study = options.open()
    optuna = extras.require("optuna", "tune")
    # A function that fails is reported before any trial starts.
    space.choose(optuna.create_study(sampler=optuna.samplers.RandomSampler(0)).ask())
    shared = studies.configuration_of(values.gin_file, values.gin_bindings, values.seed)
    with studies.locked(options.root):
        studies.check_configuration(study, options.root, shared)
    codes: list[int] = []

    def search(call: processes.Call) -> None:
        strikes, command = 0, command_of_trial(options.root, values)
        while strikes < _STRIKES:
            code = call(command, None)
            codes.append(code)
            if code in (trial.NOTHING_LEFT, 2, 130, processes.INTERRUPTED):
                return
            strikes = strikes + 1 if code else 0

    processes.run_parallel([search] * flags.FLAGS.parallel, flags.FLAGS.parallel)
    stopped = [code for code in codes if code in (2, 130, processes.INTERRUPTED)]
    if stopped:
        return stopped[0]
    with studies.locked(options.root):
        best = best_gin.write(study, options.root, values)
    from tfrl.experiment import search_report

    page = search_report.write(study, options.root, log=app.say)
    app.say(str(page))
    if best is None:
        return 1
    app.say(f"tfrl-train --gin_file={best}")
    return 0


def _options(values: common_flags.CommonFlags) -> studies.StudyOptions:
    flag_values = flags.FLAGS
    bound = {b.key: b.value for b in gin_files.read(values.gin_file, values.gin_bindings)}
    interval: Any = bound.get("train.eval_interval")
    if flag_values.pruner != "none" and interval is None:
        raise UserError(
            f"--pruner={flag_values.pruner}",
            expected="trials with evaluations, which the pruner compares",
            got="no train.eval_interval",
            remedy="Pass --gin_bindings='train.eval_interval=10_000' or --pruner=none.",
        )
    extras.require("optuna", "tune")
    total: Any = bound.get("train.total_env_steps")
    if isinstance(total, gin_files.Macro):
        total = bound.get(total.name)
    known = isinstance(total, int | float) and isinstance(interval, int | float)
    folder = values.root_dir or f"{api.default_root_dir(list(values.gin_file))}_search"
    return studies.StudyOptions(
        root=pathlib.Path(folder).expanduser().absolute(),
        storage=flag_values.storage,
        sampler=flag_values.sampler,
        pruner=flag_values.pruner,
        startup=flag_values.startup_trials,
        seed=values.seed,
        trials=flag_values.trials,
        evaluations=max(1, int(total // interval)) if known else None,
    )


def _space(values: common_flags.CommonFlags) -> search_space.SearchSpace:
    name = flags.FLAGS.space or search_space.default(values.gin_file[-1])
    if name is None:
        raise UserError(
            "--space",
            expected="a search space, since none is shipped for "
            f"{values.gin_file[-1].partition('/')[0]}",
            got="none",
            remedy="Pass a gin file with lines such as ModuleConfig.lr = {'low': 1e-5, 'high': "
            "1e-2, 'log': True}; tune/ppo.gin is one.",
        )
    space = search_space.read(name, values.gin_file, values.gin_bindings)
    keys = {b.key for text in values.gin_bindings for b in gin_files.read_binding(text)}
    both = sorted(keys & set(space.entries or ()))
    if both:
        raise UserError(
            f"--gin_bindings={both[0]}=...",
            expected="bindings outside the search space",
            got=f"a binding of the search space {name}",
            remedy="Pass a --space without it.",
        )
    return space


def command_of_trial(root: pathlib.Path, values: common_flags.CommonFlags) -> list[str]:
    """Returns the command that runs one trial of this search."""
    arguments = [f"--gin_file={file}" for file in values.gin_file]
    arguments += [f"--gin_bindings={binding}" for binding in values.gin_bindings]
    own = ("space", "trials", "sampler", "pruner", "startup_trials", "storage")
    shared = ("seed", "strategy", "tpu", "num_logical_cpus", "deterministic_ops", "quiet")
    for name in (*own, *shared):
        if (flag := flags.FLAGS[name]).present:
            arguments.append(flag.serialize())
    arguments += [f"--root_dir={root}", "--one_trial"]
    return [*processes.program("tune"), *arguments]


def run() -> None:
    """Entry point of `tfrl-tune` and `bin/tune.py`."""
    app.run(main, doc=DOC, argv=sys.argv)
