"""SNES beside its formulas in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution import references
from tests.evolution.problems import rosenbrock
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import SNES, default_pop_size

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


def test_three_generations_are_those_of_the_formulas():
    reference = references.SNES(MEAN, 7, 0.3)
    names = {"mean": "mean", "sigma": "sigma"}
    references.follows(SNES(pop_size=7, init_std=0.3), reference, rosenbrock, MEAN, names)


def test_a_far_candidate_from_outside_leaves_it_finite():
    optimizer = SNES(pop_size=4)
    state = optimizer.init(tf.constant(MEAN), seeding.key(0))
    population, _ = optimizer.ask(state)
    population = tf.tensor_scatter_nd_update(population, [[3]], [tf.fill([3], 1e6)])
    sigma = optimizer.tell(state, tf.range(4.0), population).search.sigma
    np.testing.assert_allclose(sigma, 0.1 * np.exp(3.0), rtol=1e-5)


def test_default_pop_size():
    # 4 + 3 log D, rounded down: log 3 = 1.10, log 100 = 4.61.
    assert [default_pop_size(d) for d in (1, 3, 100)] == [4, 7, 17]
    with pytest.raises(UserError, match="num_params"):
        default_pop_size(0)


@pytest.mark.parametrize("name, value", [("init_std", -1.0), ("std_lr_schedule", -1.0)])
def test_wrong_settings(name, value):
    with pytest.raises(UserError, match=f"SNES.{name}"):
        SNES(pop_size=4, **{name: value})
