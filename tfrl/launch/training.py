"""Starts, resumes and finishes a training run in its folder."""

import contextlib
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

import tfrl
from tfrl.distribute import describe
from tfrl.distribute.worker_group import WorkerGroup
from tfrl.errors import UserError
from tfrl.experiment import metadata as metadata_lib
from tfrl.experiment import report
from tfrl.experiment.callbacks import STOP, Callback, Event
from tfrl.experiment.checkpoints import CheckpointManager
from tfrl.experiment.metadata import params_digest
from tfrl.experiment.run_folder import RunFolder
from tfrl.launch import gin_registry, multi_worker
from tfrl.launch.api import StartOptions
from tfrl.launch.app import say
from tfrl.launch.gin_files import BUDGET, is_schedule
from tfrl.launch.settings import Settings
from tfrl.launch.termination import Termination
from tfrl.storage import files, working_copy
from tfrl.types import Nest
from tfrl.workflows import State, Workflow
from tfrl.workflows.collectors import WaitEndedError


def is_finished(folder: RunFolder, settings: Settings, state: State) -> bool:
    """Returns whether the summary has these parameters and the settings' evaluation."""
    summary = folder.read_summary()
    if summary is None:
        return False
    workflow = settings.workflow
    now = {
        "env_steps": workflow.env_steps(state),
        "eval_episodes": settings.final_eval_episodes,
        "params_digest": params_digest(params_of(workflow.agent_state(state))),
    }
    return all(summary.get(name) == value for name, value in now.items())


def finish(
    folder: RunFolder, settings: Settings, state: State, *, seed: int, stopped_by: str
) -> None:
    """Evaluates, exports and records the final parameters; after a kill the next start does.

    Args:
      folder: The run folder.
      settings: The settings from gin.
      state: The run's last state.
      seed: The seed of the video's episode.
      stopped_by: Why the training ended.
    """
    started = time.monotonic()
    workflow = settings.workflow
    agent_state = workflow.agent_state(state)
    result = workflow.final_evaluation(state, settings.final_eval_episodes)
    folder.check_there()
    workflow.export_policy(state, folder.policy)
    folder.check_there()
    path = _record_video(folder, workflow, state, seed) if settings.video else None
    pictures = workflow.write_pictures(state, folder.root)
    steps, run_time = workflow.env_steps(state), workflow.run_time_of(state)
    wall_seconds = run_time.wall_seconds + time.monotonic() - started
    folder.write_summary(
        {
            "env_steps": steps,
            "wall_seconds": wall_seconds,
            # A run of one compiled call has only times with compilation.
            "env_steps_per_second": run_time.env_steps_per_second or steps / wall_seconds,
            "eval_return_mean": result.mean,
            "eval_return_std": result.std,
            "eval_episodes": len(result.episode_returns),
            "params_digest": params_digest(params_of(agent_state)),
            "stopped_by": stopped_by,
            "video": str(path.relative_to(folder.root)) if path else None,
            "pictures": {n: str(p.relative_to(folder.root)) for n, p in pictures.items()},
        }
    )
    if settings.report and folder.metrics_jsonl.is_file():
        write_report(folder)


def write_report(folder: RunFolder) -> pathlib.Path:
    """Writes `curve.png` and `report.html` of a run; returns the path of the report."""
    run = report.RunRecord.read(folder.root)
    return report.write_report(run, gin_registry.differing(run.configuration))


def params_of(agent_state: Nest) -> Any:
    """Returns the parameters of an agent, or of each policy of a multi-agent one."""
    if isinstance(agent_state, dict):
        return {module_id: state.params for module_id, state in agent_state.items()}
    return agent_state.params


def _record_video(folder: RunFolder, workflow: Workflow, state: State, seed: int) -> Any:
    try:
        recorded = workflow.record_video(state, folder.videos / "final.mp4", seed)
    except UserError as error:
        # The video is optional: without its encoder the run is complete.
        say(f"Note: no video. {error}")
        return None
    return recorded.path


def show(folder: RunFolder, seconds: float) -> None:
    """Prints the outcome of the run.

    Args:
      folder: The run folder, with a summary.
      seconds: The seconds that the command took.
    """
    summary = folder.read_summary()
    if summary is None:
        raise RuntimeError("the run has no summary to show")
    mean, std = summary["eval_return_mean"], summary["eval_return_std"]
    rows = {
        "Final return": f"{mean:.1f} +- {std:.1f} over {summary['eval_episodes']} episodes",
        "Env steps": f"{summary['env_steps']:,}",
        "Speed": f"{summary['env_steps_per_second']:,.0f} env steps/s in training",
        "This command": f"{seconds:.1f} s",
        "Video": str(folder.root / summary["video"]) if summary["video"] else "none",
        **{n: str(folder.root / p) for n, p in summary.get("pictures", {}).items()},
        "Policy": f"{folder.policy} (SavedModel)" if folder.policy.is_dir() else "none",
        **({"Report": str(page)} if (page := folder.root / report.PAGE).is_file() else {}),
        "TensorBoard": f"tensorboard --logdir {folder.tensorboard}",
    }
    for name, value in rows.items():
        say(f"{name:<14}{value}")


