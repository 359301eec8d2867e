"""Videos for TensorBoard: an image summary whose image is an animated GIF, which it plays.

TensorBoard has no summary of its own for videos. It hands the bytes of an image to the browser as
they are, with the type of their first bytes.
"""

import io
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.image import metadata as image_metadata

from tfrl import extras

MAX_FRAMES = 150  # of a preview: a GIF of a thousand large frames has tens of megabytes
MAX_SIDE = 256  # pixels
_GIF_MIN_MS = 20  # browsers play anything shorter at 100 ms


class Preview:
    """A small copy of a video that is being recorded: few frames, of small size, in any length.

    Attributes:
      every: One of so many frames is kept; it doubles whenever there would be too many.
    """

    def __init__(self, max_frames: int = MAX_FRAMES, max_side: int = MAX_SIDE):
        """Sets its bounds.

        Args:
          max_frames: At most so many frames stay, evenly spaced from the first on.
          max_side: Frames are shrunk by whole numbers until no side is longer, in pixels.
        """
        self.every = 1
        self._max_frames, self._max_side = max_frames, max_side
        self._kept: list[np.ndarray] = []
        self._seen = 0

    def add(self, frame: np.ndarray) -> None:
        """Takes the next frame, uint8 `[H, W, 3]`."""
        if self._seen % self.every == 0:
            if len(self._kept) == self._max_frames:
                self._kept = self._kept[::2]
                self.every *= 2
            if self._seen % self.every == 0:
                self._kept.append(_shrunk(frame, self._max_side))
        self._seen += 1

    @property
    def frames(self) -> np.ndarray:
        """What stayed, uint8 `[T, H, W, 3]`."""
        return np.stack(self._kept)


def _shrunk(frame: np.ndarray, max_side: int) -> np.ndarray:
    factor = -(-max(frame.shape[:2]) // max_side)
    if factor == 1:
        return np.array(frame)
    image = extras.require("PIL.Image", "video")
    return np.asarray(image.fromarray(frame).reduce(factor))  # means over squares of pixels


def encode_gif(frames: Any, fps: float) -> bytes:
    """Encodes frames as an endless animated GIF.

    Args:
      frames: uint8 `[T, H, W, 3]`, or a sequence of `[H, W, 3]`.
      fps: Frames per second; GIF keeps hundredths of a second, and at most 50 a second.

    Raises:
      ValueError: For other shapes or another dtype.
      UserError: Pillow is not installed.
    """
    frames = np.asarray(frames)
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or not len(frames):
        raise ValueError(
            f"expected uint8 frames [T, H, W, 3], got {frames.dtype} {list(frames.shape)}"
        )
    image_module = extras.require("PIL.Image", "video")
    images = [image_module.fromarray(frame) for frame in frames]
    stream = io.BytesIO()
    images[0].save(
        stream,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=max(_GIF_MIN_MS, round(1000 / fps)),
        loop=0,
    )
    return stream.getvalue()


def video_summary(tag: str, frames: Any, fps: float) -> summary_pb2.Summary:
    """Returns frames as the summary of an image, for a writer of events.

    Args:
      tag: Its name.
      frames: As of `encode_gif`.
      fps: As of `encode_gif`.
    """
    frames = np.asarray(frames)
    gif = encode_gif(frames, fps)
    height, width = frames.shape[1:3]
    image = summary_pb2.Summary.Image(
        height=height, width=width, colorspace=3, encoded_image_string=gif
    )
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, image=image)])


def write_video(
    writer: tf.summary.SummaryWriter, tag: str, frames: Any, step: int, fps: float
) -> None:
    """Writes frames with a `tf.summary` writer; TensorBoard shows them among the images.

    Args:
      writer: From `tf.summary.create_file_writer`.
      tag: Its name.
      frames: As of `encode_gif`; see `Preview` for long or large ones.
      step: The step that it belongs to.
      fps: As of `encode_gif`.
    """
    frames = np.asarray(frames)
    gif = encode_gif(frames, fps)
    height, width = frames.shape[1:3]
    metadata = image_metadata.create_summary_metadata(display_name="", description="")
    # The form of tf.summary.image, which itself would take PNG only.
    value = tf.constant([str(width).encode(), str(height).encode(), gif])
    with writer.as_default(), tf.summary.record_if(True):
        tf.summary.write(tag, value, step=step, metadata=metadata.SerializeToString())
