"""JAX environments in TensorFlow against pure JAX; needs the extra `jax`.

  python -m benchmarks.jax_envs --figure=rollout --env=jax/brax:ant --num_envs=1024
  python -m benchmarks.jax_envs --figure=ppo --env=jax/gymnax:CartPole-v1 --num_envs=64
  python -m benchmarks.jax_envs --figure=compile --env=jax/brax:ant --num_envs=1024

`rollout`: random actions, the library's compiled `rollout` against a `jax.lax.scan` of the same
step, time limit and autoreset. `ppo`: whole iterations against `benchmarks.reference_jax_ppo`, a
hand-written JAX loop of the same sizes. `compile`: seconds from the creation of the environment to
the end of the first rollout, each in its own process: conversion, tracing and compilation. Ends
with one JSON line per size; steps per second are medians of alternating runs in one process.
"""

import argparse
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import measure

SPRING = {"backend": "spring"}
# Steps of a rollout; epochs and minibatches of PPO.
SIZES = {"jax/brax": (32, 4, 4), "jax/gymnax": (128, 4, 4)}


def make_env(env_id: str, num_envs: int) -> Any:
    """Creates the environment of the reference: Brax with cached start states."""
    import tfrl

    if env_id.startswith("jax/brax"):
        return tfrl.make_env(env_id, num_envs, "SAME_STEP_CACHED", **SPRING)
    return tfrl.make_env(env_id, num_envs)


def bridge_rollout(env_id: str, num_envs: int, length: int) -> Callable[[], None]:
    """Returns a function that runs one rollout of random actions."""
    import tensorflow as tf

    from tfrl import seeding
    from tfrl.agents import RandomAgent
    from tfrl.rollout import rollout

    env = make_env(env_id, num_envs)
    agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
    keys = seeding.streams(seeding.key(0), ["environment", "run"])
    agent_state = agent.init(keys["run"])

    @tf.function(jit_compile=True, autograph=False)
    def play(env_state: Any, count: tf.Tensor) -> Any:
        key = seeding.fold_in(keys["run"], count)
        rows, env_state, _ = rollout(env, agent, env_state, agent_state, key, length)
        return env_state, count + 1, (rows.obs, rows.reward, rows.termination, rows.truncation)

    start = tf.function(env.reset, jit_compile=True, autograph=False)
    box = start(keys["environment"]), tf.constant(0, tf.int64)

    def run() -> None:
        nonlocal box
        *box, rows = play(*box)
        rows[1].numpy()

    return run


def jax_rollout(env_id: str, num_envs: int, length: int) -> Callable[[], None]:
    """The same in JAX alone."""
    import jax

    from benchmarks import reference_jax_ppo

    play, box = reference_jax_ppo.random_play(env_id, num_envs, length)

    def run() -> None:
        nonlocal box
        *box, rows = play(*box)
        jax.block_until_ready(rows)

    return run


def timed(run: Callable[[], None], steps: int, seconds: float) -> Callable[[], float]:
    """Returns a function that measures the rate of a warmed-up run with a number of steps."""
    run()

    def rate() -> float:
        done, start = 0, time.perf_counter()
        while done == 0 or time.perf_counter() - start < seconds:
            run()
            done += steps
        return done / (time.perf_counter() - start)

    return rate


def bridge_ppo(env_id: str, num_envs: int, iterations: int) -> tuple[Callable[[], None], Any]:
    """Returns a function that takes iterations of PPO, and its compile choices."""
    from tfrl.agents import PPO
    from tfrl.learners import ModuleConfig
    from tfrl.workflows import OnPolicyWorkflow

    length, epochs, minibatches = SIZES[env_id.partition(":")[0]]
    workflow = OnPolicyWorkflow(
        env=make_env(env_id, num_envs),
        agent=functools.partial(PPO, entropy_coef=0.01),
        rollout_length=length,
        num_epochs=epochs,
        num_minibatches=minibatches,
        learner_config=ModuleConfig(lr=2.5e-4, grad_clip=0.5),
    )
    state = workflow.setup(seed=0)
    choices = workflow.compile_choices(state)

    def run() -> None:
        nonlocal state
        state = workflow.advance(state, iterations).state

    return run, choices


