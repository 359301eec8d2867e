"""PSO, CSO and DE beside their formulas in NumPy, from the same draws."""

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution.problems import evaluations_to, rosenbrock, sphere, told
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import CSO, DE, PSO
from tfrl.evolution.genetic.de import others

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


def tell_key(generation):
    return seeding.stream(seeding.fold_in(seeding.key(0), generation), "tell")


def test_pso():
    optimizer = PSO(pop_size=5, inertia=0.6, cognitive=1.0, social=2.0, max_velocity=0.3)
    populations, states = told(optimizer, rosenbrock, MEAN)
    x, v = populations[0].astype(np.float64), np.zeros([5, 3])
    best, best_fitness = x.copy(), np.full(5, -np.inf)
    for t, state in enumerate(states):
        np.testing.assert_allclose(populations[t], x, rtol=1e-5, atol=1e-6)
        r = seeding.uniform(tell_key(t), [2, 5, 3]).numpy()
        for i, fitness in enumerate(rosenbrock(x).numpy()):
            if fitness > best_fitness[i]:
                best[i], best_fitness[i] = x[i], fitness
        shared = best[np.argmax(best_fitness)]
        for i in range(5):
            v[i] = 0.6 * v[i] + r[0, i] * (best[i] - x[i]) + 2.0 * r[1, i] * (shared - x[i])
            v[i] = np.clip(v[i], -0.3, 0.3)
        x = x + v
        np.testing.assert_allclose(state.search.velocities, v, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(state.params, shared, rtol=1e-5)


def test_cso():
    optimizer = CSO(pop_size=6, phi=0.2)
    populations, states = told(optimizer, rosenbrock, MEAN)
    x, v = populations[0].astype(np.float64), np.zeros([6, 3])
    for t, state in enumerate(states):
        keys = seeding.streams(tell_key(t), ("pairs", "move"))
        order = np.argsort(seeding.uniform(keys["pairs"], [6]).numpy())
        r = seeding.uniform(keys["move"], [3, 3, 3]).numpy()
        fitness, mean, winners, losers = rosenbrock(x).numpy(), x.mean(0), [], []
        best = x[np.argmax(fitness)]
        for k, (i, j) in enumerate(zip(order[:3], order[3:], strict=True)):
            win, lose = (i, j) if fitness[i] >= fitness[j] else (j, i)
            pull = r[1, k] * (x[win] - x[lose]) + 0.2 * r[2, k] * (mean - x[lose])
            step = r[0, k] * v[lose] + pull
            winners.append((x[win], v[win]))
            losers.append((x[lose] + step, step))
        x, v = (np.array(z) for z in zip(*winners, *losers, strict=True))
        np.testing.assert_allclose(state.search.population, x, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.search.velocities, v, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.params, best, rtol=1e-5)


@pytest.mark.parametrize("variant", ["rand/1/bin", "best/1/bin"])
def test_de(variant):
    optimizer = DE(pop_size=6, variant=variant, differential_weight=0.7, crossover_rate=0.4)
    populations, states = told(optimizer, rosenbrock, MEAN)
    trials = populations[0].astype(np.float64)
    x, fitness = trials.copy(), np.full(6, -np.inf)
    for t, state in enumerate(states):
        keys = seeding.streams(tell_key(t), ("others", "crossover", "one"))
        r1, r2, r3 = others(6, 3, keys["others"]).numpy()
        crossed = seeding.uniform(keys["crossover"], [6, 3]).numpy() < 0.4
        j_rand = seeding.randint(keys["one"], [6, 1], 0, 3).numpy()[:, 0]
        told_fitness = rosenbrock(trials).numpy()
        for i in range(6):
            if told_fitness[i] >= fitness[i]:
                x[i], fitness[i] = trials[i], told_fitness[i]
        trials = x.copy()
        for i in range(6):
            base = r1[i] if variant == "rand/1/bin" else np.argmax(fitness)
            mutant = x[base] + 0.7 * (x[r2[i]] - x[r3[i]])
            for j in range(3):
                if crossed[i, j] or j == j_rand[i]:
                    trials[i, j] = mutant[j]
        np.testing.assert_allclose(state.search.population, trials, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.search.targets, x, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.params, x[np.argmax(fitness)], rtol=1e-4)


def test_others_differ_and_are_uniform():
    drawn = np.stack([others(5, 3, seeding.key(seed)).numpy() for seed in range(150)])
    for i in range(5):
        sets = {tuple(r) for r in drawn[:, :, i]}
        assert all(len({i, *r}) == 4 for r in sets) and len(sets) >= 22
        counts = np.bincount(drawn[:, 2, i], minlength=5)
        assert counts[i] == 0 and counts.max() < 60


@pytest.mark.parametrize("optimizer", [PSO(pop_size=32), CSO(pop_size=32)])
def test_they_climb(optimizer):
    assert evaluations_to(optimizer, sphere, MEAN, -1e-2, 0) <= 5_000


def test_de_climbs():
    optimizer = DE(pop_size=32, bounds=(-5.0, 5.0), init_std=None)
    assert evaluations_to(optimizer, sphere, MEAN, -1e-2, 0) <= 5_000


@pytest.mark.parametrize("optimizer", [PSO(pop_size=4), CSO(pop_size=4), DE(pop_size=4)])
def test_candidates_that_are_lost_are_never_the_best(optimizer):
    state = optimizer.init(tf.zeros([2]), seeding.key(0))
    population, state = optimizer.ask(state)
    state = optimizer.tell(state, tf.constant([float("nan"), 1.0, 2.0, float("inf")]))
    np.testing.assert_array_equal(state.params, population[2])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: CSO(pop_size=5), "CSO.pop_size.*even.*Use 6"),
        (lambda: CSO(pop_size=4, phi=-1), "CSO.phi"),
        (lambda: DE(pop_size=3), "DE.pop_size.*three other candidates"),
        (lambda: DE(pop_size=4, variant="rand/2/bin"), "DE.variant.*rand/1/bin"),
        (lambda: PSO(pop_size=4, inertia=-0.1), "PSO.inertia"),
        (lambda: PSO(pop_size=4, max_velocity=0), "PSO.max_velocity"),
    ],
)
def test_wrong_settings(make, message):
    with pytest.raises(UserError, match=message):
        make()
