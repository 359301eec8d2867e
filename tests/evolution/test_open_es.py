"""OpenES beside its formulas in NumPy."""

import numpy as np
import pytest

from tests.evolution.problems import evaluations_to, rosenbrock, sphere, told
from tfrl.errors import UserError
from tfrl.evolution import OpenES
from tfrl.ops.schedules import ExponentialSchedule

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


@pytest.mark.parametrize("mirrored", [True, False])
def test_three_generations_are_those_of_the_formulas(mirrored):
    sigma = ExponentialSchedule(0.2, 0.5, 1)
    optimizer = OpenES(
        pop_size=8,
        lr_schedule=0.1,
        noise_std_schedule=sigma,
        mirror_sampling=mirrored,
        weight_decay=0.01,
    )
    populations, states = told(optimizer, rosenbrock, MEAN)
    mean, m, v = MEAN.astype(np.float64), np.zeros(3), np.zeros(3)
    for t, (x, state) in enumerate(zip(populations, states, strict=True), 1):
        std = 0.2 * 0.5 ** (t - 1)
        if mirrored:
            np.testing.assert_allclose(x[:4] - mean, mean - x[4:], atol=1e-6)
        weights = np.argsort(np.argsort(rosenbrock(x).numpy())) / 7 - 0.5
        gradient = weights @ (x - mean) / (8 * std**2) - 0.01 * mean
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        step = m / (np.sqrt(v) + 1e-5) * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        mean = mean + 0.1 * step
        np.testing.assert_allclose(state.params, mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(state.search.mean, state.params)


def test_it_climbs():
    for seed in range(3):
        optimizer = OpenES(pop_size=32, lr_schedule=0.1)
        assert evaluations_to(optimizer, sphere, MEAN, -1e-2, seed) <= 5_000


def test_mirrored_pairs_need_an_even_population():
    with pytest.raises(UserError, match=r"OpenES.pop_size.*even"):
        OpenES(pop_size=5)
    assert OpenES(pop_size=5, mirror_sampling=False).pop_size == 5


def test_unknown_optimizer():
    with pytest.raises(UserError, match=r"OpenES.optimizer.*adam"):
        OpenES(pop_size=4, optimizer="adamm")
