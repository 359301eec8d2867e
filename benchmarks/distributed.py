"""Costs of training in several processes.

  python -m benchmarks.distributed --what=parameters
  python -m benchmarks.distributed --what=collector --rounds=5
  python -m benchmarks.distributed --what=frames --rounds=5
  python -m benchmarks.distributed --what=job --collectors=0,1,2,4 --seconds=20
  python -m benchmarks.distributed --what=capacity --collectors=10,50,200 --seconds=20

One JSON line each. `parameters`: milliseconds to publish and to read 1M float32 of ten layers
through a server in another process. `collector`: env steps/s of a collector that writes to a server
whose table has no limiter, alternating with a collector that does not write, and the CPU
microseconds of collector and server per step. `frames`: MB/s of 84 x 84 x 4 frames, by wall time
and by CPU time, written by a buffer, and by Reverb's client with the same items and chunks. `job`:
env steps/s, updates/s, and CPU seconds by role per thousand env steps of whole jobs, between two
rows of the learner's metrics; 0 collectors means the same gin file in one process. Collectors of an
on-policy file share its environments, unless `--envs_per_collector` is set. `capacity`: the
load of a server with many collectors of an on-policy gin file whose environments take
`--step_seconds` per step. Threads simulate the collectors: they sleep, write rollouts, read
parameters and report. `predicted_cpus` are the cores on the line through the first two numbers of
collectors.
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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tfrl  # noqa: F401  (before tensorflow)
from benchmarks import measure

ROOT = pathlib.Path(__file__).resolve().parents[1]
_LAYERS = 10
_THREADS = 50  # simulated collectors per process
_TICKS = os.sysconf("SC_CLK_TCK")


def _serve(make: str, arguments: tuple[Any, ...], pipe: Any) -> None:
    from tfrl.replay.reverb.server import ReverbServer

    server = ReverbServer(globals()[make](*arguments))
    pipe.send(server.address)
    pipe.recv()
    server.stop()


@contextlib.contextmanager
def server(make: str, *arguments: Any) -> Iterator[str]:
    """Yields the address of a server process; `make` names the function that creates its tables."""
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
            pulled = subscriber.pull()
            end = time.perf_counter()
            if pulled is None or pulled.learner_steps != i:
                raise RuntimeError("the pulled parameters differ from the published parameters")
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
    """A workflow whose replay table has no limiter."""
    from tfrl.workflows.checks import on_reverb

    workflow = _workflow(gin_file)
    workflow.replay = on_reverb(workflow.replay).replace(samples_per_insert=1e-6, tolerance=1e12)
    return workflow


def collector_tables(gin_file: str) -> list[Any]:
    """The tables of a training without a limiter."""
    from tfrl.roles import tables

    return tables.make_tables(_unlimited(gin_file), 1)


def _one_process(gin_file: str) -> Callable[[float], int]:
    """Collects in this process, with replay in the graph and no learner; returns env steps."""
    workflow = _workflow(gin_file)
    workflow.random_steps, workflow.learning_starts = 0, 10**9
    state = workflow.setup(0)

    def collect(seconds: float) -> int:
        nonlocal state
        begin, steps = time.monotonic(), int(state.metrics.env_steps)
        while time.monotonic() - begin < seconds:
            state = workflow.advance(state, iterations=20).state
        return int(state.metrics.env_steps) - steps

    return collect


def collector_case(gin_file: str, rounds: int, seconds: float) -> None:
    """Prints the env steps/s and CPU time of a collector with and without writing."""
    from tfrl.replay.reverb.library import reverb
    from tfrl.roles import parameters, tables
    from tfrl.roles.collector import ReplayCollector

    with server("collector_tables", gin_file) as address:
        (process,) = multiprocessing.active_children()
        workflow = _unlimited(gin_file)
        form = tables.agent_form(workflow)
        client = reverb().Client(address)
        parameters.publish(client, parameters.Published(form, 1, 0, False))
        collector = ReplayCollector(workflow, address)
        write, in_one = collector.write, _one_process(gin_file)
        cpu: dict[str, list[float]] = {}

        def collect(for_seconds: float) -> int:
            begin, steps = time.monotonic(), collector.env_steps
            collector.run(lambda: time.monotonic() - begin > for_seconds)
            return collector.env_steps - steps

        def run(name: str) -> Callable[[], float]:
            def once() -> float:
                collector.write = write if name == "writes" else lambda *_: None  # type: ignore[method-assign]
                begin, own = time.monotonic(), time.process_time()
                other = _cpu_seconds(process.pid or 0)
                done = in_one(seconds) if name == "one_process" else collect(seconds)
                used = time.process_time() - own, _cpu_seconds(process.pid or 0) - other
                for role, spent in zip(("", "server_"), used, strict=True):
                    cpu.setdefault(f"{role}cpu_us_{name}", []).append(1e6 * spent / done)
                return done / (time.monotonic() - begin)

            return once

        cases = ("writes", "plays", "one_process")
        rates = measure.alternate({name: run(name) for name in cases}, rounds)
        collector.close()
    figures = measure.medians(rates)
    figures |= {name: round(statistics.median(spent), 2) for name, spent in cpu.items()}
    for case in cases[1:]:
        figures[f"ratio_{case}"] = round(figures["writes"] / figures[case], 3)
        own = figures[f"cpu_us_{case}"] / figures["cpu_us_writes"]
        figures[f"cpu_ratio_{case}"] = round(own, 3)
    measure.emit(case="collector", gin_file=gin_file, **figures)


# Frames.

_FRAME, _ENVS, _STEPS = (84, 84, 4), 8, 32


def _frames_replay() -> Any:
    import tensorflow as tf

    from tfrl.replay.reverb import ReverbReplay

    spec, action = tf.TensorSpec(_FRAME, tf.uint8), tf.TensorSpec([], tf.int32)
    return ReverbReplay(obs_spec=spec, action_spec=action, capacity=4_000, num_envs=_ENVS)


def frame_tables() -> list[Any]:
    """The table of frames."""
    return list(_frames_replay().make_tables())


def frames_case(rounds: int) -> None:
    """Prints the bytes/s of frames written by a buffer and by Reverb's client."""
    import numpy as np
    from reverb import pybind

    from tfrl.replay.reverb.library import reverb
    from tfrl.types import Trajectory

    rng, shape = np.random.default_rng(0), (_STEPS, _ENVS)
    # As in a game, each frame differs from the previous one only in a part.
    frames = np.repeat(rng.integers(0, 255, [1, _ENVS, *_FRAME], np.uint8), _STEPS + 1, axis=0)
    frames[:, :, 20:40] = rng.integers(0, 255, [_STEPS + 1, _ENVS, 20, *_FRAME[1:]], np.uint8)
    played = Trajectory(
        obs=frames[:-1],
        action=np.zeros(shape, np.int32),
        reward=np.zeros(shape, np.float32),
        next_obs=frames[1:],
        termination=np.zeros(shape, np.bool_),
        truncation=np.zeros(shape, np.bool_),
        valid=np.ones(shape, np.bool_),
    )
    cpu: dict[str, list[float]] = {"buffer_cpu": [], "client_cpu": []}

    def timed(name: str, write: Callable[[], None]) -> Callable[[], float]:
        def once() -> float:
            begin, own = time.perf_counter(), time.process_time()
            write()
            size = frames[1:].nbytes
            cpu[f"{name}_cpu"].append(size / (time.process_time() - own))
            return size / (time.perf_counter() - begin)

        return once

    with server("frame_tables") as address:
        buffer = _frames_replay().replace(address=address).init()
        client = reverb().Client(address)
        writers = [client.trajectory_writer(num_keep_alive_refs=2) for _ in range(_ENVS)]
        for writer in writers:
            options = pybind.ConstantChunkerOptions(max_chunk_length=2, num_keep_alive_refs=2)
            writer._writer.ConfigureChunker(0, options)  # "obs", which is appended first
            writer.append({"obs": frames[0, 0]}, partial_step=False)

        def bare() -> None:
            small = {"action": np.int32(0), "discount": np.float32(0.99), "reward": np.float32(0)}
            for t in range(_STEPS):
                for b, writer in enumerate(writers):
                    writer.append({"obs": frames[1 + t, b], **small})
                    item = {name: writer.history[name][-1] for name in small}
                    item |= {
                        "obs": writer.history["obs"][-2],
                        "next_obs": writer.history["obs"][-1],
                    }
                    writer.create_item("replay", 1.0, item)
            for writer in writers:
                writer.flush()

        def ours() -> None:
            buffer.add(played)
            buffer.flush()

        cases = {"buffer": timed("buffer", ours), "client": timed("client", bare)}
        rates = measure.alternate(cases, rounds)
        buffer.close()
        for writer in writers:
            writer.close()
    figures = {**measure.medians(rates), **{n: statistics.median(x) for n, x in cpu.items()}}
    ratios = {
        "ratio": round(figures["buffer"] / figures["client"], 3),
        "cpu_ratio": round(figures["buffer_cpu"] / figures["client_cpu"], 3),
    }
    measure.emit(case="frames", **ratios, **{n: round(x / 1e6, 1) for n, x in figures.items()})


