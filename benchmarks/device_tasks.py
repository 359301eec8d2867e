"""Speed of the device tasks: env steps per second with random actions, and with PPO.

  python -m benchmarks.device_tasks --num_envs=64,1024
  python -m benchmarks.device_tasks --only=tf:Breakout-MinAtar --ppo

One JSON line per task and number of environments: `env_steps_per_second` (median) of rollouts with
uniformly random actions, including autoreset and episode statistics, and with --ppo
`ppo_env_steps_per_second` of whole iterations, measured as in `benchmarks.ppo` with the same sizes.
The tasks are all single-agent tasks of the suite `tf`. With --peers the line also has gymnax (JAX,
CPU) with random actions, measured right after in a separate Python environment.
"""

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import tfrl
from benchmarks import measure, ppo

SUITE = "tf:"
ROUNDS = 3
GYMNAX = {"Catch": "Catch-bsuite", "DeepSea": "DeepSea-bsuite", "FourRooms": "FourRooms-misc"}
ONLY_HERE = ("Masked", "Memory")  # tasks that gymnax does not have
LIMIT = 1000  # steps of an episode, for tasks without a time limit


def tasks(only: str) -> list[str]:
    """Returns the ids of the tasks to measure: a comma-separated list, or all."""
    from tfrl.envs import MultiAgentEnv, env_ids

    known = [i for i in env_ids() if i.startswith(SUITE)]
    names = [name for name in only.split(",") if name]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise SystemExit(f"--only: expected ids of {', '.join(known)}; got {', '.join(unknown)}")
    single = [i for i in known if not isinstance(tfrl.make_env(i).unwrapped, MultiAgentEnv)]
    return names or single


def make_env(env_id: str, num_envs: int) -> Any:
    """Creates environments, with a time limit for evaluation if the task has none."""
    env = tfrl.make_env(env_id, num_envs=num_envs)
    if env.max_episode_steps is not None:
        return env
    return tfrl.make_env(env_id, num_envs=num_envs, max_episode_steps=LIMIT)


def random_runner(env: Any, compile: str, seconds: float) -> Callable[[], float]:
    """Returns a warmed-up function that measures the rate of random actions.

    A call returns the observations, rewards and ends of a rollout, because XLA does not compute
    unused results.
    """
    import tensorflow as tf

    from tfrl import seeding
    from tfrl.agents import RandomAgent
    from tfrl.rollout import rollout

    agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
    keys = seeding.streams(seeding.key(0), ["environment", "run"])
    agent_state = agent.init(keys["run"])

    @tf.function(jit_compile=compile == "xla", autograph=False)
    def play(env_state: Any, count: tf.Tensor) -> tuple[Any, tf.Tensor, Any]:
        key = seeding.fold_in(keys["run"], count)
        rows, env_state, _ = rollout(env, agent, env_state, agent_state, key, ppo.HORIZON)
        return env_state, count + 1, (rows.obs, rows.reward, rows.termination, rows.truncation)

    box = play(env.reset(keys["environment"]), tf.constant(0, tf.int64))[:2]

    def run() -> float:
        nonlocal box
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            box = play(*box)[:2]
            steps += ppo.HORIZON * env.num_envs
        return steps / (time.perf_counter() - start)

    return run


def ppo_runner(env: Any, seconds: float) -> tuple[Callable[[], float], dict[str, Any]]:
    """Returns a function that measures PPO at the sizes of `benchmarks.ppo`, and its stages."""
    from tfrl.agents import PPO
    from tfrl.learners import ModuleConfig
    from tfrl.workflows import OnPolicyWorkflow

    workflow = OnPolicyWorkflow(
        env=env,
        agent=functools.partial(PPO, entropy_coef=0.01),
        rollout_length=ppo.HORIZON,
        num_epochs=ppo.EPOCHS,
        num_minibatches=ppo.MINIBATCHES,
        learner_config=ModuleConfig(lr=2.5e-4, grad_clip=0.5),
    )
    state = workflow.setup(seed=0)
    choices = workflow.compile_choices(state)
    state = workflow.advance(state, 2).state
    start = time.perf_counter()
    state = workflow.advance(state, 2).state
    iterations = max(1, min(1000, int(2 * seconds / (time.perf_counter() - start))))

    def run() -> float:
        nonlocal state
        start = time.perf_counter()
        state = workflow.advance(state, iterations).state
        return iterations * ppo.HORIZON * env.num_envs / (time.perf_counter() - start)

    return run, choices


def measured(env_id: str, num_envs: int, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of one task."""
    env = make_env(env_id, num_envs)
    play = random_runner(env, args.compile, args.seconds)
    rate = measure.medians(measure.alternate({env_id: play}, args.rounds))[env_id]
    figures: dict[str, Any] = {"compile": args.compile, "env_steps_per_second": rate}
    name = env_id.removeprefix(SUITE)
    if args.peers and name not in ONLY_HERE:
        peer_args = (f"--env={GYMNAX.get(name, name)}", f"--num_envs={num_envs}")
        gymnax = measure.peer("peer_gymnax.py", *peer_args, f"--seconds={args.seconds}")
        if gymnax is None:
            raise SystemExit("gymnax is not installed here; run: make bench-peers")
        figures["gymnax_env_steps_per_second"] = gymnax["env_steps_per_second"]
        figures["ratio_to_gymnax"] = rate / gymnax["env_steps_per_second"]
    if args.ppo:
        train, choices = ppo_runner(env, args.seconds)
        rates = measure.medians(measure.alternate({env_id: train}, args.rounds))
        figures.update(ppo_env_steps_per_second=rates[env_id], ppo_compile=choices)
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="comma-separated ids; default all")
    parser.add_argument("--num_envs", default="64,1024", help="comma-separated numbers")
    parser.add_argument("--ppo", action="store_true", help="measure PPO on each task too")
    parser.add_argument("--peers", action="store_true", help="measure gymnax too")
    parser.add_argument(
        "--compile", default="xla", choices=("xla", "graph"), help="mode of random play"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args(argv)

    for env_id in tasks(args.only):
        for num_envs in map(int, args.num_envs.split(",")):
            measure.emit(
                benchmark="device_tasks",
                env=env_id,
                num_envs=num_envs,
                rollout_length=ppo.HORIZON,
                **measured(env_id, num_envs, args),
            )


if __name__ == "__main__":
    main()
