"""CMAES beside the tutorial's formulas in NumPy, and the package `cmaes`."""

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution import references
from tests.evolution.problems import evaluations_to, rosenbrock, sphere, told
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import CMAES

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("pop_size", [4, 7, 40])
def test_three_generations_are_those_of_the_formulas(pop_size, active):
    reference = references.CMA(MEAN, pop_size, 0.3, active)
    optimizer = CMAES(pop_size=pop_size, init_std=0.3, active=active)
    names = {"mean": "mean", "sigma": "sigma", "C": "C", "p_sigma": "p_s", "p_c": "p_c"}
    references.follows(optimizer, reference, rosenbrock, MEAN, names)


def test_the_path_of_the_covariance_waits_for_the_step_size():
    # The optimum is 100 standard deviations away: |p_sigma| is large, and h_sigma 0.
    mean = np.array([10.0, -10.0, 10.0], np.float32)
    reference = references.CMA(mean, 8, 0.1)
    names = {"mean": "mean", "sigma": "sigma", "C": "C", "p_c": "p_c"}
    references.follows(CMAES(pop_size=8), reference, sphere, mean, names, generations=6)
    assert reference.waited > 0


def test_three_generations_are_those_of_cmaes():
    # It takes h_sigma of a generation later, which makes no difference here.
    reference = references.Minimizer("CMA", MEAN, 8, 0.3)
    names = {
        "mean": lambda r: r.search.mean,
        "sigma": lambda r: r.search._sigma,
        "C": lambda r: r.search._C,
        "p_sigma": lambda r: r.search._p_sigma,
        "p_c": lambda r: r.search._pc,
    }
    references.follows(CMAES(pop_size=8, init_std=0.3), reference, rosenbrock, MEAN, names)


def test_roots_are_those_of_the_covariance():
    _, states = told(CMAES(pop_size=8), rosenbrock, MEAN, generations=10)
    search = states[-1].search
    np.testing.assert_array_equal(search.C, tf.transpose(search.C))
    np.testing.assert_allclose(search.root @ search.root, search.C, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(search.root @ search.inverse_root, np.eye(3), atol=1e-4)


def test_eigendecompositions_may_wait():
    _, states = told(CMAES(pop_size=8, eigen_interval=2), rosenbrock, MEAN, generations=4)
    roots = [state.search.root.numpy() for state in states]
    np.testing.assert_array_equal(roots[0], np.eye(3))
    np.testing.assert_array_equal(roots[1], roots[2])
    np.testing.assert_allclose(roots[3] @ roots[3], states[3].search.C, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pop_size", [8, 100])
def test_the_state_stays_finite_where_it_has_converged(pop_size):
    optimizer = CMAES(pop_size=pop_size)

    @tf.function(autograph=False)
    def search(state):
        def body(state):
            population, state = optimizer.ask(state)
            return (optimizer.tell(state, sphere(population)),)

        return tf.while_loop(lambda state: state.generation < 3_000, body, (state,))[0]

    # Away from 0, where float32 has no finer values.
    state = search(optimizer.init(tf.constant(MEAN), seeding.key(0)))
    for leaf in tf.nest.flatten(state.search):
        assert np.isfinite(leaf).all()
    assert np.abs(state.params).max() < 1e-3


def test_it_learns_the_shape_of_a_valley():
    ours = evaluations_to(CMAES(pop_size=10), rosenbrock, MEAN, -1e-6, seed=0)
    assert ours <= 2_500


def ellipsoid(x):
    """Minus a rotated ellipsoid of condition number 1e6."""
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    x = tf.cast(x, tf.float64) @ rotation
    return tf.cast(-tf.reduce_sum(tf.square(x) * [1.0, 1e2, 1e4, 1e6], axis=-1), tf.float32)


def test_float32_resolves_a_condition_number_of_a_million():
    # The package cmaes, in float64, takes 975 evaluations, median of 10 seeds.
    counts = [
        evaluations_to(CMAES(pop_size=10, init_std=0.5), ellipsoid, np.full(4, 2.0), -1e-4, seed)
        for seed in range(3)
    ]
    assert np.median(counts) <= 1_200


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"pop_size": 1}, "CMAES.pop_size"),
        ({"pop_size": 4, "init_std": -0.1}, "CMAES.init_std.*above 0"),
        ({"pop_size": 4, "eigen_interval": 0}, "CMAES.eigen_interval"),
    ],
)
def test_wrong_settings(settings, expected):
    with pytest.raises(UserError, match=expected):
        CMAES(**settings)
