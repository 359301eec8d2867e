"""Throughput of whole PPO iterations, against a hand-written loop and Stable-Baselines3.

  python -m benchmarks.ppo --env=tf:CartPole-v1 --num_envs=64

Ends with one JSON line: `env_steps_per_second` (median), sizes, compile choices, and on CartPole
the reference's figure in its best mode and the ratio; both alternate in this process.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import tfrl
from benchmarks import measure

HORIZON, EPOCHS, MINIBATCHES = 128, 4, 4


def tfrl_runner(
    env_id: str, num_envs: int, compile: str, seconds: float
) -> tuple[Callable[[], float], dict[str, Any]]:
    """Returns a warmed-up function that measures tfrl's rate, and the compile choices."""
    from tfrl.agents import PPO
    from tfrl.learners import ModuleConfig
    from tfrl.workflows import OnPolicyWorkflow

    env = tfrl.make_env(env_id, num_envs=num_envs)
    workflow = OnPolicyWorkflow(
        env=env,
        agent=PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, entropy_coef=0.01),
        rollout_length=HORIZON,
        num_epochs=EPOCHS,
        num_minibatches=MINIBATCHES,
        learner_config=ModuleConfig(lr=2.5e-4, grad_clip=0.5),
        compile=compile,
    )
    state = workflow.setup(seed=0)
    choices = workflow.compile_choices(state)
    state = workflow.advance(state, 2).state
    start = time.perf_counter()
    state = workflow.advance(state, 2).state
    per_iteration = (time.perf_counter() - start) / 2
    iterations = max(1, min(1000, int(seconds / per_iteration)))
    box = [state]

    def run() -> float:
        start = time.perf_counter()
        done = workflow.advance(box[0], iterations)
        box[0] = done.state
        return len(done.rows) * HORIZON * num_envs / (time.perf_counter() - start)

    return run, choices


def reference_runner(num_envs: int, seconds: float) -> tuple[Callable[[], float], str]:
    """Returns a function that measures the reference in its best mode, and that mode."""
    from benchmarks import reference_ppo

    references = {m: reference_ppo.ReferencePPO(num_envs, m) for m in reference_ppo.MODES}
    runs = {}
    for mode, ppo in references.items():
        ppo.run(1)
        start = time.perf_counter()
        ppo.run(2)
        n = max(1, min(512, int(seconds * 2 / (time.perf_counter() - start))))
        runs[mode] = _rate(ppo, n, num_envs)
    rates = measure.medians(measure.alternate(runs, rounds=2))
    best = max(rates, key=lambda m: rates[m])
    return runs[best], best


def _rate(ppo: Any, iterations: int, num_envs: int) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        ppo.run(iterations)
        return iterations * HORIZON * num_envs / (time.perf_counter() - start)

    return run


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="tf:CartPole-v1")
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--compile", default="auto", choices=("auto", "xla", "graph"))
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", action="store_true", help="measure Stable-Baselines3 too")
    args = parser.parse_args()

    run, choices = tfrl_runner(args.env, args.num_envs, args.compile, args.seconds)
    contestants = {"tfrl": run}
    figures: dict[str, Any] = {}
    cartpole = args.env == "tf:CartPole-v1"
    if cartpole:
        contestants["reference"], figures["reference_mode"] = reference_runner(
            args.num_envs, args.seconds
        )
    rates = measure.medians(measure.alternate(contestants, args.rounds))
    if cartpole:
        figures["reference_env_steps_per_second"] = rates["reference"]
        figures["ratio_to_reference"] = rates["tfrl"] / rates["reference"]
    if args.peers and cartpole:
        sb3 = measure.peer("peer_sb3.py", f"--num_envs={args.num_envs}")
        if sb3 is None:
            raise SystemExit("Stable-Baselines3 is not installed here; run: make bench-peers")
        figures["sb3_env_steps_per_second"] = sb3["env_steps_per_second"]
        figures["ratio_to_sb3"] = rates["tfrl"] / sb3["env_steps_per_second"]
    measure.emit(
        benchmark="ppo",
        device=measure.device(),
        env=args.env,
        num_envs=args.num_envs,
        rollout_length=HORIZON,
        epochs=EPOCHS,
        minibatches=MINIBATCHES,
        env_steps_per_second=rates["tfrl"],
        compile=choices,
        **figures,
    )


if __name__ == "__main__":
    main()
