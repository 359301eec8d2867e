"""Learning results: trains the shipped gin files with several seeds and renders docs/results.md.

  python -m benchmarks.results --seeds=5 --only=ppo/tf_acrobot.gin,a2c/tf_cartpole.gin
  python -m benchmarks.results --seeds=0 --write_docs
  python -m benchmarks.results --gin_files=mine.gin --bindings='PPO.clip = 0.3' --seeds=3

Runs `bin/train.py` for each claim of `benchmarks.claims` and each seed, one after the other. The
same command skips finished runs and resumes an interrupted one. Each finished run writes one JSON
record, `<records>/<claim>/seed_<seed>.json`; the table and the curves use only these records. The
page's records are in `docs/results`. Records with another configuration than the current gin file
do not count. --gin_files runs other files than the claims', with records, `results.md` and figures
in --root_dir. Ends with one JSON line per claim.
"""

import argparse
import contextlib
import hashlib
import json
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from benchmarks import curves, measure
from benchmarks.claims import CLAIMS, Claim

PAGE = measure.ROOT / "docs" / "results.md"
RECORDS = measure.ROOT / "docs" / "results"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
FILES = ("summary", "metadata")  # in the run folder
_REACHED = {True: "yes", False: "no", None: ""}
_stopped = threading.Event()  # set by SIGTERM


def config_digest(claim: Claim) -> str:
    """Returns a digest of all bindings of a claim's configuration; comments do not count."""
    from tfrl.launch import gin_files

    bound = {b.key: repr(b.value) for b in gin_files.read([claim.gin_file], claim.bindings)}
    return hashlib.sha256(json.dumps(bound, sort_keys=True).encode()).hexdigest()[:16]


def arguments(claim: Claim, seed: int | str) -> list[str]:
    """Returns the flags of `bin/train.py` for one seed of a claim."""
    bindings = [f"--gin_bindings={b}" for b in claim.bindings]
    return [f"--gin_file={claim.gin_file}", *bindings, f"--seed={seed}"]


def train_command(claim: Claim, seed: int, folder: pathlib.Path) -> list[str]:
    """Returns the command of one run."""
    train = [sys.executable, str(measure.ROOT / "bin" / "train.py"), f"--root_dir={folder}"]
    return [*train, *arguments(claim, seed), "--gin_bindings=train.video = False"]


def record_path(root: pathlib.Path, claim: Claim, seed: int) -> pathlib.Path:
    """Returns the path of a run's record."""
    return root / claim.folder / f"seed_{seed}.json"


def read_record(root: pathlib.Path, claim: Claim, seed: int) -> dict[str, Any] | None:
    """Returns the record of a run; None if none has the claim's configuration."""
    path = record_path(root, claim, seed)
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    return record if record["config"] == config_digest(claim) else None


def read_records(root: pathlib.Path, claim: Claim) -> dict[int, dict[str, Any]]:
    """Returns `{seed: record}` of all finished runs of a claim."""
    seeds = sorted(int(p.stem[5:]) for p in (root / claim.folder).glob("seed_*.json"))
    records = {seed: read_record(root, claim, seed) for seed in seeds}
    return {seed: record for seed, record in records.items() if record is not None}


