"""Fronts and archives: NSGA-II against random search on Pendulum, MAP-Elites on a toy arm.

  python -m benchmarks.evolution_quality --seeds=10 --records=docs/results/evolution_quality.json

`hypervolume`: both searches have the budget, the network and the number of parents of
`evolution/nsga2_tf_pendulum.gin`, and the same survival selection; random search draws its
candidates uniformly within the bounds. The objectives are the return and minus the energy of the
torque. New episodes evaluate the final parents, which removes selection by luck. The hypervolume
above `REFERENCE` is a share of the volume between `REFERENCE` and (0, 0).

`coverage`: an arm of eight joints; its descriptors are the position of its end, its fitness is the
evenness of its bend, and it can reach every cell of the grid.

One JSON line per search: the mean over the seeds, its 95% bootstrap interval, and the seeds'
values.
"""

import argparse
import functools
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from benchmarks import measure
from tfrl import evolution, seeding, struct
from tfrl.evaluation import bootstrap_interval
from tfrl.launch import settings
from tfrl.workflows import EvolutionWorkflow

GIN_FILE = "evolution/nsga2_tf_pendulum.gin"
# A lower bound for all policies: 200 steps of at most pi^2 + 0.1 8^2 + 0.001 2^2, and of torque 2.
REFERENCE = (-3_255.0, -800.0)
EPISODES = 32  # per parent, for the volume
GENERATIONS = 120  # of the arm


@struct.logic_dataclass
class RandomSearch(evolution.NSGA2):
    """Candidates uniform within the bounds; survival selection as in NSGA-II."""

    def _offspring(self, winners: tf.Tensor, units: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Draws candidates, float32 [P, D]."""
        return self.first_population(winners[0], key)


def front_workflow(optimizer: type[evolution.NSGA2]) -> EvolutionWorkflow:
    """Returns the gin file's workflow with NSGA2 or RandomSearch."""
    own: Any = settings.assemble([GIN_FILE]).workflow
    search = own.optimizer
    return EvolutionWorkflow(
        own.env,
        own.agent,
        optimizer(pop_size=search.pop_size, bounds=search.bounds),
        objectives=own.objectives,
        episodes_per_member=own.episodes_per_member,
        compile="xla",
    )


def volume(workflow: EvolutionWorkflow, seed: int, env_steps: int) -> float:
    """Searches; returns the volume that the final parents dominate in new episodes."""
    state = workflow.setup(seed)
    while workflow.env_steps(state) < env_steps:
        state = workflow.advance(state, 50, env_steps).state
    search = state.opt_state.search
    parents = evolution.unravel(search.search.parents, search.params)
    key, rounds = seeding.key(1_000 + seed), EPISODES // workflow.episodes_per_member
    play = tf.function(workflow.play, jit_compile=True, autograph=False)
    fitness = [
        workflow.fitness(play(state.agent_state, parents, seeding.fold_in(key, i)))
        for i in range(rounds)
    ]
    dominated = evolution.hypervolume(tf.add_n(fitness) / rounds, REFERENCE)
    return float(dominated) / (REFERENCE[0] * REFERENCE[1])


def arm(joints: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Fitness float32 [P] and descriptors [P, 2] of an arm of length 1 with joints [P, J]."""
    angles = tf.cumsum(joints, axis=1)
    ends = tf.stack([tf.reduce_mean(f(angles), axis=1) for f in (tf.cos, tf.sin)], axis=1)
    return -tf.math.reduce_variance(joints, axis=1), ends


def filled(seed: int) -> float:
    """Returns the share of cells that MAP-Elites fills."""
    search = evolution.MAPElites(
        pop_size=256,
        grid=(20, 20),
        descriptor_bounds=((-0.7, 0.7), (-0.7, 0.7)),
        emitter=evolution.IsoLineEmitter(iso_std=0.05, line_std=0.2),
    )

    @tf.function(jit_compile=True, autograph=False)
    def generation(state: evolution.EvoState) -> evolution.EvoState:
        joints, state = search.ask(state)
        fitness, ends = arm(joints)
        return search.tell(state, fitness, descriptors=ends)

    state = search.init(tf.zeros([8]), seeding.key(seed))
    for _ in range(GENERATIONS):
        state = generation(state)
    return float(evolution.coverage(state.search.archive))


def summary(name: str, measured: Callable[[int], float], seeds: int) -> dict[str, Any]:
    """Measures over seeds; returns the content of a record."""
    values = []
    for seed in range(seeds):
        values.append(round(measured(seed), 4))
        print(f"{name}, seed {seed}: {values[-1]}", file=sys.stderr, flush=True)
    low, high = bootstrap_interval(values)
    return {"name": name, "mean": sum(values) / seeds, "low": low, "high": high, "by_seed": values}


def main(argv: Sequence[str] | None = None) -> None:
    """Measures all three searches."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--records", help="output file of the records")
    args = parser.parse_args(argv)
    summaries, env_steps = [], settings.assemble([GIN_FILE]).total_env_steps
    for optimizer in (evolution.NSGA2, RandomSearch):
        workflow = front_workflow(optimizer)
        name = f"hypervolume of {optimizer.__name__}"
        measured = functools.partial(volume, workflow, env_steps=env_steps)
        summaries.append(summary(name, measured, args.seeds))
    summaries.append(summary("coverage of MAPElites", filled, args.seeds))
    for line in summaries:
        measure.emit(benchmark="evolution_quality", **line)
    if args.records:
        pathlib.Path(args.records).write_text(json.dumps(summaries, indent=2) + "\n")


if __name__ == "__main__":
    main()
