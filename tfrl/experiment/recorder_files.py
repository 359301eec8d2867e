"""Rows of metrics as CSV and as JSON lines, exact over kills and resumes."""

import abc
import csv
import io
import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from tfrl.errors import UserError
from tfrl.experiment.recorder_base import STEP, Recorder, split_row
from tfrl.storage import files


def _lines_of(path: pathlib.Path) -> list[str]:
    """The whole lines of a file, without their ends."""
    with open(path, "rb", opener=files.open_no_link) as file:
        return file.read().decode("utf-8", errors="replace").split("\n")[:-1]


def check_table(path: pathlib.Path, step_name: str = STEP) -> None:
    """Refuses a table of metrics whose header is damaged: its rows would be taken for damaged.

    Args:
      path: The table; nothing is wrong with one that is not there or holds no whole line.
      step_name: The name of its first column.

    Raises:
      UserError: Showing the header.
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
            remedy="Mend it or move the file away, or choose another --root_dir; nothing was "
            "changed.",
        )


class _LineRecorder(Recorder):
    """One row a line, appended; a last line without its end was cut by a kill and is dropped."""

    def __init__(self, path: str | pathlib.Path, step_name: str = STEP):
        """Opens the file, and goes on after its last whole line.

        Args:
          path: The file; its folder is made when missing.
          step_name: The name that the step is stored under.

        Raises:
          UserError: The file cannot be written.
        """
        self._path = pathlib.Path(path)
        self._step_name = step_name
        # Since the last `truncate`, with those that it kept.
        self.num_rows = 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise UserError(
                f"metrics file {self._path}",
                expected="a file that can be written",
                got=files.reason(error),
                remedy="Choose another --root_dir or make this one writable.",
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
            found = self._file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)

    def _append(self, line: str) -> None:
        self._file.write(line.encode("utf-8"))
        self.num_rows += 1

    def _lines(self) -> list[str]:
        """The whole lines of the file, without their ends."""
        self._file.flush()
        return _lines_of(self._path)

    def _rewrite(self, lines: Iterable[str]) -> None:
        """Puts a new content in place of the file, atomically."""
        self._file.close()
        files.write_text(self._path, "".join(f"{line}\n" for line in lines))
        self._open()

    @abc.abstractmethod
    def _step_of(self, line: str) -> int | None:
        """The step of a row, or None when the line is not a row."""

    def _kept(self, lines: list[str], step: int, first_number: int = 1) -> list[str]:
        """The rows up to a step; lines that are no rows are dropped and named."""
        kept = []
        for number, line in enumerate(lines, first_number):
            found = self._step_of(line)
            if found is None:
                warnings.warn(f"{self._path}: line {number} is damaged and dropped", stacklevel=3)
            elif found <= step:
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
        """Returns when every row is on the disk."""
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(
                f"metrics file {self._path}",
                expected="a file that can be written, with room on the disk",
                got=files.reason(error),
                remedy="Make room; the same command goes on from the last checkpoint.",
            ) from error

    def close(self) -> None:
        """Flushes and closes the file."""
        self.flush()
        self._file.close()


class JsonlRecorder(_LineRecorder):
    """One JSON object a line: the step first, then the row as it came.

    A NaN or an infinity is written as null, since JSON has no word for them; the CSV file tells
    them apart.
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
    """The cells of a line; none where it is no line of a table."""
    try:
        return next(csv.reader([line.replace("\0", "\ufffd")]), [])
    except csv.Error:
        return []


class CsvRecorder(_LineRecorder):
    """A table with a header: the step, then columns in the order in which they first came.

    A row may lack columns (empty cells) and bring new ones: then the file is rewritten with the
    longer header, atomically. Non-finite numbers are `nan`, `inf` and `-inf`.
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
        """Drops the rows whose step is greater, and damaged lines; columns stay."""
        lines = self._lines()
        kept = lines[:1] + self._kept(lines[1:], step, first_number=2)
        self.num_rows = max(0, len(kept) - 1)
        if kept != lines:
            self._rewrite(kept)
