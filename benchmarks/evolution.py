"""Generations per second of OpenES on Pendulum, and population-based training by members.

  python -m benchmarks.evolution --population=128,1024 --peers
  python -m benchmarks.evolution --growth=32,128,512,2048,8192,16384  # and memory per member
  python -m benchmarks.evolution --large                             # 1M parameters, 256 members
  python -m benchmarks.evolution --strategies                        # shares of each search
  python -m benchmarks.evolution --erl                               # and of gradient steps
  python -m benchmarks.evolution --pbt=1,8,16,32,64

One JSON line per measurement. A generation is 200 steps of each member, a 2 x 16 tanh network of
353 parameters; one compiled call runs many generations. `reference` is
`benchmarks/reference_evolution.py`, a hand-written XLA program, which alternates with tfrl;
`evosax` (JAX, with gymnax's Pendulum) is measured right after, in a separate Python environment.

With `--growth` each size runs in its own process, and the last line has the difference in memory
between the processes of the largest and the smallest size, per member.

With `--strategies` a line has the shares of a generation's time: the environment (steps with a
torque without a network), the network (playing the episodes, less the environment), and the search
(the rest: alone, XLA would compile it otherwise). With `--erl` the
search is ERL with GA and TD3: the share of gradient steps is the extra time against a generation
that does not learn.

With `--pbt` a round is 4 iterations of each member, PPO on CartPole with 8 environments x 32 steps.
`seconds_per_member` should fall with the number of members; `cost_beside_loop` is the time of a
round divided by the time of one call per member. The shares are of a member's iteration.
"""

import argparse
import functools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import measure


def numbers(text: str) -> list[int]:
    """Reads "1,2,8"."""
    return [int(part) for part in text.split(",")]


def workflow_of(optimizer: Any, agent: Any = None, **options: Any) -> Any:
    """OpenES or another search on Pendulum."""
    import tfrl
    from tfrl.evolution.policy_agent import PolicyAgent

    env = tfrl.make_env("tf:Pendulum-v1", num_envs=32)
    agent = agent or PolicyAgent
    return tfrl.EvolutionWorkflow(env, agent, optimizer, compile="xla", **options)


def generations(workflow: Any, number: int) -> Callable[[], float]:
    """Returns a function that runs a number of generations and returns their rate."""
    state = workflow.advance(workflow.setup(0), number).state

    def run() -> float:
        nonlocal state
        start = time.perf_counter()
        state = workflow.advance(state, number).state
        float(state.metrics.episode_return)
        return number / (time.perf_counter() - start)

    return run


def by_hand(population: int, number: int) -> Callable[[], float]:
    """As `generations`, for the reference."""
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
    """Measures OpenES of one size, the reference and the peer."""
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


