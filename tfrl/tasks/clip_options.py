"""What is to become of a clip, checked."""

import dataclasses
import os
import pathlib
from typing import Any

from tfrl.envs.workers.seeds import check_seed
from tfrl.errors import UserError
from tfrl.evaluation.video_file import check_path
from tfrl.tasks.clip_checks import check_positive


@dataclasses.dataclass(frozen=True)
class ClipOptions:
    """Checked arguments of `RLTask.sample_clip`, see there."""

    save_path: pathlib.Path | None
    keeps_images: bool
    writer: Any
    standardize_images: bool
    max_steps: int
    seed: int

    @property
    def renders(self) -> bool:
        """Whether frames are drawn at all."""
        return self.keeps_images or self.save_path is not None or self.writer is not None


def checked(
    *,
    save_path: str | os.PathLike | None,
    return_images: bool,
    return_states: bool,
    writer: Any,
    standardize_images: bool,
    max_steps: Any,
    seed: Any,
) -> ClipOptions:
    """Returns the options of a clip.

    Raises:
      UserError: Nothing is to become of it, or arguments contradict each other.
    """
    if save_path is None and not return_images and not return_states and writer is None:
        raise UserError(
            "sample_clip",
            expected="one or more of save_path, return_images, return_states and writer",
            got="none of them",
            remedy="Give save_path='clip.mp4' for a file.",
        )
    if not standardize_images and not return_images:
        raise UserError(
            "standardize_images",
            expected="True, unless return_images asks for frames",
            got="False without return_images",
            remedy="Files and TensorBoard take standardised frames only: leave it out, or give "
            "return_images=True.",
        )
    if writer is not None and not hasattr(writer, "as_default"):
        raise UserError(
            "writer of sample_clip",
            expected="a tf.summary writer",
            got=f"{writer!r} of type {type(writer).__name__}",
            remedy="Make it with tf.summary.create_file_writer(folder).",
        )
    check_positive("max_steps", max_steps, "It counts the env steps of a clip.")
    return ClipOptions(
        save_path=None if save_path is None else check_path(save_path),
        keeps_images=return_images,
        writer=writer,
        standardize_images=standardize_images,
        max_steps=int(max_steps),
        seed=check_seed(seed),
    )
