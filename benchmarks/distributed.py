"""What it costs to train in several processes.

  python -m benchmarks.distributed --what=parameters
  python -m benchmarks.distributed --what=collector --rounds=5
  python -m benchmarks.distributed --what=job --collectors=0,1,2,4 --seconds=20

A JSON line for each. `parameters`: milliseconds to publish and to read 1M float32 of ten layers
through a server in another process. `collector`: env steps/s of a collector that writes into a
server whose table has no limiter, beside the same one that does not write, in turn. `job`: env
steps/s, updates/s, and CPU seconds by role for a thousand env steps of whole jobs, between two rows
of the learner's metrics; 0 collectors are the same gin file in one process.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tfrl  # noqa: F401  (before tensorflow)
from benchmarks import measure

ROOT = pathlib.Path(__file__).resolve().parents[1]
_LAYERS = 10
_TICKS = os.sysconf("SC_CLK_TCK")


def _serve(make: str, arguments: tuple[Any, ...], pipe: Any) -> None:
    from tfrl.replay.reverb.server import ReverbServer

    server = ReverbServer(globals()[make](*arguments))
    pipe.send(server.address)
    pipe.recv()
    server.stop()


@contextlib.contextmanager
def server(make: str, *arguments: Any) -> Iterator[str]:
    """The address of a server in another process, of the tables that a function here makes."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(make, arguments, theirs))
    process.start()
    try:
        yield mine.recv()
    finally:
        mine.send("end")
        process.join()


# Parameters.


def million() -> dict[str, Any]:
    """1M float32 in ten layers."""
    import tensorflow as tf

    return {f"layer_{i}": tf.random.normal([1000, 100]) for i in range(_LAYERS)}


def parameter_tables() -> list[Any]:
    """The table of parameters for `million`."""
    from tfrl.roles import parameters

    return [parameters.make_table(million())]


def parameters_case(rounds: int) -> None:
    """Prints the milliseconds of publications and readings."""
    from tfrl.replay.reverb.library import reverb
    from tfrl.roles import parameters

    with server("parameter_tables") as address:
        client, state = reverb().Client(address), million()
        parameters.publish(client, parameters.Published(state, 0, 0, False))
        connection = parameters.connect(address, 10.0, print)
        subscriber = parameters.Subscriber(
            connection, state, pull_seconds=1e6, wait_seconds=10.0, log=print
        )
        seconds: dict[str, list[float]] = {"publish": [], "pull": []}
        for i in range(1, rounds + 1):
            begin = time.perf_counter()
            parameters.publish(client, parameters.Published(state, i, 0, False))
            middle = time.perf_counter()
            found = subscriber.pull()
            end = time.perf_counter()
            if found is None or found.learner_steps != i:
                raise RuntimeError("what was published is not what was read")
            seconds["publish"].append(middle - begin)
            seconds["pull"].append(end - middle)
        subscriber.close()
        connection.close()
    figures = {f"{k}_ms": round(1e3 * statistics.median(v), 2) for k, v in seconds.items()}
    measure.emit(case="parameters", float32=1_000_000, rounds=rounds, **figures)


# One collector.


def _workflow(gin_file: str) -> Any:
    from tfrl.launch import settings

    return settings.assemble([gin_file]).workflow


def _unlimited(gin_file: str) -> Any:
    """A workflow whose replay table stops nobody."""
    from tfrl.workflows.checks import on_reverb

    made = _workflow(gin_file)
    made.replay = on_reverb(made.replay).replace(samples_per_insert=1e-6, tolerance=1e12)
    return made


def collector_tables(gin_file: str) -> list[Any]:
    """The tables of a training that never stops its collectors."""
    from tfrl.roles import tables

    return tables.make_tables(_unlimited(gin_file), 1)


