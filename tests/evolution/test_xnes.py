"""XNES beside the package `cmaes`, and its formulas in NumPy."""

import functools

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


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    "problem", [lambda x: -tf.reduce_sum((x - 3.0) ** 2, 1), lambda x: x[:, 0] * 0]
)
def test_it_stays_at_an_optimum_and_on_a_plain(problem, jit_compile):
    optimizer = XNES(pop_size=10, init_std=0.5)

    @functools.partial(tf.function, autograph=False, jit_compile=jit_compile)
    def generations(state):
        def body(i, state):
            population, state = optimizer.ask(state)
            return i + 1, optimizer.tell(state, problem(population))

        return tf.while_loop(lambda i, _: i < 1000, body, (0, state))[1]

    state = generations(optimizer.init(tf.fill([4], 2.0), seeding.key(1)))
    B = np.asarray(state.search.B, np.float64)
    np.testing.assert_allclose(np.linalg.det(B), 1.0, atol=0.1)
    assert np.linalg.cond(B) < 1e5
    if float(problem(tf.fill([1, 4], 2.0))[0]) < 0.0:
        np.testing.assert_allclose(state.params, np.full(4, 3.0), rtol=1e-6)


@pytest.mark.parametrize("name, value", [("init_std", 0.0), ("lr_schedule", -1.0)])
def test_wrong_settings(name, value):
    with pytest.raises(UserError, match=f"XNES.{name}"):
        XNES(pop_size=4, **{name: value})
