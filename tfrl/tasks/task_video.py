"""Videos of a task for the training loop and the binaries."""

import pathlib
from typing import Any

import numpy as np

from tfrl import extras
from tfrl.errors import UserError
from tfrl.evaluation.video import Video
from tfrl.evaluation.video_summary import Preview
from tfrl.tasks import clip_options, clip_recording
from tfrl.tasks.frames import as_rgb
from tfrl.tasks.task import RLTask


def check_video(task: RLTask) -> None:
    """Checks that the task's environment can be drawn and its video encoded, by drawing once.

    Raises:
      UserError: It cannot.
    """
    for module in ("imageio_ffmpeg", "PIL.Image"):
        extras.require(module, "video")
    env = task.get_environment()
    try:
        clip_recording.check_drawable(env)
        env.reset(seed=0)
        as_rgb(env.render())
    except UserError:
        raise
    except Exception as error:  # whatever a renderer raises without a screen or a package
        lines = str(error).strip().splitlines() or ["no reason given"]
        raise UserError(
            "video_interval",
            expected="an environment that can be drawn",
            got=f"one that cannot ({type(error).__name__}: {lines[0]})",
            remedy="Leave video_interval out.",
        ) from error
    finally:
        env.close()


def record_video(
    task: RLTask, model: Any, path: str | pathlib.Path, seed: int, preview: Preview | None
) -> Video:
    """Records one episode with `optimal=True`.

    Args:
      task: The task.
      model: Of `get_model`.
      path: A file name ending in .mp4 or .gif.
      seed: Of the episode.
      preview: Takes the frames too.

    Raises:
      UserError: As `RLTask.sample_clip`.
    """
    wanted = clip_options.checked(
        save_path=path,
        return_images=False,
        return_states=True,
        writer=None,
        standardize_images=True,
        max_steps=task.config.max_steps,
        seed=seed,
    )
    clip = clip_recording.ClipPlayer(
        task.get_environment,
        lambda states, optimal: task.get_actions(model, states, optimal),
        optimal=True,
        max_steps=wanted.max_steps,
        max_episode_steps=task.config.max_episode_steps,
        seed=wanted.seed,
        renders=True,
    )
    clip_recording.record(clip, wanted, step=0, tag="clip", preview=preview)
    trajectory = clip.trajectory
    if trajectory is None:
        raise RuntimeError("the clip was not played to its end")
    return Video(
        path=pathlib.Path(path),
        frames=len(trajectory) + 1,
        episode_returns=(float(np.sum(trajectory.reward)),),
        episode_lengths=(len(trajectory),),
        fps=clip.fps,
    )