# Whole jobs.


def _cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


def _children(pid: int) -> dict[str, list[int]]:
    """The processes of a launcher by role."""
    by_role: dict[str, list[int]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            words = path.joinpath("cmdline").read_bytes().decode().split("\0")
            if parent == pid and words[1:3] == ["-m", "tfrl"]:
                role = words[3]
                by_role.setdefault(role, []).append(int(path.name))
    return by_role


def _newest(root: pathlib.Path) -> dict[str, Any]:
    path = root / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1]) if lines else {"env_steps": 0, "learner_steps": 0}


def job_case(
    gin_file: str, collectors: int, envs: int | None, warm_up: int, seconds: float
) -> dict[str, Any]:
    """Runs a job, with 0 collectors in one process; returns its rates after some env steps."""
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
        if envs is not None:
            command.append(f"--gin_bindings=make_env.num_envs = {envs * max(collectors, 1)}")
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


# Many collectors.


def capacity_tables(gin_file: str, count: int) -> list[Any]:
    """The tables of an on-policy training with a number of collectors."""
    from tfrl.replay.reverb.library import reverb
    from tfrl.roles import tables

    own_tables = tables.make_tables(_workflow(gin_file), 1)
    queue = next(t for t in own_tables if t.info.name == tables.ROLLOUTS)
    own = reverb().Table.queue(tables.ROLLOUTS, count, signature=queue.info.signature)
    return [*(t for t in own_tables if t is not queue), own]


