"""`bin/evaluate.py`: evaluates a run's policy from any of its checkpoints."""

import contextlib
import json
import math
import sys
import time
from typing import TYPE_CHECKING, Any

from absl import flags

from tfrl import checks
from tfrl.errors import UnavailableError, UserError
from tfrl.launch import app, run_config, shared_flags
from tfrl.launch import flags as common_flags
from tfrl.launch.termination import Termination

if TYPE_CHECKING:
    from tfrl.experiment.run_folder import RunFolder
    from tfrl.launch.settings import Settings
    from tfrl.workflows import State

DOC = """Evaluates the greedy policy of a run; the last line is one JSON object.

  tfrl-evaluate --root_dir=runs/ppo_tf_cartpole --episodes=100 --video=cartpole.mp4

The run folder has the configuration; no file in it changes. With --watch, each new checkpoint of a
running training is evaluated, and the results are also lines of evaluations.jsonl."""

_VIDEO_ENDINGS = (".mp4", ".gif")

shared_flags.define("wait_seconds")
flags.DEFINE_integer(
    "episodes", 100, "Number of episodes, which all have the same weight.", lower_bound=1
)
flags.DEFINE_string(
    "checkpoint", "latest", "Checkpoint: latest, best (by evaluation), or a number of env steps."
)
flags.DEFINE_string("video", None, "Also records one episode to this .mp4 or .gif file.")
flags.DEFINE_boolean("watch", False, "Evaluate each new checkpoint of a training until it ends.")
flags.DEFINE_string(
    "heartbeat_server",
    None,
    "With --watch: address host:port of the Reverb server of a distributed run's parameters and "
    "reports. The learner's records then have evaluator_heartbeat_age.",
)

EVALUATIONS = "evaluations.jsonl"
_LOOK_SECONDS, _REMOTE_LOOK_SECONDS = 0.5, 10.0


