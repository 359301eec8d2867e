"""GA: elites, mated children, units of a network's parameters."""

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution.problems import evaluations_to, rosenbrock, sphere, told
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import (
    GA,
    GaussianMutation,
    NeuronCrossover,
    PolynomialMutation,
    TruncationSelection,
    ravel,
)

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


def test_three_generations_are_those_of_the_formulas():
    """With the same draws, by tournaments of two, uniform crossover and Gaussian mutation."""
    optimizer = GA(
        pop_size=7, elites=2, mutation=GaussianMutation(std=0.2, rate=0.5), bounds=(-1.5, 1.5)
    )
    populations, states = told(optimizer, rosenbrock, MEAN)
    assert np.abs(populations[0]).max() <= 1.5
    for t, (x, state) in enumerate(zip(populations, states, strict=True)):
        key = seeding.stream(seeding.fold_in(seeding.key(0), t), "tell")
        keys = seeding.streams(key, ("selection", "crossover", "mutation", "is_mutated"))
        fitness = rosenbrock(x).numpy()
        order = np.argsort(-fitness, kind="stable")
        entrants = seeding.randint(keys["selection"], [6, 3], 0, 7).numpy()
        parents = x[[row[np.argmax(fitness[row])] for row in entrants]]
        a, b = parents[:3], parents[3:]
        crossing = seeding.streams(keys["crossover"], ("children", "which"))
        crossed = seeding.uniform(crossing["which"], [3, 1]).numpy() < 0.9
        swap = crossed & (seeding.uniform(crossing["children"], [3, 3]).numpy() < 0.5)
        children = np.concatenate([np.where(swap, b, a), np.where(swap, a, b)])[:5]
        mutation = seeding.streams(keys["mutation"], ("noise", "which"))
        noise = 0.2 * seeding.normal(mutation["noise"], [5, 3]).numpy()
        which = seeding.uniform(mutation["which"], [5, 3]).numpy() < 0.5
        which &= seeding.uniform(keys["is_mutated"], [5, 1]).numpy() < 0.9
        expected = np.concatenate([x[order[:2]], np.where(which, children + noise, children)])
        np.testing.assert_allclose(state.search.population, np.clip(expected, -1.5, 1.5), 1e-5)
        np.testing.assert_array_equal(state.params, x[order[0]])


def test_units_come_from_the_parameters():
    params = {"w": tf.zeros([2, 3]), "b": tf.zeros([3])}
    optimizer = GA(pop_size=20, crossover=NeuronCrossover(), crossover_rate=1.0, mutation_rate=0.0)
    state = optimizer.init(params, seeding.key(0))
    np.testing.assert_array_equal(state.search.units, [0, 1, 2, 3, 4, 5, 3, 4, 5])
    population, state = optimizer.ask(state)
    state = optimizer.tell(state, sphere(ravel(population, batch_dims=1)))
    rows = {tuple(w) for nest in population["w"].numpy() for w in nest.T}
    children = optimizer.ask(state)[0]["w"].numpy()
    assert {tuple(w) for nest in children for w in nest.T} <= rows


def test_without_elites_the_best_is_kept_as_params():
    optimizer = GA(pop_size=4, elites=0)
    state = optimizer.init(tf.zeros([2]), seeding.key(0))
    population, state = optimizer.ask(state)
    state = optimizer.tell(state, tf.constant([0.0, float("nan"), 3.0, 2.0]))
    np.testing.assert_array_equal(state.params, population[2])
    assert state.search.population.shape == [4, 2]


def test_populations_begin_around_the_parameters_or_in_the_bounds():
    around = GA(pop_size=500, init_std=0.5).init(tf.constant([3.0, -3.0]), seeding.key(0))
    np.testing.assert_allclose(tf.reduce_mean(around.search.population, 0), [3, -3], atol=0.1)
    within = GA(pop_size=500, init_std=None, bounds=((-1.0, 0.0), (1.0, 4.0)))
    population = within.init(tf.zeros([2]), seeding.key(0)).search.population.numpy()
    np.testing.assert_allclose(population.min(0), [-1, 0], atol=0.05)
    np.testing.assert_allclose(population.max(0), [1, 4], atol=0.05)


def test_it_climbs():
    for seed in range(2):
        optimizer = GA(pop_size=32, selection=TruncationSelection(0.3))
        assert evaluations_to(optimizer, sphere, MEAN, -1e-2, seed) <= 5_000


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(elites=4), r"GA.elites.*at most 3"),
        (dict(init_std=None), r"GA.bounds.*init_std=None.*bounds=\(-1.0, 1.0\)"),
        (dict(bounds=(1.0, -1.0)), r"GA.bounds.*with low < high"),
        (dict(bounds=3.0), r"GA.bounds"),
        (dict(mutation=PolynomialMutation()), r"GA.bounds.*PolynomialMutation"),
        (dict(crossover="uniform"), r"GA.crossover.*UniformCrossover\(\)"),
        (dict(crossover_rate=1.5), r"GA.crossover_rate"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(UserError, match=message) as caught:
        GA(pop_size=4, **settings)
    assert "\n" not in str(caught.value)


def test_bounds_of_another_length():
    with pytest.raises(UserError, match=r"GA.bounds.*two tuples of 3"):
        GA(pop_size=4, bounds=((-1.0, -1.0), 1.0)).init(tf.zeros([3]), seeding.key(0))
