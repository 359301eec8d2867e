"""Evaluates a checkpoint of a run folder, and shows the result."""

import pathlib
from typing import Any

from tfrl.errors import UserError
from tfrl.experiment.checkpoints import CheckpointManager, Restored
from tfrl.experiment.run_folder import RunFolder
from tfrl.launch import multi_worker
from tfrl.launch.app import say
from tfrl.launch.settings import Settings


def evaluate(
    settings: Settings,
    root_dir: str,
    *,
    episodes: int,
    checkpoint: str | int,
    seed: int,
    video: str | None,
) -> dict[str, Any]:
    """Evaluates the greedy policy of a checkpoint, and prints a table.

    Of several processes, which share the episodes, the chief prints and records the video.

    Args:
      settings: The run's configuration.
      root_dir: The run folder; nothing in it is changed.
      episodes: Exactly so many, each weighted once.
      checkpoint: "latest", "best" or a number of env steps.
      seed: Of the episodes.
      video: Path of a .mp4 or .gif to record one episode to, or None.

    Returns:
      `eval_return_mean`, `eval_return_std`, `eval_episodes` and more, out of JSON's types.
    """
    folder = RunFolder(root_dir)
    workflow = settings.workflow
    group = workflow.worker_group
    leads = group is None or group.is_chief
    multi_worker.check_same_command(workflow, seed=seed, episodes=episodes, checkpoint=checkpoint)
    restored = _restore(folder, checkpoint, group)
    metadata = folder.read_metadata()
    if metadata is not None and metadata["compile_choices"]:
        workflow.use_compile(metadata["compile_choices"])
    state = workflow.load(workflow.setup(seed), restored, environments=False)
    result = workflow.final_evaluation(state, episodes, seed=seed)
    figures: dict[str, Any] = {
        **result.metrics(),
        "env_steps": workflow.env_steps(state),
        "checkpoint": restored.path.name,
    }
    if video is not None and leads:
        recorded = workflow.record_video(state, pathlib.Path(video), seed)
        figures["video"] = str(recorded.path)
    if group is not None:
        group.barrier("the end")  # who leaves earlier looks lost to the others
    if leads:
        _show(f"{folder.root}, {restored.path.name}", figures)
    return figures


def _restore(folder: RunFolder, checkpoint: str | int, group: Any) -> Restored:
    manager = CheckpointManager(folder.checkpoints, read_only=True, log=say)
    restored = multi_worker.restore(manager, group, checkpoint)
    if restored is None:
        raise UserError(
            f"--root_dir={folder.root}",
            expected="a run with a checkpoint",
            got="none so far",
            remedy="Let the training run to its first checkpoint.",
        )
    return restored


def _show(title: str, figures: dict[str, Any]) -> None:
    say(title)
    width = max(map(len, figures))
    for name, value in figures.items():
        say(f"  {name:<{width}}  {f'{value:.3f}' if isinstance(value, float) else value}")
