"""Speed of the in-graph replay buffer.

  python -m benchmarks.replay                        # a million items, batches of 256
  python -m benchmarks.replay --capacity=100000 --compile=xla

One JSON line per measurement: microseconds of one call of a compiled function from Python, the best
and the median of `--calls`.

* `add`: adds one step of one environment to a full buffer.
* `sample`: draws a batch uniformly, 1-step items.
* `sample_update`: draws a batch by priority and sets its priorities.
* `iteration`: an `add` of one step, then `sample` or `sample_update`, `--fold` times in one call;
  the time of one iteration.

Items have HalfCheetah's sizes: 17 observed numbers and 6 actions.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import tfrl  # noqa: F401  before TensorFlow, to silence its start-up messages
from benchmarks import measure

OBS, ACTION = 17, 6


def parts(kind: str, capacity: int, batch_size: int, num_envs: int) -> dict[str, Any]:
    """Returns a full buffer and functions of a key that add to it, sample, and both."""
    import tensorflow as tf

    from tfrl import seeding
    from tfrl.replay import InGraphReplay
    from tfrl.types import Trajectory

    replay = InGraphReplay(
        obs_spec=tf.TensorSpec([OBS], tf.float32),
        action_spec=tf.TensorSpec([ACTION], tf.float32),
        capacity=capacity,
        num_envs=num_envs,
        kind=kind,
    )
    buffer = replay.init()

    def steps(key: tf.Tensor, length: int) -> Trajectory:
        no = tf.zeros([length, num_envs], tf.bool)
        obs = seeding.uniform(key, [length + 1, num_envs, OBS])
        return Trajectory(
            obs=obs[:-1],
            action=tf.ones([length, num_envs, ACTION]),
            reward=tf.ones([length, num_envs]),
            next_obs=obs[1:],
            termination=no,
            truncation=no,
            valid=~no,
        )

    def sample(key: tf.Tensor) -> tf.Tensor:
        batch = buffer.sample(key, batch_size, 0.5)
        if kind == "prioritized":
            buffer.update_priorities(batch.index, seeding.uniform(key, [batch_size]))
        return tf.reduce_sum(batch.obs) + tf.reduce_sum(batch.next_obs) + batch.reward[0]

    def add(key: tf.Tensor) -> tf.Tensor:
        buffer.add(steps(key, 1))
        return key

    fill = tf.function(lambda key: buffer.add(steps(key, capacity // num_envs // 20)))
    for i in range(20):
        fill(seeding.key(i))
    return {"add": add, "sample": sample, "buffer": buffer}


def folded(add: Callable[[Any], Any], sample: Callable[[Any], Any], fold: int) -> Any:
    """Returns a function of a key that adds and samples `fold` times."""
    import tensorflow as tf

    from tfrl import seeding

    def run(key: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            own = seeding.fold_in(key, i)
            add(own)
            return i + 1, total + sample(own)

        start = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(lambda i, _: i < fold, body, start, parallel_iterations=1)[1]

    return run


def timed(fn: Callable[[Any], Any], compile: str, calls: int) -> list[float]:
    """Returns the microseconds of calls of a function compiled in graph mode or by XLA."""
    import tensorflow as tf

    from tfrl import seeding

    compiled = tf.function(fn, autograph=False, jit_compile=compile == "xla")
    keys = [seeding.key(i) for i in range(calls)]
    times = []
    for key in [keys[0], keys[0], *keys]:
        start = time.perf_counter()
        compiled(key).numpy()
        times.append((time.perf_counter() - start) * 1e6)
    return times[2:]


def main() -> None:
    """Prints one JSON line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--num_envs", type=int, default=1)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--fold", type=int, default=100, help="iterations per call")
    parser.add_argument("--compile", choices=("graph", "xla"), default="graph")
    flags = parser.parse_args()
    sizes = {name: getattr(flags, name) for name in ("capacity", "batch_size", "num_envs")}
    for kind, name in (("uniform", "sample"), ("prioritized", "sample_update")):
        components = parts(kind, **sizes)
        both = folded(components["add"], components["sample"], flags.fold)
        measured = {
            "add": (components["add"], 1),
            name: (components["sample"], 1),
            "iteration": (both, 0),
        }
        for what, (fn, once) in measured.items():
            each = 1 if once else flags.fold
            calls = flags.calls if once else max(3, flags.calls // flags.fold)
            times = [t / each for t in timed(fn, flags.compile, calls)]
            figures = {"best_us": min(times), "median_us": statistics.median(times)}
            kinds = {
                "kind": kind,
                "compile": flags.compile,
                "size": int(components["buffer"].size()),
            }
            measure.emit(benchmark=f"replay/{what}", **figures, **kinds, **sizes, calls=calls)


if __name__ == "__main__":
    main()