def run(
    root: pathlib.Path, claim: Claim, seed: int, runs: pathlib.Path | None = None
) -> dict[str, Any]:
    """Trains one seed unless its record exists; returns the record.

    Args:
      root: The folder of the records.
      claim: What to train.
      seed: The seed.
      runs: The folder of the runs; None for the folder of the records.
    """
    record = read_record(root, claim, seed)
    if record is not None:
        return record
    config = config_digest(claim)
    folder = (runs or root) / claim.folder / f"seed_{seed}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    print(f"{claim.name}, seed {seed}: {log}", file=sys.stderr, flush=True)
    code = _call(train_command(claim, seed, folder), log)
    if code:
        log_end = log.read_text()[-2000:]
        raise SystemExit(f"{claim.name}, seed {seed}, ended with {code}:\n{log_end}")
    summary, metadata = (json.loads((folder / f"{n}.json").read_text()) for n in FILES)
    record = {"gin_file": claim.gin_file, "bindings": list(claim.bindings), "seed": seed, **summary}
    record.update(config=config, git_hash=metadata["git_hash"], curve=read_curve(folder))
    path = record_path(root, claim, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    text = json.dumps(record, indent=2)
    text = re.sub(r"\[\s+([^\s,]+),\s+([^\s,]+)\s+\]", r"[\1, \2]", text)  # one point per line
    partial.write_text(text + "\n")
    partial.replace(path)
    return record


def read_curve(folder: pathlib.Path) -> list[list[float]]:
    """Returns (env steps, mean greedy return) of the evaluations of a run."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "eval_return_mean" in row]
    return [[row["env_steps"], round(row["eval_return_mean"], 2)] for row in rows]


def _call(command: Sequence[str], log: pathlib.Path) -> int:
    """Runs a command with its output in a file; the end of this process ends the command."""
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            # An exception in the handler could come before this block; a flag cannot be missed.
            while not _stopped.is_set():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(timeout=0.2)
            sys.exit(143)
        except BaseException:
            process.terminate()  # the command saves a checkpoint and resumes at its next start
            process.wait()
            raise


def figures(claim: Claim, records: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Summarises the runs of a claim, at least one."""
    from tfrl.evaluation import bootstrap_interval

    returns = [r["eval_return_mean"] for r in records.values()]
    low, high = bootstrap_interval(returns)
    mean = sum(returns) / len(returns)
    return {
        "name": claim.name,
        "env_steps": next(iter(records.values()))["env_steps"],
        "target": claim.target,
        "mean": mean,
        "low": low,
        "high": high,
        "holds": None if claim.target is None else claim.holds(mean),
        "seeds": list(records),
        "by_seed": returns,
        "seconds": sum(r["wall_seconds"] for r in records.values()) / len(records),
    }


def _number(x: float) -> str:
    return f"{x:,.1f}" if abs(x) >= 10 else f"{x:.3f}"


def _title(claim: Claim) -> str:
    return f"`{claim.gin_file}`" + (f", {claim.variant}" if claim.variant else "")


def _target(claim: Claim) -> str:
    return "" if claim.target is None else f"{'<=' if claim.at_most else '>='} {claim.target:g}"


def without_claims() -> list[str]:
    """Returns the shipped gin files of trainings that no claim has."""
    from tfrl.launch import gin_files

    folder, claimed = gin_files.package_gin_dir(), {claim.gin_file for claim in CLAIMS}
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.glob("*/*.gin"))]
    trainings = [n for n in names if not n.endswith("base.gin") and not n.startswith("tune/")]
    return [name for name in trainings if name not in claimed]