def measure_growth(populations: list[int]) -> None:
    """Measures OpenES of several sizes, each in its own process."""
    records = []
    for population in populations:
        command = [sys.executable, "-m", "benchmarks.evolution", f"--alone={population}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        records.append(json.loads(done.stdout.splitlines()[-1]))
        measure.emit(**records[-1])
    first, last = records[0], records[-1]
    megabytes = last["resident_mb"] - first["resident_mb"]
    members = last["population"] - first["population"]
    measure.emit(benchmark="evolution", kb_per_member=megabytes * 1024 / members)


def measure_alone(optimizer: Any, number: int, rounds: int, agent: Any = None) -> None:
    """Measures a search alone: its rate, and the memory of the process."""
    run = generations(workflow_of(optimizer, agent), number)
    rate = statistics.median(run() for _ in range(rounds))
    measure.emit(
        benchmark="evolution",
        population=optimizer.pop_size,
        generations_per_second=rate,
        env_steps_per_second=rate * optimizer.pop_size * 200,
        resident_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def measure_large() -> None:
    """A network of a million parameters at population 256."""
    from tfrl.evolution import OpenES
    from tfrl.evolution.policy_agent import PolicyAgent

    agent = functools.partial(PolicyAgent, hidden=(1000, 1000))
    measure_alone(OpenES(pop_size=256), 1, 1, agent)


def acts_by_speed(state: Any, obs: Any, key: Any, carry: Any = None) -> Any:
    """A cheap torque: a quarter of the angular velocity."""
    from tfrl.types import ActionOutput

    return ActionOutput(action=obs[:, 2:] * 0.25, carry=carry)


def fastest(call: Callable[[], Any], rounds: int) -> float:
    """Least seconds of a call that returns a tensor, after one that compiles."""
    call()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call().numpy()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def environment_seconds(num_envs: int, number: int, rounds: int) -> float:
    """Seconds of an episode of a number of environments without a network, in XLA."""
    import tensorflow as tf

    import tfrl
    from tfrl import seeding
    from tfrl.evolution.population import bare
    from tfrl.rollout import fast_eval_rollout_episode

    env = tfrl.make_env("tf:Pendulum-v1", num_envs=num_envs)

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def episodes() -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> Any:
            key = seeding.fold_in(seeding.key(0), i)
            args = (bare(env), acts_by_speed, bare(env).reset(key), None, key)
            totals = fast_eval_rollout_episode(*args, length=env.max_episode_steps)[0]
            return i + 1, total + tf.reduce_sum(totals.episode_returns)

        return tf.while_loop(lambda i, _: i < number, body, (0, 0.0))[1]

    return fastest(episodes, rounds) / number


def measure_erl(args: argparse.Namespace) -> None:
    """ERL with GA and TD3: its generations, and the share of gradient steps."""
    import tfrl
    from tfrl.evolution import GA
    from tfrl.workflows import ERLWorkflow

    def run_of(learning_starts: int) -> Callable[[], float]:
        env = tfrl.make_env("tf:Pendulum-v1", num_envs=1)
        workflow = ERLWorkflow(
            env, tfrl.TD3, GA(pop_size=10), learning_starts=learning_starts, compile="auto"
        )
        return generations(workflow, 1)

    contestants = {"whole": run_of(1), "no_learning": run_of(10**9)}
    rates = measure.alternate(contestants, max(3, args.rounds // 3))
    seconds = {name: 1 / max(values) for name, values in rates.items()}
    environment = environment_seconds(11, 20, args.rounds)
    measure.emit(
        benchmark="evolution",
        strategy="ERL",
        population=10,
        generations_per_second=statistics.median(rates["whole"]),
        share_of_gradient_steps=1 - seconds["no_learning"] / seconds["whole"],
        share_of_environment=environment / seconds["whole"],
        share_of_networks_and_search=(seconds["no_learning"] - environment) / seconds["whole"],
    )


def measure_strategy(name: str, args: argparse.Namespace) -> None:
    """A search at population 128: its rate, and the shares of search, environment and network."""
    import tensorflow as tf

    from tfrl import evolution, seeding

    options = {"CMAES": {"eigen_interval": 10}}.get(name, {})
    optimizer = getattr(evolution, name)(pop_size=128, **options)
    workflow = workflow_of(optimizer)
    number = max(4, round(args.seconds * 200))
    rates = measure.alternate({name: generations(workflow, number)}, args.rounds)[name]

    state = workflow.setup(0)
    population, _ = optimizer.ask(state.opt_state.search)

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def episodes(agent_state: Any, population: Any) -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> Any:
            played = workflow.play(agent_state, population, seeding.fold_in(seeding.key(0), i))
            return i + 1, total + tf.reduce_sum(played.totals.episode_returns)

        return tf.while_loop(lambda i, _: i < number, body, (0, 0.0))[1]

    playing = fastest(lambda: episodes(state.agent_state, population), args.rounds)
    playing *= max(rates) / number
    environment = environment_seconds(128, number, args.rounds) * max(rates)
    measure.emit(
        benchmark="evolution",
        strategy=name,
        population=128,
        generations_per_second=statistics.median(rates),
        share_of_search=1 - playing,
        share_of_environment=environment,
        share_of_network=playing - environment,
    )


def shares_of_iteration(env: Any, rounds: int) -> dict[str, float]:
    """Shares of a member's iteration: environment (of random play), network, and update."""
    import tensorflow as tf

    import tfrl
    from tfrl import seeding
    from tfrl.agents import RandomAgent
    from tfrl.rollout import rollout

    number, length = 50, 32
    modes = {"rollout": "xla", "update": "xla", "loop": "graph"}  # with clocks between the stages
    workflow = tfrl.OnPolicyWorkflow(env, tfrl.PPO, rollout_length=length, compile=modes)
    state = workflow.advance(workflow.setup(0), number).state
    random = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def plays() -> tf.Tensor:
        def body(i: tf.Tensor, env_state: Any, total: tf.Tensor) -> Any:
            key = seeding.fold_in(seeding.key(0), i)
            played, env_state, _ = rollout(env, random, env_state, random.init(key), key, length)
            used = (tf.cast(x, tf.float32) for x in tf.nest.flatten(played))
            return i + 1, env_state, total + sum(map(tf.reduce_sum, used))

        start = (0, env.reset(seeding.key(0)), 0.0)
        return tf.while_loop(lambda i, *_: i < number, body, start)[2]

    plays()
    shares = []
    for _ in range(rounds):
        begin = time.perf_counter()
        plays().numpy()
        environment = time.perf_counter() - begin
        done = workflow.advance(state, number)
        state, iteration_seconds = done.state, done.seconds["rollout"] + done.seconds["update"]
        shares.append((environment / iteration_seconds, done.seconds["update"] / iteration_seconds))
    environment, update = (statistics.median(x) for x in zip(*shares, strict=True))
    return {
        "share_of_environment": environment,
        "share_of_network": 1 - environment - update,
        "share_of_gradient_steps": update,
    }


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
            state = single.advance(state, 8).state  # two rounds per call, as above
            return (time.perf_counter() - start) / 2

        return run

    shares = shares_of_iteration(env, args.rounds)
    measure.emit(benchmark="evolution", strategy="PBT, an iteration of one member", **shares)
    contestants = {str(n): rounds_of(n) for n in members}
    timings = measure.alternate({**contestants, "looped": looped()}, args.rounds)
    for n in members:
        costs = [a / (n * b) for a, b in zip(timings[str(n)], timings["looped"], strict=True)]
        measure.emit(
            benchmark="evolution",
            pbt_members=n,
            generations_per_second=1 / statistics.median(timings[str(n)]),
            seconds_per_round=statistics.median(timings[str(n)]),
            seconds_per_member=statistics.median(timings[str(n)]) / n,
            cost_beside_loop=statistics.median(costs),
        )


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--population", type=numbers, default=[])
    parser.add_argument("--growth", type=numbers, default=[], help="populations")
    parser.add_argument("--alone", type=int, help="size of a single population")
    parser.add_argument("--large", action="store_true", help="1M parameters, population 256")
    parser.add_argument("--strategies", action="store_true", help="OpenES, CMA-ES, GA and others")
    parser.add_argument("--erl", action="store_true", help="GA with TD3")
    parser.add_argument("--pbt", type=numbers, default=[], help="population sizes")
    parser.add_argument("--peers", action="store_true", help="measure evosax too")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    others = (args.growth, args.alone, args.large, args.strategies, args.erl, args.pbt)
    if not (args.population or any(others)):
        args.population = [128, 1024]
    for population in args.population:
        measure_population(population, args)
    if args.growth:
        measure_growth(args.growth)
    if args.alone:
        from tfrl.evolution import OpenES

        number = max(2, round(args.seconds * 40_000 / args.alone))
        measure_alone(OpenES(pop_size=args.alone), number, 3)
    if args.large:
        measure_large()
    if args.erl:
        measure_erl(args)
    if args.strategies:
        for name in ("OpenES", "ARS", "SNES", "SepCMAES", "CMAES", "DiagonalCEM", "GA", "DE"):
            measure_strategy(name, args)
    if args.pbt:
        measure_pbt(args.pbt, args)


if __name__ == "__main__":
    main()