# Bindings that may differ between the starts of one run. They do not change the training, except
# that a run may drop its experience and refill its buffer. With the budget, schedules over the
# budget's macro change.
MAY_CHANGE = (
    BUDGET,
    "train.eval_interval",
    "train.target_return",
    "train.checkpoint_seconds",
    "train.checkpoint_interval",
    "train.max_to_keep",
    "train.recorders",
    "train.progress",
    "train.final_eval_episodes",
    "train.video",
    "train.report",
    "train.video_interval",
    "OffPolicyWorkflow.checkpoint_replay",
    "OffPolicyWorkflow.iterations_per_call",
    "OffPolicyWorkflow.iterations_per_row",
    "OnPolicyWorkflow.iterations_per_call",
    "TaskWorkflow.iterations_per_call",
)

# Flags that the bits of a run may depend on.
_STORED_FLAGS = ("strategy", "num_logical_cpus", "deterministic_ops")


def train(
    settings: Settings,
    options: StartOptions,
    root_dir: str,
    termination: Termination,
    started: float,
    callbacks: Sequence[Any] = (),
) -> int:
    """Trains in a run folder; resumes an earlier start of the run.

    Args:
      settings: The settings from gin.
      options: How the run starts.
      root_dir: The run folder.
      termination: Reports SIGTERM and Ctrl-C.
      started: `time.monotonic()` at the start of the command.
      callbacks: Called at the events of the run.

    Returns:
      The exit code: 0, or the code of a signal that ended the training.

    Raises:
      UserError: For user errors and for a non-finite loss.
    """
    settings = settings.replace(root_dir=root_dir, video_seed=options.seed)
    group = settings.workflow.worker_group
    if group is not None and not group.is_chief:
        return _follow(settings, options, termination, group, callbacks)
    folder = RunFolder(root_dir)
    with _prepared(folder, options.if_exists) as resumes, _scratch(folder.root):
        resumes = _meet(settings.workflow, options, resumes)
        return _train(_Run(settings, options, resumes), termination, started, callbacks)


@contextlib.contextmanager
def _scratch(root: pathlib.Path) -> Iterator[None]:
    """Puts temporary files on the run folder's file system, which needs room anyway.

    The next start removes the temporary files of a killed process.
    """
    before, tempfile.tempdir = tempfile.tempdir, str(files.temporary_name(root))
    os.mkdir(tempfile.tempdir)
    try:
        yield
    finally:
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)
        tempfile.tempdir = before


def _meet(workflow: Workflow, options: StartOptions, resumes: bool = False) -> bool:
    """Waits until the chief has locked the folder; returns whether it has a run to resume."""
    if workflow.worker_group is None:
        return resumes
    workflow.worker_group.barrier("the run folder")
    multi_worker.check_same_command(workflow, seed=options.seed)
    return bool(workflow.worker_group.broadcast(resumes))


def _follow(
    settings: Settings,
    options: StartOptions,
    termination: Termination,
    group: WorkerGroup,
    callbacks: Sequence[Any],
) -> int:
    """Trains along with the chief, which alone writes to the run folder.

    Every process reads the folder, so it must be on a shared file system.
    """
    workflow = settings.workflow
    resumes = _meet(workflow, options)
    working_copy.refresh(RunFolder(str(settings.root_dir)).root)
    state = _Run(settings, options, resumes).start()
    group.barrier("the restored state")
    if group.broadcast(0):
        stop = _StopWhenAsked(termination, workflow.env_steps(state))
        with termination.deferred():
            try:
                state = workflow.learn(state, settings, callbacks=[stop, *callbacks])
            except WaitEndedError:
                return termination.exit_code
            interrupted = _interrupted(group, termination)
        if interrupted:
            group.barrier("the end")
            return termination.exit_code
    if group.broadcast(0):
        workflow.final_evaluation(state, settings.final_eval_episodes)
    group.barrier("the end")
    return 0


