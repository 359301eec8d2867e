"""Recorders: outputs for rows of metrics (CSV, JSON lines, TensorBoard, W&B, console)."""

import abc
import contextlib
import csv
import io
import math
import os
import pathlib
import socket
import sys
import time
import urllib.parse
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter

from tfrl import extras
from tfrl.errors import UserError
from tfrl.evaluation.video_file import video_summary
from tfrl.storage import files

STEP = "env_steps"
_REMEDY = "Choose another --root_dir, or make this folder writable."
_FULL = "Free disk space; the same command resumes from the last checkpoint."


def cell(name: str, value: Any) -> float | int | str:
    """Returns a value of a row as a Python number or a one-line string.

    float32 values become the shortest decimal that reads back as the same float32, so 0.1 is
    written as 0.1. Line breaks in strings become spaces, since a row is one line.

    Args:
      name: Name of the column, for the error.
      value: A Python or NumPy scalar, a scalar tensor, or a string.

    Raises:
      TypeError: It is neither a scalar nor a string.
    """
    if isinstance(value, str):
        return " ".join(value.splitlines())
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, np.floating) and value.dtype.itemsize < 8:
        return float(str(value))
    if isinstance(value, float | np.floating):
        return float(value)
    raise TypeError(f"metric {name!r}: expected a number or a string, got {value!r}")


class Recorder(abc.ABC):
    """Records rows of metrics.

    A step may have several rows; steps must not decrease. Write and `flush` all rows of a step
    before saving its checkpoint, and at resume call `truncate` with the checkpoint's step: then no
    row is lost or duplicated.
    """

    @abc.abstractmethod
    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Writes one row.

        Args:
          step: The step of the row.
          row: `{name: number or string}`; NaN and infinities are allowed.
        """

    def truncate(self, step: int) -> None:
        """Drops the rows after `step`; a no-op if none are stored."""
        return

    def flush(self) -> None:
        """Returns once every row is stored; a no-op if none are pending."""
        return

    def close(self) -> None:
        """Flushes and closes files; more calls have no effect."""
        self.flush()


def split_row(step: int, row: Mapping[str, Any], step_name: str) -> dict[str, float | int | str]:
    """Returns the cells of a row without the step; a step in the row must agree.

    Raises:
      ValueError: The row has a different value under the step's name.
    """
    cells = {str(n): cell(n, v) for n, v in row.items()}
    if cells.pop(step_name, step) != step:
        raise ValueError(f"row of step {step}: {step_name} is {row[step_name]}")
    return cells


def _lines_of(path: pathlib.Path) -> list[str]:
    """The complete lines of a file, without line ends."""
    with open(path, "rb", opener=files.open_no_link) as file:
        return file.read().decode("utf-8", errors="replace").split("\n")[:-1]


def check_table(path: pathlib.Path, step_name: str = STEP) -> None:
    """Rejects a metrics table with a damaged header, since its rows would seem damaged.

    Args:
      path: The table; a missing or empty one is valid.
      step_name: The name of its first column.

    Raises:
      UserError: Shows the header.
    """
    lines = _lines_of(path) if path.exists() else []
    if not lines:
        return
    columns = _csv_cells(lines[0])
    named = "\ufffd" not in lines[0] and all(columns) and len(set(columns)) == len(columns)
    fits = len(lines) == 1 or any(len(_csv_cells(row)) == len(columns) for row in lines[1:])
    if columns[:1] != [step_name] or not named or not fits:
        raise UserError(
            f"metrics file {path}",
            expected=f"a table whose first column is {step_name}, with a name for each column",
            got=f"the header {lines[0][:80]!r}",
            remedy="Repair or move the file, or choose another --root_dir; nothing was changed.",
        )


class _LineRecorder(Recorder):
    """Appends one line per row; drops a last line that a kill has cut off."""

    def __init__(self, path: str | pathlib.Path, step_name: str = STEP):
        """Opens the file for appending after its last complete line.

        Args:
          path: The file; its folder is created if missing.
          step_name: The name of the step.

        Raises:
          UserError: The file cannot be written.
        """
        self._path = pathlib.Path(path)
        self._step_name = step_name
        # Since the last `truncate`, including kept rows.
        self.num_rows = 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise files.unwritable(
                f"metrics file {self._path}", error, kind="file", remedy=_REMEDY
            ) from error

    def _open(self) -> None:
        self._file = open(self._path, "a+b", opener=files.open_no_link)
        self._cut_last_line()

    def _cut_last_line(self) -> None:
        """Drops bytes after the last newline."""
        size = end = self._file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            self._file.seek(start)
            result = self._file.read(end - start).rfind(b"\n")
            if result >= 0:
                end = start + result + 1
                break
            end = start
        if end < size:
            self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)

    def _append(self, line: str) -> None:
        self._file.write(line.encode("utf-8"))
        self.num_rows += 1

    def _lines(self) -> list[str]:
        """The complete lines of the file, without line ends."""
        self._file.flush()
        return _lines_of(self._path)

    def _rewrite(self, lines: Iterable[str]) -> None:
        """Replaces the file's content, atomically."""
        self._file.close()
        files.write_text(self._path, "".join(f"{line}\n" for line in lines))
        self._open()

    @abc.abstractmethod
    def _step_of(self, line: str) -> int | None:
        """The step of a row, or None if the line is not a row."""

    def _kept(self, lines: list[str], step: int, first_number: int = 1) -> list[str]:
        """The rows up to a step; other lines are dropped and reported."""
        kept = []
        for number, line in enumerate(lines, first_number):
            result = self._step_of(line)
            if result is None:
                warnings.warn(f"{self._path}: line {number} is damaged and dropped", stacklevel=3)
            elif result <= step:
                kept.append(line)
        return kept

    def truncate(self, step: int) -> None:
        """Drops the rows whose step is greater, and damaged lines."""
        lines = self._lines()
        kept = self._kept(lines, step)
        self.num_rows = len(kept)
        if kept != lines:
            self._rewrite(kept)

    @property
    def name(self) -> str:
        """The name of the file."""
        return self._path.name

    def flush(self) -> None:
        """Returns once every row is on disk."""
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise files.unwritable(
                f"metrics file {self._path}", error, kind="file", remedy=_FULL
            ) from error

    def close(self) -> None:
        """Flushes and closes the file."""
        self.flush()
        self._file.close()


