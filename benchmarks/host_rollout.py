"""Speed on the host: training, collection, and acting in one environment, against peers.

  python -m benchmarks.host_rollout                              # all of it
  python -m benchmarks.host_rollout --only=train,collect --peers

One JSON line per measurement:

* `train`: whole PPO iterations on Gymnasium's CartPole at 8 and 64 environments; with --peers
  alternating with Stable-Baselines3, which `make bench-peers` installs separately.
* `collect`: steps of a 2x64 policy without training at 32 environments, alternating with TF-Agents'
  DynamicStepDriver on the same task.
* `envpool`: steps of a 2x64 policy in EnvPool's HalfCheetah, alternating with EnvPool stepped with
  random actions.
* `act`: steps of a 2x64 policy in a single environment.
"""

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import tfrl
from benchmarks import measure, ppo
from tfrl.keras import api as keras

CARTPOLE = "gymnasium:CartPole-v1"
CHEETAH = "envpool:HalfCheetah-v4"


def trainer(num_envs: int, seconds: float) -> tuple[Callable[[], float], dict[str, Any]]:
    """Returns a function that measures whole PPO iterations at the sizes of `benchmarks.ppo`."""
    from tfrl.agents import PPO
    from tfrl.learners import ModuleConfig
    from tfrl.workflows import OnPolicyWorkflow

    env = tfrl.make_env(CARTPOLE, num_envs=num_envs, autoreset="NEXT_STEP")
    workflow = OnPolicyWorkflow(
        env=env,
        agent=PPO(obs_spec=env.obs_spec, action_spec=env.action_spec),
        rollout_length=ppo.HORIZON,
        num_epochs=ppo.EPOCHS,
        num_minibatches=ppo.MINIBATCHES,
        learner_config=ModuleConfig(lr=3e-4, grad_clip=0.5),
    )
    state = workflow.setup(seed=0)
    choices = workflow.compile_choices(state)
    box = [workflow.advance(state, 2).state]

    def run() -> float:
        first, start = workflow.env_steps(box[0]), time.perf_counter()
        while time.perf_counter() - start < seconds:
            box[0] = workflow.advance(box[0], 1).state
        return (workflow.env_steps(box[0]) - first) / (time.perf_counter() - start)

    return run, choices


def collector(
    env_id: str, num_envs: int, seconds: float, **options: Any
) -> tuple[Callable[[], float], Any]:
    """Returns a function that measures rollouts of a 2x64 policy, and the environments."""
    from tfrl import seeding
    from tfrl.agents import PPO
    from tfrl.rollout import rollout

    env = tfrl.make_env(env_id, num_envs=num_envs, **options)
    agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec)
    agent_state = agent.init(seeding.key(0))
    box = [env.reset(0), 0]

    def play() -> int:
        key = seeding.fold_in(seeding.key(1), box[1])
        rows, box[0], _ = rollout(env, agent, box[0], agent_state, key, ppo.HORIZON)
        box[1] += 1
        return int(rows.valid.numpy().sum())

    def run() -> float:
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            steps += play()
        return steps / (time.perf_counter() - start)

    play()
    return run, env


def how_it_acts(env: Any) -> str:
    """The id of the only policy of an environment."""
    return next(iter(env.policies.values())).mode


def driver(num_envs: int, seconds: float) -> Callable[[], float]:
    """Returns a function that measures TF-Agents' DynamicStepDriver with a 2x64 PPO policy."""
    from tf_agents.agents.ppo import ppo_clip_agent
    from tf_agents.drivers import dynamic_step_driver
    from tf_agents.environments import batched_py_environment, suite_gym, tf_py_environment
    from tf_agents.networks import actor_distribution_network, value_network

    envs = [suite_gym.load("CartPole-v1") for _ in range(num_envs)]
    env = tf_py_environment.TFPyEnvironment(
        batched_py_environment.BatchedPyEnvironment(envs, multithreading=False)
    )
    specs = (env.observation_spec(), env.action_spec())
    agent = ppo_clip_agent.PPOClipAgent(
        env.time_step_spec(),
        env.action_spec(),
        optimizer=keras.optimizers.legacy.Adam(3e-4),
        actor_net=actor_distribution_network.ActorDistributionNetwork(
            *specs, fc_layer_params=(64, 64)
        ),
        value_net=value_network.ValueNetwork(specs[0], fc_layer_params=(64, 64)),
        num_epochs=1,
    )
    agent.initialize()
    steps = ppo.HORIZON * num_envs
    play = dynamic_step_driver.DynamicStepDriver(env, agent.collect_policy, [], num_steps=steps)
    box = [play.run()]

    def run() -> float:
        done, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            box[0] = play.run(box[0][0])
            done += steps
        return done / (time.perf_counter() - start)

    return run