def _simulated(
    address: str, gin_file: str, count: int, period: float, pull: float, end: Any, pipe: Any
) -> None:
    """Simulates collectors of a server with threads of one process."""
    import numpy as np

    from tfrl.replay.reverb.library import reverb
    from tfrl.roles import parameters, tables

    signature = reverb().Client(address).server_info()[tables.ROLLOUTS].signature
    row = {n: np.zeros(s.shape, s.dtype.as_numpy_dtype) for n, s in signature.items()}
    beat = {"env_steps": np.int64(0), "learner_steps": np.int64(0), "task_id": np.int32(0)}
    counts = np.zeros([count, 2], np.int64)  # rollouts, readings
    latencies: list[float] = []

    def regularly(seconds: float, offset: float, call: Callable[[], None]) -> None:
        due = time.monotonic() + offset
        while not end.is_set():
            time.sleep(max(due - time.monotonic(), 0.0))
            call()
            due = max(due + seconds, time.monotonic())

    def put(writer: Any, table: str, values: dict[str, Any]) -> None:
        writer.append(values)
        writer.create_item(table, 1.0, {name: writer.history[name][-1] for name in values})
        with contextlib.suppress(reverb().errors.DeadlineExceededError):  # the queue is full
            writer.flush(timeout_ms=1_000)

    def collector(i: int) -> list[threading.Thread]:
        client = reverb().Client(address)
        writers = [client.trajectory_writer(num_keep_alive_refs=1) for _ in range(2)]

        def write() -> None:
            put(writers[0], tables.ROLLOUTS, row)
            counts[i, 0] += 1

        def read() -> None:
            begin = time.monotonic()
            next(iter(client.sample(parameters.TABLE, 1)))
            latencies.append(time.monotonic() - begin)
            put(writers[1], tables.HEARTBEATS, beat)
            counts[i, 1] += 1

        offset = i / count
        calls = ((period, period * offset, write), (pull, pull * offset, read))
        return [threading.Thread(target=regularly, args=call, daemon=True) for call in calls]

    threads = [thread for i in range(count) for thread in collector(i)]
    for thread in threads:
        thread.start()
    pipe.send("ready")
    while pipe.recv() == "count":
        pipe.send((counts.sum(0), list(latencies)))
    end.set()


