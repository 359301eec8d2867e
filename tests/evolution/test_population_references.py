"""Evaluations to targets, and hypervolumes, beside other implementations of the same settings."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution import population_references as references
from tests.evolution import problems
from tfrl import evolution, seeding

# Function, dimensions, target, and how many seeds make a median of two digits.
EASY = {
    "sphere": (problems.sphere, 10, -1e-2, 20),
    "rosenbrock": (problems.rosenbrock, 10, -12.0, 20),
    "rastrigin": (problems.rastrigin, 3, -0.1, 20),
}
CASES = {
    "DE/rand/1/bin": EASY,
    "DE/best/1/bin": EASY | {"rastrigin": (problems.rastrigin, 4, -2.0, 40)},
    "PSO": EASY
    | {
        "rosenbrock": (problems.rosenbrock, 10, -12.0, 40),
        "rastrigin": (problems.rastrigin, 3, -0.1, 60),
    },
    "CSO": EASY,
    "GA": {
        "sphere": (problems.sphere, 10, -0.5, 20),
        "rosenbrock": (problems.rosenbrock, 3, -1.0, 60),
        "rastrigin": (problems.rastrigin, 3, -3.0, 60),
    },
}
MOST = 1_000  # generations


def searches(name, pop_size):
    """Our search, and the reference as (function, size, target, seed) -> evaluations or None."""
    if name.startswith("DE/"):
        variant, weight = name[3:], 0.6 if "rand" in name else 0.8
        make = functools.partial(references.pymoo_de, variant, weight, 0.9, pop_size)
        ours = evolution.DE(pop_size=pop_size, variant=variant, differential_weight=weight)
        return ours, pymoo_search(make)
    if name == "PSO":
        make = functools.partial(references.pymoo_pso, 0.7298, 1.49618, 1.49618, 2.0, pop_size)
        return evolution.PSO(pop_size=pop_size, max_velocity=2.0), pymoo_search(make)
    if name == "CSO":
        return evolution.CSO(pop_size=pop_size), lambda f, size, target, seed: references.cso(
            f, pop_size, size, 0.0, target, seed, MOST
        )
    mutation = evolution.GaussianMutation(std=0.15)
    ours = evolution.GA(pop_size=pop_size, elites=2, mutation=mutation)
    return ours, lambda f, size, target, seed: references.ga(
        f, pop_size, size, 2, 3, 0.9, 0.15, 0.9, target, seed, MOST
    )


def pymoo_search(make):
    pytest.importorskip("pymoo")
    return lambda f, size, target, seed: references.pymoo_evaluations(
        make(size, seed), f, size, target, seed, MOST
    )


def medians(name, function, size, target, seeds, pop_size):
    """The median evaluations, ours and the reference's; a target not reached is infinite."""
    ours, reference = searches(name, pop_size)
    firsts = [references.first(pop_size, size, seed)[1] for seed in range(seeds)]
    found = problems.evaluations_over(ours, function, firsts, target, MOST)
    in_numpy = lambda x: function(tf.constant(x)).numpy()  # noqa: E731
    wanted = [reference(in_numpy, size, target, seed) for seed in range(seeds)]
    return [np.median([np.inf if x is None else x for x in both]) for both in (found, wanted)]


@pytest.mark.slow
@pytest.mark.parametrize("name, function", [(n, f) for n in CASES for f in CASES[n]])
def test_evaluations_to_the_target(name, function):
    ours, theirs = medians(name, *CASES[name][function], pop_size=100)
    print(f"{name} {function}: {ours:.0f} evaluations, reference {theirs:.0f}", flush=True)
    assert ours == pytest.approx(theirs, rel=0.1)


@pytest.mark.parametrize("name", CASES)
def test_evaluations_to_an_easy_target(name):
    ours, theirs = medians(name, problems.sphere, 5, -0.5, 8, pop_size=30)
    assert ours == pytest.approx(theirs, rel=0.25)


def zdt(number):
    """ZDT1 to 3, to be maximised. Source: Zitzler et al. 2000, doi 10.1162/106365600568202."""

    def fitness(x):
        f1 = x[:, 0]
        g = 1.0 + 9.0 * tf.reduce_mean(x[:, 1:], axis=1)
        share = f1 / g
        h = {
            1: 1.0 - tf.sqrt(share),
            2: 1.0 - tf.square(share),
            3: 1.0 - tf.sqrt(share) - share * tf.sin(10.0 * np.pi * f1),
        }[number]
        return -tf.stack([f1, g * h], axis=1)

    return fitness


def volumes(name, number, pop_size, generations, seeds):
    """Hypervolumes of the parents after each generation, [seeds, G], ours and pymoo's."""
    pytest.importorskip("pymoo")
    bounds = dict(pop_size=pop_size, bounds=(0.0, 1.0))
    optimizer, make = {
        "NSGA2": (evolution.NSGA2(**bounds), references.pymoo_nsga2),
        "RVEA": (evolution.RVEA(num_generations=generations, **bounds), references.pymoo_rvea),
    }[name]
    fitness = zdt(number)

    @tf.function(autograph=False)
    def search(state):
        def body(state, volumes):
            population, after = optimizer.ask(state)
            after = optimizer.tell(after, fitness(population))
            volume = evolution.hypervolume(after.search.parent_fitness, [-1.1, -1.1])
            return after, volumes.write(tf.cast(state.generation, tf.int32), volume)

        row = tf.TensorArray(tf.float64, generations)
        _, row = tf.while_loop(lambda s, _: s.generation < generations, body, (state, row))
        return row.stack()

    firsts = [optimizer.init(tf.zeros([30]), seeding.key(seed)) for seed in range(seeds)]
    ours = [search(state).numpy() for state in firsts]
    theirs = [
        references.pymoo_volumes(make(pop_size), f"zdt{number}", generations, seed)
        for seed in range(seeds)
    ]
    return np.array(ours), np.array(theirs)


def first_generations(volumes, target):
    """The median number of generations until a hypervolume of `target`."""
    reached = volumes >= target
    return np.median(np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, np.inf))


# Hypervolumes of the fronts below (1.1, 1.1) are 0.877, 0.543 and 1.331.
VOLUMES = {1: 0.8, 2: 0.45, 3: 1.2}


@pytest.mark.slow
@pytest.mark.parametrize("number", VOLUMES)
@pytest.mark.parametrize("name", ["NSGA2", "RVEA"])
def test_evaluations_to_a_hypervolume(name, number):
    both = volumes(name, number, pop_size=100, generations=250, seeds=20)
    ours, theirs = (100 * first_generations(x, VOLUMES[number]) for x in both)
    ends = [np.median(x[:, -1]) for x in both]
    print(f"{name} ZDT{number}: {ours:.0f} evaluations, reference {theirs:.0f}; {ends}", flush=True)
    assert np.isfinite(theirs)
    assert ours == pytest.approx(theirs, rel=0.1)
    assert ends[0] == pytest.approx(ends[1], rel=0.02)


def test_hypervolume_of_a_short_search():
    ours, theirs = volumes("NSGA2", 1, pop_size=40, generations=120, seeds=3)
    assert np.median(ours[:, -1]) == pytest.approx(np.median(theirs[:, -1]), rel=0.1)
