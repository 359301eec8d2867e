"""Other implementations of searches over populations: pymoo's, and plain NumPy where it has none.

Each minimises, begins uniformly in [-5, 5], and returns the evaluations to a target or None.
"""

import types

import numpy as np

BOUND = 5.0


def first(pop_size, size, seed):
    """The generator of a seed, and a first population [P, D]."""
    rng = np.random.default_rng(seed)
    return rng, rng.uniform(-BOUND, BOUND, (pop_size, size))


def pymoo_evaluations(algorithm, function, size, target, seed, most):
    """Runs an algorithm of pymoo; its bounds are so far that none is met."""
    from pymoo.core.problem import Problem
    from pymoo.optimize import minimize

    class Given(Problem):
        def __init__(self):
            super().__init__(n_var=size, n_obj=1, xl=-1000.0, xu=1000.0)

        def _evaluate(self, x, out, *args, **kwargs):
            out["F"] = -function(x)

    class Reached(Exception):
        pass

    evaluations = None

    def look(algorithm):
        nonlocal evaluations
        if algorithm.opt[0].F[0] <= -target:
            evaluations = algorithm.evaluator.n_eval
            raise Reached

    try:
        minimize(Given(), algorithm, ("n_gen", most), seed=seed, callback=look)
    except Reached:
        pass
    return evaluations


def pymoo_de(variant, f, cr, pop_size, size, seed):
    """pymoo's DE without the mutation that it adds."""
    from pymoo.algorithms.soo.nonconvex.de import DE, Variant
    from pymoo.operators.control import NoParameterControl

    _, population = first(pop_size, size, seed)
    own = Variant(variant.split("/")[0], F=f, CR=cr, control=NoParameterControl)
    own.mutation = lambda problem, population, **settings: population
    algorithm = DE(pop_size=pop_size, sampling=population)
    algorithm.mating = own
    return algorithm


def pymoo_pso(inertia, cognitive, social, max_velocity, pop_size, size, seed):
    """pymoo's PSO without what it adapts and adds."""
    from pymoo.algorithms.soo.nonconvex.pso import PSO

    _, population = first(pop_size, size, seed)
    return PSO(
        pop_size=pop_size,
        sampling=population,
        w=inertia,
        c1=cognitive,
        c2=social,
        adaptive=False,
        initial_velocity="zero",
        max_velocity_rate=max_velocity / 2000.0,
        pertube_best=False,
    )


def cso(function, pop_size, size, phi, target, seed, most):
    """Cheng & Jin's algorithm, particle by particle."""
    rng, x = first(pop_size, size, seed)
    v = np.zeros_like(x)
    for generation in range(1, most + 1):
        fitness = function(x)
        if fitness.max() >= target:
            return generation * pop_size
        mean, places = x.mean(0), rng.permutation(pop_size)
        for i, j in zip(places[::2], places[1::2], strict=True):
            winner, loser = (i, j) if fitness[i] > fitness[j] else (j, i)
            r = rng.random((3, size))
            v[loser] = (
                r[0] * v[loser] + r[1] * (x[winner] - x[loser]) + phi * r[2] * (mean - x[loser])
            )
            x[loser] = x[loser] + v[loser]
    return None


def ga(function, pop_size, size, elites, entrants, crossed, std, rate, target, seed, most):
    """A genetic algorithm of tournaments, uniform crossover and Gaussian mutation, child by child.

    crossed and rate are the probabilities that a pair is crossed, and that a child is mutated.
    """
    rng, x = first(pop_size, size, seed)
    for generation in range(1, most + 1):
        fitness = function(x)
        if fitness.max() >= target:
            return generation * pop_size
        children = list(x[np.argsort(-fitness)[:elites]])
        while len(children) < pop_size:
            drawn = rng.integers(pop_size, size=(2, entrants))
            a, b = (x[places[np.argmax(fitness[places])]].copy() for places in drawn)
            if rng.random() < crossed:
                swap = rng.random(size) < 0.5
                a[swap], b[swap] = b[swap], a[swap]
            for child in (a, b):
                if rng.random() < rate:
                    child = child + std * rng.normal(size=size)
                children.append(child)
        x = np.array(children[:pop_size])
    return None


def pymoo_volumes(algorithm, problem, generations, seed):
    """Minimises a problem of two objectives; hypervolumes below (1.1, 1.1) by generation, [G]."""
    from pymoo.indicators.hv import HV
    from pymoo.optimize import minimize
    from pymoo.problems import get_problem

    volume, volumes = HV(ref_point=np.array([1.1, 1.1])), []
    note = lambda algorithm: volumes.append(volume(algorithm.pop.get("F")))  # noqa: E731
    minimize(get_problem(problem), algorithm, ("n_gen", generations), seed=seed, callback=note)
    return volumes


def pymoo_nsga2(pop_size):
    """pymoo's NSGA2 with tournaments by rank, and mutation of every offspring, as in the paper."""
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM

    algorithm = NSGA2(
        pop_size=pop_size,
        crossover=SBX(eta=15, prob=0.9),
        mutation=PM(eta=20, prob=1.0),
        eliminate_duplicates=False,
    )
    algorithm.tournament_type = "comp_by_rank_and_crowding"
    return algorithm


def pymoo_rvea(pop_size):
    """pymoo's RVEA; its penalty is made that of the paper, which has a factor M for M = 2 too."""
    from pymoo.algorithms.moo.rvea import RVEA, APDSurvival
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.util.ref_dirs import get_reference_directions

    class Survival(APDSurvival):
        def _do(self, problem, pop, *args, **kwargs):
            just_above_two = types.SimpleNamespace(n_obj=2.0 + 1e-9)
            return super()._do(just_above_two, pop, *args, **kwargs)

    vectors = get_reference_directions("das-dennis", 2, n_partitions=pop_size - 1)
    return RVEA(
        vectors,
        pop_size=pop_size,
        crossover=SBX(eta=30, prob=1.0),
        mutation=PM(eta=20, prob=1.0),
        eliminate_duplicates=False,
        survival=Survival(vectors, alpha=2.0),
    )
