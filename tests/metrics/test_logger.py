"""The MetricsLogger against hand-worked numbers and a logger that keeps every value."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrl.errors import UserError
from tfrl.metrics import MetricsLogger

NAN = math.nan


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def through_json(state):
    return json.loads(json.dumps(state, allow_nan=False))


def restored(logger, clock=None):
    """A logger of a new process that has read the state of another from a file."""
    other = MetricsLogger(clock or Clock())
    other.set_state(through_json(logger.get_state()))
    return other


class TestReductions:
    @pytest.mark.parametrize(
        ("kind", "expected"), [("mean", 2.0), ("min", 1), ("max", 3), ("sum", 6)]
    )
    def test_cleared_kinds(self, kind, expected):
        logger = MetricsLogger()
        for x in (1, 3, 2):
            logger.log("x", x, reduce=kind)
        assert logger.peek("x") == expected
        assert logger.reduce() == {"x": expected}
        assert logger.reduce() == {}
        logger.log("x", 7, reduce=kind)
        assert logger.reduce() == {"x": 7}

    def test_window_stays(self):
        logger = MetricsLogger()
        for x in (1, 2, 3):
            logger.log("x", x, window=2)
        assert logger.reduce() == {"x": 2.5}
        assert logger.reduce() == {"x": 2.5}
        logger.log("x", 6, window=2)
        assert logger.reduce() == {"x": 4.5}

    def test_ema(self):
        # c = 0.5 of 1, 3: (0.25 * 1 + 0.5 * 3) / 0.75 = 7/3
        logger = MetricsLogger()
        logger.log("x", 1, reduce="ema", ema_coeff=0.5)
        assert logger.reduce() == {"x": 1.0}
        logger.log("x", 3, reduce="ema", ema_coeff=0.5)
        assert logger.reduce()["x"] == pytest.approx(7 / 3)

    def test_ema_default_and_full_weight(self):
        logger = MetricsLogger()
        for x in (1, 3):
            logger.log("slow", x, reduce="ema")
            logger.log("last", x, reduce="ema", ema_coeff=1)
        # c = 0.01: (0.0099 * 1 + 0.01 * 3) / 0.0199
        assert logger.peek("slow") == pytest.approx(0.0399 / 0.0199)
        assert logger.peek("last") == 3

    def test_lifetime_sum_is_exact(self):
        logger = MetricsLogger()
        logger.log("n", 2**53, reduce="lifetime_sum")
        logger.reduce()
        logger.log("n", np.int64(1), reduce="lifetime_sum")
        assert logger.reduce() == {"n": 2**53 + 1}  # a float would round it away
        assert isinstance(logger.peek("n"), int)

    def test_nested_paths(self):
        logger = MetricsLogger()
        logger.log_dict({"a": {"loss": 1, "kl": 2}, "b": {"loss": 3}}, prefix="modules")
        logger.log(("modules", "a", "loss"), 3)
        expected = {"a": {"loss": 2.0, "kl": 2.0}, "b": {"loss": 3.0}}
        assert logger.peek("modules") == expected
        assert logger.peek(("modules", "a")) == expected["a"]
        assert logger.peek() == {"modules": expected}
        assert ("modules", "b", "loss") in logger
        assert "modules" not in logger

    def test_a_slash_in_a_string_is_part_of_the_name(self):
        logger = MetricsLogger()
        logger.log("ppo/loss", 1)
        assert logger.reduce() == {"ppo/loss": 1.0}

    def test_remove_by_prefix(self):
        logger = MetricsLogger()
        logger.log_dict({"a": {"loss": 1}, "ab": {"loss": 2}})
        logger.remove("a")
        logger.remove("unknown")
        assert logger.reduce() == {"ab": {"loss": 2.0}}
        logger.log(("a", "loss"), 5, reduce="sum")  # the old settings are gone too
        assert logger.reduce() == {"a": {"loss": 5}}

    def test_peek_of_nothing(self):
        logger = MetricsLogger()
        logger.log("mean", 1)
        logger.log("sum", 1, reduce="sum")
        logger.reduce()
        assert math.isnan(logger.peek("mean"))
        assert logger.peek("sum") == 0


class TestNaN:
    @pytest.mark.parametrize(
        ("kind", "expected"),
        [("mean", 2.0), ("min", 1.0), ("max", 3.0), ("sum", 4.0), ("lifetime_sum", 4.0)],
    )
    def test_counts_as_no_value(self, kind, expected):
        logger = MetricsLogger()
        for x in (NAN, 1.0, NAN, 3.0, NAN):
            logger.log("x", x, reduce=kind)
        assert logger.reduce() == {"x": expected}

    @pytest.mark.parametrize("kind", ["mean", "min", "max", "sum", "lifetime_sum", "ema"])
    def test_alone_is_shown(self, kind):
        logger = MetricsLogger()
        logger.log("x", NAN, reduce=kind)
        logger.log("x", tf.constant(NAN), reduce=kind)
        assert math.isnan(logger.reduce()["x"])
        logger.log("x", 5.0, reduce=kind)
        assert logger.reduce() == {"x": pytest.approx(5.0)}

    def test_ema_does_not_decay_on_it(self):
        logger = MetricsLogger()
        for x in (1.0, NAN, 3.0):
            logger.log("x", x, reduce="ema", ema_coeff=0.5)
        assert logger.peek("x") == pytest.approx(7 / 3)

    def test_element_by_element(self):
        logger = MetricsLogger()
        for x in ([1.0, NAN, NAN], [3.0, 5.0, NAN]):
            logger.log("mean", x)
            logger.log("sum", x, reduce="sum")
            logger.log("max", x, reduce="max")
            logger.log("ema", x, reduce="ema", ema_coeff=0.5)
            logger.log("window", x, window=2)
        row = logger.reduce()
        np.testing.assert_array_equal(row["mean"], [2, 5, NAN])
        np.testing.assert_array_equal(row["sum"], [4, 5, NAN])
        np.testing.assert_array_equal(row["max"], [3, 5, NAN])
        np.testing.assert_allclose(row["ema"], [7 / 3, 5, NAN])
        np.testing.assert_array_equal(row["window"], [2, 5, NAN])

    def test_infinity_counts(self):
        logger = MetricsLogger()
        for x in (math.inf, -math.inf, 1.0):
            logger.log("max", x, reduce="max")
            logger.log("min", x, reduce="min")
        assert restored(logger).reduce() == {"max": math.inf, "min": -math.inf}


class TestValues:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (True, 1),
            (np.float32(0.5), 0.5),
            (np.array(3, np.uint8), 3),
            (np.array(2**64 - 1, np.uint64), 2**64 - 1),
            (tf.constant(4, tf.int32), 4),
            (tf.constant(1.5, tf.bfloat16), 1.5),
        ],
    )
    def test_scalars(self, value, expected):
        logger = MetricsLogger()
        logger.log("x", value, reduce="sum")
        found = logger.reduce()["x"]
        assert found == expected
        assert type(found) is type(expected)

    def test_mean_over_a_window_of_arrays(self):
        logger = MetricsLogger()
        for i in range(4):
            logger.log("x", tf.constant([i, 10 * i]), window=2)
        found = logger.reduce()["x"]
        np.testing.assert_array_equal(found, [2.5, 25])
        found += 100  # the caller's own copy
        np.testing.assert_array_equal(logger.peek("x"), [2.5, 25])

    def test_what_changes_later_is_read_at_once(self):
        logger = MetricsLogger()
        variable, array = tf.Variable(1.0), np.ones([2])
        logger.log("variable", variable)
        logger.log("array", array)
        variable.assign(9.0)
        array[:] = 9
        assert logger.peek("variable") == 1.0
        np.testing.assert_array_equal(logger.peek("array"), [1, 1])

    def test_tensors_wait_for_their_conversion(self):
        class Lazy:
            shape = ()
            dtype = np.dtype(np.float32)
            reads = 0

            def numpy(self):
                self.reads += 1
                return np.float32(2)

        lazy = Lazy()
        logger = MetricsLogger()
        logger.log("x", lazy)
        assert lazy.reads == 0
        assert logger.reduce() == {"x": 2.0}
        assert lazy.reads == 1

    def test_waiting_values_are_bounded(self):
        logger = MetricsLogger()
        for i in range(5000):
            logger.log("x", i)
        assert len(logger._metrics["x",]._waiting) < 2000
        assert logger.reduce() == {"x": 2499.5}

    @pytest.mark.parametrize(
        "value", ["text", None, {"a": 1}, [[1], [2, 3]], ["a"], 1j, tf.constant("text"), object()]
    )
    def test_others_are_refused(self, value):
        logger = MetricsLogger()
        with pytest.raises(UserError, match="metric a/x: expected a number, an array of numbers"):
            logger.log(("a", "x"), value)
        assert logger.reduce() == {}

    def test_symbolic_tensor(self):
        logger = MetricsLogger()

        @tf.function
        def traced(x):
            logger.log("x", x)

        with pytest.raises(UserError, match="metric x: expected a value, got a symbolic tensor"):
            traced(tf.constant(1.0))


class TestMistakes:
    def message(self, *calls):
        logger = MetricsLogger()
        with pytest.raises(UserError) as error:
            for args, kwargs in calls:
                logger.log(*args, **kwargs)
        return str(error.value)

    def test_conflicting_settings(self):
        text = self.message(((("a", "x"), 1), {"reduce": "sum"}), ((("a", "x"), 1), {"window": 5}))
        assert text == (
            "metric a/x: expected reduce='sum', window=None, as when first logged, got "
            "reduce='mean', window=5. Log a name with the same settings everywhere, or choose "
            "another name."
        )

    def test_unknown_kind(self):
        text = self.message((("x", 1), {"reduce": "maximum"}))
        assert text == (
            "metric x: reduce: expected one of mean, min, max, sum, items, ema, lifetime_sum, "
            "lifetime_min, lifetime_max, got 'maximum'. Did you mean max?"
        )

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"window": 0}, "window: expected a whole number of at least 1 or None, got 0"),
            ({"window": 2.5}, "window: expected a whole number of at least 1 or None, got 2.5"),
            ({"reduce": "ema", "ema_coeff": 0}, "ema_coeff: expected a number above 0 and at"),
            ({"throughput": True}, "throughput: expected False unless reduce is"),
            ({"reduce": "sum", "window": 2, "throughput": True}, "throughput: expected False"),
        ],
    )
    def test_settings_that_do_not_fit(self, options, text):
        assert f"metric x: {text}" in self.message((("x", 1), options))

    @pytest.mark.parametrize("name", ["", (), ("a", ""), ("a", 1), 5])
    def test_names(self, name):
        assert "metric name: expected a non-empty string, or a tuple" in self.message(
            ((name, 1), {})
        )

    def test_a_shape_stays(self):
        text = self.message((("x", [1, 2]), {}), (("x", 1), {}))
        assert (
            "metric x: expected a value of shape (2,), as in the first call, got a value of shape "
            "()" in text
        )

    @pytest.mark.parametrize(
        "names", [("a", ("a", "b")), (("a", "b"), "a"), ("steps_per_second", "steps")]
    )
    def test_a_place_is_taken(self, names):
        logger = MetricsLogger()
        logger.log(names[0], 1)
        with pytest.raises(UserError, match="a name that does not overlap with"):
            logger.log(names[1], 1, reduce="sum", throughput=True)

    def test_unknown_name(self):
        logger = MetricsLogger()
        with pytest.raises(UserError, match="an unknown name, of 0 logged metrics. Log it first."):
            logger.peek("x")
        logger.log(("a", "loss"), 1)
        for name in (("a", "los"), ("a", "loss", "deeper")):
            with pytest.raises(UserError, match="Did you mean a/loss?"):
                logger.peek(name)

    def test_foreign_state(self):
        logger = MetricsLogger()
        for state, got in (({"schema": 2}, "schema 2"), ([], r"\[\]")):
            with pytest.raises(UserError, match=f"metrics state: .* got {got}"):
                logger.set_state(state)
        state = logger.get_state()
        state["metrics"] = [{"path": ["x"]}]
        with pytest.raises(UserError, match="metrics state: .* got KeyError"):
            logger.set_state(state)


class TestThroughput:
    def test_per_second_since_the_last_reduce(self):
        clock = Clock()
        logger = MetricsLogger(clock)
        for n in (30, 20):
            logger.log("steps", n, reduce="lifetime_sum", throughput=True)
            logger.log("episodes", 1, reduce="sum", throughput=True)
        clock.now += 10
        assert logger.peek("steps_per_second") == 5.0
        assert logger.reduce() == {
            "steps": 50,
            "steps_per_second": 5.0,
            "episodes": 2,
            "episodes_per_second": 0.2,
        }
        clock.now += 4
        assert logger.reduce() == {"steps": 50, "steps_per_second": 0.0}
        logger.log("steps", 12, reduce="lifetime_sum", throughput=True)
        assert math.isnan(logger.peek("steps_per_second"))  # no time has passed
        clock.now += 3
        assert logger.reduce() == {"steps": 62, "steps_per_second": 4.0}

    def test_the_time_between_save_and_restore_does_not_count(self):
        clock = Clock()
        logger = MetricsLogger(clock)
        logger.log("steps", 10, reduce="sum", throughput=True)
        clock.now += 2
        other_clock = Clock()
        other_clock.now = 9e6
        other = restored(logger, other_clock)
        other_clock.now += 3
        other.log("steps", 15, reduce="sum", throughput=True)
        assert other.reduce() == {"steps": 25, "steps_per_second": 5.0}

    def test_a_root_counts_the_amounts_of_all(self):
        clock = Clock()
        root, workers = MetricsLogger(clock), [MetricsLogger(), MetricsLogger()]
        for worker in workers:
            worker.log("steps", 10, reduce="lifetime_sum", throughput=True)
        clock.now += 5
        root.merge(workers)
        assert root.reduce() == {"steps": 20, "steps_per_second": 4.0}


class TestMerge:
    def test_each_kind(self):
        root, a, b = MetricsLogger(), MetricsLogger(), MetricsLogger()
        for logger, xs in ((a, [1, 2, 3]), (b, [10])):
            for x in xs:
                for kind in ("mean", "min", "max", "sum", "lifetime_sum"):
                    logger.log(kind, x, reduce=kind)
                logger.log("window", x, window=2)
        root.merge([a, b])
        assert root.reduce() == {
            "mean": 4.0,  # by counts: 16 / 4, not the mean of 2 and 10
            "min": 1,
            "max": 10,
            "sum": 16,
            "lifetime_sum": 16,
            "window": 6.5,  # the newest of each: 3 and 10
        }

    def test_window_takes_values_in_turn(self):
        root, a, b = MetricsLogger(), MetricsLogger(), MetricsLogger()
        for x in (1, 2, 3, 4):
            a.log("x", [x], window=3, reduce="sum")
        b.log("x", [50], window=3, reduce="sum")
        root.merge([a, b])
        assert root.peek("x") == [57]  # 50 of b, 4 and 3 of a

    def test_ema_weighs_by_counts(self):
        root, a, b = MetricsLogger(), MetricsLogger(), MetricsLogger()
        for logger, xs in ((a, [1, 1, 1]), (b, [5])):
            for x in xs:
                logger.log("x", x, reduce="ema", ema_coeff=0.25)
        root.merge([a, b])
        assert root.peek("x") == pytest.approx(2.0)
        root.log("x", 4, reduce="ema", ema_coeff=0.25)
        # Four values of mean 2 have the weight w = 0.75 (1 - 0.75^4), the new one 0.25.
        w = 0.75 * (1 - 0.75**4)
        assert root.peek("x") == pytest.approx((w * 2 + 0.25 * 4) / (w + 0.25))

    def test_ema_of_arrays_weighs_element_by_element(self):
        root, a, b = MetricsLogger(), MetricsLogger(), MetricsLogger()
        for logger, xs in ((a, [[1, NAN, NAN], [1, 3, NAN]]), (b, [[4, 6, NAN]])):
            for x in xs:
                logger.log("x", x, reduce="ema", ema_coeff=0.25)
        root.merge([a, b])
        np.testing.assert_allclose(root.peek("x"), [2, 4.5, NAN])

    def test_increments_count_once(self):
        root, worker = MetricsLogger(), MetricsLogger()
        for total in (10, 20, 30):
            worker.log("steps", 10, reduce="lifetime_sum")
            root.merge([worker])
            root.merge([worker])  # nothing new
            assert root.peek("steps") == total
            assert worker.peek("steps") == total
        assert root.reduce() == {"steps": 30}

    def test_through_another_process_and_a_node_between(self):
        root, node, worker = MetricsLogger(), MetricsLogger(), MetricsLogger()
        worker.log(("a", "x"), [1.0, NAN], reduce="max")
        worker.log("n", 3, reduce="lifetime_sum")
        node.merge([through_json(worker.take())])
        root.merge([through_json(node.take())])
        row = root.reduce()
        np.testing.assert_array_equal(row["a"]["x"], [1, NAN])
        assert row["n"] == 3
        assert worker.take()["metrics"] == []

    def test_restored_worker_into_restored_root(self):
        root, worker = MetricsLogger(), MetricsLogger()
        worker.log("steps", 10, reduce="lifetime_sum")
        worker.log("x", 1.0, window=4)
        root.merge([worker])
        worker.log("steps", 5, reduce="lifetime_sum")  # not merged yet
        root, worker = restored(root), restored(worker)
        root.merge([worker])
        assert root.peek() == {"steps": 15, "x": 1.0}
        worker.log("steps", 1, reduce="lifetime_sum")
        root, worker = restored(root), restored(worker)
        root.merge([worker])
        assert root.peek("steps") == 16
        assert worker.peek("steps") == 16

    def test_totals_sent_down_to_workers_do_not_come_back(self):
        root = MetricsLogger()
        root.log("steps", 100, reduce="lifetime_sum")
        workers = [MetricsLogger(), MetricsLogger()]
        for worker in workers:
            worker.set_state(through_json(root.get_state()), handed_over=True)
            assert worker.peek("steps") == 100
            worker.log("steps", 7, reduce="lifetime_sum")
        root.merge(workers)
        assert root.peek("steps") == 114

    def test_mistakes(self):
        root, a, b = MetricsLogger(), MetricsLogger(), MetricsLogger()
        root.log("x", 1)
        root.log("y", 1)
        a.log("x", 1, reduce="sum")
        a.log("new", 1)
        b.log("y", [1, 2])
        with pytest.raises(UserError) as error:
            root.merge([a, b])
        assert str(error.value) == (
            "MetricsLogger.merge: expected metrics with the settings and shapes of this logger, "
            "got metric x with reduce='sum'; y of shape (2,). Log each name with the same "
            "settings everywhere."
        )
        assert "new" not in root
        assert len(a.take()["metrics"]) == 2  # still there to be merged
        for others in ([root], [a, a]):
            with pytest.raises(UserError, match="this logger, or a logger twice"):
                root.merge(others)


# Hypothesis: any order of calls against an oracle that keeps every value.

KINDS = {
    "mean": {},
    "least": {"reduce": "min"},
    "greatest": {"reduce": "max"},
    "sum": {"reduce": "sum"},
    "total": {"reduce": "lifetime_sum"},
    "ema": {"reduce": "ema", "ema_coeff": 0.3},
    "window_mean": {"window": 3},
    "window_min": {"reduce": "min", "window": 2},
    "window_max": {"reduce": "max", "window": 2},
    "window_sum": {"reduce": "sum", "window": 4},
}


class Oracle:
    """Keeps all values that were ever logged, and how many there were at the last reduce."""

    def __init__(self):
        self.logged = {name: [] for name in KINDS}
        self.cleared = dict.fromkeys(KINDS, 0)

    def row(self):
        row = {}
        for name, options in KINDS.items():
            kind, window = options.get("reduce", "mean"), options.get("window")
            logged = self.logged[name]
            if window:
                used = logged[-window:]
            elif kind in ("ema", "lifetime_sum"):
                used = logged
            else:
                used = logged[self.cleared[name] :]
            if used:
                row[name] = self.reduced(kind, [x for x in used if x == x])
        return row

    @staticmethod
    def reduced(kind, xs):
        if not xs:
            return NAN
        if kind == "ema":
            weights = [0.3 * 0.7 ** (len(xs) - 1 - i) for i in range(len(xs))]
            return sum(w * x for w, x in zip(weights, xs, strict=True)) / sum(weights)
        if kind == "mean":
            return sum(xs) / len(xs)
        return {"min": min, "max": max}.get(kind, sum)(xs)

    def reduce(self):
        row = self.row()
        self.cleared = {name: len(xs) for name, xs in self.logged.items()}
        return row


def assert_rows(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True), name


NUMBERS = st.one_of(st.just(NAN), st.integers(-50, 50), st.floats(-1e3, 1e3, width=32))
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("log"), st.sampled_from(sorted(KINDS)), NUMBERS),
        st.tuples(st.sampled_from(["reduce", "peek", "restore"])),
    ),
    max_size=40,
)


class TestAnyOrder:
    @settings(deadline=None, max_examples=150)
    @given(calls=CALLS)
    def test_one_logger(self, calls):
        logger, oracle = MetricsLogger(), Oracle()
        for call in calls:
            if call[0] == "log":
                logger.log(call[1], call[2], **KINDS[call[1]])
                oracle.logged[call[1]].append(call[2])
            elif call[0] == "reduce":
                assert_rows(logger.reduce(), oracle.reduce())
            elif call[0] == "peek":
                logger.peek()
            else:
                logger = restored(logger)
        assert_rows(logger.reduce(), oracle.reduce())

    @settings(deadline=None, max_examples=150)
    @given(calls=CALLS)
    def test_restoring_never_changes_a_bit(self, calls):
        logger, straight = MetricsLogger(), MetricsLogger()
        for call in calls:
            if call[0] == "log":
                for each in (logger, straight):
                    each.log(call[1], call[2], **KINDS[call[1]])
            elif call[0] == "reduce":
                assert repr(logger.reduce()) == repr(straight.reduce())
            else:
                logger = restored(logger)
        assert repr(logger.reduce()) == repr(straight.reduce())

    @settings(deadline=None, max_examples=150)
    @given(calls=CALLS)
    def test_one_worker_and_its_root_equal_one_logger(self, calls):
        """Merges at any time, saved and restored at any time: as if logged at the root."""
        root, worker, oracle = MetricsLogger(), MetricsLogger(), Oracle()
        for call in calls:
            if call[0] == "log":
                worker.log(call[1], call[2], **KINDS[call[1]])
                oracle.logged[call[1]].append(call[2])
            elif call[0] == "reduce":
                root.merge([through_json(worker.take())])
                assert_rows(root.reduce(), oracle.reduce())
            elif call[0] == "peek":
                root.merge([worker])
                worker.reduce()  # its own rows are its own affair
            else:
                root, worker = restored(root), restored(worker)
        root.merge([worker])
        assert_rows(root.reduce(), oracle.reduce())

    @settings(deadline=None, max_examples=100)
    @given(
        rounds=st.lists(st.lists(st.lists(NUMBERS, max_size=5), min_size=1, max_size=3), max_size=4)
    )
    def test_several_workers(self, rounds):
        """Kinds that do not depend on order, merged once a round."""
        kinds = ["mean", "least", "greatest", "sum", "total"]
        root, oracle, workers = MetricsLogger(), Oracle(), [MetricsLogger() for _ in range(3)]
        for shares in rounds:
            for worker, numbers in zip(workers, shares, strict=False):
                for x in numbers:
                    for name in kinds:
                        worker.log(name, x, **KINDS[name])
                        oracle.logged[name].append(x)
            root.merge(workers)
        assert_rows(root.reduce(), oracle.reduce())
