"""NSGA2 and RVEA beside their formulas in NumPy, from the same draws."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import evolution_quality
from tests.evolution.problems import evaluate_two, told
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import NSGA2, RVEA, crowding_distance, hypervolume, non_dominated_ranks
from tfrl.evolution.many_objectives.rvea import shuffled, simplex_lattice

MEAN = np.array([0.5, -1.0, 2.0], np.float32)
UNIFORM = dict(bounds=(-2.0, 3.0), init_std=None)


def copied(children, key, space):
    """A mutation that changes nothing, so that offspring are parents."""
    return children


def test_nsga2_three_generations():
    """Survivors of three generations; offspring are copies, as the operators are tested alone."""
    optimizer = NSGA2(pop_size=8, crossover_rate=0.5, **UNIFORM)
    populations, states = told(optimizer, evaluate_two, MEAN)
    parents, fitness = np.zeros([0, 3]), np.zeros([0, 2])
    for x, state in zip(populations, states, strict=True):
        parents = np.concatenate([parents, x])
        fitness = np.concatenate([fitness, evaluate_two(x).numpy()])
        ranks = non_dominated_ranks(tf.constant(fitness)).numpy()
        kept = []
        for rank in range(ranks.max() + 1):
            front = np.flatnonzero(ranks == rank)
            crowding = np.zeros(len(front))
            for f in fitness[front].T:
                order = np.argsort(-f, kind="stable")
                crowding[order[[0, -1]]] = np.inf
                for i in range(1, len(front) - 1):
                    gap = f[order[i - 1]] - f[order[i + 1]]
                    crowding[order[i]] += gap / (f.max() - f.min())
            if len(front) <= 2:
                crowding[:] = np.inf
            kept.extend(front[np.argsort(-crowding, kind="stable")])
        parents, fitness = parents[kept[:8]], fitness[kept[:8]]
        np.testing.assert_allclose(state.search.parents, parents)
        np.testing.assert_allclose(state.search.parent_fitness, fitness)
        assert tuple(state.params.numpy()) in {tuple(p) for p in parents.astype(np.float32)}


def test_nsga2_parents_win_tournaments():
    optimizer = NSGA2(pop_size=8, crossover_rate=0.0, mutation=copied, **UNIFORM)
    _, (state,) = told(optimizer, evaluate_two, MEAN, generations=1)
    key = seeding.stream(seeding.fold_in(seeding.key(0), 0), "tell")
    draws = seeding.uniform(seeding.stream(key, "tournament"), [2, 8]).numpy()
    entrants = np.argsort(draws, axis=1).reshape(8, 2)
    entrants = np.concatenate([entrants[::2], entrants[1::2]])  # neighbours are mated
    parents = state.search.parents.numpy()
    ranks = non_dominated_ranks(state.search.parent_fitness)
    crowding = crowding_distance(state.search.parent_fitness, ranks).numpy()
    for (i, j), child in zip(entrants, state.search.population.numpy(), strict=True):
        other_wins = (ranks[j], -crowding[j]) < (ranks[i], -crowding[i])
        np.testing.assert_array_equal(child, parents[j if other_wins else i])


def test_rvea_three_generations():
    optimizer = RVEA(pop_size=6, num_generations=4, adaptation_frequency=0.25, **UNIFORM)
    populations, states = told(optimizer, evaluate_two, MEAN)
    lattice = np.stack([np.arange(6), 5 - np.arange(6)], 1) / 5.0
    lattice /= np.linalg.norm(lattice, axis=1, keepdims=True)
    vectors = lattice
    for t, (x, state) in enumerate(zip(populations, states, strict=True)):
        cost = -evaluate_two(x).numpy().astype(np.float64)
        if t == 0:
            parents, costs, found = x, cost, np.ones(6, bool)
        else:
            everyone, every = (
                np.concatenate([parents[found], x]),
                np.concatenate([costs[found], cost]),
            )
            f = every - every.min(0)
            length = np.linalg.norm(f, axis=1)
            angle = np.arccos(np.clip((f / np.maximum(length, 1e-20)[:, None]) @ vectors.T, -1, 1))
            between = np.arccos(np.clip(vectors @ vectors.T, -1, 1)) + 9 * np.eye(6)
            apd = (1 + 2 * (t / 4) ** 2 * angle / between.min(1)) * length[:, None]
            own = angle.argmin(1)
            found, parents, costs = np.zeros(6, bool), np.zeros([6, 3]), np.zeros([6, 2])
            for j in set(own):
                of = np.flatnonzero(own == j)
                best = of[np.argmin(apd[of, j])]
                found[j], parents[j], costs[j] = True, everyone[best], every[best]
        np.testing.assert_array_equal(np.isfinite(state.search.parent_fitness)[:, 0], found)
        np.testing.assert_allclose(state.search.parents.numpy()[found], parents[found], rtol=1e-5)
        width = np.ptp(costs[found], axis=0)
        if (width > 0).all():
            vectors = lattice * width
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(state.search.vectors, vectors, rtol=1e-4)


def test_lattices():
    np.testing.assert_allclose(simplex_lattice(3, 2), [[0, 1], [0.5, 0.5], [1, 0]])
    lattice = simplex_lattice(91, 3)
    assert lattice.shape == (91, 3) and len(np.unique(lattice, axis=0)) == 91
    np.testing.assert_allclose(lattice.sum(1), 1.0, rtol=1e-6)


def test_shuffled_takes_all_before_any_again():
    valid = tf.constant([True, False, True, True])
    places = shuffled(valid, 6, seeding.key(0)).numpy()
    assert sorted(places[:3]) == sorted(places[3:]) == [0, 2, 3]
    np.testing.assert_array_equal(shuffled(tf.zeros([2], tf.bool), 2, seeding.key(0)) >= 0, True)


@pytest.mark.parametrize("optimizer", [NSGA2(pop_size=20, **UNIFORM), RVEA(pop_size=20, **UNIFORM)])
def test_they_approach_the_front(optimizer):
    run = tf.function(lambda state: optimizer.tell(state, evaluate_two(optimizer.ask(state)[0])))
    state = optimizer.init(tf.constant(MEAN), seeding.key(0))
    volumes = []
    for _ in range(40):
        state = run(state)
        volumes.append(float(hypervolume(state.search.parent_fitness, [-12.0, -12.0])))
    # The front is the line from 0 to 1 in all parameters: f = -3 t^2, -3 (1 - t)^2.
    t = np.linspace(0, 1, 2_000)
    most = float(hypervolume(np.stack([-3 * t**2, -3 * (1 - t) ** 2], 1), [-12.0, -12.0]))
    assert volumes[-1] > 0.97 * most > volumes[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_nsga2_beats_random_search_on_pendulum(seed):
    found = [
        evolution_quality.volume(evolution_quality.front_workflow(search), seed, 20_000_000)
        for search in (NSGA2, evolution_quality.RandomSearch)
    ]
    print(found)
    assert found[0] > found[1]


@pytest.mark.parametrize("optimizer", [NSGA2(pop_size=4, **UNIFORM), RVEA(pop_size=4, **UNIFORM)])
def test_one_objective_that_is_not_finite_loses_the_candidate(optimizer):
    state = optimizer.init(tf.zeros([2]), seeding.key(0))
    population, state = optimizer.ask(state)
    fitness = tf.constant([[1.0, 9.0], [9.0, float("nan")], [5.0, 5.0], [float("inf"), 8.0]])
    state = optimizer.tell(state, fitness)
    assert np.isfinite(state.search.parent_fitness).all(1).sum() == 2
    assert np.isfinite(state.search.population).all()
    all_lost = optimizer.tell(state, tf.fill([4, 2], float("nan")))
    assert np.isfinite(all_lost.params).all()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: NSGA2(pop_size=4), r"NSGA2.bounds.*init_std=None"),
        (lambda: NSGA2(pop_size=4, init_std=0.1), r"NSGA2.bounds.*PolynomialMutation"),
        (lambda: NSGA2(pop_size=5, **UNIFORM), r"NSGA2.pop_size.*even.*Use 6"),
        (lambda: NSGA2(pop_size=4, num_objectives=1, **UNIFORM), "NSGA2.num_objectives.*Use GA"),
        (lambda: RVEA(pop_size=92, num_objectives=3, **UNIFORM), "RVEA.pop_size.*Use 91 or 105"),
        (lambda: RVEA(pop_size=4, num_generations=0, **UNIFORM), "RVEA.num_generations"),
        (lambda: RVEA(pop_size=4, adaptation_frequency=0, **UNIFORM), "RVEA.adaptation_frequency"),
    ],
)
def test_wrong_settings(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_fitness_of_one_objective():
    optimizer = NSGA2(pop_size=4, **UNIFORM)
    state = optimizer.init(tf.zeros([2]), seeding.key(0))
    with pytest.raises(
        UserError, match=r"fitness of NSGA2.tell.*\[4, 2\].*one number per candidate and objective"
    ):
        optimizer.tell(state, tf.zeros([4]))
