"""Videos of the policy during training."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfrl.errors import UserError
from tfrl.evaluation.video_file import Preview
from tfrl.experiment.recorders import RecorderGroup
from tfrl.experiment.run_folder import RunFolder

if TYPE_CHECKING:
    from tfrl.workflows.core import Workflow
    from tfrl.workflows.run_state import State

TAG = "eval/video"
_NAME = re.compile(r"step_(\d+)\.mp4")


class VideoRecorder:
    """Records `videos/step_<env_steps>.mp4`, and shows the same episode in TensorBoard.

    Each video shows one episode of the greedy policy, from the same seed. Recording uses separate
    environments and a separate key, so it does not change the run.
    """

    def __init__(
        self, workflow: Workflow, folder: RunFolder, seed: int, *, log: Callable[[str], None]
    ):
        """Touches no files; the methods do.

        Args:
          workflow: The workflow of the run.
          folder: The run folder.
          seed: The seed of the episodes.
          log: Takes one-line messages.
        """
        self._workflow, self._folder, self._seed = workflow, folder, seed
        self._log = log
        self._waiting: tuple[Any, int, float] | None = None  # frames, env steps, fps

    def record(self, state: State, env_steps: int) -> None:
        """Records one episode to its file.

        Args:
          state: The newest state of the run.
          env_steps: The steps taken so far.
        """
        path = self._folder.videos / f"step_{env_steps}.mp4"
        preview = Preview()
        try:
            video = self._workflow.record_video(state, path, self._seed, preview)
        except UserError as error:
            # A failed video must not end a training of hours.
            self._log(f"Note: no video at {env_steps:,} env steps. {error}")
        else:
            self._waiting = (preview.frames, env_steps, video.fps / preview.every)

    def show(self, recorders: RecorderGroup) -> None:
        """Passes the recorded video to the recorders, after the row of its env step."""
        if self._waiting is not None:
            recorders.video(TAG, *self._waiting)
            recorders.flush()
            self._waiting = None


def drop_later_videos(folder: RunFolder, env_steps: int) -> None:
    """Removes videos of later env steps, which a resumed run may not reach."""
    for path in folder.videos.glob("step_*.mp4"):
        named = _NAME.fullmatch(path.name)
        if named and int(named[1]) > env_steps:
            path.unlink()


def check_video(workflow: Workflow, root_dir: str | None) -> None:
    """Checks before training that videos can be recorded.

    Args:
      workflow: The workflow of the run.
      root_dir: The run folder, or None.

    Raises:
      UserError: There is no folder, or the environments cannot render.
    """
    if root_dir is None:
        raise UserError(
            "video_interval",
            expected="a root_dir as well",
            got="none",
            remedy="Pass root_dir; the videos are written to its folder videos/.",
        )
    workflow.check_video()
