"""DiagonalCEM beside its formulas in NumPy."""

import numpy as np
import pytest

from tests.evolution import references
from tests.evolution.problems import rosenbrock
from tfrl.errors import UserError
from tfrl.evolution import DiagonalCEM
from tfrl.ops.schedules import ExponentialSchedule

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


@pytest.mark.parametrize("weights", ["log", "uniform"])
@pytest.mark.parametrize("k", [None, 1, 7])
def test_three_generations_are_those_of_the_formulas(weights, k):
    optimizer = DiagonalCEM(pop_size=8, num_elites=k, elite_weights=weights, init_std=0.3)
    reference = references.CEM(MEAN, 8, k or 4, 0.3, diagonal=True, uniform=weights == "uniform")
    names = {"mean": "mean", "variance": lambda r: np.diag(r.C)}
    references.follows(optimizer, reference, rosenbrock, MEAN, names)


def test_noise_decays_to_its_end():
    noise = ExponentialSchedule(0.5, 0.1, 1, end=0.02)
    optimizer = DiagonalCEM(pop_size=8, noise_schedule=noise)
    reference = references.CEM(MEAN, 8, 4, 1e-3**0.5, noise=0.5, decay=0.1, end=0.02, diagonal=True)
    names = {"variance": lambda r: np.diag(r.C)}
    references.follows(optimizer, reference, rosenbrock, MEAN, names)


def test_more_elites_than_candidates():
    with pytest.raises(UserError, match=r"DiagonalCEM.num_elites.*at most 8.*got 9"):
        DiagonalCEM(pop_size=8, num_elites=9)
