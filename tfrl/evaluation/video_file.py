"""Writes RGB frames to .mp4 or .gif files."""

import os
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np

from tfrl import extras
from tfrl.errors import UserError

_GIF_MIN_MS = 20  # browsers play anything shorter at 100 ms


def check_path(path: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a video file; an ending that is not known is a UserError."""
    path = pathlib.Path(path)
    if path.suffix.lower() not in _WRITERS:
        raise UserError(
            "path",
            expected=f"a name that ends in {' or '.join(sorted(_WRITERS))}",
            got=str(path),
            remedy="The ending chooses the format.",
        )
    return path


def write_video(path: str | os.PathLike, frames: Iterable[np.ndarray], fps: float) -> int:
    """Writes frames as they come; the file appears under its name when it is complete.

    Odd sizes are padded to even ones by repeating the last row or column, as video codecs ask.

    Args:
      path: A file name ending in .mp4 or .gif; its folder is created if needed.
      frames: uint8 RGB [H, W, 3] arrays of one size, at least one.
      fps: Frames per second. GIF knows hundredths of a second only, and at most 50 a second.

    Returns:
      The number of frames.

    Raises:
      UserError: For another ending, or a folder that cannot be written to.
    """
    path = check_path(path)
    partial = path.with_name(f".partial-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
    except OSError as error:
        raise UserError(
            "path",
            expected="a file that can be written",
            got=f"{path} ({error.strerror})",
            remedy="Choose a folder that you may write to.",
        ) from error
    counter = _Counter(frames)
    try:
        _WRITERS[path.suffix.lower()](partial, iter(counter), fps)
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
            remedy="Correct the render method of the environment.",
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


_WRITERS = {".mp4": _write_mp4, ".gif": _write_gif}
