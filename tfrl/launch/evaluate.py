"""`bin/evaluate.py`: evaluates a run's policy from any of its checkpoints."""

import contextlib
import json
import sys

from absl import flags

from tfrl.errors import UserError
from tfrl.launch import app, run_config
from tfrl.launch import flags as common_flags

DOC = """Evaluates the greedy policy of a run; the last line is one JSON object.

  tfrl-evaluate --root_dir=runs/ppo_tf_cartpole --episodes=100 --video=cartpole.mp4

The run's own configuration is read from its folder, in which nothing is changed."""

_VIDEO_ENDINGS = (".mp4", ".gif")

flags.DEFINE_integer("episodes", 100, "Episodes to evaluate, each weighted once.", lower_bound=1)
flags.DEFINE_string(
    "checkpoint", "latest", "Which one: latest, best (by evaluation), or its number of env steps."
)
flags.DEFINE_string("video", None, "Also records one episode to this .mp4 or .gif file.")


def main() -> int:
    """Evaluates as the flags say; returns the exit code."""
    values = common_flags.common()
    common_flags.check_strategy(values.strategy, values.tpu, values.num_logical_cpus)
    checkpoint = _which(flags.FLAGS.checkpoint)
    _check_video(flags.FLAGS.video)
    files = run_config.read(values.root_dir, values.gin_file, values.gin_bindings)
    common_flags.configure_tensorflow(values)
    strategy = common_flags.strategy_from_flags(values)
    from tfrl.distribute import is_chief, lost_workers
    from tfrl.launch import evaluation, settings

    assembled = settings.assemble(files, values.gin_bindings)
    assembled.workflow.use_strategy(strategy)
    with contextlib.closing(assembled.workflow), lost_workers(strategy):
        result = evaluation.evaluate(
            assembled,
            values.root_dir or "",
            episodes=flags.FLAGS.episodes,
            checkpoint=checkpoint,
            seed=values.seed,
            video=flags.FLAGS.video,
        )
    if is_chief(strategy):
        print(json.dumps(result), flush=True)
    return 0


def _which(text: str) -> str | int:
    if text in ("latest", "best"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise UserError(
        f"--checkpoint={text}",
        expected="latest, best, or a number of env steps",
        got=repr(text),
        remedy="The numbers are those of the folders checkpoints/ckpt-<env steps>.",
    )


def _check_video(path: str | None) -> None:
    if path is not None and not path.lower().endswith(_VIDEO_ENDINGS):
        raise UserError(
            f"--video={path}",
            expected=f"a name that ends in {' or '.join(_VIDEO_ENDINGS)}",
            got=repr(path),
            remedy="The ending chooses the format.",
        )


def run() -> None:
    """Entry point of `tfrl-evaluate` and `bin/evaluate.py`."""
    app.run(main, doc=DOC, argv=sys.argv)
