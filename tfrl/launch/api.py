"""`tfrl.train`: a training run from Python, and what `bin/train.py` shares with it.

Nothing here defines an absl flag, so that a program with flags of its own may import it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tfrl.errors import UserError
from tfrl.launch.termination import Termination
from tfrl.loading import distrust

if TYPE_CHECKING:
    from tfrl.workflows import Workflow

if TYPE_CHECKING:
    import tensorflow as tf

    from tfrl.launch.settings import Settings


@dataclasses.dataclass(frozen=True)
class StartOptions:
    """How a run starts, beside its configuration; see the flags of the same names."""

    seed: int
    if_exists: str
    strategy: str
    num_logical_cpus: int
    deterministic_ops: bool


def train(
    gin_files: str | Sequence[str] | None = None,
    root_dir: str | pathlib.Path | None = None,
    *,
    seed: int | None = None,
    if_exists: str = "resume",
    strategy: str = "auto",
    check_env: bool = True,
    allow_code: bool = False,
    callbacks: Sequence[Any] = (),
    **bindings: Any,
) -> dict[str, Any]:
    """Trains as `tfrl-train` does, in a run folder, and returns the run's summary.

    A second call goes on with the run in the folder. Ctrl-C raises KeyboardInterrupt at once: the
    next call goes on from the newest checkpoint.

    Args:
      gin_files: One or several; later ones win: `"ppo/tf_cartpole.gin"`. None goes on with the run
        in `root_dir` as its folder says.
      root_dir: The run folder; `runs/ppo_tf_cartpole` by default.
      seed: Of every random draw; None for that of the run in the folder, else 0.
      if_exists: For a folder that holds a run: "resume" it, "fail", or "new" for a fresh folder.
      strategy: How computation spreads over devices.
      check_env: Whether to check the environments shortly before training.
      allow_code: Whether Python modules may be imported because the folder names them, where
        `gin_files` is None.
      callbacks: Your code at the events of the run, see `tfrl.experiment.callbacks.Callback`.
      **bindings: They win over the files. A name without a dot is one of `train`:
        `total_env_steps=100_000`. Others are keys of a dict: `**{"make_env.num_envs": 8}`.

    Returns:
      What `summary.json` holds: `eval_return_mean`, `env_steps`, `env_steps_per_second`, ...

    Raises:
      UserError: For anything that is wrong in files, bindings, folder or environments.
    """
    from tfrl.distribute import choice, make_strategy
    from tfrl.experiment.run_folder import RunFolder
    from tfrl.launch import run_config, settings

    started = time.monotonic()
    lines = settings.binding_lines(
        {k if "." in k else f"train.{k}": v for k, v in bindings.items()}
    )
    files = [gin_files] if isinstance(gin_files, str) else list(gin_files or ())
    if root_dir is None and not files:
        run_config.find(None)  # raises
    folder = default_root_dir(files) if root_dir is None else str(root_dir)
    try:
        if not files:
            files = run_config.read(folder, (), lines, allow_code=allow_code)
            seed = run_config.seed(folder) if seed is None else seed
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
        callbacks=callbacks,
    )
    return RunFolder(folder).read_summary() or {}


def assemble(
    make_settings: Callable[[], Settings],
    make_strategy: Callable[[], tf.distribute.Strategy],
    chosen: str,
    root_dir: str | None,
) -> tuple[Settings, tf.distribute.Strategy]:
    """Returns settings and strategy, with the threads that suit what will train.

    A strategy over processes must be made before anything computes. With any other TensorFlow
    begins to compute, and its threads are what they are.

    Args:
      make_settings: Makes the settings.
      make_strategy: Makes the strategy.
      chosen: Which, as `choice.choose` says.
      root_dir: The folder of a run to go on with, if there is one.
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
    """Checks what may fail without leaving a folder, and trains.

    Args:
      settings: What gin describes.
      options: How the run starts.
      root_dir: The run folder.
      strategy: How computation spreads over devices.
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
    """Returns the folder of runs without --root_dir, `runs/ppo_tf_cartpole` for example."""
    name = files[-1].rpartition("://")[2].removesuffix(".gin").strip("./")
    return f"runs/{name.replace('/', '_')}"


def check_environments(workflow: Workflow, seed: int) -> None:
    """Checks the training's environments, see `tfrl.envs.check_env`; errors say how not to."""
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