def random_cheetah(num_envs: int, seconds: float) -> Callable[[], float]:
    """Returns a function that measures EnvPool's HalfCheetah with random actions."""
    import envpool
    import numpy as np

    env = envpool.make("HalfCheetah-v4", env_type="gymnasium", num_envs=num_envs, seed=0)
    env.reset()
    shape = (num_envs, *env.action_space.shape)
    generator = np.random.default_rng(0)

    def run() -> float:
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            env.step(generator.uniform(-1, 1, shape))
            steps += num_envs
        return steps / (time.perf_counter() - start)

    return run


def measure_train(args: argparse.Namespace) -> None:
    """Prints the lines of `train`."""
    for num_envs in (8, 64):
        run, choices = trainer(num_envs, args.seconds)
        contestants = {"tfrl": run}
        if args.peers:
            contestants["sb3"] = functools.partial(sb3, num_envs)
        rates = measure.medians(measure.alternate(contestants, args.rounds))
        rate, figures = rates["tfrl"], {}
        if args.peers:
            figures["sb3_env_steps_per_second"] = rates["sb3"]
            figures["ratio_to_sb3"] = rate / rates["sb3"]
        measure.emit(
            benchmark="host_rollout",
            measured="train",
            env=CARTPOLE,
            num_envs=num_envs,
            env_steps_per_second=rate,
            compile=choices,
            **figures,
        )


def sb3(num_envs: int) -> float:
    """Returns Stable-Baselines3's rate, measured in its own process."""
    figures = measure.peer("peer_sb3.py", f"--num_envs={num_envs}")
    if figures is None:
        raise SystemExit("Stable-Baselines3 is not installed here; run: make bench-peers")
    return float(figures["env_steps_per_second"])


def beside(
    args: argparse.Namespace,
    measured: str,
    num_envs: int,
    peer: str,
    theirs: Callable[[], float],
    ours: tuple[Callable[[], float], Any],
) -> None:
    """Prints the line of a collection that alternates with a peer's."""
    run, env = ours
    rates = measure.medians(measure.alternate({"tfrl": run, peer: theirs}, args.rounds))
    measure.emit(
        benchmark="host_rollout",
        measured=measured,
        env=env.backend.name,
        num_envs=num_envs,
        env_steps_per_second=rates["tfrl"],
        acts=how_it_acts(env),
        **{
            f"{peer}_env_steps_per_second": rates[peer],
            f"ratio_to_{peer}": rates["tfrl"] / rates[peer],
        },
    )


def measure_collect(args: argparse.Namespace) -> None:
    """Prints the line of `collect`."""
    ours = collector(CARTPOLE, 32, args.seconds, autoreset="NEXT_STEP")
    beside(args, "collect", 32, "tf_agents", driver(32, args.seconds), ours)


def measure_envpool(args: argparse.Namespace) -> None:
    """Prints the line of `envpool`."""
    ours = collector(CHEETAH, 16, args.seconds, autoreset="NEXT_STEP")
    beside(args, "envpool", 16, "random", random_cheetah(16, args.seconds), ours)


def measure_act(args: argparse.Namespace) -> None:
    """Prints the line of `act`."""
    run, env = collector(CARTPOLE, 1, args.seconds, vectorization="sync")
    rate = measure.medians(measure.alternate({"tfrl": run}, args.rounds))["tfrl"]
    measure.emit(
        benchmark="host_rollout",
        measured="act",
        env=CARTPOLE,
        num_envs=1,
        env_steps_per_second=rate,
        acts=how_it_acts(env),
    )


MEASUREMENTS = {
    "act": measure_act,
    "collect": measure_collect,
    "envpool": measure_envpool,
    "train": measure_train,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"of {', '.join(MEASUREMENTS)}; default all")
    parser.add_argument("--peers", action="store_true", help="measure Stable-Baselines3 too")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    names = [n for n in args.only.split(",") if n] or list(MEASUREMENTS)
    unknown = sorted(set(names) - set(MEASUREMENTS))
    if unknown:
        raise SystemExit(f"--only: expected some of {', '.join(MEASUREMENTS)}; got {unknown[0]}")
    for name in names:
        MEASUREMENTS[name](args)


if __name__ == "__main__":
    main()