def table(root: pathlib.Path, claims: Sequence[Claim] = CLAIMS, others: Sequence[str] = ()) -> str:
    """Renders the records below `root` as Markdown: the table, the missing runs, the commands.

    Args:
      root: The folder of the records.
      claims: What the table has.
      others: More gin files to list as missing.
    """
    all_records = {claim: read_records(root, claim) for claim in claims}
    done = {claim: figures(claim, records) for claim, records in all_records.items() if records}
    lines = [
        "| gin file | env steps | target | mean | 95% interval | reached | seeds | by seed | "
        "seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for claim, row in done.items():
        count = len(row["seeds"])
        lines.append(
            f"| {_title(claim)} "
            f"| {row['env_steps']:,} | {_target(claim)} "
            f"| {_number(row['mean'])} | {_number(row['low'])} to {_number(row['high'])} "
            f"| {_REACHED[row['holds']]} "
            f"| {count if count >= claim.seeds else f'{count} of {claim.seeds}'} "
            f"| {', '.join(map(_number, row['by_seed']))} | {row['seconds']:,.0f} |"
        )
    lines += [""] + [f"- {_title(claim)}: {claim.note}." for claim in done if claim.note]
    missing = [_title(claim) for claim in claims if claim not in done]
    missing += [f"`{name}`" for name in others]
    if missing:
        lines += ["", f"Not run yet for this table: {'; '.join(missing)}."]
    lines += ["", "One run each, `S` being the seed:", "", "```bash"]
    lines += [f"python bin/train.py {shlex.join(arguments(claim, 'S'))}" for claim in done]
    return "\n".join([*lines, "```"])


def write_page(page: pathlib.Path, text: str) -> None:
    """Replaces the text between two markers of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise SystemExit(f"{page}: expected the marks {BEGIN} and {END}, got at most one")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def choose(only: str) -> tuple[Claim, ...]:
    """Returns the claims of comma-separated gin files; all for an empty text."""
    names = [name for name in only.split(",") if name]
    unknown = set(names) - {c.gin_file for c in CLAIMS}
    if unknown:
        known = ", ".join(dict.fromkeys(c.gin_file for c in CLAIMS))
        raise SystemExit(f"--only: expected gin files of {known}; got {', '.join(sorted(unknown))}")
    return tuple(c for c in CLAIMS if not names or c.gin_file in names)


def of_files(
    gin_files: Sequence[str], bindings: Sequence[str] = (), variant: str = "", seeds: int = 5
) -> tuple[Claim, ...]:
    """Returns claims without a target for any gin files.

    Args:
      gin_files: As `bin/train.py` takes them.
      bindings: Gin bindings of all files.
      variant: Name of the bindings; by default their text.
      seeds: The number of seeds of the figure.
    """
    name = variant or ", ".join(bindings)
    return tuple(
        Claim(file, None, variant=name, bindings=tuple(bindings), seeds=seeds) for file in gin_files
    )


def write_report(root: pathlib.Path, claims: Sequence[Claim]) -> pathlib.Path:
    """Writes `results.md` with table and figures of some claims to their records' folder."""
    page = root / "results.md"
    page.write_text(f"# Results\n\n{shown(root, claims)}\n\n{table(root, claims)}\n")
    return page


def shown(root: pathlib.Path, claims: Sequence[Claim], folder: str = "") -> str:
    """Draws the figures and returns their Markdown, for light and dark pages."""
    records = {claim: read_records(root, claim) for claim in claims}
    if not curves.draw(records, root):
        return "No runs yet."
    alt = "Returns by env steps, a panel a task"
    # The suffix tells GitHub and the site which of the two to show.
    lines = [
        f"![{alt}]({folder}curves_{theme}.svg#gh-{theme}-mode-only)" for theme in ("light", "dark")
    ]
    if bare := curves.without_curves(records, root):
        lines += ["", f"Of these only final returns were kept: {', '.join(bare)}."]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line, runs and renders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, help="number of seeds, from 0; default: as in the claim"
    )
    parser.add_argument(
        "--gin_files", default="", help="comma-separated gin files instead of the claims' files"
    )
    parser.add_argument(
        "--bindings",
        action="append",
        default=[],
        help="gin bindings of --gin_files; may be repeated",
    )
    parser.add_argument("--variant", default="", help="name of the bindings in tables and figures")
    parser.add_argument("--only", default="", help="comma-separated gin files; default all")
    parser.add_argument(
        "--records", help="folder of the records; default docs/results, or --root_dir"
    )
    parser.add_argument("--root_dir", default="runs/results", help="folder of the runs")
    parser.add_argument(
        "--write_docs", action="store_true", help="render docs/results.md and its curves"
    )
    args = parser.parse_args(argv)

    signal.signal(signal.SIGTERM, lambda *_: _stopped.set())
    own = [name for name in args.gin_files.split(",") if name]
    root = pathlib.Path(args.records or (args.root_dir if own else RECORDS))
    if (args.bindings or args.variant) and not own:
        raise SystemExit("--bindings and --variant: expected --gin_files, got none")
    claims = choose(args.only)
    if own:
        claims = of_files(own, args.bindings, args.variant, args.seeds or 5)
    for claim in claims:
        for seed in range(claim.seeds if args.seeds is None else args.seeds):
            run(root, claim, seed, pathlib.Path(args.root_dir))
    for claim in claims:
        if records := read_records(root, claim):
            measure.emit(benchmark="results", **figures(claim, records))
    if args.write_docs:
        write_page(
            PAGE, f"{shown(root, CLAIMS, 'results/')}\n\n{table(root, others=without_claims())}"
        )
    if own:
        print(write_report(root, claims), file=sys.stderr)


if __name__ == "__main__":
    main()