class JsonlRecorder(_LineRecorder):
    """One JSON object per line: the step first, then the row.

    NaN and infinities are written as null, since JSON lacks them; the CSV file distinguishes them.
    """

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Appends a row."""
        step = int(step)
        content = {self._step_name: step, **split_row(step, row, self._step_name)}
        self._append(files.to_json(content) + "\n")

    def _step_of(self, line: str) -> int | None:
        try:
            return int(files.from_json(line)[self._step_name])
        except (ValueError, KeyError, TypeError):
            return None


def _csv_line(cells: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _csv_cells(line: str) -> list[str]:
    """The cells of a line; empty if it is not a table line."""
    try:
        return next(csv.reader([line.replace("\0", "\ufffd")]), [])
    except csv.Error:
        return []


class CsvRecorder(_LineRecorder):
    """A table with a header: the step, then columns in order of first appearance.

    A row may lack columns (empty cells) and add new ones: then the file is rewritten atomically
    with the longer header. Non-finite numbers are `nan`, `inf` and `-inf`.
    """

    def _open(self) -> None:
        check_table(self._path, self._step_name)
        super()._open()
        header = self._lines()[:1]
        self._columns = _csv_cells(header[0]) if header else []

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Appends a row; new columns first rewrite the table."""
        step = int(step)
        cells = {self._step_name: step, **split_row(step, row, self._step_name)}
        new = [name for name in cells if name not in self._columns]
        if new:
            self._add_columns(new)
        self._append(_csv_line(cells.get(name, "") for name in self._columns) + "\n")

    def _add_columns(self, names: list[str]) -> None:
        empty = "," * len(names) if self._columns else ""
        rows = [line + empty for line in self._lines()[1:]]
        self._rewrite([_csv_line([*self._columns, *names]), *rows])

    def _step_of(self, line: str) -> int | None:
        cells = _csv_cells(line)
        try:
            return int(cells[0]) if cells and len(cells) == len(self._columns) else None
        except ValueError:
            return None

    def truncate(self, step: int) -> None:
        """Drops the rows after a step, and damaged lines; keeps the columns."""
        lines = self._lines()
        kept = lines[:1] + self._kept(lines[1:], step, first_number=2)
        self.num_rows = max(0, len(kept) - 1)
        if kept != lines:
            self._rewrite(kept)


_GROUPS = ("rollout", "train", "eval", "time")
_TIME = ("iterations", "env_steps")


def tensorboard_tag(name: str) -> str:
    """Returns the tag of a column: its name in one of the groups rollout, train, eval and time.

    `episode_return` is `rollout/episode_return`, `eval_return_mean` is `eval/return_mean`, `loss`
    is `train/loss`; a name with a group prefix is unchanged.
    """
    if name.partition("/")[0] in _GROUPS and "/" in name:
        return name
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    if name.startswith("episode"):
        return f"rollout/{name}"
    return f"{'time' if name in _TIME else 'train'}/{name}"


