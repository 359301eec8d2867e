"""Seams: one trace per mode, the faster mode, and messages."""

import pytest
import tensorflow as tf

from tfrl.errors import UserError
from tfrl.workflows.seams import Seam, check_compile

SEAMS = ("rollout", "update")


def test_a_seam_traces_once_per_mode():
    seam = Seam("rollout", lambda x: x + 1.0)
    for mode in ("graph", "xla", "graph"):
        seam.mode = mode
        for value in range(5):
            assert float(seam(tf.constant(float(value)))) == value + 1.0
    assert seam.trace_counts == {"graph": 1, "xla": 1}


def test_eager_runs_the_function_itself():
    calls = []
    seam = Seam("rollout", lambda x: calls.append(1) or x)
    seam.mode = "eager"
    seam(1.0)
    seam(1.0)
    assert len(calls) == 2


def test_the_clearly_faster_mode_is_kept():
    def many_small_ops(x):
        return tf.while_loop(
            lambda i, x: i < 300, lambda i, x: (i + 1, tf.sin(x) + tf.cos(x)), (0, x)
        )[1]

    seam = Seam("rollout", many_small_ops)
    assert seam.choose_by_time(tf.ones([4])) == "xla"
    assert seam.mode == "xla"
    assert seam.seconds["xla"] < seam.seconds["graph"]


def test_an_op_that_xla_lacks_keeps_the_graph():
    def unique(x):
        return tf.strings.as_string(x)

    seam = Seam("update", unique)
    assert seam.choose_by_time(tf.ones([2])) == "graph"


def test_a_seam_without_a_mode_says_so():
    with pytest.raises(RuntimeError, match="seam 'rollout' was not chosen"):
        Seam("rollout", lambda x: x)(1)


def test_compile_argument():
    assert check_compile("xla", SEAMS) == {"rollout": "xla", "update": "xla"}
    assert check_compile({"update": "graph"}, SEAMS) == {"rollout": "auto", "update": "graph"}
    with pytest.raises(UserError, match="compile: expected one of xla, graph, eager, auto"):
        check_compile("jit", SEAMS)
    with pytest.raises(UserError, match="got {'learner': 'xla'}"):
        check_compile({"learner": "xla"}, SEAMS)
