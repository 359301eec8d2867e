"""SepCMAES beside the package `cmaes`, and its formulas in NumPy."""

import numpy as np
import pytest

from tests.evolution import references
from tests.evolution.problems import rosenbrock, told
from tfrl.errors import UserError
from tfrl.evolution import SepCMAES

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


@pytest.mark.parametrize("pop_size", [2, 7, 100])
def test_three_generations_are_those_of_the_formulas(pop_size):
    reference = references.SepCMA(MEAN, pop_size, 0.3)
    optimizer = SepCMAES(pop_size=pop_size, init_std=0.3)
    names = {"mean": "mean", "sigma": "sigma", "C": "C", "p_sigma": "p_s", "p_c": "p_c"}
    references.follows(optimizer, reference, rosenbrock, MEAN, names)


def test_three_generations_are_those_of_cmaes():
    reference = references.Minimizer("SepCMA", MEAN, 8, 0.3)
    names = {
        "mean": lambda r: r.search.mean,
        "sigma": lambda r: r.search._sigma,
        "C": lambda r: r.search._C,
        "p_sigma": lambda r: r.search._p_sigma,
        "p_c": lambda r: r.search._pc,
    }
    references.follows(SepCMAES(pop_size=8, init_std=0.3), reference, rosenbrock, MEAN, names)


def test_variances_stay_positive_in_a_large_population():
    _, states = told(SepCMAES(pop_size=400, init_std=2.0), rosenbrock, MEAN, generations=20)
    assert all((state.search.C > 0).numpy().all() for state in states)


def test_wrong_settings():
    with pytest.raises(UserError, match="SepCMAES.init_std.*above 0"):
        SepCMAES(pop_size=4, init_std=0.0)
