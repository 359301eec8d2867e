"""Writes RGB frames to .mp4 or .gif files."""

import io
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.image import metadata as image_metadata

from tfrl import checks, extras
from tfrl.errors import UserError

_GIF_MIN_MS = 20  # browsers play anything shorter at 100 ms


def check_path(path: str | os.PathLike, writer: str = "ffmpeg") -> pathlib.Path:
    """Returns the path of a video file.

    Raises:
      UserError: For a suffix that the writer does not support, or an unknown writer.
    """
    path = pathlib.Path(path)
    known = WRITERS[checks.one_of("writer of a video", writer, WRITERS)]
    if path.suffix.lower() not in known:
        raise UserError(
            "path", expected=f"a name that ends in {' or '.join(sorted(known))}", got=str(path)
        )
    return path


def write_video(
    path: str | os.PathLike, frames: Iterable[np.ndarray], fps: float, writer: str = "ffmpeg"
) -> int:
    """Writes frames as they arrive; the file appears when it is complete.

    Odd sizes are padded to even ones by repeating the last row or column, for video codecs.

    Args:
      path: A file name ending in .mp4 or .gif; its folder is created if needed.
      frames: uint8 RGB [H, W, 3] arrays of one size, at least one.
      fps: Frames per second. GIF has a resolution of 1/100 s and at most 50 per second.
      writer: "ffmpeg" (imageio-ffmpeg; Pillow for .gif), "matplotlib" (which calls the same two) or
        "opencv" (.mp4 only).

    Returns:
      The number of frames.

    Raises:
      UserError: For another suffix, a missing writer, or a folder without write access.
    """
    path = check_path(path, writer)
    partial = path.with_name(f".partial-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
    except OSError as error:
        raise UserError(
            "path", expected="a writable file", got=f"{path} ({error.strerror})"
        ) from error
    counter = _Counter(frames)
    try:
        WRITERS[writer][path.suffix.lower()](partial, iter(counter), fps)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return counter.count


class _Counter:
    """Passes frames on, even-sized, and counts them."""

    def __init__(self, frames: Iterable[np.ndarray]):
        self.frames = frames
        self.count = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        for frame in self.frames:
            self.count += 1
            yield _even(_checked(frame))


def _checked(frame: np.ndarray) -> np.ndarray:
    frame = np.asarray(frame)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
        raise UserError(
            "frame",
            expected="a uint8 RGB array of shape [H, W, 3]",
            got=f"{frame.dtype} {list(frame.shape)}",
        )
    return frame


def _even(frame: np.ndarray) -> np.ndarray:
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _first(frames: Iterator[np.ndarray]) -> np.ndarray:
    frame = next(frames, None)
    if frame is None:
        raise ValueError("write_video: expected at least one frame, got none")
    return frame


def _write_mp4(path: pathlib.Path, frames: Iterator[np.ndarray], fps: float) -> None:
    ffmpeg = extras.require("imageio_ffmpeg", "video")
    frame = _first(frames)
    writer = ffmpeg.write_frames(
        str(path),
        (frame.shape[1], frame.shape[0]),
        fps=fps,
        codec="libx264",
        pix_fmt_out="yuv420p",
        macro_block_size=2,
        ffmpeg_log_level="error",
    )
    writer.send(None)
    try:
        writer.send(np.ascontiguousarray(frame))
        for frame in frames:
            writer.send(np.ascontiguousarray(frame))
    finally:
        writer.close()


def _write_gif(path: pathlib.Path, frames: Iterator[np.ndarray], fps: float) -> None:
    image = extras.require("PIL.Image", "video")
    first = image.fromarray(_first(frames))
    first.save(
        path,
        format="GIF",
        save_all=True,
        append_images=(image.fromarray(frame) for frame in frames),
        duration=max(_GIF_MIN_MS, round(100.0 / fps) * 10),
        loop=0,
    )


def _write_matplotlib(path: pathlib.Path, frames: Iterator[np.ndarray], fps: float) -> None:
    matplotlib = extras.require("matplotlib", "video-writers")
    figures = extras.require("matplotlib.figure", "video-writers")
    animation = extras.require("matplotlib.animation", "video-writers")
    frame = _first(frames)
    dpi = 100
    figure = figures.Figure(figsize=(frame.shape[1] / dpi, frame.shape[0] / dpi), dpi=dpi)
    image = figure.figimage(frame)  # pixel by pixel
    settings = {}
    if path.suffix.lower() == ".gif":
        extras.require("PIL.Image", "video")
        movie = animation.PillowWriter(fps=fps)
    else:
        settings["animation.ffmpeg_path"] = extras.require(
            "imageio_ffmpeg", "video"
        ).get_ffmpeg_exe()
        movie = animation.FFMpegWriter(fps=fps, extra_args=["-pix_fmt", "yuv420p"])
    with matplotlib.rc_context(settings), movie.saving(figure, str(path), dpi):
        movie.grab_frame()
        for frame in frames:
            image.set_data(frame)
            movie.grab_frame()


def _write_opencv(path: pathlib.Path, frames: Iterator[np.ndarray], fps: float) -> None:
    cv2 = extras.require("cv2", "video-writers")
    frame = _first(frames)
    codec = cv2.VideoWriter_fourcc(*"mp4v")
    movie = cv2.VideoWriter(str(path), codec, fps, (frame.shape[1], frame.shape[0]))
    try:
        movie.write(frame[..., ::-1])
        for frame in frames:
            movie.write(frame[..., ::-1])
    finally:
        movie.release()


WRITERS = {
    "ffmpeg": {".mp4": _write_mp4, ".gif": _write_gif},
    "matplotlib": {".mp4": _write_matplotlib, ".gif": _write_matplotlib},
    "opencv": {".mp4": _write_opencv},
}


MAX_FRAMES = 150  # maximum of a preview: a GIF of 1,000 large frames has tens of megabytes
MAX_SIDE = 256  # pixels


class Preview:
    """A small preview of a video: few, small frames for any length.

    Attributes:
      every: Interval of kept frames; doubles whenever there would be too many.
    """

    def __init__(self, max_frames: int = MAX_FRAMES, max_side: int = MAX_SIDE):
        """Sets its bounds.

        Args:
          max_frames: Maximum number of frames, evenly spaced from the first on.
          max_side: Maximum side in pixels; frames are shrunk by integer factors.
        """
        self.every = 1
        self._max_frames, self._max_side = max_frames, max_side
        self._kept: list[np.ndarray] = []
        self._num_frames = 0

    def add(self, frame: np.ndarray) -> None:
        """Takes the next frame, uint8 `[H, W, 3]`."""
        if self._num_frames % self.every == 0:
            if len(self._kept) == self._max_frames:
                self._kept = self._kept[::2]
                self.every *= 2
            if self._num_frames % self.every == 0:
                self._kept.append(_shrunk(frame, self._max_side))
        self._num_frames += 1

    @property
    def frames(self) -> np.ndarray:
        """The kept frames, uint8 `[T, H, W, 3]`."""
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
      fps: Frames per second; GIF has a resolution of 1/100 s and at most 50 per second.

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
    """Returns frames as an image summary, for an event writer.

    Args:
      tag: Its name.
      frames: See `encode_gif`.
      fps: See `encode_gif`.
    """
    frames = np.asarray(frames)
    gif = encode_gif(frames, fps)
    height, width = frames.shape[1:3]
    image = summary_pb2.Summary.Image(
        height=height, width=width, colorspace=3, encoded_image_string=gif
    )
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, image=image)])


def write_summary(
    writer: tf.summary.SummaryWriter, tag: str, frames: Any, step: int, fps: float
) -> None:
    """Writes frames with a `tf.summary` writer; TensorBoard shows them among the images.

    Args:
      writer: From `tf.summary.create_file_writer`.
      tag: Its name.
      frames: See `encode_gif`; see `Preview` for long or large ones.
      step: The step that it belongs to.
      fps: See `encode_gif`.
    """
    frames = np.asarray(frames)
    gif = encode_gif(frames, fps)
    height, width = frames.shape[1:3]
    metadata = image_metadata.create_summary_metadata(display_name="", description="")
    # The format of tf.summary.image, which itself only supports PNG.
    value = tf.constant([str(width).encode(), str(height).encode(), gif])
    with writer.as_default(), tf.summary.record_if(True):
        tf.summary.write(tag, value, step=step, metadata=metadata.SerializeToString())
