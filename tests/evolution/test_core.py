"""What all searches share: parameters as vectors, wrong fitness, candidates from outside."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution.problems import sphere
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import (
    CEM,
    CMAES,
    DE,
    GA,
    PGPE,
    PSO,
    SNES,
    XNES,
    DiagonalCEM,
    NPointCrossover,
    OpenES,
    SepCMAES,
    TruncationSelection,
    log_utilities,
    ravel,
    standardized,
    unravel,
)

KEY = seeding.key(0)


def test_nests_are_vectors_and_back():
    nest = {"b": tf.range(6.0), "a": (tf.fill([2, 3], 7.0), tf.constant(8.0))}
    vector = ravel(nest)
    np.testing.assert_array_equal(vector, [7.0] * 6 + [8.0] + list(range(6)))
    tf.nest.map_structure(np.testing.assert_array_equal, unravel(vector, nest), nest)
    population = unravel(tf.stack([vector, 2 * vector]), nest)
    assert population["a"][0].shape == [2, 2, 3]
    np.testing.assert_array_equal(ravel(population, batch_dims=1)[1], 2 * vector)


def test_parameters_keep_their_form():
    params = {"w": tf.zeros([2, 3]), "b": tf.zeros([])}
    optimizer = OpenES(pop_size=4)
    state = optimizer.init(params, KEY)
    population, state = optimizer.ask(state)
    assert population["w"].shape == [4, 2, 3] and population["b"].shape == [4]
    again, _ = optimizer.ask(state)
    tf.nest.map_structure(np.testing.assert_array_equal, population, again)
    after = optimizer.tell(state, sphere(ravel(population, batch_dims=1)))
    assert int(after.generation) == 1
    tf.nest.assert_same_structure(after, state)
    assert after.params["w"].shape == [2, 3]
    assert np.any(optimizer.ask(after)[0]["w"] != population["w"])


@pytest.mark.parametrize(
    "fitness, expected",
    [(tf.zeros([5]), r"\[4\]"), (tf.zeros([4, 2]), "NSGA2"), (tf.zeros([]), r"\[4\]")],
)
def test_fitness_of_the_wrong_shape(fitness, expected):
    optimizer = OpenES(pop_size=4)
    state = optimizer.init(tf.zeros([2]), KEY)
    with pytest.raises(UserError, match=expected):
        optimizer.tell(state, fitness)


@pytest.mark.parametrize("wrong", [float("nan"), float("-inf"), float("inf")])
def test_a_fitness_that_is_not_finite_is_the_last(wrong):
    optimizer = OpenES(pop_size=4)
    state = optimizer.init(tf.zeros([2]), KEY)
    found = optimizer.tell(state, tf.constant([1.0, wrong, 3.0, 2.0]))
    last = optimizer.tell(state, tf.constant([1.0, 0.0, 3.0, 2.0]))
    np.testing.assert_array_equal(found.params, last.params)


def test_what_was_evaluated_may_come_from_outside():
    optimizer = OpenES(pop_size=4, optimizer="sgd", lr_schedule=1.0)
    state = optimizer.init(tf.zeros([2]), KEY)
    population, _ = optimizer.ask(state)
    same = optimizer.tell(state, tf.constant([0.0, 1, 2, 3]), population)
    np.testing.assert_array_equal(
        same.params, optimizer.tell(state, tf.constant([0.0, 1, 2, 3])).params
    )
    in_numpy = optimizer.tell(state, np.arange(4.0), population.numpy())
    np.testing.assert_array_equal(same.params, in_numpy.params)
    best = tf.constant([10.0, -10.0])
    injected = tf.tensor_scatter_nd_update(population, [[3]], [best])
    moved = optimizer.tell(state, tf.constant([0.0, 1, 2, 3]), injected).params
    assert float(tf.reduce_sum((moved - same.params) * best)) > 0


@pytest.mark.parametrize("optimizer", [OpenES(pop_size=4), CMAES(pop_size=4), GA(pop_size=4)])
def test_candidates_that_are_not_finite_are_the_last(optimizer):
    state = optimizer.init(tf.zeros([2]), KEY)
    population, _ = optimizer.ask(state)
    lost = tf.concat([population[:3], [[np.nan, np.inf]]], 0)
    found = optimizer.tell(state, tf.constant([1.0, 2.0, 3.0, 9.0]), lost)
    assert np.all(np.isfinite(found.params))
    assert np.all(np.isfinite(optimizer.ask(found)[0]))
    assert np.any(optimizer.ask(found)[0] != population)


@pytest.mark.parametrize("optimizer", [PSO(pop_size=4), DE(pop_size=4), OpenES(pop_size=4)])
def test_a_first_generation_that_is_lost_leaves_the_start(optimizer):
    state = optimizer.init(tf.zeros([2]), KEY)
    np.testing.assert_array_equal(optimizer.tell(state, tf.fill([4], np.nan)).params, [0.0, 0.0])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda q: {"k": q["k"][:3], "b": q["b"][:3]}, r"b: expected float32 \[4, 2\], got .*3"),
        (lambda q: {"k": q["k"]}, "the leaves of the parameters: b, k, got k"),
        (lambda q: {**q, "b": tf.cast(q["b"], tf.float64)}, "b: expected dtype float32"),
        (lambda q: {**q, "k": tf.transpose(q["k"], [0, 2, 1])}, r"k: expected .*\[4, 3, 2\]"),
        (lambda q: tf.zeros([4, 8]), "the leaves of the parameters"),
    ],
)
def test_candidates_of_another_form(change, message):
    optimizer = OpenES(pop_size=4)
    state = optimizer.init({"k": tf.zeros([3, 2]), "b": tf.zeros([2])}, KEY)
    population, _ = optimizer.ask(state)
    with pytest.raises(UserError, match=f"population of OpenES.*{message}"):
        optimizer.tell(state, tf.zeros([4]), change(population))
    with pytest.raises(UserError, match=r"params of OpenES: k: expected float32 \[3, 2\]"):
        optimizer.pull(state, {"k": tf.zeros([2, 3]), "b": tf.zeros([2])}, 0.5)


def test_a_fitness_of_another_type():
    optimizer = OpenES(pop_size=4)
    state = optimizer.init(tf.zeros([2]), KEY)
    found = optimizer.tell(state, tf.constant([4, 1, 3, 2], tf.int64))
    same = optimizer.tell(state, tf.constant([4.0, 1.0, 3.0, 2.0]))
    np.testing.assert_array_equal(found.params, same.params)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: GA(pop_size=4, crossover=NPointCrossover), r"GA.crossover.*NPointCrossover\(\)"),
        (lambda: GA(pop_size=4, selection=TruncationSelection), "GA.selection.*an object of it"),
        (lambda: OpenES(pop_size=4, fitness_shaping_fn="ranks"), "fitness_shaping_fn.*'ranks'"),
        (lambda: OpenES(pop_size=4, mirror_sampling="no"), "mirror_sampling"),
        (lambda: OpenES(pop_size=4, optimizer=None), "OpenES.optimizer.*NoneType.*'adam'"),
    ],
)
def test_classes_and_names_are_no_operators(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_integers_are_no_parameters():
    with pytest.raises(UserError, match=r"params of OpenES.init: .*n"):
        OpenES(pop_size=4).init({"n": tf.zeros([2], tf.int32)}, KEY)


def test_shapings():
    fitness = tf.constant([2.0, -float("inf"), 5.0, 3.0])
    np.testing.assert_allclose(tf.reduce_sum(log_utilities(fitness)), 0.0, atol=1e-7)
    # log 3 - log k is above 0 for the best two of four.
    first, second = np.log(3.0), np.log(3.0 / 2)
    expected = np.array([0.0, 0.0, first, second]) / (first + second) - 0.25
    np.testing.assert_allclose(log_utilities(fitness), expected, rtol=1e-6)
    scaled = standardized(fitness)  # of 2, 2, 5, 3
    np.testing.assert_allclose(scaled, (np.array([2, 2, 5, 3]) - 3) / np.std([2, 2, 5, 3]), 1e-6)
    np.testing.assert_array_equal(standardized(tf.fill([3], -float("inf"))), [0.0, 0.0, 0.0])


@pytest.mark.parametrize("std", [1, np.float64(0.5)])
@pytest.mark.parametrize(
    "search", [CEM, CMAES, DiagonalCEM, GA, PGPE, SNES, XNES, SepCMAES], ids=lambda s: s.__name__
)
def test_numbers_of_other_types_are_settings(search, std):
    optimizer = search(pop_size=4, init_std=std)
    state = optimizer.init(tf.zeros([2]), KEY)
    assert optimizer.tell(state, tf.range(4.0)).params.dtype == tf.float32


@pytest.mark.parametrize("optimizer", [OpenES(pop_size=4), CMAES(pop_size=4), GA(pop_size=4)])
def test_a_fitness_of_a_function_in_python(optimizer):
    state = optimizer.init(tf.zeros([2]), KEY)

    @functools.partial(tf.function, autograph=False)
    def generation(state):
        population, state = optimizer.ask(state)
        numbers = tf.numpy_function(lambda p: p[:, 0], [population], tf.float32)
        return optimizer.tell(state, numbers)

    population, _ = optimizer.ask(state)
    same = optimizer.tell(state, population[:, 0])
    np.testing.assert_allclose(generation(state).params, same.params, rtol=1e-6)


def test_zeros_of_both_signs_are_ties():
    optimizer = OpenES(pop_size=6)
    state = optimizer.init(tf.zeros([2]), KEY)
    fitness = tf.constant([0.0, -0.0, 1.0, -0.0, 0.0, -float("inf")])
    plain = optimizer.tell(state, tf.abs(fitness) * tf.constant([1.0, 1, 1, 1, 1, -1])).params
    compiled = tf.function(optimizer.tell, jit_compile=True, autograph=False)
    np.testing.assert_allclose(compiled(state, fitness).params, plain, rtol=1e-6)
    np.testing.assert_array_equal(optimizer.tell(state, fitness).params, plain)


def test_a_shaping_that_takes_no_infinity_gets_the_least_fitness():
    optimizer = OpenES(pop_size=4, fitness_shaping_fn=lambda f: f - tf.reduce_mean(f))
    state = optimizer.init(tf.zeros([2]), KEY)
    lost = optimizer.tell(state, tf.constant([1.0, 2.0, 3.0, np.nan]))
    least = optimizer.tell(state, tf.constant([1.0, 2.0, 3.0, 1.0]))
    np.testing.assert_array_equal(lost.params, least.params)


def test_no_parameters():
    with pytest.raises(UserError, match=r"params of OpenES.init: expected at least one"):
        OpenES(pop_size=4).init({}, KEY)