def capacity_case(
    gin_file: str, count: int, step_seconds: float, pull: float, seconds: float
) -> dict[str, Any]:
    """Returns the rates and costs of a server with simulated collectors."""
    import numpy as np

    from tfrl.replay.reverb.library import reverb
    from tfrl.roles import parameters, tables

    workflow = _workflow(gin_file)
    period = workflow.rollout_length * step_seconds
    context = multiprocessing.get_context("spawn")
    with server("capacity_tables", gin_file, count) as address:
        (process,) = multiprocessing.active_children()
        client = reverb().Client(address)
        published = parameters.Published(tables.agent_form(workflow), 1, 0, False)
        parameters.publish(client, published)
        end = context.Event()

        def drain() -> None:
            while not end.is_set():
                with contextlib.suppress(reverb().errors.DeadlineExceededError):
                    for table in (tables.ROLLOUTS, tables.HEARTBEATS):
                        waiting = client.server_info()[table].current_size
                        if waiting:
                            list(client.sample(table, waiting, emit_timesteps=False))
                time.sleep(0.005)

        drains = threading.Thread(target=drain)
        drains.start()
        pipes = []
        for start in range(0, count, _THREADS):
            mine, theirs = context.Pipe()
            part = min(_THREADS, count - start)
            arguments = (address, gin_file, part, period, pull, end, theirs)
            context.Process(target=_simulated, args=arguments, daemon=True).start()
            pipes.append(mine)
        for pipe in pipes:
            pipe.recv()

        def look() -> tuple[float, float, Any, list[float]]:
            for pipe in pipes:
                pipe.send("count")
            replies = [pipe.recv() for pipe in pipes]
            total = np.sum([counts for counts, _ in replies], axis=0)
            all_latencies = [x for _, own in replies for x in own]
            return time.monotonic(), _cpu_seconds(process.pid or 0), total, all_latencies

        time.sleep(min(period, seconds) + 1.0)
        begin, cpu, before, known = look()
        time.sleep(seconds)
        last, more, after, latencies = look()
        end.set()
        drains.join()
        for pipe in pipes:
            pipe.send("end")
    passed, done = last - begin, after - before
    own = sorted(latencies)[len(known) // 2 :] or [0.0]
    return {
        "collectors": count,
        "asked_rollouts_per_second": round(count / period, 2),
        "rollouts_per_second": round(done[0] / passed, 2),
        "parameter_reads_per_second": round(done[1] / passed, 1),
        "read_ms_p50": round(1e3 * statistics.median(own), 1),
        "server_cpus": round((more - cpu) / passed, 3),
    }


def _predicted(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The cores of the server of the last row, on the line through the first two."""
    if len(rows) < 3:
        return {}
    (k0, y0), (k1, y1), (k2, _) = (
        (row["collectors"], row["server_cpus"]) for row in (rows[0], rows[1], rows[-1])
    )
    return {"predicted_cpus": round(y0 + (y1 - y0) * (k2 - k0) / (k1 - k0), 3)}


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--what", choices=("parameters", "collector", "frames", "job", "capacity"), required=True
    )
    parser.add_argument("--gin_file", default="dqn/gymnasium_cartpole.gin")
    parser.add_argument("--collectors", default="0,1,2,4")
    parser.add_argument("--envs_per_collector", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm_up", type=int, default=4_000)
    parser.add_argument("--step_seconds", type=float, default=0.02)
    parser.add_argument("--pull_seconds", type=float, default=0.2)
    options = parser.parse_args(argv)
    if options.what == "parameters":
        parameters_case(20 * options.rounds)
    elif options.what == "collector":
        collector_case(options.gin_file, options.rounds, options.seconds)
    elif options.what == "frames":
        frames_case(options.rounds)
    elif options.what == "capacity":
        rows: list[dict[str, Any]] = []
        for count in map(int, options.collectors.split(",")):
            step, pull = options.step_seconds, options.pull_seconds
            row = capacity_case(options.gin_file, count, step, pull, options.seconds)
            rows.append(row)
            measure.emit(case="capacity", gin_file=options.gin_file, **row, **_predicted(rows))
    else:
        for count in map(int, options.collectors.split(",")):
            envs = options.envs_per_collector
            figures = job_case(options.gin_file, count, envs, options.warm_up, options.seconds)
            measure.emit(case="job", gin_file=options.gin_file, **figures)


if __name__ == "__main__":
    main()