class TensorBoardRecorder(Recorder):
    """Scalars in groups (`tensorboard_tag`), videos as animated images; ignores strings.

    A resumed run writes another event file. `truncate` removes later points from earlier files, and
    adds a SessionLog START event for a TensorBoard that has already read them.
    """

    def __init__(self, directory: str | pathlib.Path):
        """Opens an event file in a folder.

        Args:
          directory: The folder for `tensorboard --logdir`; created if missing.

        Raises:
          UserError: The folder cannot be written.
        """
        self._directory = directory = pathlib.Path(directory)
        with self._writing(_REMEDY):
            directory.mkdir(parents=True, exist_ok=True)
        self._earlier = sorted(directory.glob("*tfevents*"))
        self._writer = EventFileWriter(str(directory))
        self._closed = False

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Adds the numbers of a row as scalars (float32), all in one event."""
        cells = {name: cell(name, value) for name, value in row.items()}
        points = [
            summary_pb2.Summary.Value(tag=tensorboard_tag(name), simple_value=_float32(value))
            for name, value in cells.items()
            if not isinstance(value, str)
        ]
        if points:
            self._add(step, summary=summary_pb2.Summary(value=points))

    def video(self, tag: str, frames: Any, step: int, fps: float = 30.0) -> None:
        """Adds a video as an animated GIF, shown in TensorBoard's images.

        Args:
          tag: Its name.
          frames: uint8 `[T, H, W, 3]` or a sequence of `[H, W, 3]`.
          step: Its step.
          fps: Frames per second; GIF has a resolution of 1/100 s.
        """
        try:
            summary = video_summary(tag, frames, fps)
        except ValueError as error:
            raise ValueError(f"video {tag!r}: {error}") from error
        self._add(step, summary=summary)

    def truncate(self, step: int) -> None:
        """Drops the points after a step from the files of earlier sessions."""
        for path in self._earlier:
            _truncate_events(path, step)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        # START discards points from its own step on; points of `step` itself stay.
        self._add(step + 1, session_log=start)
        self.flush()

    def flush(self) -> None:
        """Returns once every event is in the file."""
        if not self._closed:
            with self._writing():
                self._writer.flush()

    def close(self) -> None:
        """Flushes and closes the event file."""
        if not self._closed:
            self._closed = True
            with self._writing():
                self._writer.close()

    @contextlib.contextmanager
    def _writing(self, remedy: str = _FULL) -> Iterator[None]:
        """Makes an error of the folder, also one of the writer's thread, a UserError."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            thing = f"TensorBoard folder {self._directory}"
            raise files.unwritable(thing, error, remedy=remedy) from error

    def _add(self, step: int, **content: Any) -> None:
        event = event_pb2.Event(wall_time=time.time(), step=int(step), **content)
        with self._writing():
            self._writer.add_event(event)


def _truncate_events(path: pathlib.Path, step: int) -> None:
    """Rewrites an event file without later events and without a truncated record.

    Tags of an earlier version get their groups, so that a resumed run has one curve.
    """
    content = io.BytesIO()
    writer = RecordWriter(content)
    for record in event_file_loader.RawEventFileLoader(str(path)).Load():
        event = event_pb2.Event.FromString(record)
        if event.step > step:
            continue
        tags = [tensorboard_tag(value.tag) for value in event.summary.value]
        if tags != [value.tag for value in event.summary.value]:
            for value, tag in zip(event.summary.value, tags, strict=True):
                value.tag = "eval/video" if value.tag == "video" else tag
            record = event.SerializeToString()
        writer.write(record)
    if len(content.getvalue()) != path.stat().st_size:
        files.write_bytes(path, content.getvalue())


def _float32(value: float | int) -> float:
    """A number for a float32 field; larger ones become infinite."""
    limit = float(np.finfo(np.float32).max)
    number = float(value)
    return math.copysign(math.inf, number) if abs(number) > limit else number


_DEFAULT_URL = "https://api.wandb.ai"


def _reachable(url: str, timeout: float = 2.0) -> bool:
    """Whether a server accepts connections."""
    parts = urllib.parse.urlparse(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname or "", port), timeout).close()
    except OSError:
        return False
    return True


def choose_mode(api_key: str | None) -> str:
    """Returns `online` with a key and a reachable server, else `offline`.

    `WANDB_MODE` overrides it. An offline run stays in its folder; `wandb sync` uploads it later.

    Args:
      api_key: The key found by wandb, or None.
    """
    asked = os.environ.get("WANDB_MODE")
    if asked:
        return asked
    url = os.environ.get("WANDB_BASE_URL", _DEFAULT_URL)
    return "online" if api_key and _reachable(url) else "offline"


