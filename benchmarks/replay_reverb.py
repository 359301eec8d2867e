"""Replay on a Reverb server in another process: tfrl's writer and dataset against bare Reverb's.

  python -m benchmarks.replay_reverb
  python -m benchmarks.replay_reverb --cases=1_step,3_step --rounds=5

Two JSON lines per case: items per second written and sampled, alternating, and bytes per frame of
checkpoints of the same frames. Bare Reverb writes the same items with a `TrajectoryWriter`: items
of n steps, or sequences, of one environment; it samples with a `TrajectoryDataset`.
"""

import argparse
import dataclasses
import multiprocessing
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tfrl  # noqa: F401  (before tensorflow)
from benchmarks import measure

CHUNK = 16  # steps of an `add`
FLUSH_EVERY = 20  # Reverb warns above 50 pending items


@dataclasses.dataclass(frozen=True)
class Case:
    """Stored data: observations of a shape, as items of n steps or as sequences of L."""

    shape: tuple[int, ...]
    dtype: str
    n_step: int = 1
    length: int | None = None
    period: int = 40
    steps: int = 10_000
    batch: int = 256

    @property
    def frames(self) -> int:
        """The number of observations that an item spans."""
        return (self.length or self.n_step) + 1


FRAMES: dict[str, Any] = {"shape": (84, 84, 4), "dtype": "uint8"}
CASES = {
    "1_step": Case((4,), "float32"),
    "3_step": Case((4,), "float32", n_step=3),
    "1_step_frames": Case(**FRAMES, steps=1500, batch=64),
    "3_step_frames": Case(**FRAMES, n_step=3, steps=1500, batch=64),
    "sequences_frames": Case(**FRAMES, length=80, steps=1200, batch=16),
}


def replay(case: Case, address: str | None = None) -> Any:
    """Returns tfrl's factory for a case."""
    import tensorflow as tf

    from tfrl.replay import ReverbReplay

    kind = {"n_step": case.n_step}
    if case.length:
        kind = {"sequence_length": case.length, "sequence_period": case.period}
    return ReverbReplay(
        obs_spec=tf.TensorSpec(case.shape, tf.as_dtype(case.dtype)),
        action_spec=tf.TensorSpec([], tf.int64),
        capacity=1_000_000,
        num_envs=1,
        address=address,
        **kind,
    )


def bare_table(case: Case) -> Any:
    """Returns a table for the items of `write_bare`."""
    import reverb
    import tensorflow as tf

    obs = tf.as_dtype(case.dtype)
    n, length = case.n_step, case.length
    if length:
        signature = {"obs": tf.TensorSpec([length + 1, *case.shape], obs)}
        n = length
    else:
        one = tf.TensorSpec(case.shape, obs)
        signature = {"obs": one, "next_obs": one}
    lead = [length] if length else []
    signature["action"] = tf.TensorSpec(lead, tf.int64)
    signature |= {
        name: tf.TensorSpec([n] if n > 1 else [], tf.float32) for name in ("reward", "discount")
    }
    return reverb.Table(
        "bare",
        reverb.selectors.Uniform(),
        reverb.selectors.Fifo(),
        1_000_000,
        reverb.rate_limiters.MinSize(1),
        signature=signature,
    )


def serve(case: Case, pipe: Any) -> None:
    """Serves the tables of a case until a stop signal; runs in its own process."""
    import reverb

    folder = pathlib.Path(tempfile.mkdtemp())
    server = reverb.Server(
        [bare_table(case), *replay(case).make_tables()],
        checkpointer=reverb.checkpointers.DefaultCheckpointer(str(folder)),
    )
    pipe.send(server.port)
    pipe.recv()
    server.stop()


