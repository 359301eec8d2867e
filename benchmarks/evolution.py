"""Generations per second of OpenES on Pendulum, and population-based training by members.

  python -m benchmarks.evolution --population=128,1024 --peers
  python -m benchmarks.evolution --population=32,256,2048,16384      # how it grows
  python -m benchmarks.evolution --strategies                        # shares of each search
  python -m benchmarks.evolution --pbt=1,8,16,32,64

One JSON line a measurement. A generation is 200 steps of each member, a 2 x 16 tanh network of 353
parameters; many run in one compiled call. `reference` is `benchmarks/reference_evolution.py`, the
same by hand in one XLA program, which takes turns with ours; `evosax` (JAX, with gymnax's Pendulum)
is measured right after, in an environment of its own.

With `--strategies` a line has the share of a generation's CPU time that asking and telling take;
the rest is the members' play.

With `--pbt` a round is 4 iterations of each member, PPO on CartPole with 8 environments x 32 steps.
`seconds_per_member` is to fall with the number of members, and `cost_beside_loop` is the time of a
round beside that of as many calls for one member each.
"""

import argparse
import functools
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import measure


def numbers(text: str) -> list[int]:
    """Reads "1,2,8"."""
    return [int(part) for part in text.split(",")]


def workflow_of(optimizer: Any, **options: Any) -> Any:
    """OpenES or another search on Pendulum."""
    import tfrl

    env = tfrl.make_env("tf:Pendulum-v1", num_envs=32)
    return tfrl.EvolutionWorkflow(env, optimizer=optimizer, compile="xla", **options)


def generations(workflow: Any, number: int) -> Callable[[], float]:
    """Returns a function that runs so many generations and returns their rate."""
    state = workflow.advance(workflow.setup(0), number).state

    def run() -> float:
        nonlocal state
        start = time.perf_counter()
        state = workflow.advance(state, number).state
        float(state.metrics.episode_return)
        return number / (time.perf_counter() - start)

    return run


def by_hand(population: int, number: int) -> Callable[[], float]:
    """As `generations`, of the reference."""
    import tensorflow as tf

    from benchmarks.reference_evolution import make_generations

    step, carried = make_generations(population)
    count = tf.constant(number)
    carried = step(carried, count)

    def run() -> float:
        nonlocal carried
        start = time.perf_counter()
        carried = step(carried, count)
        float(tf.reduce_mean(carried[-1]))
        return number / (time.perf_counter() - start)

    return run


def measure_population(population: int, args: argparse.Namespace) -> None:
    """OpenES of one size beside the reference and the peer."""
    from tfrl.evolution import OpenES

    number = max(4, round(args.seconds * 40_000 / population))
    contestants = {
        "tfrl": generations(workflow_of(OpenES(pop_size=population)), number),
        "reference": by_hand(population, number),
    }
    rates = measure.alternate(contestants, args.rounds)
    rate = statistics.median(rates["tfrl"])
    ratios = [a / b for a, b in zip(rates["tfrl"], rates["reference"], strict=True)]
    figures: dict[str, Any] = {
        "generations_per_second": rate,
        "env_steps_per_second": rate * population * 200,
        "reference_generations_per_second": statistics.median(rates["reference"]),
        "ratio_to_reference": statistics.median(ratios),
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if args.peers:
        peer = measure.peer("peer_evosax.py", f"--population={population}")
        if peer is None:
            raise SystemExit("evosax is not installed here; run: make bench-peers")
        figures["evosax_generations_per_second"] = peer["generations_per_second"]
        figures["ratio_to_evosax"] = rate / peer["generations_per_second"]
    measure.emit(benchmark="evolution", population=population, **figures)


def measure_strategy(name: str, args: argparse.Namespace) -> None:
    """A search at population 128: its rate, and the share of asking and telling."""
    import tensorflow as tf

    from tfrl import evolution

    options = {"CMAES": {"eigen_interval": 10}}.get(name, {})
    optimizer = getattr(evolution, name)(pop_size=128, **options)
    workflow = workflow_of(optimizer)
    number = max(4, round(args.seconds * 200))
    whole = measure.alternate({name: generations(workflow, number)}, args.rounds)[name]

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def searches(state: Any) -> Any:
        def body(i: tf.Tensor, state: Any) -> Any:
            population, state = optimizer.ask(state)
            fitness = -tf.reduce_sum(tf.square(population["head"]["bias"]), axis=-1)
            return i + 1, optimizer.tell(state, fitness, population)

        return tf.while_loop(lambda i, _: i < number, body, (0, state))[1]

    state = searches(workflow.setup(0).opt_state.search)
    seconds = []
    for _ in range(args.rounds):
        start = time.perf_counter()
        state = searches(state)
        state.generation.numpy()
        seconds.append((time.perf_counter() - start) / number)
    rate = statistics.median(whole)
    measure.emit(
        benchmark="evolution",
        strategy=name,
        population=128,
        generations_per_second=rate,
        share_of_search=min(seconds) * max(whole),
    )


def measure_pbt(members: list[int], args: argparse.Namespace) -> None:
    """Rounds of population-based training by the number of members."""
    import tfrl
    from tfrl.evolution.pbt import Hyperparameter

    env = tfrl.make_env("tf:CartPole-v1", num_envs=8)
    single = tfrl.OnPolicyWorkflow(env, tfrl.PPO, rollout_length=32, compile="xla")
    rates = [Hyperparameter(path="learning_rate", low=1e-4, high=1e-2)]

    def rounds_of(number: int) -> Callable[[], float]:
        workflow = tfrl.PBTWorkflow(
            single, rates, number, iterations_per_round=4, compile="xla", iterations_per_call=4
        )
        state = workflow.advance(workflow.setup(0), 1).state

        def run() -> float:
            nonlocal state
            start = time.perf_counter()
            state = workflow.advance(state, 2).state
            return (time.perf_counter() - start) / 2

        return run

    def looped() -> Callable[[], float]:
        state = single.advance(single.setup(0), 4).state

        def run() -> float:
            nonlocal state
            start = time.perf_counter()
            state = single.advance(state, 4).state
            return time.perf_counter() - start

        return run

    contestants = {str(n): rounds_of(n) for n in members}
    found = measure.alternate({**contestants, "looped": looped()}, args.rounds)
    for n in members:
        costs = [a / (n * b) for a, b in zip(found[str(n)], found["looped"], strict=True)]
        measure.emit(
            benchmark="evolution",
            pbt_members=n,
            seconds_per_round=statistics.median(found[str(n)]),
            seconds_per_member=statistics.median(found[str(n)]) / n,
            cost_beside_loop=statistics.median(costs),
        )


def main() -> None:
    """Measures as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--population", type=numbers, default=[])
    parser.add_argument("--strategies", action="store_true", help="OpenES, CMA-ES, GA and others")
    parser.add_argument("--pbt", type=numbers, default=[], help="numbers of members")
    parser.add_argument("--peers", action="store_true", help="also evosax")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    if not (args.population or args.strategies or args.pbt):
        args.population = [128, 1024]
    for population in args.population:
        measure_population(population, args)
    if args.strategies:
        for name in ("OpenES", "ARS", "SNES", "SepCMAES", "CMAES", "DiagonalCEM", "GA", "DE"):
            measure_strategy(name, args)
    if args.pbt:
        measure_pbt(args.pbt, args)


if __name__ == "__main__":
    main()
