"""Tests of the columns of episodes against plain lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrl.episodes.lookback_buffer import LookbackBuffer
from tfrl.errors import UserError

INDEX = st.one_of(st.none(), st.integers(-9, 9))
STEP = st.one_of(st.none(), st.integers(-3, 3).filter(bool))


def build(size, lookback, stacked):
    """A buffer of the items 10, 11, ..., of which some are stacked already."""
    buffer = LookbackBuffer("x", lookback=lookback)
    for i in range(size):
        buffer.append(np.asarray(10 + i, np.int32))
        if i + 1 == stacked:
            buffer.to_numpy()
    return buffer


def naive_slice(size, lookback, indices, as_lookback, fill):
    """The items of a slice, one position at a time."""
    length = size - lookback
    step = indices.step or 1

    def place(index, default):
        if index is None:
            return default
        return index + length if index < 0 and not as_lookback else index

    start = place(indices.start, 0 if step > 0 else length - 1)
    stop = place(indices.stop, length if step > 0 else -1)
    found, t = [], start
    while (t < stop) if step > 0 else (t > stop):
        if -lookback <= t < length:
            found.append(10 + lookback + t)
        elif fill is not None:
            found.append(fill)
        t += step
    return found


@settings(deadline=None, max_examples=200)
@given(
    size=st.integers(1, 7),
    lookback=st.integers(0, 3),
    stacked=st.integers(0, 7),
    start=INDEX,
    stop=INDEX,
    step=STEP,
    as_lookback=st.booleans(),
    fill=st.sampled_from([None, 99]),
)
def test_slices_equal_a_list(size, lookback, stacked, start, stop, step, as_lookback, fill):
    lookback = min(lookback, size)
    buffer = build(size, lookback, stacked)
    indices = slice(start, stop, step)
    got = buffer.get(indices, neg_index_as_lookback=as_lookback, fill=fill)
    # Without a fill, a slice that starts outside in steps of more than 1 is shortened first, as a
    # list does it; positions are then compared by Python's own rule.
    if fill is None and step not in (None, 1, -1):
        assert set(got.tolist()) <= set(range(10, 10 + size))
        return
    assert got.tolist() == naive_slice(size, lookback, indices, as_lookback, fill)


def test_steps_are_those_of_a_list():
    buffer = build(6, 0, 3)
    items = list(range(10, 16))
    for start in range(-7, 8):
        for step in (-3, -2, 2, 3):
            # A list has nothing before item 0; so only starts that a list resolves alike.
            if start >= -6:
                assert buffer.get(slice(start, None, step)).tolist() == items[start::step]


def test_the_documented_cases():
    buffer = build(6, 3, 0)  # 10 11 12 | 13 14 15
    assert buffer.get(-1, neg_index_as_lookback=True) == 12
    assert buffer.get(slice(-2, 1), neg_index_as_lookback=True).tolist() == [11, 12, 13]
    assert buffer.get(-1) == 15
    assert buffer.get(-4) == 12
    assert buffer.get([0, -1]).tolist() == [13, 15]
    buffer = build(5, 2, 0)  # 10 11 | 12 13 14
    assert buffer.get(slice(-7, -2), fill=0).tolist() == [0, 0, 10, 11, 12]
    assert buffer.get(7, fill=-1) == -1
    assert buffer.get().tolist() == [12, 13, 14]
    assert buffer.get(slice(0, 0)).tolist() == []


@pytest.mark.parametrize("index", [3, -6, [0, 3, 8]])
def test_a_position_outside_is_an_error(index):
    with pytest.raises(UserError, match="x: expected indices of 3 items with a lookback of 2"):
        build(5, 2, 0).get(index)


def test_an_item_of_another_kind_is_named():
    buffer = LookbackBuffer("obs")
    buffer.append({"a": np.zeros([2], np.float32), "b": np.zeros([], np.int32)})
    with pytest.raises(UserError) as error:
        buffer.append({"a": np.zeros([3], np.float32), "b": np.zeros([], np.int32)})
    assert str(error.value) == ("obs: expected a: float32 [2], got a: float32 [3].")
    with pytest.raises(UserError, match="expected b: int32 \\[\\], got no b"):
        buffer.append({"a": np.zeros([2], np.float32)})
    assert buffer.size == 1


@pytest.mark.parametrize("stacked", [0, 2, 4])
def test_cut_shares_memory_and_replace_last_does_not_reach_it(stacked):
    buffer = build(4, 1, stacked)
    part = buffer.cut(1, 3, 2)  # items 12 and 13 with 10 and 11 before
    assert part.all().tolist() == [10, 11, 12, 13]
    assert part.get().tolist() == [12, 13]
    buffer.replace_last(np.asarray(50, np.int32))
    assert buffer.get(-1) == 50
    assert part.get(-1) == 13


def test_stacked_arrays_are_read_only_views():
    buffer = build(4, 0, 4)
    whole, part = buffer.get(), buffer.get(slice(1, 3))
    assert np.shares_memory(whole, part)
    with pytest.raises(ValueError, match="read-only"):
        part[0] = 1


def test_an_empty_part_keeps_its_shape():
    buffer = LookbackBuffer("x")
    buffer.append(np.zeros([3], np.float32))
    assert buffer.cut(1, 1, 0).get().shape == (0, 3)
    with pytest.raises(UserError, match="at least one item"):
        LookbackBuffer("x").get(0, fill=0)
    assert LookbackBuffer("x").get().shape == (0,)
