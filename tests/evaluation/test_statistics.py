import numpy as np
import pytest

from tfrl.evaluation import EvaluationResult, bootstrap_interval, result


def test_interval_near_the_normal_one():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    low, high = bootstrap_interval(values)
    error = values.std() / np.sqrt(400)
    expected = values.mean() + 1.96 * error * np.array([-1, 1])
    np.testing.assert_allclose([low, high], expected, atol=0.03)


def test_coverage_is_about_the_confidence():
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(300):
        low, high = bootstrap_interval(generator.normal(size=60), 0.8, resamples=400)
        hits += low < 0.0 < high
    assert 0.72 < hits / 300 < 0.88


def test_two_values_by_hand():
    # Samples of {0, 1} of size 2 have means 0, 1/2, 1 with chances 1/4, 1/2, 1/4: the middle 95%
    # reach from 0 to 1, the middle 40% are 1/2.
    assert bootstrap_interval(np.array([0.0, 1.0])) == (0.0, 1.0)
    assert bootstrap_interval(np.array([0.0, 1.0]), confidence=0.4) == (0.5, 0.5)


def test_one_value_and_equal_values():
    assert bootstrap_interval(np.array([7.0])) == (7.0, 7.0)
    assert bootstrap_interval(np.full(5, -2.0)) == (-2.0, -2.0)
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap_interval(np.array([]))


def test_seeded(monkeypatch):
    values = np.random.default_rng(1).normal(size=50)
    first = bootstrap_interval(values, seed=4)
    assert first == bootstrap_interval(values, seed=4)
    assert first != bootstrap_interval(values, seed=5)
    # Chunks bound the memory: fewer rows at a time draw the same numbers.
    monkeypatch.setattr(result, "_CHUNK", 50 * 7)
    np.testing.assert_allclose(bootstrap_interval(values, seed=4), first)


def test_result():
    result = EvaluationResult.of(np.array([1.0, 3.0], np.float32), np.array([10, 30]))
    assert (result.mean, result.std) == (2.0, 1.0)
    assert result.metrics() == {
        "eval_return_mean": 2.0,
        "eval_return_std": 1.0,
        "eval_return_low": 1.0,
        "eval_return_high": 3.0,
        "eval_length_mean": 20.0,
        "eval_episodes": 2,
    }
    assert result.episode_returns.dtype == np.float32
    assert result.episode_lengths.dtype == np.int32
