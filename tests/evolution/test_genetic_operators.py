"""Selection, crossover and mutation: what they draw, and their formulas in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import (
    SBX,
    ERLMutation,
    GaussianMutation,
    NeuronCrossover,
    NPointCrossover,
    PolynomialMutation,
    TournamentSelection,
    TruncationSelection,
    UniformCrossover,
)
from tfrl.evolution.population_search import Space, unit_numbers

KEY = seeding.key(1)
N, D = 2_000, 6
A, B = tf.zeros([N, D]), tf.ones([N, D])
PARAMS = {"a_kernel": tf.zeros([2, 2]), "b_bias": tf.zeros([2])}


def space(low=-float("inf"), high=float("inf")):
    units = unit_numbers(PARAMS)
    return Space(low=tf.fill([D], low), high=tf.fill([D], high), units=units)


def test_units_are_columns_of_kernels_and_elements_of_biases():
    np.testing.assert_array_equal(unit_numbers(PARAMS), [0, 1, 0, 1, 2, 3])
    np.testing.assert_array_equal(unit_numbers([tf.zeros([]), tf.zeros([3])]), [0, 1, 2, 3])


def test_tournaments_are_won_by_the_fittest_entrant():
    fitness = tf.constant([0.0, 3.0, -float("inf"), 2.0])
    won = TournamentSelection(size=2)(fitness, N, KEY).numpy()
    # With two entrants of four, rank r (0 the last) wins ((r + 1)^2 - r^2) / 16 of all.
    shares = np.bincount(won, minlength=4) / N
    np.testing.assert_allclose(shares, np.array([3, 7, 1, 5]) / 16, atol=0.03)


def test_truncation_draws_from_the_fittest_share():
    fitness = tf.constant([0.0, 3.0, -float("inf"), 2.0])
    won = TruncationSelection(share=0.5)(fitness, N, KEY).numpy()
    np.testing.assert_allclose(np.bincount(won, minlength=4) / N, [0, 0.5, 0, 0.5], atol=0.04)
    assert set(TruncationSelection(share=0.01)(fitness, 9, KEY).numpy()) == {1}


@pytest.mark.parametrize(
    "crossover", [UniformCrossover(0.3), NPointCrossover(2), NeuronCrossover(0.3)]
)
def test_children_swap_what_their_parents_have(crossover):
    first, second = crossover(A, B, KEY, space())
    np.testing.assert_array_equal(first + second, tf.ones([N, D]))
    swapped = first.numpy()
    assert set(np.unique(swapped)) == {0.0, 1.0}
    if isinstance(crossover, NPointCrossover):
        assert not swapped[:, 0].any() and not swapped[:, -1].all()
        assert np.abs(np.diff(swapped, axis=1)).sum(1).max() == 2
    else:
        np.testing.assert_allclose(swapped.mean(0), 0.3, atol=0.04)
        same = (swapped[:, 0] == swapped[:, 2]).mean()
        assert same == 1 if isinstance(crossover, NeuronCrossover) else same < 0.7


def test_sbx_is_that_of_the_formula():
    a, b = np.array([[0.2, 0.9, 0.5, 0.1, 0.0, 0.3]]), np.array([[0.6, 0.3, 0.5, 0.4, 1.0, 0.8]])
    given = [tf.constant(x, tf.float32) for x in (a, b)]
    first, second = SBX(eta=3.0, rate=1.0)(*given, KEY, space(0.0, 1.0))
    keys = seeding.streams(KEY, ("spread", "exchange"))
    u = seeding.uniform(keys["spread"], [1, D]).numpy().astype(np.float64)
    exchanged = seeding.uniform(keys["exchange"], [1, D]).numpy() < 0.5
    low, high = np.minimum(a, b), np.maximum(a, b)
    gap = np.where(high > low, high - low, 1.0)

    def beta(room):
        alpha = 2 - (1 + 2 * room / gap) ** -4.0
        base = np.where(u <= 1 / alpha, alpha * u, 1 / (2 - alpha * u))
        return base**0.25

    lower = 0.5 * (low + high - beta(low) * gap)
    upper = 0.5 * (low + high + beta(1 - high) * gap)
    expected = np.where(exchanged, upper, lower), np.where(exchanged, lower, upper)
    for found, wanted in zip((first, second), expected, strict=True):
        np.testing.assert_allclose(found, np.where(a == b, a, wanted), rtol=1e-4)


def test_sbx_spreads_as_without_bounds_where_there_are_none():
    first, second = SBX(rate=1.0)(A, B, KEY, space())
    np.testing.assert_allclose((first + second) / 2, 0.5 * tf.ones([N, D]), atol=1e-6)
    bounded, _ = SBX(rate=1.0)(A, B, KEY, space(0.0, 1.0))
    assert float(tf.reduce_min(first)) < 0 <= float(tf.reduce_min(bounded))


def test_gaussian_mutation():
    noise = GaussianMutation(std=0.5, rate=0.25)(A, KEY, space()).numpy()
    assert abs((noise != 0).mean() - 0.25) < 0.02
    assert abs(noise[noise != 0].std() - 0.5) < 0.03


def test_erl_mutation_has_three_kinds():
    x = tf.fill([N, D], 100.0)
    mutation = ERLMutation(rate=0.5, strength=0.01, super_prob=0.2, reset_prob=0.3)
    change = mutation(x, KEY, space()).numpy() - 100.0
    changed = change[change != 0]
    assert abs(changed.size / change.size - 0.5) < 0.02
    is_reset = np.abs(changed + 100) < 6.4  # drawn from N(0, 1)
    assert abs(is_reset.mean() - 0.3) < 0.02
    is_usual = np.abs(changed) < 6.4  # strength * |w| = 1
    assert abs(is_usual.mean() - 0.5) < 0.02
    assert np.abs(changed[~is_reset & ~is_usual]).mean() > 500  # super_strength * |w| = 1000


def test_polynomial_mutation_is_that_of_the_formula():
    x = np.array([[0.0, 0.2, 0.5, 0.7, 1.0, -1.0]])
    given = tf.constant(x, tf.float32)
    found = PolynomialMutation(eta=3.0, rate=1.0)(given, KEY, space(-1.0, 1.0))
    u = seeding.uniform(seeding.stream(KEY, "move"), [1, D]).numpy().astype(np.float64)
    below, above = (x + 1) / 2, (1 - x) / 2
    down = (2 * u + (1 - 2 * u) * (1 - below) ** 4) ** 0.25 - 1
    up = 1 - (2 * (1 - u) + (2 * u - 1) * (1 - above) ** 4) ** 0.25
    np.testing.assert_allclose(found, x + 2 * np.where(u <= 0.5, down, up), atol=1e-5)
    share = (PolynomialMutation()(A, KEY, space(-1.0, 1.0)) != 0).numpy().mean()
    assert abs(share - 1 / D) < 0.02


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: TournamentSelection(size=0), "TournamentSelection.size"),
        (lambda: TruncationSelection(share=0), "TruncationSelection.share"),
        (lambda: UniformCrossover(rate=2), "UniformCrossover.rate"),
        (lambda: NPointCrossover(points=0.5), "NPointCrossover.points"),
        (lambda: SBX(eta=-1), "SBX.eta"),
        (lambda: GaussianMutation(std=0), "GaussianMutation.std"),
        (
            lambda: ERLMutation(super_prob=0.8, reset_prob=0.3),
            "ERLMutation.reset_prob.*is at most 1",
        ),
        (lambda: PolynomialMutation(rate=-1), "PolynomialMutation.rate"),
    ],
)
def test_wrong_settings(make, message):
    with pytest.raises(UserError, match=message):
        make()
