"""`bin/report.py`: writes a run's report again, or compares several runs."""

import pathlib
import sys

from absl import flags

from tfrl.errors import UserError
from tfrl.launch import app, shared_flags
from tfrl.storage import remote, working_copy

DOC = """Draws curve.png and report.html of a run folder again, or compares several.

  tfrl-report runs/ppo_tf_cartpole
  tfrl-report runs/* --comparison_dir=comparison

A comparison groups runs whose configurations differ only in the seed; run folders may be remote,
such as gs://bucket/run. It writes comparison.html, .md, .csv and .png. The last line is the path of
the page."""

shared_flags.define("quiet")
flags.DEFINE_string("comparison_dir", "comparison", "Folder of a comparison.")
flags.DEFINE_enum(
    "against", "env_steps", ["env_steps", "seconds"], "X axis of the comparison's curves."
)


def main(folders: list[str]) -> int:
    """Reports as the command line says; returns the exit code."""
    remote.check_local("comparison_dir", flags.FLAGS.comparison_dir)
    target = pathlib.Path(flags.FLAGS.comparison_dir).expanduser().absolute()
    if target.exists() and not target.is_dir():
        raise UserError(
            "--comparison_dir",
            expected="a folder",
            got=f"the file {target}",
            remedy="Pass another path; it is created if missing.",
        )
    runs: dict[pathlib.Path, pathlib.Path] = {}  # by resolved path: a folder counts once
    skipped: list[pathlib.Path] = []
    for path in (working_copy.local(folder) for folder in folders):
        if not path.exists():
            raise UserError(
                "tfrl-report",
                expected="folders that exist",
                got=f"{path}, which does not exist",
                remedy="Check the path; a training writes its run folder to --root_dir.",
            )
        if (path / "metrics.jsonl").is_file():
            runs.setdefault(path.resolve(), path)
        else:
            skipped.append(path)
    if not runs:
        raise UserError(
            "tfrl-report",
            expected="one run folder, or several to compare",
            got=", ".join(folders) or "none",
            remedy="Pass folders with metrics.jsonl, for example tfrl-report runs/ppo_tf_cartpole.",
        )
    only = next(iter(runs.values()))
    if len(runs) == 1 and working_copy.copy_of(only):
        raise UserError(
            "tfrl-report",
            expected="a run folder of this machine, or several run folders to compare",
            got=working_copy.named(only),
            remedy="The training has written report.html there. Copy the folder to write another.",
        )
    for path in skipped:
        app.say(f"Skipped {path}: not a run folder, it has no metrics.jsonl.")
    # The import registers the configurables, whose defaults the report needs.
    from tfrl.experiment.run_folder import RunFolder
    from tfrl.launch import configurables, training  # noqa: F401

    if len(runs) == 1:
        app.say(str(training.write_report(RunFolder(*runs.values()))))
        return 0
    from tfrl.experiment import comparison

    page = comparison.write(
        list(runs.values()),
        target,
        against=flags.FLAGS.against,
        may_differ=training.MAY_CHANGE,
        log=app.say,
    )
    app.say(str(page))
    return 0


def run() -> None:
    """Entry point of `tfrl-report` and `bin/report.py`."""
    app.run(main, doc=DOC, argv=sys.argv, takes_folders=True)
