"""Learner gradient steps per second: by modules, by replicas, and against hand-written loops.

  python -m benchmarks.learner --modules=1,2,8 --replicas=1,2,4

One JSON line per measurement. `updates_per_second` is gradient steps per second through
`update_from_batch`, called from Python; a step trains all modules, each on its own rows. The
modules are PPO agents with two 2x64 tanh networks. The default sizes are usual for one PPO learner:
2048 rows, minibatches of 64, 10 epochs, so 320 steps per call.

With one module on one replica, two references alternate with the Learner:

- `reference` (of `ratio_to_reference`): a hand-written loop over the same networks and PPO loss,
  with the same guard against non-finite values and the same metrics. The ratio is the cost of the
  Learner itself; the goal is at least 0.95.
- `bare`: fully hand-written, including the loss, without guard and metrics.

`in_graph_...` is `Learner.update` called in a tf.function, as in workflows.

Replicas are logical CPUs, which must exist before TensorFlow starts, so each number of replicas
above one runs in its own process. They share the cores of the machine: the lines show the cost of
the strategy, not a speed-up.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import measure

OBS, ACTIONS, HIDDEN = 4, 2, (64, 64)
COLUMNS = ("obs", "action", "log_prob", "advantage", "value_target")


def make_rows(rows: int, seed: int) -> dict[str, Any]:
    """Columns of PPO's batch, random."""
    rng = np.random.default_rng(seed)
    scalars = {
        name: rng.normal(size=[rows]).astype(np.float32)
        for name in ("advantage", "value_target", "value")
    }
    return {
        "obs": rng.normal(size=[rows, OBS]).astype(np.float32),
        "action": rng.integers(0, ACTIONS, [rows]).astype(np.int32),
        "log_prob": np.full([rows], np.log(1.0 / ACTIONS), np.float32),
        **scalars,
    }


def make_agent() -> Any:
    """The PPO agent of each module."""
    import tensorflow as tf

    from tfrl import specs
    from tfrl.agents import PPO

    return PPO(
        obs_spec=tf.TensorSpec([OBS], tf.float32),
        action_spec=specs.DiscreteSpec(ACTIONS),
        hidden=HIDDEN,
        entropy_coef=0.01,
    )


