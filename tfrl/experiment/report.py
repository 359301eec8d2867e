"""The report of a run: `curve.png` and `report.html`, from its folder."""

import base64
import dataclasses
import html
import json
import pathlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfrl import extras
from tfrl.errors import UserError
from tfrl.experiment.run_folder import RunFolder
from tfrl.storage import files

CURVE, PAGE = "curve.png", "report.html"
# A larger video is only linked, since browsers load the whole page.
_VIDEO_BYTES = 8 * 2**20
_INSTALL = "pip install 'tfrl[plots]'"


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The records of a run folder.

    Attributes:
      root: The folder.
      rows: Rows of metrics, by env steps.
      metadata: The run's metadata.
      summary: The result; empty during the run.
    """

    root: pathlib.Path
    rows: list[dict[str, Any]]
    metadata: Mapping[str, Any]
    summary: Mapping[str, Any]

    @classmethod
    def read(cls, root: str | pathlib.Path) -> "RunRecord":
        """Reads a run folder; skips an incomplete last row.

        Raises:
          UserError: The folder holds no metrics.
        """
        folder = RunFolder(root)
        if not folder.metrics_jsonl.is_file():
            raise UserError(
                f"the run folder {folder.root}",
                expected="metrics.jsonl, as the recorder 'jsonl' writes it",
                got="no such file" if folder.root.is_dir() else "no such folder",
                remedy="Pass the root_dir of a training run.",
            )
        rows = []
        for line in folder.metrics_jsonl.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(files.from_json(line))
            except ValueError:  # of a run that is writing
                continue
        return cls(folder.root, rows, folder.read_metadata() or {}, folder.read_summary() or {})

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns env steps and values `[N]` of the rows with a number in the column."""
        points = [(row["env_steps"], row[name]) for row in self.rows if _number(row.get(name))]
        return np.array([x for x, _ in points]), np.array([y for _, y in points], float)

    def seconds(self) -> np.ndarray:
        """Returns the seconds of training up to each row, `[N]`, compilation included."""
        calls = [row.get("time/call") for row in self.rows]
        return np.cumsum([x if _number(x) else 0.0 for x in calls])

    @property
    def names(self) -> list[str]:
        """Names of all columns, sorted."""
        return sorted({name for row in self.rows for name in row})

    @property
    def configuration(self) -> dict[str, str]:
        """The bindings of the run."""
        return dict(self.metadata.get("configuration", {}))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and bool(np.isfinite(value))


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def draw_curve(run: RunRecord, path: pathlib.Path) -> None:
    """Draws return, learning rate and losses of a run against env steps into a picture.

    Raises:
      UserError: Without matplotlib, or if the file cannot be written.
    """
    figures = extras.require("matplotlib.figure", "plots")
    rates = [n for n in run.names if _last(n) in ("learning_rate", "lr")]
    losses = [n for n in run.names if _last(n).endswith("loss")][:8]
    panels = [("return", ["episode_return"]), ("learning rate", rates), ("losses", losses)]
    panels = [(title, names) for title, names in panels if names]
    figure = figures.Figure(figsize=(4.2 * len(panels), 3.2), layout="tight")
    for axes, (title, names) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        for name in names:
            label = "training" if title == "return" else name
            axes.plot(*run.column(name), linewidth=1, label=label)
        if title == "return":
            _draw_evaluations(axes, run)
        axes.set_title(title)
        label_env_steps(axes)
        axes.grid(alpha=0.3)
        alone = title == "learning rate" and len(names) == 1  # the title says it
        if axes.get_legend_handles_labels()[0] and not alone:
            axes.legend(fontsize=7)
    save(figure, path)


def label_env_steps(axes: Any) -> None:
    """Labels the x axis: a few ticks of the form 100k."""
    ticker = extras.require("matplotlib.ticker", "plots")
    axes.set_xlabel("env steps")
    axes.locator_params(axis="x", nbins=5, integer=True)
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))


def _draw_evaluations(axes: Any, run: RunRecord) -> None:
    """The mean return of evaluations, with its 95% interval."""
    steps, mean = run.column("eval_return_mean")
    if not len(steps):
        return
    axes.plot(steps, mean, marker="o", markersize=3, label="evaluation, 95%")
    (at, low), (there, high) = run.column("eval_return_low"), run.column("eval_return_high")
    if np.array_equal(at, there):
        axes.fill_between(at, low, high, alpha=0.25, color=axes.lines[-1].get_color())


def save(figure: Any, path: pathlib.Path, **options: Any) -> None:
    """Writes a picture atomically; options as for `Figure.savefig`."""
    temporary = files.temporary_name(path.parent)
    try:
        figure.savefig(temporary, dpi=110, format="png", metadata={"Software": None}, **options)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise files.unwritable(f"picture {path}", error) from error


