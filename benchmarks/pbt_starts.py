"""Returns of a population's initial hyperparameters, without exploitation.

  python -m benchmarks.pbt_starts --gin_file=pbt/ppo_tf_cartpole.gin --seeds=5

The run follows the gin file without its exploitation: each member keeps its initial hyperparameters
for its share of the budget. One JSON line per seed has the members in the order of their first
hyperparameter, and the returns of 100 greedy episodes of each.
"""

import argparse
import statistics
from typing import Any

import numpy as np

from benchmarks import measure


def stays(fitness: Any, key: Any) -> Any:
    """No member copies another."""
    import tensorflow as tf

    return tf.range(fitness.shape[0])


def measure_seed(gin_file: str, seed: int, env_steps: int, episodes: int) -> None:
    """Trains the members of one seed and evaluates them all."""
    import tfrl
    from tfrl import seeding, struct

    workflow: Any = tfrl.build_from_config(gin_file)
    workflow.exploit = stays
    state = workflow.learn(workflow.setup(seed), total_env_steps=env_steps, progress=False)
    members = state.opt_state.members
    evaluator = workflow.evaluator.replace(num_episodes=episodes)
    key = seeding.stream(state.key, "final_evaluation")
    returns = [
        evaluator.evaluate(struct.take(members.agent_state, i), key).metrics()["eval_return_mean"]
        for i in range(workflow.num_members)
    ]
    first = workflow.hyperparameters[0]
    values = struct.paths(members)
    values = next(x for p, x in values.items() if p.endswith(first.path)).numpy()
    order = np.argsort(values)
    measure.emit(
        benchmark="pbt_starts",
        seed=seed,
        env_steps=int(state.metrics.env_steps),
        **{first.path: [float(f"{values[i]:.2g}") for i in order]},
        returns=[round(returns[i], 1) for i in order],
        median=float(statistics.median(returns)),
    )


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gin_file", default="pbt/ppo_tf_cartpole.gin")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--env_steps", type=int, default=2_000_000, help="env steps of all members")
    parser.add_argument("--episodes", type=int, default=100)
    args = parser.parse_args()
    for seed in range(args.seeds):
        measure_seed(args.gin_file, seed, args.env_steps, args.episodes)


if __name__ == "__main__":
    main()
