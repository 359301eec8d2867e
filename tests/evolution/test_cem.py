"""CEM beside its formulas in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution import references
from tests.evolution.problems import rosenbrock
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import CEM

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


def covariance(search):
    """The covariance that candidates are drawn from, [D, D]."""
    factors = search.factors.numpy()
    return factors.T @ factors + search.noise.numpy() * np.eye(factors.shape[1])


@pytest.mark.parametrize("weights", ["log", "uniform"])
@pytest.mark.parametrize("k", [None, 1, 7])
def test_three_generations_are_those_of_the_formulas(weights, k):
    optimizer = CEM(pop_size=8, num_elites=k, elite_weights=weights, init_std=0.3)
    reference = references.CEM(MEAN, 8, k or 4, 0.3, uniform=weights == "uniform")
    names = {"mean": "mean", covariance: "C"}
    references.follows(optimizer, reference, rosenbrock, MEAN, names)


def test_candidates_have_the_covariance_of_the_elites():
    optimizer = CEM(pop_size=20_000, num_elites=2, init_std=0.3)
    state = optimizer.init(tf.constant(MEAN), seeding.key(0))
    np.testing.assert_allclose(
        np.cov(optimizer.ask(state)[0].numpy().T), 0.09 * np.eye(3), atol=4e-3
    )
    state = optimizer.tell(state, tf.random.stateless_normal([20_000], [1, 2]))
    found = np.cov(optimizer.ask(state)[0].numpy().T)
    np.testing.assert_allclose(found, covariance(state.search), atol=0.05 * np.trace(found))


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"num_elites": 9}, r"CEM.num_elites.*at most 8.*got 9"),
        ({"elite_weights": "logs"}, "CEM.elite_weights.*log, uniform"),
        ({"init_std": 0.0}, "CEM.init_std.*above 0"),
        ({"noise_schedule": -1e-3}, "CEM.noise_schedule"),
    ],
)
def test_wrong_settings(settings, expected):
    with pytest.raises(UserError, match=expected):
        CEM(pop_size=8, **settings)