def jax_ppo(env_id: str, num_envs: int, iterations: int) -> Callable[[], None]:
    """The same in JAX alone."""
    from benchmarks import reference_jax_ppo

    ppo = reference_jax_ppo.JaxPPO(env_id, num_envs, *SIZES[env_id.partition(":")[0]])
    return lambda: ppo.run(iterations)


def first_rollout_seconds(side: str, env_id: str, num_envs: int) -> float:
    """Returns the seconds to the end of the first rollout, without imports."""
    import brax.envs  # noqa: F401
    import gymnax  # noqa: F401

    import tfrl

    tfrl.make_env("tf:CartPole-v1").reset  # noqa: B018  (imports what an environment needs)
    length = SIZES[env_id.partition(":")[0]][0]
    start = time.perf_counter()
    (bridge_rollout if side == "bridge" else jax_rollout)(env_id, num_envs, length)()
    return time.perf_counter() - start


def compile_figures(env_id: str, num_envs: int, rounds: int) -> dict[str, Any]:
    """Times both sides in separate processes."""

    def child(side: str) -> float:
        words = [sys.executable, "-m", "benchmarks.jax_envs", f"--side={side}", f"--env={env_id}"]
        done = subprocess.run(
            [*words, f"--num_envs={num_envs}"], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout.strip().splitlines()[-1])["seconds"]

    sides = {side: functools.partial(child, side) for side in ("bridge", "jax")}
    seconds = measure.medians(measure.alternate(sides, rounds))
    return {
        "bridge_seconds": seconds["bridge"],
        "jax_seconds": seconds["jax"],
        "ratio": seconds["bridge"] / seconds["jax"],
    }


def rate_figures(figure: str, env_id: str, num_envs: int, args: Any) -> dict[str, Any]:
    """Measures steps per second of both sides alternately."""
    length = SIZES[env_id.partition(":")[0]][0]
    extra: dict[str, Any] = {}
    steps = length * num_envs
    if figure == "rollout":
        runs = {
            "bridge": bridge_rollout(env_id, num_envs, length),
            "jax": jax_rollout(env_id, num_envs, length),
        }
    else:
        steps *= args.iterations
        bridge, extra["compile"] = bridge_ppo(env_id, num_envs, args.iterations)
        runs = {"bridge": bridge, "jax": jax_ppo(env_id, num_envs, args.iterations)}
    contestants = {name: timed(run, steps, args.seconds) for name, run in runs.items()}
    rates = measure.medians(measure.alternate(contestants, args.rounds))
    return {
        "rollout_length": length,
        "bridge_env_steps_per_second": rates["bridge"],
        "jax_env_steps_per_second": rates["jax"],
        "ratio": rates["bridge"] / rates["jax"],
        **extra,
    }


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--figure", default="rollout", choices=("rollout", "ppo", "compile"))
    parser.add_argument("--env", default="jax/brax:ant")
    parser.add_argument("--num_envs", default="1024", help="comma-separated numbers")
    parser.add_argument("--iterations", type=int, default=2, help="PPO iterations per call")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", choices=("bridge", "jax"), help=argparse.SUPPRESS)
    args = parser.parse_args()

    for num_envs in map(int, args.num_envs.split(",")):
        if args.side:
            measure.emit(seconds=first_rollout_seconds(args.side, args.env, num_envs))
            continue
        if args.figure == "compile":
            figures = compile_figures(args.env, num_envs, args.rounds)
        else:
            figures = rate_figures(args.figure, args.env, num_envs, args)
        measure.emit(
            benchmark="jax_envs",
            figure=args.figure,
            env=args.env,
            num_envs=num_envs,
            **figures,
        )


if __name__ == "__main__":
    main()
