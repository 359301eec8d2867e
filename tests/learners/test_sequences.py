"""Flat rows of sequences viewed as sequences, and back."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrl import struct
from tfrl.errors import UserError
from tfrl.learners.batches import as_rows, as_sequences


def batch(**changes):
    # Two sequences of 3 steps, of which the second has 2 real ones.
    found = {
        "obs": {"a": np.arange(12.0).reshape(6, 2)},
        "reward": np.arange(6.0),
        "seq_lens": np.array([3, 2]),
        "state_in": np.zeros([2, 4]),
    }
    return {**found, **changes}


def test_rows_of_a_sequence_stay_together():
    found = as_sequences(batch())
    np.testing.assert_array_equal(found["reward"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(found["obs"]["a"][1], [[6, 7], [8, 9], [10, 11]])
    np.testing.assert_array_equal(found["mask"], [[True, True, True], [True, True, False]])
    assert found["state_in"].shape == (2, 4)
    np.testing.assert_array_equal(found["seq_lens"], [3, 2])


def test_a_mask_of_the_batch_counts_too():
    mask = np.array([False, True, True, True, True, True])
    found = as_sequences(batch(mask=mask))
    np.testing.assert_array_equal(found["mask"], [[False, True, True], [True, True, False]])


def test_a_tensor_dict_stays_one():
    found = as_sequences(struct.TensorDict(batch()))
    assert isinstance(found, struct.TensorDict)
    assert found.obs.a.shape == (2, 3, 2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 2))
def test_the_way_back(lengths, more):
    num, steps = len(lengths), max(lengths) + more
    rows = {
        "x": np.random.default_rng(0).normal(size=[num * steps, 3]),
        "seq_lens": np.array(lengths),
    }
    found = as_sequences(rows)
    assert found["x"].shape == (num, steps, 3)
    np.testing.assert_array_equal(np.sum(found["mask"], axis=1), lengths)
    again = as_rows(found)
    np.testing.assert_array_equal(again["x"], rows["x"])
    assert again["mask"].shape == (num * steps,)
    np.testing.assert_array_equal(again["seq_lens"], lengths)


def test_graph_and_xla_agree_with_eager():
    tensors = tf.nest.map_structure(tf.constant, batch())
    eager = as_sequences(tensors)
    for jit in (False, True):
        found = tf.function(as_sequences, jit_compile=jit)(tensors)
        tf.nest.map_structure(np.testing.assert_array_equal, eager, found)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"seq_lens": np.array([4, 0])},
            "seq_lens: expected lengths from 1 to 3, the padded length of the leaves, got "
            "4 (sequence 0), 0 (sequence 1). Pad every sequence",
        ),
        (
            {"reward": np.zeros(5)},
            "expected leaves of 2 x T rows, for 2 sequences padded to the same T, got obs/a of 6 "
            "rows, reward of 5 rows.",
        ),
        (
            {"reward": np.zeros(5), "obs": np.zeros([5, 1])},
            "got obs of 5 rows. Pad every sequence to the longest",
        ),
        (
            {"state_in": {"h": np.zeros([3, 4])}},
            "expected 2 rows, one per sequence, in state_in, got state_in/h of 3 rows",
        ),
        ({"seq_lens": np.array([1.0, 2.0])}, "got float64 of shape (2,)"),
        ({"seq_lens": np.array([], np.int32)}, "expected an integer tensor of static shape [S]"),
    ],
)
def test_messages(changes, expected):
    with pytest.raises(UserError) as error:
        as_sequences(batch(**changes))
    assert expected in str(error.value)


def test_a_batch_without_lengths():
    rows = batch()
    del rows["seq_lens"]
    with pytest.raises(UserError, match=r"expected an item 'seq_lens', the lengths \[S\]"):
        as_sequences(rows)
