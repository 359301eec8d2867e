"""Who takes over from whom, and which hyperparameters are tried, beside hand-worked numbers."""

import numpy as np
import pytest
import tensorflow as tf

from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution.pbt import (
    CSOExplore,
    Hyperparameter,
    Pairs,
    Perturb,
    Tournament,
    Truncation,
)

FITNESS = tf.constant([3.0, 9.0, -float("inf"), 5.0, 1.0, 7.0, 2.0, 8.0, 4.0, 6.0])
LR = Hyperparameter(path="learning_rate", low=1e-6, high=1.0)
DISCOUNT = Hyperparameter(path="discount", low=0.9, high=0.999, scale="one_minus")
CLIP = Hyperparameter(path="clip", low=0.1, high=0.5, scale="linear")


def keys(n=20):
    return [seeding.fold_in(seeding.key(0), i) for i in range(n)]


def test_truncation():
    for key in keys():
        parents = Truncation(fraction=0.2)(FITNESS, key).numpy()
        assert {parents[2], parents[4]} <= {1, 7}  # the last two follow one of the first two
        others = [i for i in range(10) if i not in (2, 4)]
        np.testing.assert_array_equal(parents[others], others)
    assert len({tuple(Truncation()(FITNESS, key).numpy()) for key in keys()}) == 4
    np.testing.assert_array_equal(Truncation()(tf.constant([1.0]), keys()[0]), [0])
    lost = tf.constant([-np.inf, -np.inf, 1.0, -np.inf])  # none of them is copied
    for key in keys():
        np.testing.assert_array_equal(Truncation(fraction=0.5)(lost, key)[2], 2)
        assert set(Truncation(fraction=0.5)(lost, key).numpy()[[1, 3]]) == {2}


def test_tournament():
    seen = set()
    for key in keys():
        parents = Tournament()(FITNESS, key).numpy()
        fitter = FITNESS.numpy()[parents] > FITNESS.numpy()
        assert np.all(fitter | (parents == np.arange(10)))
        assert parents[1] == 1  # nobody beats the best
        seen.add(tuple(parents))
    assert len(seen) > 10


def test_pairs():
    for key in keys():
        parents = Pairs()(FITNESS, key).numpy()
        followers = np.flatnonzero(parents != np.arange(10))
        assert len(followers) == 5 and len(set(parents[followers])) == 5
        assert np.all(FITNESS.numpy()[parents[followers]] > FITNESS.numpy()[followers])
    odd = Pairs()(FITNESS[:5], keys()[0]).numpy()
    assert np.sum(odd != np.arange(5)) == 2


@pytest.mark.parametrize("hyperparameter", [LR, DISCOUNT, CLIP])
def test_draws_fill_the_range(hyperparameter):
    drawn = hyperparameter.draw(seeding.key(1), 4_000).numpy()
    assert drawn.min() >= hyperparameter.low and drawn.max() <= hyperparameter.high
    middle = {"learning_rate": 1e-3, "discount": 1 - 10**-2.0, "clip": 0.3}[hyperparameter.path]
    assert abs(np.mean(drawn < middle) - 0.5) < 0.03
    again = hyperparameter.value(hyperparameter.coordinate(drawn))
    np.testing.assert_allclose(again, drawn, rtol=1e-4)


@pytest.mark.parametrize(
    "hyperparameter, value, tried",
    [
        (LR, 1e-3, [1e-3 * 1.2, 1e-3 / 1.2]),
        (DISCOUNT, 0.99, [1 - 0.01 * 1.2, 1 - 0.01 / 1.2]),
        (CLIP, 0.2, [0.2 + 0.08, 0.2 - 0.08]),  # a fifth of the range
        (LR, 0.9, [1.0, 0.9 / 1.2]),  # within the range
    ],
)
def test_perturb(hyperparameter, value, tried):
    own = hyperparameter.coordinate([0.5 * value] * 50 + [value])
    parents = tf.fill([51], 50)
    found, velocity = Perturb()(hyperparameter, own, parents, tf.zeros([51]), seeding.key(0))
    values = hyperparameter.value(found).numpy()
    np.testing.assert_allclose(sorted(set(np.round(values, 6))), sorted(tried), rtol=2e-3)
    np.testing.assert_array_equal(velocity, 0.0)
    drawn, _ = Perturb(log_uniform=True)(
        hyperparameter, own, parents, tf.zeros([51]), seeding.key(0)
    )
    drawn = hyperparameter.value(drawn).numpy()
    assert len(set(drawn)) > 25
    assert min(tried) - 1e-6 <= drawn.min() and drawn.max() <= max(tried) + 1e-6


def test_resampled_values_are_anew():
    own = LR.coordinate([1e-3] * 100)
    args = (LR, own, tf.range(100), tf.zeros([100]), seeding.key(0))
    values = LR.value(Perturb(resample_probability=1.0)(*args)[0]).numpy()
    assert values.min() < 1e-5 and values.max() > 0.1
    kept = Perturb(resample_probability=0.25)(*args)[0]
    near = np.abs(kept - own) < 0.2
    assert 0.6 < np.mean(near) < 0.9


def test_cso_moves_towards_the_winner():
    own, parents = tf.constant([0.0, 4.0, 2.0]), tf.constant([1, 1, 2])
    key, before = seeding.key(3), tf.constant([0.5, 0.0, 0.0])
    r1, r2, r3 = seeding.uniform(key, [3, 3]).numpy()
    found, velocity = CSOExplore(phi=0.1)(CLIP, own, parents, before, key)
    moved = r1 * before + r2 * (np.array([4.0, 4.0, 2.0]) - own) + 0.1 * r3 * (2.0 - own)
    np.testing.assert_allclose(velocity, moved, rtol=1e-6)
    np.testing.assert_allclose(found, own + moved, rtol=1e-6)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"low": 0.0, "high": 1.0}, "low.*above 0"),
        ({"low": 2.0, "high": 1.0}, "high"),
        ({"low": 0.9, "high": 1.0, "scale": "one_minus"}, "high.*below 1"),
        ({"low": 0.9, "high": 1.0 - 1e-9, "scale": "one_minus"}, "high.*below 1"),
        ({"low": 0.1, "high": 1.0, "scale": "logarithmic"}, "scale"),
    ],
)
def test_wrong_ranges(options, message):
    with pytest.raises(UserError, match=message):
        Hyperparameter(path="x", **options)
