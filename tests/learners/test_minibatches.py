"""Minibatch plans: exact coverage for every combination of rows, size, epochs and remainder."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrl import seeding
from tfrl.errors import UserError
from tfrl.learners.minibatches import MinibatchPlan, minibatch_indices


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 40),
    size=st.integers(1, 50),
    epochs=st.integers(1, 3),
    remainder=st.sampled_from(["error", "pad", "drop", "wrap"]),
    shuffle=st.booleans(),
    seed=st.integers(0, 99),
)
def test_coverage(rows, size, epochs, remainder, shuffle, seed):
    settings_ = {"rows": rows, "size": size, "epochs": epochs, "shuffle": shuffle}
    if remainder == "error" and rows % size or remainder == "drop" and size > rows:
        with pytest.raises(UserError, match="minibatch_size"):
            MinibatchPlan(remainder=remainder, **settings_)
        return
    plan = MinibatchPlan(remainder=remainder, **settings_)
    indices = minibatch_indices(plan, seeding.key(seed)).numpy()
    assert indices.shape == (plan.steps, size)
    for epoch in indices.reshape(epochs, -1):
        counts = np.bincount(epoch[epoch >= 0], minlength=rows)
        padding = int(np.sum(epoch < 0))
        if remainder == "error":
            assert np.all(counts == 1) and padding == 0
        elif remainder == "pad":
            assert np.all(counts == 1) and padding == (-rows) % size
            assert plan.padded == (padding > 0)
        elif remainder == "drop":
            assert np.all(counts <= 1) and counts.sum() == rows // size * size and padding == 0
        else:
            assert np.all(counts >= 1) and padding == 0


def test_every_epoch_is_permuted_anew_the_first_included():
    plan = MinibatchPlan(rows=64, size=16, epochs=3)
    orders = minibatch_indices(plan, seeding.key(1)).numpy().reshape(3, 64)
    assert not np.array_equal(orders[0], np.arange(64))
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[1], orders[2])


def test_without_shuffling_rows_keep_their_order():
    plan = MinibatchPlan(rows=6, size=4, shuffle=False, remainder="wrap")
    indices = minibatch_indices(plan, seeding.key(1))
    np.testing.assert_array_equal(indices, [[0, 1, 2, 3], [4, 5, 0, 1]])


def test_eager_graph_and_xla_agree():
    plan = MinibatchPlan(rows=300, size=100, epochs=2)

    def run(key):
        return minibatch_indices(plan, key)

    eager = run(seeding.key(5))
    np.testing.assert_array_equal(eager, tf.function(run)(seeding.key(5)))
    np.testing.assert_array_equal(eager, tf.function(run, jit_compile=True)(seeding.key(5)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "the batch: expected at least one row, got 0"),
        ({"size": 0}, "minibatch_size: expected at least 1, got 0"),
        ({"size": 2.0}, "minibatch_size: expected at least 1, got 2.0"),
        ({"epochs": -1}, "num_epochs: expected at least 1, got -1"),
        ({"remainder": "keep"}, "remainder: expected one of error, pad, drop, wrap, got 'keep'"),
        ({"size": 5}, "The nearest that divide are 4 and 8"),
        ({"size": 9, "remainder": "drop"}, "expected at most the 8 rows of the batch"),
    ],
)
def test_messages(change, message):
    with pytest.raises(UserError) as error:
        MinibatchPlan(**{"rows": 8, "size": 4, **change})
    assert message in str(error.value)
