"""`bin/export.py`: exports a run's policy from any checkpoint, for use without tfrl."""

import contextlib
import importlib.util
import json
import os
import pathlib
import sys

from absl import flags

from tfrl.errors import UserError
from tfrl.launch import app, run_config
from tfrl.launch import flags as common_flags

DOC = """Exports the policy of a run for use without tfrl; the last line is one JSON object.

  tfrl-export --root_dir=runs/ppo_tf_cartpole --format=onnx

A process without tfrl compares the export's actions with the policy's."""

FORMATS = ("saved_model", "tf_agents", "tflite", "onnx")

flags.DEFINE_enum("format", "saved_model", FORMATS, "Format of the export.")
# bin/evaluate.py also has a flag of this name; in a process with both, the later one counts.
flags.DEFINE_string(
    "checkpoint",
    "latest",
    "Checkpoint: latest, best (by evaluation), a number of env steps, or a folder.",
    allow_override=True,
)
flags.DEFINE_string(
    "output_dir", None, "Folder of the export; by default <root_dir>/export/<format>."
)
flags.DEFINE_boolean("overwrite", False, "Replace an existing export.")
flags.DEFINE_boolean("quantize", False, "With tflite: 8-bit weights.")
flags.DEFINE_boolean("verify", True, "Compare the export with the policy on 1,000 observations.")


def main() -> int:
    """Exports as the flags say; returns the exit code."""
    values = common_flags.common()
    common_flags.check_strategy(values.strategy, values.tpu, values.num_logical_cpus)
    form = flags.FLAGS.format
    _check_flags(form)
    target = _target(values.root_dir or "", form)
    from tfrl.storage import working_copy

    files = run_config.read(
        values.root_dir, values.gin_file, values.gin_bindings, allow_code=values.allow_code
    )
    common_flags.configure_tensorflow(values)
    strategy = common_flags.strategy_from_flags(values)
    from tfrl.launch import exporting, settings

    assembled = settings.assemble(files, values.gin_bindings)
    assembled.workflow.use_strategy(strategy)
    with contextlib.closing(assembled.workflow), working_copy.output(target) as folder:
        figures = exporting.export(
            assembled,
            values.root_dir or "",
            form,
            folder,
            checkpoint=flags.FLAGS.checkpoint,
            seed=values.seed,
            quantize=flags.FLAGS.quantize,
            verify=flags.FLAGS.verify,
        )
    print(json.dumps({**figures, "output_dir": str(target)}), flush=True)
    return 0


def _check_flags(form: str) -> None:
    if flags.FLAGS.quantize and form != "tflite":
        raise UserError(
            "--quantize",
            expected="--format=tflite, which alone supports 8-bit weights",
            got=f"--format={form}",
            remedy="Leave it out, or export as tflite.",
        )
    missing = [n for n in ("tf2onnx", "onnxruntime") if not importlib.util.find_spec(n)]
    if form == "onnx" and missing:
        raise UserError(
            "--format=onnx",
            expected="the extra 'export' to be installed",
            got=f"no module named {missing[0]}",
            remedy="Install it with: pip install 'tfrl[export]'",
        )


def _target(root_dir: str, form: str) -> pathlib.Path | str:
    """Returns the folder to write, and checks its present content."""
    from tfrl.storage import remote

    target: pathlib.Path | str = flags.FLAGS.output_dir or os.path.join(root_dir, "export", form)
    if remote.is_remote(target):
        remote.connect(str(target))
        there = remote.exists(str(target))
    else:
        target = pathlib.Path(target).expanduser().absolute()
        there = target.exists()
    if not there:
        return target
    ours = _is_export(target)
    if not flags.FLAGS.overwrite or not ours:
        what = "an export that is there already" if ours else "something else"
        raise UserError(
            f"--output_dir={target}",
            expected="a new folder, or an existing export with --overwrite",
            got=what,
            remedy="Pass --overwrite to replace it." if ours else "Choose another --output_dir.",
        )
    return target


def _is_export(folder: pathlib.Path | str) -> bool:
    """Whether a folder has an export and nothing else, for example no run."""
    from tfrl.storage import files, remote

    try:
        if isinstance(folder, str):
            text = remote.read_bytes(remote.join(folder, "metadata.json")).decode("utf-8")
        else:
            text = (folder / "metadata.json").read_text(encoding="utf-8")
        content = files.from_json(text)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") in FORMATS


def run() -> None:
    """Entry point of `tfrl-export` and `bin/export.py`."""
    app.run(main, doc=DOC, argv=sys.argv, without=("if_exists",))