def collector_case(gin_file: str, rounds: int, seconds: float) -> None:
    """Prints the env steps/s of a collector with and without writing."""
    from tfrl.replay.reverb.library import reverb
    from tfrl.roles import parameters, tables
    from tfrl.roles.collector import ReplayCollector

    with server("collector_tables", gin_file) as address:
        workflow = _unlimited(gin_file)
        form = tables.agent_form(workflow)
        client = reverb().Client(address)
        parameters.publish(client, parameters.Published(form, 1, 0, False))
        collector = ReplayCollector(workflow, address)
        write = collector.write

        def run(writes: bool) -> Callable[[], float]:
            def once() -> float:
                collector.write = write if writes else lambda *_: None  # type: ignore[method-assign]
                begin, steps = time.monotonic(), collector.env_steps
                collector.run(lambda: time.monotonic() - begin > seconds)
                return (collector.env_steps - steps) / (time.monotonic() - begin)

            return once

        rates = measure.alternate({"writes": run(True), "plays": run(False)}, rounds)
        collector.close()
    found = measure.medians(rates)
    ratio = round(found["writes"] / found["plays"], 3)
    measure.emit(case="collector", gin_file=gin_file, ratio=ratio, **found)


# Whole jobs.


def _cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


def _children(pid: int) -> dict[str, list[int]]:
    """The processes of a launcher by role."""
    found: dict[str, list[int]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            words = path.joinpath("cmdline").read_bytes().decode().split("\0")
            if parent == pid and words[1:3] == ["-m", "tfrl"]:
                role = words[3]
                found.setdefault(role, []).append(int(path.name))
    return found


def _newest(root: pathlib.Path) -> dict[str, Any]:
    path = root / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1]) if lines else {"env_steps": 0, "learner_steps": 0}


def job_case(gin_file: str, collectors: int, warm_up: int, seconds: float) -> dict[str, Any]:
    """Runs a job, of 0 collectors in one process; returns its rates behind some env steps."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, "run")
        binary = "launch" if collectors else "train"
        command = [
            sys.executable,
            str(ROOT / "bin" / f"{binary}.py"),
            f"--gin_file={gin_file}",
            f"--root_dir={root}",
            "--gin_bindings=train.total_env_steps = 1_000_000_000",
            "--gin_bindings=train.eval_interval = None",
            "--gin_bindings=train.checkpoint_seconds = 1e6",
        ]
        if collectors:
            command.append(f"--collectors={collectors}")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while _newest(root)["env_steps"] < warm_up:
                if process.poll() is not None:
                    raise RuntimeError(f"{command} has ended")
                time.sleep(0.1)
            roles = _children(process.pid) if collectors else {"train": [process.pid]}

            def look() -> tuple[dict[str, Any], float, dict[str, float]]:
                cpu = {role: sum(map(_cpu_seconds, pids)) for role, pids in roles.items()}
                return _newest(root), time.monotonic(), cpu

            rows = [look()]
            time.sleep(seconds)
            before = _newest(root)["env_steps"]
            while _newest(root)["env_steps"] == before:  # to the end of a row
                time.sleep(0.01)
            rows.append(look())
        finally:
            process.terminate()
            process.wait()
    (first, start, cpu), (last, end, more) = rows
    steps = last["env_steps"] - first["env_steps"]
    return {
        "collectors": collectors,
        "env_steps_per_second": round(steps / (end - start), 1),
        "updates_per_second": round(
            (last["learner_steps"] - first["learner_steps"]) / (end - start), 1
        ),
        "cpu_seconds_per_1000_env_steps": {
            role: round(1e3 * (more[role] - cpu[role]) / steps, 4) for role in cpu
        },
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", choices=("parameters", "collector", "job"), required=True)
    parser.add_argument("--gin_file", default="dqn/gymnasium_cartpole.gin")
    parser.add_argument("--collectors", default="0,1,2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm_up", type=int, default=4_000)
    options = parser.parse_args(argv)
    if options.what == "parameters":
        parameters_case(20 * options.rounds)
    elif options.what == "collector":
        collector_case(options.gin_file, options.rounds, options.seconds)
    else:
        for count in map(int, options.collectors.split(",")):
            found = job_case(options.gin_file, count, options.warm_up, options.seconds)
            measure.emit(case="job", gin_file=options.gin_file, **found)


if __name__ == "__main__":
    main()
