"""Evaluations to a target, beside other implementations from the same start.

Those of CMA-ES, Sep-CMA-ES and xNES are the packages `cmaes` and `cma`, the others are written in
NumPy after the papers. Draws differ, so that medians over seeds are compared. Targets are such that
the luck of one run is small: where the noise keeps its size it bounds what can be reached, and
Rastrigin's hills ask for large populations. SepCMA of `cmaes` has a rate above 1 for populations
that are large for the parameters, so that its population is moderate here.
"""

import numpy as np
import pytest

from tests.evolution import references
from tests.evolution.problems import evaluations_to, rastrigin, rosenbrock, sphere
from tfrl import evolution

FUNCTIONS = {"sphere": sphere, "rosenbrock": rosenbrock, "rastrigin": rastrigin}


def _packaged(kind):
    return lambda mean, p, std, seed: references.Minimizer(kind, mean, p, std, seed)


# Each: ours of (population, standard deviation); theirs of (mean, population, standard deviation,
# seed); and by function: parameters, population, standard deviation, target.
SEARCHES = {
    "CMAES and cmaes": (
        lambda p, std: evolution.CMAES(pop_size=p, init_std=std),
        _packaged("CMA"),
        {
            "sphere": (8, 10, 0.5, -1e-6),
            "rosenbrock": (8, 20, 0.5, -1e-2),
            "rastrigin": (4, 200, 2.0, -1e-2),
        },
    ),
    "CMAES and cma": (
        lambda p, std: evolution.CMAES(pop_size=p, init_std=std),
        references.PyCMA,
        {
            "sphere": (8, 10, 0.5, -1e-6),
            "rosenbrock": (8, 20, 0.5, -1e-2),
            "rastrigin": (4, 200, 2.0, -1e-2),
        },
    ),
    "SepCMAES": (
        lambda p, std: evolution.SepCMAES(pop_size=p, init_std=std),
        _packaged("SepCMA"),
        {
            "sphere": (8, 10, 0.5, -1e-6),
            "rosenbrock": (8, 30, 0.5, -12.0),
            "rastrigin": (8, 60, 2.0, -25.0),
        },
    ),
    "XNES": (
        lambda p, std: evolution.XNES(pop_size=p, init_std=std),
        _packaged("XNES"),
        {
            "sphere": (8, 10, 0.5, -1e-3),
            "rosenbrock": (8, 20, 0.5, -8.0),
            "rastrigin": (4, 100, 2.0, -1.0),
        },
    ),
    "SNES": (
        lambda p, std: evolution.SNES(pop_size=p, init_std=std),
        lambda mean, p, std, seed: references.SNES(mean, p, std),
        {
            "sphere": (8, 10, 0.5, -1e-6),
            "rosenbrock": (8, 20, 0.5, -8.0),
            "rastrigin": (4, 200, 2.0, -1e-2),
        },
    ),
    "OpenES": (
        lambda p, std: evolution.OpenES(pop_size=p, noise_std_schedule=std),
        lambda mean, p, std, seed: references.OpenES(mean, p, 0.05, std),
        {
            "sphere": (8, 16, 0.1, -0.1),
            "rosenbrock": (8, 32, 0.1, -100.0),
            "rastrigin": (8, 128, 1.0, -40.0),
        },
    ),
    "VanillaES": (
        lambda p, std: evolution.VanillaES(pop_size=p, num_elites=p // 4, noise_std_schedule=std),
        lambda mean, p, std, seed: references.VanillaES(mean, p, p // 4, std),
        {
            "sphere": (8, 16, 0.1, -0.1),
            "rosenbrock": (8, 32, 0.1, -20.0),
            "rastrigin": (4, 128, 0.5, -10.0),
        },
    ),
    "ARS": (
        lambda p, std: evolution.ARS(
            pop_size=p, num_elites=p // 4, lr_schedule=0.05, noise_std_schedule=std
        ),
        lambda mean, p, std, seed: references.ARS(mean, p, p // 4, 0.05, std),
        {
            "sphere": (8, 16, 0.1, -0.1),
            "rosenbrock": (8, 32, 0.1, -20.0),
            "rastrigin": (4, 128, 0.5, -10.0),
        },
    ),
    "PGPE": (
        lambda p, std: evolution.PGPE(
            pop_size=p, init_std=std, lr_schedule=1.0, std_lr_schedule=0.5
        ),
        lambda mean, p, std, seed: references.PGPE(mean, p, std, 1.0, 0.5),
        {
            "sphere": (8, 20, 0.5, -1e-2),
            "rosenbrock": (8, 40, 0.5, -20.0),
            "rastrigin": (4, 100, 2.0, -1.0),
        },
    ),
    "CEM": (
        lambda p, std: evolution.CEM(pop_size=p, init_std=std),
        lambda mean, p, std, seed: references.CEM(mean, p, p // 2, std),
        {
            "sphere": (4, 100, 0.5, -1e-3),
            "rosenbrock": (8, 40, 0.5, -20.0),
            "rastrigin": (4, 400, 2.0, -1.0),
        },
    ),
    "DiagonalCEM": (
        lambda p, std: evolution.DiagonalCEM(pop_size=p, init_std=std),
        lambda mean, p, std, seed: references.CEM(mean, p, p // 2, std, diagonal=True),
        {
            "sphere": (8, 40, 0.5, -1e-3),
            "rosenbrock": (8, 80, 0.5, -8.0),
            "rastrigin": (4, 200, 2.0, -1.0),
        },
    ),
}


def _medians(name, function, seeds):
    """Median evaluations to the target, ours and theirs; infinite where most do not reach it."""
    ours, theirs, settings = SEARCHES[name]
    d, p, std, target = settings[function]
    mean, f = np.full(d, 2.0), FUNCTIONS[function]
    most = 30_000 // p  # where it is stuck on another hill
    a = [evaluations_to(ours(p, std), f, mean, target, s, most) for s in range(seeds)]
    b = [
        references.evaluations_to(theirs(mean, p, std, s), f, target, s, most) for s in range(seeds)
    ]
    return [float(np.median([np.inf if n is None else n for n in runs])) for runs in (a, b)]


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", SEARCHES)
def test_evaluations_to_the_target(name, function):
    ours, theirs = _medians(name, function, seeds=20)
    print(f"{name} on {function}: {ours:.0f} evaluations, theirs {theirs:.0f}")
    assert np.isfinite(ours) and np.isfinite(theirs)
    assert 0.9 * theirs <= ours <= 1.1 * theirs


@pytest.mark.parametrize("name", SEARCHES)
def test_evaluations_to_the_target_of_five_seeds(name):
    # Runs on the sphere spread by 10%, those of CEM by 20%: medians of 5 differ by up to a quarter.
    ours, theirs = _medians(name, "sphere", seeds=5)
    assert 0.75 * theirs <= ours <= 1.33 * theirs