def experience(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns observations [N + 1, ...] that compress like a game's frames, actions, rewards."""
    rng, count = np.random.default_rng(0), case.steps
    if len(case.shape) == 1:
        obs = rng.random((count + 1, *case.shape)).astype(case.dtype)
    else:
        picture = (rng.random(case.shape) * 255).astype(case.dtype)
        picture[30:] = 0
        obs = np.stack([np.roll(picture, i, axis=0) for i in range(count + 1)])
    return obs, np.zeros(count, np.int64), np.ones(count, np.float32)


def write_bare(client: Any, case: Case) -> Callable[[], float]:
    """Returns a function that writes and tells items per second."""
    obs, action, reward = experience(case)
    n, length, columns = case.n_step, case.length, ("action", "reward", "discount")

    def run() -> float:
        items, start = 0, time.perf_counter()
        with client.trajectory_writer((length or n) + 1) as writer:
            for i in range(case.steps):
                row = {"obs": obs[i], "action": action[i], "reward": reward[i]}
                writer.append({**row, "discount": np.float32(0.99)})
                past = writer.history
                if length:
                    if i < length or (i - length) % case.period:
                        continue
                    item = {name: past[name][-length - 1 : -1] for name in columns}
                    item["obs"] = past["obs"][-length - 1 :]
                elif i < n:
                    continue
                else:
                    span = slice(-n - 1, -1) if n > 1 else -2  # scalars for one step, as in tfrl
                    item = {name: past[name][span] for name in ("reward", "discount")}
                    item["action"] = past["action"][-n - 1]
                    item |= {"obs": past["obs"][-n - 1], "next_obs": past["obs"][-1]}
                writer.create_item("bare", 1.0, item)
                items += 1
                if not items % FLUSH_EVERY:
                    writer.flush(block_until_num_items=FLUSH_EVERY)
            writer.flush()
            return items / (time.perf_counter() - start)

    return run


def write_ours(buffer: Any, case: Case, chunk: int) -> Callable[[], float]:
    """Returns a function that writes and tells items per second.

    Args:
      buffer: tfrl's buffer.
      case: The case.
      chunk: Steps of an `add`.
    """
    from tfrl.types import Trajectory

    obs, action, reward = experience(case)
    no = np.zeros(case.steps, bool)
    parts = []
    for i in range(0, case.steps, chunk):
        own = slice(i, i + chunk)
        rows = (obs[:-1], action, reward, obs[1:], no, no, ~no)
        cut = [x[own][:, np.newaxis] for x in rows]
        names = ("obs", "action", "reward", "next_obs", "termination", "truncation", "valid")
        parts.append(Trajectory(**dict(zip(names, cut, strict=True))))

    def run() -> float:
        before, start = buffer.items_created, time.perf_counter()
        for part in parts:
            buffer.add(part)
        buffer.flush()
        return (buffer.items_created - before) / (time.perf_counter() - start)

    return run


def read(dataset: Any, batch: int, seconds: float) -> Callable[[], float]:
    """Returns a function that reads batches of a dataset and returns items per second."""

    def run() -> float:
        batches = iter(dataset)
        next(batches)
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            next(batches)
            count += batch
        return count / (time.perf_counter() - start)

    return run


def bytes_per_frame(case: Case) -> dict[str, float]:
    """Returns the size of a checkpoint of each table, divided by the frames of its items.

    Checkpoints exclude frames after the last item, and the two writers end a few steps apart.
    """
    import reverb

    sizes = {}
    for name in ("bare", "ours"):
        with tempfile.TemporaryDirectory() as folder:
            tables = [bare_table(case)] if name == "bare" else replay(case).make_tables()
            keeper = reverb.checkpointers.DefaultCheckpointer(folder)
            server = reverb.Server(tables, checkpointer=keeper)
            address = f"localhost:{server.port}"
            if name == "bare":
                write_bare(reverb.Client(address), case)()
            else:
                buffer = replay(case, address).init()
                write_ours(buffer, case, CHUNK)()
                buffer.close()
            client = reverb.Client(address)
            (table,) = client.server_info().values()
            path = pathlib.Path(client.checkpoint())
            total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            stride = case.period if case.length else 1
            sizes[name] = total / ((table.current_size - 1) * stride + case.frames)
            server.stop()
    return sizes


def run_case(name: str, rounds: int, seconds: float) -> None:
    """Prints the lines of a case."""
    import reverb

    from tfrl.replay.reverb.dataset import MOST_IN_FLIGHT

    case = CASES[name]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(case, theirs), daemon=True)
    process.start()
    address = f"localhost:{ours.recv()}"
    client, buffer = reverb.Client(address), replay(case, address).init()
    try:
        writers = {
            "bare": write_bare(client, case),
            "ours": write_ours(buffer, case, CHUNK),
            "ours_one_step_adds": write_ours(buffer, case, 1),
        }
        written = measure.medians(measure.alternate(writers, rounds))
        bare = reverb.TrajectoryDataset.from_table_signature(
            address, "bare", max_in_flight_samples_per_worker=min(2 * case.batch, MOST_IN_FLIGHT)
        )
        bare = bare.batch(case.batch, drop_remainder=True).prefetch(1)
        readers = {
            "bare": read(bare, case.batch, seconds),
            "ours": read(buffer.dataset(case.batch), case.batch, seconds),
        }
        sampled = measure.medians(measure.alternate(readers, rounds))
        # Reverb adapts chunk lengths at runtime, so sizes differ between runs.
        sizes = {}
        if len(case.shape) > 1:
            measured_sizes = [bytes_per_frame(case) for _ in range(max(rounds, 5))]
            sizes = {
                name: statistics.median(one[name] for one in measured_sizes)
                for name in measured_sizes[0]
            }
    finally:
        buffer.close()
        ours.send("stop")
        process.join(10)
    for what, rates in (("written", written), ("sampled", sampled)):
        measure.emit(
            benchmark=f"reverb_{what}",
            case=name,
            items_per_second=rates["ours"],
            ratio_to_bare=rates["ours"] / rates["bare"],
            **{f"items_per_second_{k}": v for k, v in rates.items() if k != "ours"},
            **{f"bytes_per_frame_{k}": v for k, v in sizes.items() if what == "written"},
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Prints JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement")
    flags = parser.parse_args(argv)
    for name in flags.cases.split(","):
        run_case(name, flags.rounds, flags.seconds)


if __name__ == "__main__":
    main()
