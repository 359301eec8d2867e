"""Timing of functions that do the same."""

from unittest import mock

import pytest
import tensorflow as tf

from tfrl import timing


@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("seconds", [0.005, 0.03, 0.06, 0.11, 0.3, 0.7])
def test_timing_gives_each_way_the_same_to_do(seconds, delay):
    clock, steps, asked = [0.0], [0], []

    def function(name, factor):
        def call():
            asked.append(name)
            due = steps[0] % delay == 0
            # A due call has twice the work, and the machine slows down steadily.
            clock[0] += factor * seconds * (1 + due) * (1 + len(asked) / 10_000)
            steps[0] += 1
            return tf.constant(0)

        return call

    fns = {"graph": function("graph", 1.0), "xla": function("xla", 1.2)}
    with mock.patch.object(timing.time, "perf_counter", lambda: clock[0]):
        found = timing.best_seconds(fns, lambda: steps.__setitem__(0, 0))
    assert found["xla"] / found["graph"] == pytest.approx(1.2, rel=0.01)
    turn = 6 if seconds < 0.01 else asked.index("xla")
    assert asked[: 2 * turn] == ["graph"] * turn + ["xla"] * turn
    assert asked.count("graph") == asked.count("xla") >= turn


def test_slow_functions_are_timed_a_few_times_only():
    clock, calls = [0.0], []

    def slow():
        calls.append(1)
        clock[0] += 2.0
        return tf.constant(0)

    with mock.patch.object(timing.time, "perf_counter", lambda: clock[0]):
        assert timing.best_seconds({"graph": slow}) == {"graph": 2.0}
    assert len(calls) == 1
