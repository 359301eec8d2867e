"""Rows of metrics and videos as TensorBoard event files, without summary ops."""

import io
import math
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter

from tfrl.errors import UserError
from tfrl.evaluation.video_file import video_summary
from tfrl.experiment.recorder_base import Recorder, cell
from tfrl.storage import files


class TensorBoardRecorder(Recorder):
    """Scalars under their names, videos as animated images; strings have no place and are left out.

    A run that goes on writes a further event file. `truncate` takes the later points out of the
    earlier files, and adds a SessionLog START event for a TensorBoard that has read them already.
    """

    def __init__(self, directory: str | pathlib.Path):
        """Opens an event file in a folder.

        Args:
          directory: The folder that `tensorboard --logdir` is given; made when missing.

        Raises:
          UserError: The folder cannot be written.
        """
        directory = pathlib.Path(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"TensorBoard folder {directory}",
                expected="a folder that can be written",
                got=files.reason(error),
                remedy="Choose another --root_dir or make this one writable.",
            ) from error
        self._earlier = sorted(directory.glob("*tfevents*"))
        self._writer = EventFileWriter(str(directory))
        self._closed = False

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Adds the numbers of a row as scalars (float32), all in one event."""
        cells = {name: cell(name, value) for name, value in row.items()}
        points = [
            summary_pb2.Summary.Value(tag=name, simple_value=_float32(value))
            for name, value in cells.items()
            if not isinstance(value, str)
        ]
        if points:
            self._add(step, summary=summary_pb2.Summary(value=points))

    def video(self, tag: str, frames: Any, step: int, fps: float = 30.0) -> None:
        """Adds a video as an animated GIF, which TensorBoard shows among the images.

        Args:
          tag: Its name.
          frames: uint8 `[T, H, W, 3]` or a sequence of `[H, W, 3]`.
          step: The step that it belongs to.
          fps: Frames per second; GIF keeps hundredths of a second.
        """
        try:
            summary = video_summary(tag, frames, fps)
        except ValueError as error:
            raise ValueError(f"video {tag!r}: {error}") from error
        self._add(step, summary=summary)

    def truncate(self, step: int) -> None:
        """Drops the points whose step is greater from the files of earlier sessions."""
        for path in self._earlier:
            _truncate_events(path, step)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        # START discards points from its own step on; those of `step` itself stay.
        self._add(step + 1, session_log=start)
        self.flush()

    def flush(self) -> None:
        """Returns when every event is in the file."""
        if not self._closed:
            self._writer.flush()

    def close(self) -> None:
        """Flushes and closes the event file."""
        if not self._closed:
            self._closed = True
            self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        event = event_pb2.Event(wall_time=time.time(), step=int(step), **content)
        self._writer.add_event(event)


def _truncate_events(path: pathlib.Path, step: int) -> None:
    """Rewrites an event file without later events, and without a record that a kill cut short."""
    records = list(event_file_loader.RawEventFileLoader(str(path)).Load())
    kept = [record for record in records if event_pb2.Event.FromString(record).step <= step]
    content = io.BytesIO()
    writer = RecordWriter(content)
    for record in kept:
        writer.write(record)
    if len(content.getvalue()) != path.stat().st_size:
        files.write_bytes(path, content.getvalue())


def _float32(value: float | int) -> float:
    """A number within what a float32 field takes; larger ones become infinite."""
    limit = float(np.finfo(np.float32).max)
    number = float(value)
    return math.copysign(math.inf, number) if abs(number) > limit else number
