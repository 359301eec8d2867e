"""Videos of the policy while it is trained."""

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


class Filming:
    """Records `videos/step_<env_steps>.mp4`, and shows the same episode in TensorBoard.

    Every video is of one episode of the greedy policy, and starts alike. Recording changes nothing
    of the run: it happens in environments of its own, with a key of its own.
    """

    def __init__(
        self, workflow: Workflow, folder: RunFolder, seed: int, *, log: Callable[[str], None]
    ):
        """Prepares; files are touched by the methods.

        Args:
          workflow: The workflow that runs.
          folder: The run folder.
          seed: Of the episodes.
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
            # The videos are an extra, which must not end a training of hours.
            self._log(f"Note: no video at {env_steps:,} env steps. {error}")
        else:
            self._waiting = (preview.frames, env_steps, video.fps / preview.every)

    def show(self, recorders: RecorderGroup) -> None:
        """Gives what `record` recorded to the recorders, which want the row of the step first."""
        if self._waiting is not None:
            recorders.video(TAG, *self._waiting)
            recorders.flush()
            self._waiting = None


def drop_later_videos(folder: RunFolder, env_steps: int) -> None:
    """Removes videos of later env steps: a run that goes on from here may never come by them."""
    for path in folder.videos.glob("step_*.mp4"):
        named = _NAME.fullmatch(path.name)
        if named and int(named[1]) > env_steps:
            path.unlink()


def check_filming(workflow: Workflow, root_dir: str | None) -> None:
    """Checks before the training that videos can be recorded in it.

    Args:
      workflow: The workflow that runs.
      root_dir: The run folder, or None.

    Raises:
      UserError: There is no folder, or the environments cannot be drawn.
    """
    if root_dir is None:
        raise UserError(
            "video_interval",
            expected="a root_dir beside it",
            got="none",
            remedy="Give root_dir: the videos are files in its folder videos/.",
        )
    workflow.check_video()