def main() -> int:
    """Evaluates as the flags say; returns the exit code."""
    termination = Termination()
    if flags.FLAGS.watch:
        termination.install()
    values = common_flags.common()
    common_flags.check_strategy(values.strategy, values.tpu, values.num_logical_cpus)
    checkpoint = _which(flags.FLAGS.checkpoint)
    _check_video(flags.FLAGS.video)
    _check_server(flags.FLAGS.heartbeat_server)
    if flags.FLAGS.watch:
        _check_watch(checkpoint)
        await_run(values.root_dir, flags.FLAGS.wait_seconds)
    files = run_config.read(
        values.root_dir, values.gin_file, values.gin_bindings, allow_code=values.allow_code
    )
    common_flags.configure_tensorflow(values)
    strategy = common_flags.strategy_from_flags(values)
    from tfrl.distribute import is_chief, lost_workers
    from tfrl.launch import settings

    assembled = settings.assemble(files, values.gin_bindings)
    assembled.workflow.use_strategy(strategy)
    with contextlib.closing(assembled.workflow), lost_workers(strategy):
        if not flags.FLAGS.watch:
            result = evaluate(
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
        with _heartbeat(flags.FLAGS.heartbeat_server):
            code = watch(assembled, values.root_dir or "", termination)
    if flags.FLAGS.heartbeat_server is not None:
        from tfrl.replay.reverb import cancellable_call

        if cancellable_call.has_left_behind():
            cancellable_call.end_process(code)  # an orderly exit could wait for the server
    return code


def _which(text: str) -> str | int:
    if text in ("latest", "best"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise UserError(
        f"--checkpoint={text}",
        expected="latest, best, or a number of env steps",
        got=repr(text),
        remedy="Use a number from the folders checkpoints/ckpt-<env steps>.",
    )


def _check_video(path: str | None) -> None:
    if path is not None and not path.lower().endswith(_VIDEO_ENDINGS):
        raise UserError(
            f"--video={path}",
            expected=f"a name that ends in {' or '.join(_VIDEO_ENDINGS)}",
            got=repr(path),
            remedy="Choose the format by the file extension.",
        )


def _check_server(address: str | None) -> None:
    if address is not None and not flags.FLAGS.watch:
        raise UserError(
            f"--heartbeat_server={address}",
            expected="--watch, for an evaluator that runs beside the training",
            got="a single evaluation",
            remedy="Add --watch, or leave the flag out.",
        )
    if address is not None:
        checks.address(address, "--heartbeat_server")


def _check_watch(checkpoint: str | int) -> None:
    if checkpoint != "latest":
        raise UserError(
            f"--checkpoint={checkpoint}",
            expected="latest with --watch, which evaluates each new checkpoint",
            got=str(checkpoint),
            remedy="Leave it out, or leave out --watch.",
        )
    if not flags.FLAGS.wait_seconds > 0:  # also nan; inf waits without a limit
        raise UserError(
            f"--wait_seconds={flags.FLAGS.wait_seconds}",
            expected="a number of seconds above 0, or inf",
            got=str(flags.FLAGS.wait_seconds),
            remedy="Pass the seconds to wait for a new checkpoint.",
        )


def _heartbeat(address: str | None) -> contextlib.AbstractContextManager[Any]:
    """Sends heartbeats to a server, if an address is given."""
    if address is None:
        return contextlib.nullcontext()
    from tfrl.roles import tables
    from tfrl.roles.heartbeat_sender import HeartbeatSender

    return contextlib.closing(HeartbeatSender(address, tables.EVALUATOR_TASK, app.say))


def evaluate(
    settings: "Settings",
    root_dir: str,
    *,
    episodes: int,
    checkpoint: str | int,
    seed: int,
    video: str | None,
) -> dict[str, Any]:
    """Evaluates the greedy policy of a checkpoint, and prints a table.

    Several processes share the episodes; the chief prints and records the video.

    Args:
      settings: The run's configuration.
      root_dir: The run folder; it is only read.
      episodes: The exact number of episodes, each with equal weight.
      checkpoint: "latest", "best" or a number of env steps.
      seed: The seed of the episodes.
      video: Path of a .mp4 or .gif to record one episode to, or None.

    Returns:
      `eval_return_mean`, `eval_return_std`, `eval_episodes` and more, as JSON types.
    """
    figures, _ = _evaluated(
        settings, root_dir, None, episodes=episodes, checkpoint=checkpoint, seed=seed, video=video
    )
    return figures


def _evaluated(
    settings: "Settings",
    root_dir: str,
    state: "State | None",
    *,
    episodes: int,
    checkpoint: str | int,
    seed: int,
    video: str | None,
) -> tuple[dict[str, Any], "State"]:
    """Evaluates as `evaluate` does, in the variables of a state; None to set one up.

    TensorFlow keeps some memory of every variable ever created, so `watch` goes on with one state.
    """
    from tfrl.experiment.run_folder import RunFolder
    from tfrl.launch import multi_worker
    from tfrl.storage import working_copy

    folder = RunFolder(root_dir)
    workflow = settings.workflow
    group = workflow.worker_group
    leads = group is None or group.is_chief
    multi_worker.check_same_command(workflow, seed=seed, episodes=episodes, checkpoint=checkpoint)
    restored = multi_worker.restore_run(folder, group, checkpoint)
    metadata = folder.read_metadata()
    if metadata is not None and metadata["compile_choices"]:
        workflow.use_compile(metadata["compile_choices"])
    state = workflow.setup(seed) if state is None else state
    state = workflow.load(state, restored, environments=False)
    result = workflow.final_evaluation(state, episodes, seed=seed)
    figures: dict[str, Any] = {
        **result.metrics(),
        "env_steps": workflow.env_steps(state),
        "checkpoint": restored.path.name,
    }
    if video is not None and leads:
        with working_copy.output(video) as path:
            recorded = workflow.record_video(state, path, seed)
        figures["video"] = working_copy.named(recorded.path)
    if group is not None:
        group.barrier("the end")  # a worker that left earlier would look lost
    if leads:
        _show(f"{folder.root}, {restored.path.name}", figures)
    return figures, state


def await_run(root_dir: str | None, seconds: float) -> None:
    """Waits until a folder has the configuration of a run and a checkpoint.

    Raises:
      UnavailableError: It has not within `seconds`.
    """
    from tfrl.experiment.checkpoints import CheckpointManager
    from tfrl.experiment.run_folder import RunFolder

    if root_dir is None:
        run_config.find(root_dir)  # raises: the flag is missing
    folder, deadline, printed = RunFolder(str(root_dir)), time.monotonic() + seconds, False
    while not (
        run_config.holds(root_dir)
        and CheckpointManager(folder.checkpoints, read_only=True, log=lambda _: None).steps
    ):
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"--root_dir={root_dir}",
                expected=f"a run with a checkpoint within {seconds:g} s",
                got="none",
                remedy="Start the training with the same --root_dir, or raise --wait_seconds.",
            )
        if not printed:
            limit = f" up to {seconds:g} s" if math.isfinite(seconds) else ""
            app.say(f"Waiting{limit} for the first checkpoint in {folder.root}.")
            printed = True
        _await_change(folder)


def watch(settings: "Settings", root_dir: str, termination: Termination) -> int:
    """Evaluates each new checkpoint, or the newest of several, until the run has ended.

    Checkpoints with a line in `evaluations.jsonl` are skipped.

    Args:
      settings: The run's configuration.
      root_dir: The run folder; each evaluation appends a line to its `evaluations.jsonl`.
      termination: Reports SIGTERM and Ctrl-C.

    Returns:
      The exit code.

    Raises:
      UnavailableError: No new checkpoint for --wait_seconds, and the run has not ended.
    """
    from tfrl.experiment.checkpoints import CheckpointManager
    from tfrl.experiment.run_folder import RunFolder

    folder, values = RunFolder(root_dir), flags.FLAGS
    manager = CheckpointManager(folder.checkpoints, read_only=True, log=lambda _: None)
    known = _recorded(folder)
    since, state = time.monotonic(), None
    with termination.deferred():
        while not termination.requested:
            ended = _has_ended(folder, settings.total_env_steps)  # before the checkpoints are read
            newest = max(manager.steps, default=None)
            if newest is not None and newest not in known:
                result, state = _evaluated(
                    settings,
                    root_dir,
                    state,
                    episodes=values.episodes,
                    checkpoint="latest",
                    seed=common_flags.common().seed,
                    video=values.video,
                )
                known |= {newest, result["env_steps"]}
                since = time.monotonic()
                line = json.dumps(result)
                print(line, flush=True)
                _record(folder, line)
            elif ended:
                return 0
            elif time.monotonic() - since > values.wait_seconds:
                raise UnavailableError(
                    f"--root_dir={root_dir}",
                    expected=f"a new checkpoint within {values.wait_seconds:g} s",
                    got=f"none after the one of {max(known, default=0):,} env steps",
                    remedy="Check that the training still runs, or raise --wait_seconds.",
                )
            else:
                _await_change(folder)
    return termination.exit_code


def _has_ended(folder: "RunFolder", total_env_steps: int) -> bool:
    """Whether a run has ended; an earlier end does not count if the budget is larger now."""
    summary = folder.read_summary()
    if summary is None:
        return False
    return summary["env_steps"] >= total_env_steps or summary.get("stopped_by") != "budget"


def _recorded(folder: "RunFolder") -> set[int]:
    """Returns the env steps of the evaluations in the folder's file."""
    path = folder.root / EVALUATIONS
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    result = set()
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):  # a line of a killed process
            result.add(int(json.loads(line)["env_steps"]))
    return result


def _await_change(folder: "RunFolder") -> None:
    """Waits a little; refreshes the copy of a remote folder."""
    from tfrl.storage import working_copy

    is_copy = working_copy.copy_of(folder.root) is not None
    time.sleep(_REMOTE_LOOK_SECONDS if is_copy else _LOOK_SECONDS)
    working_copy.refresh(folder.root)


def _record(folder: "RunFolder", line: str) -> None:
    from tfrl.storage import files, remote, working_copy

    path = folder.root / EVALUATIONS
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        app.say(f"Note: {path} lacks this evaluation: {files.reason(error)}.")
        return
    copy = working_copy.copy_of(path)
    if copy is not None:
        remote.upload(path, remote.join(copy.url, EVALUATIONS))


def _show(title: str, figures: dict[str, Any]) -> None:
    app.say(title)
    width = max(map(len, figures))
    for name, value in figures.items():
        app.say(f"  {name:<{width}}  {f'{value:.3f}' if isinstance(value, float) else value}")


def run() -> None:
    """Entry point of `tfrl-evaluate` and `bin/evaluate.py`."""
    app.run(main, doc=DOC, argv=sys.argv, without=("if_exists",))
