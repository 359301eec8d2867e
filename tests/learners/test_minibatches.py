"""Minibatch plans: exact coverage for every combination of rows, size, epochs and remainder."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrl import seeding
from tfrl.errors import UserError
from tfrl.learners.minibatches import (
    MinibatchPlan,
    minibatch_indices,
    plan_minibatches,
)

KINDS = ["error", "pad", "drop", "wrap"]


def message(fn, *args, **kwargs):
    with pytest.raises(UserError) as error:
        fn(*args, **kwargs)
    return str(error.value)


def check_epochs(plan, indices):
    """Whole epochs of a plan hold each row as often as its remainder policy says."""
    per_epoch = plan.steps_per_epoch
    assert indices.dtype == np.int32 and indices.shape[1] == plan.size
    for start in range(0, len(indices) - per_epoch + 1, per_epoch):
        epoch = indices[start : start + per_epoch].reshape(-1)
        counts = np.bincount(epoch[epoch >= 0], minlength=plan.rows)
        padding = int(np.sum(epoch < 0))
        if plan.remainder == "error":
            assert np.all(counts == 1) and padding == 0
        elif plan.remainder == "pad":
            assert np.all(counts == 1) and padding == (-plan.rows) % plan.size
            assert plan.padded == (padding > 0)
        elif plan.remainder == "drop":
            assert np.all(counts <= 1) and padding == 0
            assert counts.sum() == plan.rows // plan.size * plan.size
        else:
            assert np.all(counts >= 1) and padding == 0


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 40),
    size=st.integers(1, 50),
    epochs=st.integers(1, 3),
    remainder=st.sampled_from(KINDS),
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
    check_epochs(plan, indices)
    if not shuffle:
        used = indices.reshape(epochs, -1)[:, : min(rows, plan.steps_per_epoch * size)]
        np.testing.assert_array_equal(used, [np.arange(used.shape[1])] * epochs)


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
        ({"rows": 0}, "the rows of the batch: expected a whole number of at least 1, got 0"),
        ({"size": 0}, "minibatch_size: expected a whole number of at least 1, got 0"),
        ({"size": 2.0}, "minibatch_size: expected a whole number of at least 1, got 2.0"),
        ({"epochs": -1}, "num_epochs: expected a whole number of at least 1, got -1"),
        ({"remainder": "keep"}, "remainder: expected one of error, pad, drop, wrap, got 'keep'"),
        ({"size": 5}, "The nearest divisors are 4 and 8"),
        ({"size": 9, "remainder": "drop"}, "expected at most the 8 rows of the batch"),
    ],
)
def test_messages(change, message):
    with pytest.raises(UserError) as error:
        MinibatchPlan(**{"rows": 8, "size": 4, **change})
    assert message in str(error.value)


def test_orders_are_uniform():
    # Each of the 24 orders of 4 rows about 100 times in 2400: within 5 standard deviations of 9.8.
    plan = MinibatchPlan(rows=4, size=4, epochs=2400)
    found = tf.function(lambda: minibatch_indices(plan, seeding.key(0)))()
    orders, counts = np.unique(found, axis=0, return_counts=True)
    assert len(orders) == 24
    assert np.all(np.abs(counts - 100) < 50)


# Several modules.


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    sizes=st.lists(st.one_of(st.none(), st.integers(1, 35)), min_size=4, max_size=4),
    epochs=st.integers(1, 3),
    remainder=st.sampled_from(KINDS),
    total=st.one_of(st.none(), st.integers(1, 40)),
    shuffle=st.booleans(),
)
def test_coverage_of_several_modules(rows, sizes, epochs, remainder, total, shuffle):
    rows = {f"m{i}": n for i, n in enumerate(rows)}
    asked = {m: sizes[i] for i, m in enumerate(rows)}
    size = {m: asked[m] or n for m, n in rows.items()}
    options = {"num_epochs": epochs, "remainder": remainder, "shuffle": shuffle}
    most = max(rows.values())
    strict = [m for m, n in rows.items() if n == most]
    if any(
        (remainder == "error" and most % size[m]) or (remainder == "drop" and size[m] > most)
        for m in strict
    ):
        with pytest.raises(UserError):
            plan_minibatches(rows, asked, num_total_minibatches=total, **options)
        return
    plan = plan_minibatches(rows, asked, num_total_minibatches=total, **options)
    wanted = {m: p.steps_per_epoch * epochs for m, p in plan.modules.items()}
    assert plan.steps == (total or max(wanted.values()))
    for m, one in plan.modules.items():
        assert (one.rows, one.size) == (rows[m], size[m])
        if m in strict:
            assert one.remainder == remainder
        # As many epochs as cover the steps, and no more.
        assert one.steps >= plan.steps > one.steps - one.steps_per_epoch
        indices = minibatch_indices(one, seeding.key(7)).numpy()[: plan.steps]
        assert len(indices) == plan.steps
        check_epochs(one, indices)
        if total is None and one.remainder != "drop":
            seen = np.unique(indices[indices >= 0])
            np.testing.assert_array_equal(seen, np.arange(rows[m]))


def test_a_module_with_fewer_rows_goes_round_with_fresh_permutations():
    # 2 epochs of 40 / 10 are 8 steps; 20 rows give 2 minibatches an epoch, so 4 epochs.
    plan = plan_minibatches({"a": 40, "b": 20}, 10, num_epochs=2)
    assert plan.steps == 8
    assert plan.modules["a"].epochs == 2 and plan.modules["b"].epochs == 4
    orders = minibatch_indices(plan.modules["b"], seeding.key(0)).numpy().reshape(4, 20)
    np.testing.assert_array_equal(np.sort(orders), [np.arange(20)] * 4)
    assert len(np.unique(orders, axis=0)) == 4


@pytest.mark.parametrize(
    ("remainder", "size", "kinds"),
    [
        ("error", 4, {"a": "error", "b": "wrap", "c": "wrap"}),
        ("drop", 4, {"a": "drop", "b": "wrap", "c": "wrap"}),
        ("pad", 4, {"a": "pad", "b": "pad", "c": "pad"}),
        ("error", {"a": 4, "b": 3}, {"a": "error", "b": "error", "c": "error"}),
    ],
)
def test_the_module_with_the_most_rows_follows_the_policy_strictly(remainder, size, kinds):
    plan = plan_minibatches({"a": 8, "b": 6, "c": 3}, size, remainder=remainder)
    assert {m: p.remainder for m, p in plan.modules.items()} == kinds


def test_another_number_of_steps_keeps_those_that_both_have():
    plan = plan_minibatches({"a": 12, "b": 6}, 4, remainder="wrap")
    longer = plan.with_steps(7)
    assert (plan.steps, longer.steps) == (3, 7)
    for m in ("a", "b"):
        few = minibatch_indices(plan.modules[m], seeding.key(2))[:3]
        many = minibatch_indices(longer.modules[m], seeding.key(2))[:7]
        np.testing.assert_array_equal(few, many[:3])
        assert many.shape[0] == 7


def test_one_module_is_cut_as_ever():
    one = plan_minibatches({"a": 12}, 4, num_epochs=3).modules["a"]
    assert one == MinibatchPlan(rows=12, size=4, epochs=3)
    assert plan_minibatches({"a": 12}, 4) == plan_minibatches({"a": 12}, 4)
    assert plan_minibatches({"a": 12}, 4) != plan_minibatches({"a": 12}, 6)


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        ({}, {}, "the batch: expected rows of at least one module, got none"),
        ({"a": 0}, {}, "the rows of the batch: expected a whole number of at least 1, got 0"),
        ({"a": 8, "b": 0}, {}, "the rows of the batch of module 'b': expected a whole number"),
        ({"a": 8}, {"minibatch_size": 3}, "minibatch_size: expected a divisor of the 8 rows"),
        (
            {"a": 8, "b": 4},
            {"minibatch_size": 3},
            "minibatch_size of module 'a': expected a divisor of the 8 rows of the batch, got 3 "
            "(remainder 2). The nearest divisors are 2 and 4",
        ),
        (
            {"a": 8, "b": 8, "c": 4},
            {"minibatch_size": {"a": 3, "b": 0}},
            "the minibatches: expected rows and sizes that fit for every module, got module 'a': "
            "minibatch_size 3 (remainder 2), expected a divisor of the 8 rows of the batch; module "
            "'b': minibatch_size 0, expected a whole number of at least 1.",
        ),
        (
            {"a": 8},
            {"minibatch_size": {"a": 4, "z": 4}},
            "minibatch_size: expected sizes for modules of the batch, ['a'], got sizes for "
            "['a', 'z']. Leave out 'z'.",
        ),
        (
            {"a": 8, "b": 4},
            {"num_epochs": 0},
            "num_epochs: expected a whole number of at least 1, got 0",
        ),
        ({"a": 8, "b": 4}, {"remainder": "keep"}, "remainder: expected one of error, pad, drop"),
        (
            {"a": 8},
            {"num_total_minibatches": 0},
            "num_total_minibatches: expected a whole number of at least 1, got 0",
        ),
    ],
)
def test_messages_of_several_modules(rows, options, expected):
    assert expected in message(plan_minibatches, rows, **options)


@pytest.mark.parametrize("name", ["num_epochs", "minibatch_size", "num_total_minibatches"])
@pytest.mark.parametrize("number", [0, -3, 1.5, 64.0, True, "4"])
def test_numbers_that_are_none(name, number):
    with pytest.raises(UserError) as error:
        plan_minibatches({"a": 8}, **{name: number})
    start = f"{name}: expected a whole number of at least 1"
    assert str(error.value).startswith(start)
    assert f"got {number!r}. " in str(error.value)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_shuffle_is_a_bool(value):
    # With one minibatch of all rows, too, where the order does not matter.
    for fn in (lambda: plan_minibatches({"a": 8}, shuffle=value), lambda: _plan(value)):
        with pytest.raises(UserError) as error:
            fn()
        assert str(error.value).startswith(f"shuffle: expected True or False, got {value!r}. ")
    assert _plan(np.bool_(True)) == _plan(True)


def _plan(shuffle):
    return MinibatchPlan(rows=8, size=4, shuffle=shuffle)