def learner_runs(
    modules: int, strategy: Any, args: argparse.Namespace
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Returns two functions for one update: from Python, and inside a tf.function."""
    import tensorflow as tf

    from tfrl import seeding
    from tfrl.agents.actor_critic import PolicyBatch
    from tfrl.learners import Learner

    ids = [f"module_{i}" for i in range(modules)]
    learner = Learner({m: make_agent() for m in ids}, strategy=strategy)
    learner.build(0)
    columns = {m: make_rows(args.rows, seed) for seed, m in enumerate(ids)}
    batch = {
        m: PolicyBatch(**{k: tf.constant(v) for k, v in rows.items()})
        for m, rows in columns.items()
    }
    options = {"num_epochs": args.epochs, "minibatch_size": args.minibatch_size}

    def from_python() -> Any:
        return learner.update_from_batch(batch, compile=args.compile, **options)

    jit = args.compile == "xla"

    @tf.function(jit_compile=jit, autograph=False)
    def update(key: tf.Tensor, timesteps: tf.Tensor) -> Any:
        return learner.update(batch, key=key, timesteps=timesteps, **options)

    key, timesteps = seeding.key(0), tf.constant(0, tf.int64)

    def in_graph() -> float:
        return float(update(key, timesteps)[ids[0]]["loss"])

    return from_python, in_graph


def reference_runs(args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Returns hand-written update functions by name."""
    import tensorflow as tf

    from benchmarks.reference_learner import ENTROPY_COEF, ReferenceLearner, bare_ppo
    from tfrl import seeding
    from tfrl.agents.actor_critic import PolicyBatch

    rows = make_rows(args.rows, 0)
    batch = [tf.constant(rows[name]) for name in COLUMNS]
    sizes = {"rows": args.rows, "minibatch_size": args.minibatch_size, "epochs": args.epochs}
    jit = args.compile == "xla"
    agent = make_agent()
    start = agent.init(seeding.key(0))
    # A variable, as for an agent's coefficient with a schedule.
    coefficient = tf.Variable(ENTROPY_COEF)

    def loss(params: list[tf.Tensor], columns: list[tf.Tensor]) -> Any:
        named = tf.nest.pack_sequence_as(start.params, params)
        extra = {"entropy_coef": tf.convert_to_tensor(coefficient)}
        state = start.replace(params=named, extra=extra)
        taken = PolicyBatch(**dict(zip(COLUMNS, columns, strict=True)), value=columns[-1])
        taken = agent.prepare_minibatch(state, taken, lambda x: x)
        loss_value, metrics = agent.loss(named, state, taken, seeding.key(0))
        return loss_value, list(metrics.values())

    params = tf.nest.flatten(start.params)
    reference = ReferenceLearner(params, loss, guarded=True, jit=jit, **sizes)
    bare = bare_ppo(OBS, ACTIONS, HIDDEN, jit=jit, **sizes)
    return {"reference": lambda: reference.update(batch), "bare": lambda: bare.update(batch)}


def rate_of(update: Callable[[], Any], args: argparse.Namespace) -> Callable[[], float]:
    """Warms an update up; returns a function that measures its gradient steps per second."""
    for _ in range(2):
        update()
    start = time.perf_counter()
    update()
    calls = max(1, int(args.seconds / (time.perf_counter() - start)))
    steps = calls * (args.rows // args.minibatch_size) * args.epochs

    def run() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            update()
        return steps / (time.perf_counter() - start)

    return run


def measure_replicas(replicas: int, args: argparse.Namespace) -> None:
    """Measures all numbers of modules on one number of replicas, alternately, in this process."""
    from tfrl.distribute import make_strategy

    several = replicas > 1
    kind = "mirrored" if several else "one_device"
    strategy = make_strategy(kind, num_logical_cpus=replicas) if several else None
    updates: dict[str, Callable[[], Any]] = {}
    for n in args.modules:
        from_python, in_graph = learner_runs(n, strategy, args)
        updates[f"learner_{n}"] = from_python
        if n == 1 and not several:
            updates.update(reference_runs(args), in_graph=in_graph)
    contestants = {name: rate_of(update, args) for name, update in updates.items()}
    rates = measure.alternate(contestants, args.rounds)
    for n in args.modules:
        own = rates[f"learner_{n}"]
        beside = beside_references(own, rates) if n == 1 and not several else {}
        measure.emit(
            benchmark="learner",
            modules=n,
            replicas=replicas,
            strategy=kind,
            rows=args.rows,
            minibatch_size=args.minibatch_size,
            epochs=args.epochs,
            compile=args.compile,
            updates_per_second=statistics.median(own),
            **beside,
        )


def beside_references(own: list[float], rates: dict[str, list[float]]) -> dict[str, float]:
    """Rates of the other contestants, and medians of the ratios in each round."""

    def ratio(one: list[float], other: list[float]) -> float:
        return statistics.median(a / b for a, b in zip(one, other, strict=True))

    in_graph = rates["in_graph"]
    return {
        "in_graph_updates_per_second": statistics.median(in_graph),
        "reference_updates_per_second": statistics.median(rates["reference"]),
        "bare_updates_per_second": statistics.median(rates["bare"]),
        "ratio_to_reference": ratio(own, rates["reference"]),
        "in_graph_ratio_to_reference": ratio(in_graph, rates["reference"]),
        "ratio_to_bare": ratio(own, rates["bare"]),
    }


def numbers(text: str) -> list[int]:
    """Reads "1,2,8"."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=numbers, default=[1, 2, 8])
    parser.add_argument("--replicas", type=numbers, default=[1, 2, 4])
    parser.add_argument("--compile", default="graph", choices=("graph", "xla"))
    parser.add_argument("--rows", type=int, default=2048, help="rows per module")
    parser.add_argument("--minibatch_size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.rows % args.minibatch_size:
        parser.error("--minibatch_size must divide --rows")
    if len(args.replicas) == 1:
        measure_replicas(args.replicas[0], args)
        return
    for replicas in args.replicas:
        # The last value of an option counts.
        command = [sys.executable, "-m", "benchmarks.learner", *sys.argv[1:]]
        subprocess.run([*command, f"--replicas={replicas}"], check=True, cwd=measure.ROOT)


if __name__ == "__main__":
    main()
