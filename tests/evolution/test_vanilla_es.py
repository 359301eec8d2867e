"""VanillaES beside its formulas in NumPy."""

import numpy as np
import pytest

from tests.evolution import references
from tests.evolution.problems import rosenbrock
from tfrl.errors import UserError
from tfrl.evolution import VanillaES
from tfrl.ops.schedules import ExponentialSchedule

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


@pytest.mark.parametrize("mu", [1, 3, 9])
def test_three_generations_are_those_of_the_formulas(mu):
    optimizer = VanillaES(
        pop_size=9, num_elites=mu, noise_std_schedule=ExponentialSchedule(0.2, 0.5, 1)
    )
    reference = references.VanillaES(MEAN, 9, mu, 0.2, decay=0.5)
    references.follows(optimizer, reference, rosenbrock, MEAN, {"mean": "mean"})


def test_a_sixteenth_are_elites():
    reference = references.VanillaES(MEAN, 48, 3, 0.05)
    references.follows(VanillaES(pop_size=48), reference, rosenbrock, MEAN, {"mean": "mean"})
    reference = references.VanillaES(MEAN, 5, 1, 0.05)
    references.follows(VanillaES(pop_size=5), reference, rosenbrock, MEAN, {"mean": "mean"})


def test_more_elites_than_candidates():
    with pytest.raises(UserError, match=r"VanillaES.num_elites.*at most 4.*got 5"):
        VanillaES(pop_size=4, num_elites=5)


def test_noise_that_is_not_above_0():
    with pytest.raises(UserError, match="VanillaES.noise_std_schedule"):
        VanillaES(pop_size=4, noise_std_schedule=0.0)