def write_report(run: RunRecord, differing: Sequence[tuple[str, str, str]]) -> pathlib.Path:
    """Writes `report.html` and, with matplotlib, `curve.png` into a run folder.

    Args:
      run: The run.
      differing: Hyperparameters that differ from their defaults: name, value, default.

    Returns:
      The page, a self-contained file.
    """
    curve = run.root / CURVE
    try:
        draw_curve(run, curve)
    except UserError as error:
        if "Optional dependency" not in error.thing:
            raise
        curve.unlink(missing_ok=True)  # remove an outdated one
    page = run.root / PAGE
    try:
        files.write_text(page, render(run, differing))
    except OSError as error:
        raise files.unwritable(f"report {page}", error) from error
    return page


def render(run: RunRecord, differing: Sequence[tuple[str, str, str]]) -> str:
    """Returns the page of a run."""
    about, summary = run.metadata, run.summary
    result = {
        "final return": _shown(summary.get("eval_return_mean"), summary.get("eval_return_std")),
        "episodes of the final evaluation": summary.get("eval_episodes"),
        "env steps": summary.get("env_steps", run.rows[-1]["env_steps"] if run.rows else 0),
        "env steps/s in training": _shown(summary.get("env_steps_per_second")),
        "wall seconds": _shown(summary.get("wall_seconds")),
        "ended by": summary.get("stopped_by", "not ended"),
    }
    command = about.get("command")
    system = {
        **{name: about.get(name) for name in ("created", "git_hash", "seed")},
        "command": None if command is None else shlex.join(command),
        **{name: about.get(name) for name in ("device", "cpu_count", "platform")},
        "threads of an operation": about.get("intra_op_threads"),
        **about.get("versions", {}),
    }
    means = [n.removeprefix("eval_") for n in run.names if re.fullmatch("eval_.*_mean", n)]
    columns = [*_EVALUATION, *(n for n in means if n not in _EVALUATION)]  # also info_fields
    evaluations = [
        [row["env_steps"], *(_shown(row.get(f"eval_{n}")) for n in columns)]
        for row in run.rows
        if _number(row.get("eval_return_mean"))
    ]
    parts = [
        picture(run.root / CURVE) or f"<p>No curves: matplotlib is missing ({_INSTALL}).</p>",
        "<h2>Result</h2>" + table(["", ""], result.items()),
        *_videos(run.root),
        "<h2>Evaluations</h2>" + table(["env steps", *columns], evaluations),
        "<h2>Hyperparameters that differ from their defaults</h2>"
        + table(["name", "value", "default"], differing),
        "<h2>Compile choices</h2>" + table(["", ""], about.get("compile_choices", {}).items()),
        "<h2>System</h2>" + table(["", ""], system.items()),
    ]
    return page(run.root.name, parts)


_EVALUATION = ("return_mean", "return_std", "return_low", "return_high", "length_mean", "episodes")

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; } td, th { padding: .2em .8em; text-align: left; }
tr:nth-child(even) { background: #8882; } img, video { max-width: 100%; background: white; }
td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) { img { filter: invert(0.9) hue-rotate(180deg); } }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Returns a page from HTML parts."""
    name = html.escape(title)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>{name}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html><head>{head}</head><body><h1>{name}</h1>\n" + "\n".join(
        [*parts, "</body></html>\n"]
    )


def _shown(value: Any, spread: Any = None) -> str:
    text = "none" if value is None else shown(value)
    return text if spread is None else f"{text} +- {shown(spread)}"


def shown(value: Any) -> str:
    """Returns a value for a table; numbers have thousands separators."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e15 else f"{value:,.5g}"


def table(head: Sequence[str], rows: Any) -> str:
    """Returns a table as HTML; non-strings are shown as JSON."""

    def cell(value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(files.plain(value))
        return f"<td>{html.escape(text)}</td>"

    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>\n" for row in rows)
    if not body:
        return "<p>None.</p>"
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    first = f"<tr>{names}</tr>\n" if any(head) else ""
    return f"<table>{first}{body}</table>"


def _embedded(path: pathlib.Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


def picture(path: pathlib.Path) -> str:
    """Returns a picture embedded in HTML; "" if missing."""
    if not path.is_file():
        return ""
    return f'<img alt="{path.stem}" src="data:image/png;base64,{_embedded(path)}">'


def _videos(root: pathlib.Path) -> list[str]:
    """The newest video embedded, the others as links."""
    paths = sorted((root / "videos").glob("*.mp4"), key=lambda path: path.stat().st_mtime)
    if not paths:
        return []
    links = [f'<a href="videos/{html.escape(p.name)}">{html.escape(p.name)}</a>' for p in paths]
    newest, shown = paths[-1], ""
    if newest.stat().st_size <= _VIDEO_BYTES:
        shown = f'<video controls src="data:video/mp4;base64,{_embedded(newest)}"></video>'
    return [f"<h2>Videos</h2>{shown}<p>{' '.join(links)}</p>"]