def _interrupted(group: WorkerGroup | None, termination: Termination) -> bool:
    """Whether any process got a signal, even too late to end the training."""
    return termination.requested if group is None else group.any(termination.requested)


def _train(run: "_Run", termination: Termination, started: float, callbacks: Sequence[Any]) -> int:
    settings, workflow = run.settings, run.settings.workflow
    state = run.start()
    reason = run.done(state)
    group = workflow.worker_group
    if group is not None:
        group.barrier("the restored state")
        group.broadcast(int(reason is None))
    if reason is None:
        say(f"tfrl {tfrl.__version__}: {run.describe(state)}")
        # The summary has earlier parameters.
        run.folder.summary.unlink(missing_ok=True)
        working_copy.publish(run.folder.root)
        stop = _StopWhenAsked(termination, workflow.env_steps(state))
        with termination.deferred():
            try:
                state = workflow.learn(state, settings, callbacks=[stop, *callbacks])
            except WaitEndedError:  # without a server or other workers there is no checkpoint
                say(f"Stopped by {termination.name} while it waited. {termination.last_saved}")
                return termination.exit_code
            if _interrupted(group, termination):
                steps = workflow.env_steps(state)
                by = termination.name if termination.requested else "another worker"
                say(f"Stopped by {by} at {steps:,} env steps; saved. The same command goes on.")
                if group is not None:
                    group.barrier("the end")
                return termination.exit_code
        reason = workflow.report.stopped_by if workflow.report else "budget"
    else:
        say(f"tfrl {tfrl.__version__}: nothing to train in {run.folder.root}: {_WORDS[reason]}.")
    collectors = getattr(workflow, "collectors", None)
    if collectors is not None:
        collectors.finish(state)
    unfinished = not is_finished(run.folder, settings, state)
    if group is not None:
        group.broadcast(int(unfinished))
    if unfinished:
        finish(run.folder, settings, state, seed=run.options.seed, stopped_by=reason)
        working_copy.publish(run.folder.root)
    if group is not None:
        group.barrier("the end")  # a worker that left earlier would look lost
    show(run.folder, time.monotonic() - started)
    return 0


_WORDS = {
    "budget": "the budget is done; a larger --total_env_steps goes on",
    "target_return": "train.target_return is reached; a higher one goes on",
}


@contextlib.contextmanager
def _prepared(folder: RunFolder, if_exists: str) -> Iterator[bool]:
    """Prepares the folder and locks it: two writers would corrupt the run.

    Yields:
      Whether the folder has a run to resume.
    """
    lock = _locked(folder.root) if folder.root.is_dir() else None
    try:
        resumes = folder.prepare(if_exists, log=say)
        if lock is None or not lock.is_of(folder.root):
            moved, lock = lock, _locked(folder.root)
            if moved is not None:
                moved.close()
        yield resumes
    finally:
        if lock is not None:
            lock.close()


def apply_if_exists(root_dir: str, if_exists: str) -> None:
    """Handles an existing run before the processes of a job start in its folder.

    Raises:
      UserError: Another process trains in it; or see `RunFolder.apply_if_exists`.
    """
    folder = RunFolder(root_dir)
    if folder.root.is_dir():
        with contextlib.closing(_locked(folder.root)):
            folder.apply_if_exists(if_exists, log=say)


def _locked(root: pathlib.Path) -> files.DirectoryLock:
    try:
        return files.DirectoryLock(root)
    except BlockingIOError as error:
        raise UserError(
            f"root_dir {root}",
            expected="a folder that no other process trains in",
            got="a folder that another process is using",
            remedy="Wait for that process, or choose another --root_dir.",
        ) from error
    except OSError as error:
        raise UserError(
            f"root_dir {root}",
            expected="a readable and writable folder",
            got=files.reason(error),
            remedy="Choose another --root_dir.",
        ) from error


def _old_metadata(run: "_Run", configuration: dict[str, str]) -> dict[str, Any] | None:
    """Reads the metadata of the run to resume, and raises for settings that contradict it."""
    folder, options = run.folder, run.options
    required = ("seed", "configuration", "compile_choices")
    old = folder.read_metadata(required) if run.resumes else None
    if old is not None:
        before = gin_registry.completed(old["configuration"], configuration)
        folder.check_same_configuration(
            {"--seed": old["seed"], **before},
            {"--seed": options.seed, **gin_registry.as_written(configuration, before)},
            allowed={*MAY_CHANGE, *gin_registry.with_same_macro(BUDGET, is_schedule)},
        )
        multi_worker.check_replicas(folder, old, run.workflow)
    elif CheckpointManager(folder.checkpoints, read_only=True).steps:
        raise UserError(
            f"root_dir {folder.root}",
            expected="metadata.json next to the checkpoints",
            got="no such file, so that their configuration is unknown",
            remedy="Restore a backup copy, or start a new run with --if_exists=new.",
        )
    return old


