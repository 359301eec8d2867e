"""XNES beside the package `cmaes`, and its formulas in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution import references
from tests.evolution.problems import rosenbrock
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import XNES

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


def test_three_generations_are_those_of_the_formulas():
    reference = references.XNES(MEAN, 9, 0.3)
    names = {"mean": "mean", "sigma": "sigma", "B": "B"}
    references.follows(XNES(pop_size=9, init_std=0.3), reference, rosenbrock, MEAN, names)


def test_three_generations_are_those_of_cmaes():
    reference = references.Minimizer("XNES", MEAN, 9, 0.3)
    names = {
        "mean": lambda r: r.search._mean,
        "sigma": lambda r: r.search._sigma,
        "B": lambda r: r.search._B,
    }
    references.follows(XNES(pop_size=9, init_std=0.3), reference, rosenbrock, MEAN, names)


def test_a_far_candidate_from_outside_leaves_it_finite():
    optimizer = XNES(pop_size=4)
    state = optimizer.init(tf.constant(MEAN), seeding.key(0))
    population, _ = optimizer.ask(state)
    population = tf.tensor_scatter_nd_update(population, [[3]], [[1e6, -1e6, 1e6]])
    state = optimizer.tell(state, tf.range(4.0), population)
    for leaf in tf.nest.flatten(state.search):
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize("name, value", [("init_std", 0.0), ("lr_schedule", -1.0)])
def test_wrong_settings(name, value):
    with pytest.raises(UserError, match=f"XNES.{name}"):
        XNES(pop_size=4, **{name: value})
