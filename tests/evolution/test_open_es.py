"""OpenES beside its formulas in NumPy."""

import numpy as np
import pytest

from tests.evolution import references
from tests.evolution.problems import evaluations_to, rosenbrock, sphere, told
from tfrl.errors import UserError
from tfrl.evolution import OpenES
from tfrl.ops.schedules import ExponentialSchedule, LinearSchedule

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


@pytest.mark.parametrize("mirrored", [True, False])
def test_three_generations_are_those_of_the_formulas(mirrored):
    optimizer = OpenES(
        pop_size=8,
        lr_schedule=0.1,
        noise_std_schedule=ExponentialSchedule(0.2, 0.5, 1),
        mirror_sampling=mirrored,
        weight_decay=0.01,
    )
    reference = references.OpenES(MEAN, 8, 0.1, 0.2, decay=0.5, weight_decay=0.01)
    references.follows(optimizer, reference, rosenbrock, MEAN, {"mean": "mean"})


def test_candidates_are_pairs_around_the_mean():
    populations, states = told(OpenES(pop_size=8), rosenbrock, MEAN)
    for mean, x in zip([MEAN, states[0].params], populations, strict=False):
        np.testing.assert_allclose(x[:4] - mean, mean - x[4:], atol=1e-6)
        assert len(np.unique(x[:, 0])) == 8


def test_it_climbs():
    for seed in range(3):
        optimizer = OpenES(pop_size=32, lr_schedule=0.1)
        assert evaluations_to(optimizer, sphere, MEAN, -1e-2, seed) <= 5_000


def test_mirrored_pairs_need_an_even_population():
    with pytest.raises(UserError, match=r"OpenES.pop_size.*even.*mirror_sampling=False"):
        OpenES(pop_size=5)
    assert OpenES(pop_size=5, mirror_sampling=False).pop_size == 5


def test_unknown_optimizer():
    with pytest.raises(UserError, match=r"OpenES.optimizer.*adam"):
        OpenES(pop_size=4, optimizer="adamm")


@pytest.mark.parametrize("noise", [0.0, -1.0, LinearSchedule(0.1, 0.0, 10), "0.1"])
def test_noise_that_is_not_above_0(noise):
    with pytest.raises(UserError, match="OpenES.noise_std_schedule"):
        OpenES(pop_size=4, noise_std_schedule=noise)


def test_noise_that_decays_without_end():
    optimizer = OpenES(pop_size=4, noise_std_schedule=ExponentialSchedule(0.1, 0.99, 1))
    assert 0 < optimizer.noise_std_schedule(5_000) < 1e-20