class WandbRecorder(Recorder):
    """Sends rows as `wandb.log(row, step=step)`.

    W&B ignores rows of earlier steps, so a resumed run, which writes rows again, creates no
    duplicates.
    """

    def __init__(
        self,
        directory: str | pathlib.Path,
        *,
        project: str = "tfrl",
        name: str | None = None,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
    ):
        """Starts or resumes a W&B run.

        Args:
          directory: The folder for wandb's files.
          project: The project's name.
          name: The run's name, or None for a generated one.
          run_id: A stable id, so that a resumed run continues the same one.
          config: The run's configuration.

        Raises:
          UserError: wandb is not installed.
        """
        wandb = extras.require("wandb", "wandb")
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._wandb = wandb
        self._run = wandb.init(
            project=project,
            name=name,
            id=run_id,
            resume="allow" if run_id else None,
            dir=str(directory),
            config=files.plain(config or {}),
            mode=choose_mode(wandb.api.api_key),
        )
        self._closed = False

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Sends a row."""
        self._run.log({name: cell(name, value) for name, value in row.items()}, step=int(step))

    def video(self, tag: str, frames: Any, step: int, fps: float = 30.0) -> None:
        """Sends a video of uint8 frames `[T, H, W, 3]`."""
        channels_first = np.asarray(frames).transpose(0, 3, 1, 2)  # [T, 3, H, W]
        video = self._wandb.Video(channels_first, fps=int(round(fps)), format="gif")
        self._run.log({tag: video}, step=int(step))

    def close(self) -> None:
        """Ends the run."""
        if not self._closed:
            self._closed = True
            self._run.finish()


__all__ = [
    "STEP",
    "ConsoleRecorder",
    "CsvRecorder",
    "JsonlRecorder",
    "Recorder",
    "RecorderGroup",
    "TensorBoardRecorder",
    "WandbRecorder",
    "cell",
    "format_cells",
    "format_number",
    "tensorboard_tag",
]


def format_number(value: float | int) -> str:
    """Formats a number: integers with thousands separators, others with 4 digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def format_cells(row: Mapping[str, Any]) -> str:
    """Returns `name=value name=value`."""
    cells = {name: cell(name, value) for name, value in row.items()}
    return " ".join(
        f"{name}={value if isinstance(value, str) else format_number(value)}"
        for name, value in cells.items()
    )


def _print(line: str) -> None:
    print(line, file=sys.stdout, flush=True)


class ConsoleRecorder(Recorder):
    """Prints rows as `step  name=value name=value`, at most one per interval.

    Rows within the interval are skipped, but `close` prints the last one.
    """

    def __init__(
        self,
        every_seconds: float = 10.0,
        *,
        names: Sequence[str] | None = None,
        print_line: Callable[[str], None] = _print,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Sets up the printer.

        Args:
          every_seconds: The minimum time between two lines; 0 prints every row.
          names: The metrics to show, in this order, or None for all.
          print_line: Prints a line, e.g. `Progress.log`.
          clock: A monotonic clock in seconds.
        """
        self._every_seconds = every_seconds
        self._names = names
        self._print_line = print_line
        self._clock = clock
        self._last = -float("inf")
        self._skipped: str | None = None

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Prints a row, unless one was printed within the interval."""
        shown = row if self._names is None else {n: row[n] for n in self._names if n in row}
        if not shown:
            return
        line = f"{format_number(int(step))}  {format_cells(shown)}"
        now = self._clock()
        if now - self._last < self._every_seconds:
            self._skipped = line
            return
        self._last = now
        self._skipped = None
        self._print_line(line)

    def close(self) -> None:
        """Prints the last row, if it was skipped."""
        if self._skipped is not None:
            self._print_line(self._skipped)
            self._skipped = None


class RecorderGroup(Recorder):
    """Several recorders as one, called in order."""

    def __init__(self, recorders: Sequence[Recorder]):
        """Takes the recorders, possibly none."""
        self._recorders = tuple(recorders)

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Writes a row to each."""
        for recorder in self._recorders:
            recorder.write(step, row)

    def video(self, tag: str, frames: Any, step: int, fps: float = 30.0) -> None:
        """Passes uint8 frames `[T, H, W, 3]` to recorders with videos."""
        for recorder in self._recorders:
            if isinstance(recorder, TensorBoardRecorder | WandbRecorder):
                recorder.video(tag, frames, step, fps)

    def truncate(self, step: int) -> None:
        """Drops the rows after a step from each."""
        for recorder in self._recorders:
            recorder.truncate(step)

    @property
    def num_rows(self) -> dict[str, int]:
        """`{file: rows}` of the recorders with files."""
        counted = [r for r in self._recorders if isinstance(r, CsvRecorder | JsonlRecorder)]
        return {recorder.name: recorder.num_rows for recorder in counted}

    def flush(self) -> None:
        """Flushes each."""
        for recorder in self._recorders:
            recorder.flush()

    def close(self) -> None:
        """Closes each, even if one fails."""
        with contextlib.ExitStack() as stack:
            for recorder in reversed(self._recorders):
                stack.callback(recorder.close)
