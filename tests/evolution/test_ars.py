"""ARS beside its formulas in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution import references
from tests.evolution.problems import rosenbrock
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import ARS

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


@pytest.mark.parametrize("b", [None, 1, 3])
@pytest.mark.parametrize("scale", [True, False])
def test_three_generations_are_those_of_the_formulas(b, scale):
    alpha = 0.1 if scale else 1e-3
    optimizer = ARS(
        pop_size=8, num_elites=b, lr_schedule=alpha, noise_std_schedule=0.2, scale_by_std=scale
    )
    reference = references.ARS(MEAN, 8, b or 4, alpha, 0.2, scale)
    references.follows(optimizer, reference, rosenbrock, MEAN, {"mean": "mean"})


def test_equal_fitness_moves_nothing():
    optimizer = ARS(pop_size=4)
    state = optimizer.init(tf.constant(MEAN), seeding.key(0))
    for fitness in (7.0, -float("inf")):
        np.testing.assert_array_equal(optimizer.tell(state, tf.fill([4], fitness)).params, MEAN)


def test_a_lost_candidate_counts_as_the_worst():
    optimizer = ARS(pop_size=4)
    state = optimizer.init(tf.constant(MEAN), seeding.key(0))
    lost = optimizer.tell(state, tf.constant([1.0, 4.0, float("nan"), 3.0]))
    worst = optimizer.tell(state, tf.constant([1.0, 4.0, 1.0, 3.0]))
    np.testing.assert_array_equal(lost.params, worst.params)


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"pop_size": 5}, r"ARS.pop_size.*even.*Use 6\."),
        ({"pop_size": 6, "num_elites": 4}, r"ARS.num_elites.*at most 3.*got 4"),
        ({"pop_size": 6, "noise_std_schedule": -0.1}, "ARS.noise_std_schedule"),
        ({"pop_size": 6, "lr_schedule": -0.1}, "ARS.lr_schedule"),
    ],
)
def test_wrong_settings(settings, expected):
    with pytest.raises(UserError, match=expected):
        ARS(**settings)
