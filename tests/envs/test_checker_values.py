"""Tests of what `check_env` lists, and of the actions that it takes on the host."""

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfrl
from tests.envs.checker_fakes import SPACES
from tfrl.envs.checker_values import MAX_LISTED, difference, listed, sample_actions


def test_pictures_are_not_listed_to_the_end():
    text = listed(np.zeros((84, 84)), np.ones((84, 84), bool))
    assert text.count(" at [") == MAX_LISTED
    assert text.endswith(f"0.0 at [1, 15] and {84 * 84 - MAX_LISTED} more")


@pytest.mark.parametrize("name", SPACES)
def test_sampled_actions_are_in_their_space(name):
    for space in SPACES[name][:2]:
        spec = tfrl.specs.to_spec(space)
        drawn = sample_actions(spec, np.random.default_rng(0), 40)
        rows = [tf.nest.map_structure(lambda x, i=i: x[i], drawn) for i in range(40)]
        assert all(space.contains(row) for row in rows), rows
        assert any(difference(rows[0], row) for row in rows)


def test_sampled_actions_obey_masks():
    space = spaces.Dict({"a": spaces.Discrete(3, start=4), "b": spaces.MultiDiscrete([2, 3])})
    first = np.array([[True, False, True]] * 200)
    rows = np.array([[[False, True, False], [True, False, True]]] * 200)
    drawn = sample_actions(
        tfrl.specs.to_spec(space), np.random.default_rng(0), 200, {"a": first, "b": rows}
    )
    assert set(drawn["a"].tolist()) == {4, 6}
    assert set(map(tuple, drawn["b"].tolist())) == {(1, 0), (1, 2)}


def test_differences_have_a_path_and_all_values():
    a = {"x": np.array([1.0, 2.0, 3.0]), "y": (np.array(True), np.array(2))}
    b = {"x": np.array([1.0, 2.5, 3.0 + 1e-7]), "y": (np.array(True), np.array(3))}
    assert difference(a, b) == ("x", "2.5 at [1] instead of 2.0 at [1]")
    assert difference(a, {**b, "x": a["x"]}) == ("y/1", "3 instead of 2")
    close = {**a, "x": a["x"] + 1e-7}
    assert difference(a, close) is None
    assert difference(a, close, exact=True)[0] == "x"
    nothing = {"x": np.array([np.nan, 1.0])}
    assert difference(nothing, {"x": np.array([np.nan, 1.0])}, exact=True) is None
