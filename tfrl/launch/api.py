"""`tfrl.train`: a training run from Python, and the functions that `bin/train.py` shares.

This module defines no absl flags, so that a program with other flags can import it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tfrl import checks
from tfrl.errors import UserError
from tfrl.launch.termination import Termination
from tfrl.loading import distrust

if TYPE_CHECKING:
    import tensorflow as tf

    from tfrl.launch.settings import Settings
    from tfrl.workflows import Workflow


@dataclasses.dataclass(frozen=True)
class StartOptions:
    """How a run starts, beside its configuration; see the flags of the same names."""

    seed: int
    if_exists: str
    strategy: str
    num_logical_cpus: int
    deterministic_ops: bool


def train(
    gin_files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    root_dir: str | pathlib.Path | None = None,
    *,
    seed: int | None = None,
    if_exists: str = "resume",
    strategy: str = "auto",
    check_env: bool = True,
    allow_code: bool = False,
    callbacks: Any = (),
    **bindings: Any,
) -> dict[str, Any]:
    """Trains in a run folder, as `tfrl-train` does, and returns the run's summary.

    A second call resumes the run in the folder. Ctrl-C raises KeyboardInterrupt at once; the next
    call resumes from the newest checkpoint.

    Args:
      gin_files: One or several gin files, for example `"ppo/tf_cartpole.gin"`; later ones override
        earlier ones. None resumes the run in `root_dir` with its stored configuration.
      root_dir: The run folder; `runs/ppo_tf_cartpole` by default.
      seed: The seed of all random draws; None for the seed of the run in the folder, else 0.
      if_exists: For a folder that has a run: "resume" it, "fail", or "new" for a fresh folder.
      strategy: The tf.distribute strategy, as the flag of this name.
      check_env: Whether to check the environments shortly before training.
      allow_code: Whether to import Python modules that the folder names, if `gin_files` is None.
      callbacks: User code at the events of the run, one object or several, see
        `tfrl.experiment.callbacks.Callback`.
      **bindings: Gin bindings, which override the files. A name without a dot is a macro of the
        files, `env_id="tf:Pendulum-v1"`, or belongs to `train`, `eval_interval=50_000`. Pass others
        as a dict: `**{"make_env.num_envs": 8}`. `total_env_steps` also sets the schedules that the
        files tie to the budget, as the flag of this name.

    Returns:
      The content of `summary.json`: `eval_return_mean`, `env_steps`, `env_steps_per_second`, ...

    Raises:
      UserError: For wrong files, bindings, folder or environments.
    """
    from tfrl.distribute import choice, make_strategy
    from tfrl.experiment.callbacks import CallbackList
    from tfrl.experiment.run_folder import RunFolder
    from tfrl.launch import run_config, settings
    from tfrl.launch.gin_files import as_paths, budget_binding, macro_names, read

    started = time.monotonic()
    env_steps = bindings.pop("total_env_steps", None)
    if env_steps is not None:
        checks.at_least("total_env_steps", env_steps, 1)
    every_callback = CallbackList(callbacks)
    files = [] if gin_files is None else as_paths(gin_files)
    macros = macro_names(read(files))
    lines = settings.binding_lines(
        {k if "." in k or k in macros else f"train.{k}": v for k, v in bindings.items()}
    )
    if root_dir is None and not files:
        run_config.find(None)  # raises
    folder = default_root_dir(files) if root_dir is None else checks.path("root_dir", root_dir)
    try:
        if not files:
            files = run_config.read(folder, (), lines, allow_code=allow_code)
            seed = run_config.seed(folder) if seed is None else seed
        if env_steps is not None:
            lines.append(budget_binding(files, lines, env_steps))
        assembled, chosen = assemble(
            lambda: settings.assemble(files, lines),
            lambda: make_strategy(strategy, log=print),
            choice.choose(strategy),
            folder if if_exists == "resume" else None,
        )
    finally:
        distrust(None)
    options = StartOptions(
        seed or 0, if_exists, strategy, num_logical_cpus=1, deterministic_ops=False
    )
    start(
        assembled,
        options,
        folder,
        chosen,
        Termination(),
        started,
        check_env=check_env,
        callbacks=[every_callback],
    )
    return RunFolder(folder).read_summary() or {}


def assemble(
    make_settings: Callable[[], Settings],
    make_strategy: Callable[[], tf.distribute.Strategy],
    chosen: str,
    root_dir: str | None,
) -> tuple[Settings, tf.distribute.Strategy]:
    """Creates settings and strategy, and sets TensorFlow's threads for the workflow.

    A strategy over processes must be created before TensorFlow computes anything. Any other
    strategy starts TensorFlow, after which its threads are fixed.

    Args:
      make_settings: Creates the settings.
      make_strategy: Creates the strategy.
      chosen: The kind of the strategy, from `choice.choose`.
      root_dir: The folder of a run to resume, or None.
    """
    from tfrl.launch import threads

    if chosen in ("multi_worker", "tpu"):
        strategy = make_strategy()
        return make_settings(), strategy
    settings = make_settings()
    threads.settle(settings.workflow, root_dir)
    return settings, make_strategy()


def start(
    settings: Settings,
    options: StartOptions,
    root_dir: str,
    strategy: tf.distribute.Strategy,
    termination: Termination,
    started: float,
    *,
    check_env: bool,
    callbacks: Sequence[Any] = (),
) -> int:
    """Checks everything that may fail before a folder is created, then trains.

    Args:
      settings: The settings from gin.
      options: How the run starts.
      root_dir: The run folder.
      strategy: The tf.distribute strategy.
      termination: Reports SIGTERM and Ctrl-C.
      started: `time.monotonic()` at the start of the command.
      check_env: Whether to check the environments.
      callbacks: Called at the events of the run.

    Returns:
      The exit code, see `training.train`.
    """
    from tfrl.distribute import lost_workers
    from tfrl.launch import training

    workflow = settings.workflow
    workflow.use_strategy(strategy)
    if settings.video_interval:
        workflow.check_video()
    if check_env:
        check_environments(workflow, options.seed)
    with contextlib.closing(workflow), lost_workers(strategy):
        return training.train(settings, options, root_dir, termination, started, callbacks)


def default_root_dir(files: list[str]) -> str:
    """Returns the default run folder, for example `runs/ppo_tf_cartpole`."""
    name = files[-1].rpartition("://")[2].removesuffix(".gin").strip("./")
    return f"runs/{name.replace('/', '_')}"


def check_environments(workflow: Workflow, seed: int) -> None:
    """Checks the training environments, see `tfrl.envs.check_env`; errors tell how to skip it."""
    if workflow.env is not None:
        from tfrl.envs.checker_host import check_before_training

        with _named(repr(workflow.env.unwrapped)):
            check_before_training(workflow.env, seed)
        return
    from tfrl.tasks import TaskWorkflow
    from tfrl.tasks.environments import check_environment

    if isinstance(workflow, TaskWorkflow):
        with _named(f"of {type(workflow.task).__name__}"):
            check_environment(workflow.task, seed)


@contextlib.contextmanager
def _named(environments: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(
            f"the environments ({environments}), {error.thing}",
            expected=error.expected,
            got=error.got,
            remedy=f"{error.remedy} (--nocheck_env trains without this check.)",
        ) from error