class _StopWhenAsked(Callback):
    """Ends the run after the compiled call in which a signal came."""

    def __init__(self, termination: Termination, env_steps: int):
        self._termination = termination
        self._tell(env_steps)

    def on_checkpoint(self, event: Event) -> Any:
        self._tell(event.env_steps)

    def _tell(self, env_steps: int) -> None:
        """Prepares the watchdog's message about an environment that hangs."""
        saved = f"The last checkpoint has {env_steps:,} env steps" if env_steps else "No checkpoint"
        saved += "; the same command goes on." if env_steps else " yet; the same command starts."
        self._termination.last_saved = saved

    def on_step(self, event: Event) -> Any:
        return STOP if self._termination.requested else None


class _Run:
    """A run folder with its settings and workflow."""

    def __init__(self, settings: Settings, options: StartOptions, resumes: bool):
        self.settings = settings
        self.workflow = settings.workflow
        self.options = options
        self.folder = RunFolder(str(settings.root_dir))
        self.resumes = resumes
        self._restored_metric: float | None = None

    def start(self) -> Any:
        """Returns the state to train from: the newest checkpoint's, or a fresh one."""
        workflow = self.workflow
        configuration = gin_registry.configuration()
        old = _old_metadata(self, configuration)
        if old is not None and old["compile_choices"]:
            workflow.use_compile(old["compile_choices"])
        state = workflow.setup(self.options.seed)
        leads = workflow.worker_group is None or workflow.worker_group.is_chief
        manager = CheckpointManager(self.folder.checkpoints, read_only=not leads, log=say)
        restored = multi_worker.restore(manager, workflow.worker_group)
        if restored is not None:
            state = workflow.load(state, restored)
            self._restored_metric = restored.metric  # `restored` may have a whole replay buffer
        else:
            # A run killed before its first checkpoint may have left rows, which belong to it.
            workflow.adopt(state, self.folder.checkpoints)
        choices = workflow.compile_choices(state)
        if leads:
            # Where nothing is left to train, the configuration of the training stays.
            trains = self.done(state) is None
            self._write(old, configuration, choices)
            if old is not None and trains:
                self._renew_configuration(old, configuration)
            if trains or not self.folder.operative_config.is_file():
                self.folder.write_operative_config(gin_registry.operative_config())
        return state

    def _renew_configuration(self, old: dict[str, Any], configuration: dict[str, str]) -> None:
        """Stores what this start has changed of the configuration, such as a larger budget."""
        before = gin_registry.completed(old["configuration"], configuration)
        if before != gin_registry.as_written(configuration, before):
            self.folder.write_metadata({**old, "configuration": configuration})

    def _write(
        self, old: dict[str, Any] | None, configuration: dict[str, str], choices: dict[str, str]
    ) -> None:
        """Writes the run's metadata, or logs how it differs from the run's first start."""
        new = metadata_lib.collect(
            seed=self.options.seed,
            compile_choices=choices,
            configuration=configuration,
            flags={name: getattr(self.options, name) for name in _STORED_FLAGS},
            num_replicas=self.workflow.replicas.num_replicas,
        )
        if old is None:
            self.folder.write_metadata(new)
        else:
            for difference in metadata_lib.differences(old, new):
                say(f"Note: this start may not repeat the run's bits: {difference}")

    def done(self, state: State) -> str | None:
        """Returns why the training is complete: "budget" or "target_return"; None if it is not."""
        settings = self.settings
        target, metric = settings.target_return, self._restored_metric
        if target is not None and metric is not None and metric >= target:
            return "target_return"
        done = self.workflow.env_steps(state) >= settings.total_env_steps
        return "budget" if done else None

    def describe(self, state: State) -> str:
        """Returns one line about the training that starts."""
        choices = self.workflow.compile_choices(state)
        compiled = ", ".join(f"{k} {v}" for k, v in choices.items())
        steps = self.workflow.env_steps(state)
        at = f"going on at {steps:,} of" if steps else "training for"
        strategy = self.workflow.replicas.strategy
        spread = f"; {describe(strategy)}" if self.workflow.replicas.several else ""
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        split = f"; threads of an operation: {threads}" if threads else ""
        return (
            f"{self.workflow.describe()}; {at} {self.settings.total_env_steps:,} env steps; "
            f"compiled: {compiled}{spread}{split}; folder {self.folder.root}"
        )
