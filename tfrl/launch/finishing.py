"""What follows the training: final evaluation, policy, video, and the summary, written last."""

import time
from typing import Any

from tfrl.errors import UserError
from tfrl.experiment.metadata import params_digest
from tfrl.experiment.run_folder import RunFolder
from tfrl.launch.app import say
from tfrl.launch.settings import Settings


def is_finished(folder: RunFolder, settings: Settings, state: Any) -> bool:
    """Returns whether a summary tells of these very parameters, as the settings ask for it."""
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
    folder: RunFolder, settings: Settings, state: Any, *, seed: int, stopped_by: str
) -> None:
    """Evaluates, exports and records the final parameters; a kill leaves it to the next start.

    Args:
      folder: The run folder.
      settings: What gin describes.
      state: The run's last state.
      seed: Of the video's episode.
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
    steps, run_time = workflow.env_steps(state), workflow.run_time
    wall_seconds = run_time.wall_seconds + time.monotonic() - started
    folder.write_summary(
        {
            "env_steps": steps,
            "wall_seconds": wall_seconds,
            # A run of one compiled call has no time without compilation.
            "env_steps_per_second": run_time.env_steps_per_second or steps / wall_seconds,
            "eval_return_mean": result.mean,
            "eval_return_std": result.std,
            "eval_episodes": len(result.episode_returns),
            "params_digest": params_digest(params_of(agent_state)),
            "stopped_by": stopped_by,
            "video": str(path.relative_to(folder.root)) if path else None,
        }
    )


def params_of(agent_state: Any) -> Any:
    """Returns the parameters of an agent, or of each policy of an agent of several."""
    if isinstance(agent_state, dict):
        return {module_id: state.params for module_id, state in agent_state.items()}
    return agent_state.params


def _record_video(folder: RunFolder, workflow: Any, state: Any, seed: int) -> Any:
    try:
        recorded = workflow.record_video(state, folder.videos / "final.mp4", seed)
    except UserError as error:
        # The video is an extra: without its encoder the run is whole.
        say(f"Note: no video. {error}")
        return None
    return recorded.path


def show(folder: RunFolder, seconds: float) -> None:
    """Prints the outcome of the run.

    Args:
      folder: The run folder, with a summary.
      seconds: How long the command took.
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
        "Policy": f"{folder.policy} (SavedModel)" if folder.policy.is_dir() else "none",
        "TensorBoard": f"tensorboard --logdir {folder.tensorboard}",
    }
    for name, value in rows.items():
        say(f"{name:<14}{value}")
