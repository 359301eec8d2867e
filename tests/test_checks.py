"""Tests of tfrl.checks: what passes, and the exact messages of what does not."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError

Pair = collections.namedtuple("Pair", ["left", "right"])


@struct.dataclass
class Obs:
    """A nest with a field that may be missing."""

    image: object
    speed: object = None


def message(fn, *args, **kwargs):
    """Returns the message of the UserError that the call raises."""
    with pytest.raises(UserError) as caught:
        fn(*args, **kwargs)
    return str(caught.value)


def test_rank():
    checks.rank("x", tf.zeros([2, 3]), 2)
    checks.rank("x", np.zeros([2, 3]), {1, 2})
    checks.rank("x", [1.0, 2.0], 1)
    assert message(checks.rank, "value", tf.zeros([2, 3]), {3, 1}) == (
        "value: expected rank 1 or 3, got rank 2 (shape [2, 3])."
    )


def test_unknown_static_shape_passes_and_adds_no_operation():
    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([None, 3])])
    def f(x, y):
        before = len(tf.compat.v1.get_default_graph().get_operations())
        checks.rank("x", x, 7)
        checks.same_shape(("y", "x"), (y, x))
        checks.same_shape(("y", "z"), (y, tf.TensorSpec([5, 3])))
        checks.matches_spec("y", y, tf.TensorSpec([3]), [4])
        assert len(tf.compat.v1.get_default_graph().get_operations()) == before
        return y

    f.get_concrete_function()


def test_even():
    assert checks.even("n", 4, "pairs meet") == 4
    assert message(checks.even, "n", 5, "pairs meet", alternative=", or stop") == (
        "n: expected an even number, since pairs meet, got 5. Use 6, or stop."
    )


def test_same_shape():
    x = tf.zeros([2, 3])
    checks.same_shape(("a", "b", "c"), (x, x, x))
    assert message(checks.same_shape, ("a", "b", "c"), (x, x, tf.zeros([3, 2]))) == (
        "c: expected the shape [2, 3] of a, got [3, 2]."
    )


def test_leading_shape():
    checks.leading_shape("q", tf.zeros([4, 2, 3]), [4, 2], "reward")
    checks.leading_shape("q", tf.zeros([4, 2, 3]), [4, None], "reward")
    for bad in ([4], [4, 3, 3]):
        assert message(checks.leading_shape, "q", tf.zeros(bad), [4, 2], "reward").startswith(
            f"q: expected the leading axes [4, 2] of reward, got {bad}."
        )


def test_dtype():
    checks.dtype("mask", tf.constant([True]), tf.bool)
    checks.dtype("mask", np.zeros(2, np.float32), "float32")
    assert message(checks.dtype, "mask", tf.zeros([2]), tf.bool) == (
        "mask: expected dtype bool, got float32."
    )


SPEC = {
    "camera": Obs(image=tf.TensorSpec([8, 8, 1], tf.uint8)),
    "pair": Pair(tf.TensorSpec([2]), (tf.TensorSpec([], tf.int64),)),
}


def value(batch=(5,)):
    """A value of SPEC."""
    return tf.nest.map_structure(lambda s: tf.zeros([*batch, *s.shape], s.dtype), SPEC)


def test_matches_spec_accepts():
    checks.matches_spec("obs", value(), SPEC, [5])
    checks.matches_spec("obs", value((7, 5)), SPEC, [None, 5])
    checks.matches_spec("action", np.zeros([3], np.int32), tf.TensorSpec([], tf.int32), [3])
    assert message(checks.matches_spec, "obs", value((7, 5)), SPEC, [None, 4]).startswith(
        "obs/camera/image: expected shape [?, 4, 8, 8, 1] "
    )


def test_matches_spec_names_the_leaf_with_another_shape():
    bad = value()
    bad["pair"] = bad["pair"]._replace(left=tf.zeros([5, 3]))
    assert message(checks.matches_spec, "obs", bad, SPEC, [5]) == (
        "obs/pair/left: expected shape [5, 2] (batch axes [5], then [2] of the spec), got [5, 3]."
    )


def test_matches_spec_names_the_leaf_with_another_dtype():
    bad = value()
    bad["camera"] = Obs(image=tf.zeros([5, 8, 8, 1]))
    assert message(checks.matches_spec, "obs", bad, SPEC, [5]) == (
        "obs/camera/image: expected dtype uint8, got float32."
    )


def test_matches_spec_names_missing_and_unexpected_leaves():
    missing = value()
    del missing["camera"]
    assert message(checks.matches_spec, "obs", missing, SPEC, [5]) == (
        "obs/camera/image: expected a tensor uint8 [5, 8, 8, 1], got no such leaf (the leaves are "
        "pair/left, pair/right/0)."
    )
    extra = value()
    extra["camera"] = extra["camera"].replace(speed=tf.zeros([5]))
    assert message(checks.matches_spec, "obs", extra, SPEC, [5]).startswith(
        "obs/camera/speed: expected only the leaves of the spec (camera/image, "
    )


def test_matches_spec_of_a_single_leaf_uses_the_name_alone():
    assert message(checks.matches_spec, "action", tf.zeros([2]), tf.TensorSpec([3]), []).startswith(
        "action: expected shape [3] (batch axes [], then [3] of the spec), got [2]."
    )


ONE = {
    "at_least": [
        (lambda x: checks.at_least("n", x, 1), 1, 0),
        (lambda x: checks.at_least("n", x, 1, optional=True), None, True),
    ],
    "maximum": [(lambda x: checks.at_least("n", x, 1, maximum=3), np.int64(3), 4)],
    "number": [
        (lambda x: checks.number("n", x, 0, 1), 0, 1.5),
        (lambda x: checks.number("n", x), -2.0, np.nan),
    ],
    "positive": [(lambda x: checks.positive("n", x), 0.1, 0.0)],
    "probability": [(lambda x: checks.probability("n", x), 1, -0.1)],
    "boolean": [(lambda x: checks.boolean("n", x), np.True_, 1)],
    "one_of": [(lambda x: checks.one_of("n", x, ["a", "b"]), "b", "c")],
    "instance": [(lambda x: checks.instance("n", x, str | None, "a string"), None, 3)],
    "function": [(lambda x: checks.function("n", x, "a function"), len, 3)],
    "strings": [(lambda x: checks.strings("n", x), ("a",), "a")],
    "sizes": [(lambda x: checks.sizes("n", x), (1, 2), (0,))],
    "known": [(lambda x: checks.known("n", x, ["a", "b"]), ["a"], ["c"])],
    "same_keys": [(lambda x: checks.same_keys("n", x, ["a"]), {"a": 1}, {"b": 1})],
}


@pytest.mark.parametrize("name", ONE)
def test_a_validator_returns_what_is_right_and_names_what_is_not(name):
    for check, right, wrong in ONE[name]:
        assert check(right) in (right, None)
        assert message(check, wrong).startswith("n: expected ")


def test_messages_of_validators():
    assert message(checks.at_least, "n", True, 1, maximum=3) == (
        "n: expected a whole number of at least 1 and at most 3, got True. Give 1 to 3."
    )
    assert message(checks.number, "n", "2", 0, 1, closed=False, optional=True) == (
        "n: expected a number above 0 and at most 1 or None, got '2'. Pass a finite number."
    )
    assert message(checks.one_of, "mode", "grap", ["graph", "xla"]) == (
        "mode: expected one of graph, xla, got 'grap'. Did you mean graph?"
    )
    assert message(checks.known, "fields", ["totl"], {"total": 1, "mean": 2}) == (
        "fields: expected some of mean, total, got totl. Did you mean total?"
    )
    assert message(checks.same_keys, "obs", {"a": 1, "c": 2}, ["a", "b"]) == (
        "obs: expected a dict with the keys a, b, got no b and unknown c."
    )
    assert message(checks.same_keys, "obs", 3, ["a"]) == (
        "obs: expected a dict with the keys a, got int."
    )
