"""Tests of dataclasses that are nests, of TensorDict, and of arithmetic on nests."""

import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from tfrl import struct
from tfrl.errors import UserError


@struct.dataclass
class Point(struct.Struct):
    x: Any
    y: Any = None
    name: Any = struct.field(static=True, default="p")


@struct.logic_dataclass
class Scaler(struct.Struct):
    factor: float = 2.0
    names: tuple[str, ...] = ("a",)
    double: float = struct.derived()

    def __post_init__(self):
        self.double = 2 * self.factor

    def __call__(self, x):
        return x * self.double


@struct.logic_dataclass
class Holder(struct.Struct):
    scaler: Scaler
    weight: Any = struct.field(static=False, default=None)


def counted(**options):
    """A traced function and the list of its traces."""
    traces = []

    @tf.function(**options)
    def f(value):
        traces.append(1)
        return tf.nest.map_structure(lambda v: v + tf.ones([], v.dtype), value)

    return f, traces


class NestTest(tf.test.TestCase):
    def test_tf_nest(self):
        p = Point(x=tf.constant(1.0), y={"b": tf.constant(2.0), "a": tf.constant(3.0)})
        self.assertAllEqual(tf.nest.flatten(p), [1.0, 3.0, 2.0])
        q = tf.nest.map_structure(lambda v: v * 2, p)
        self.assertIsInstance(q, Point)
        self.assertAllEqual(q.y["b"], 4.0)
        self.assertEqual(q.name, "p")

    def test_none_is_an_empty_subtree(self):
        p = Point(x=None, y=tf.constant(1.0))
        self.assertLen(tf.nest.flatten(p), 1)
        self.assertIsNone(tf.nest.map_structure(tf.negative, p).x)
        f, traces = counted()
        f(p)
        f(Point(x=tf.constant(1.0), y=None))
        self.assertLen(traces, 2)

    def test_function_argument_and_result(self):
        for jit in (False, True):
            f, _ = counted(jit_compile=jit)
            q = f(
                Point(x=tf.constant(1.0), y=(tf.constant([2, 3]), {"n": Point(x=None)}), name="q")
            )
            self.assertIsInstance(q, Point)
            self.assertAllEqual(q.x, 2.0)
            self.assertAllEqual(q.y[0], [3, 4])
            self.assertEqual(q.name, "q")

    def test_carry_of_while_loops(self):
        @tf.function
        def by_autograph(p):
            for i in tf.range(3):
                p = p.replace(x=p.x + tf.cast(i, tf.float32))
            return p

        @tf.function(jit_compile=True)
        def by_op(p):
            return tf.while_loop(lambda p: p.x < 3.0, lambda p: [p.replace(x=p.x + 1.0)], [p])[0]

        p = Point(x=tf.constant(0.0), y=tf.zeros([2]), name="loop")
        for q in (by_autograph(p), by_op(p)):
            self.assertAllEqual(q.x, 3.0)
            self.assertEqual(q.name, "loop")

    def test_data(self):
        data = tf.data.Dataset.from_tensor_slices(Point(x=tf.range(4), y={"z": tf.range(4) * 2}))
        rows = list(data.map(lambda p: p.replace(x=p.x + 1)).batch(2))
        self.assertIsInstance(rows[0], Point)
        self.assertAllEqual(rows[1].x, [3, 4])
        self.assertAllEqual(rows[1].y["z"], [4, 6])

    def test_variables_as_leaves(self):
        p = Point(x=tf.Variable(1.0))

        @tf.function
        def increment(p):
            p.x.assign_add(1.0)
            return struct.values(p)

        self.assertAllEqual(increment(p).x, 2.0)
        self.assertAllEqual(p.x, 2.0)

    def test_gradient_of_a_nest(self):
        p = Point(x=tf.constant(3.0), y=[tf.constant(2.0)])
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(p)
            loss = p.x * p.y[0]
        leaves = tape.gradient(loss, tf.nest.flatten(p))
        self.assertAllEqual(leaves, [2.0, 3.0])


_ON_TWO_DEVICES = """
import tensorflow as tf
from tfrl import struct

@struct.dataclass
class Point(struct.Struct):
    x: object
    y: object
    name: object = struct.field(static=True)

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def step(p):
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return p.replace(x=p.x + tf.cast(replica, tf.float32))

@tf.function
def run(p):
    # A PerReplica of dataclasses cannot leave a tf.function; one of each leaf can.
    leaves = strategy.run(lambda p: tf.nest.flatten(step(p)), args=(p,))
    for _ in tf.range(2):
        p_again = lambda *ls: tf.nest.flatten(step(tf.nest.pack_sequence_as(p, ls)))
        leaves = strategy.run(p_again, args=tuple(leaves))
    return tf.nest.pack_sequence_as(p, leaves)

q = run(Point(x=tf.constant(1.0), y={"a": tf.constant([2.0])}, name="s"))
x, a = (strategy.experimental_local_results(v) for v in (q.x, q.y["a"]))
print(type(q).__name__, q.name, [float(v) for v in x], [v.numpy().tolist() for v in a])
"""


class StrategyTest(tf.test.TestCase):
    def test_run_on_two_devices_leaf_by_leaf(self):
        # Logical devices can only be made before TensorFlow starts: in a process of its own.
        script = pathlib.Path(self.get_temp_dir()) / "on_two_devices.py"
        script.write_text(_ON_TWO_DEVICES)  # autograph reads the source
        done = forked.run([sys.executable, script])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split("\n")[-2], "Point s [1.0, 4.0] [[2.0]]")


class TraceTest(tf.test.TestCase):
    def test_values_do_not_retrace(self):
        f, traces = counted()
        for i in range(5):
            f(Point(x=tf.constant(float(i)), y=tf.constant(i)))
        self.assertLen(traces, 1)

    def test_python_numbers_as_leaves_do_not_retrace(self):
        cases = (((1.0, 2.5), tf.float32), ((1, -2), tf.int32), ((2**40, 2**41), tf.int64))
        for numbers, dtype in cases:
            f, traces = counted()
            for number in numbers:
                x = f(Point(x=number)).x
                self.assertEqual(x.dtype, dtype)
                self.assertAllClose(x, number + 1)
            self.assertLen(traces, 1)
        self.assertEqual(tf.function(lambda p: p.x)(Point(x=True)).dtype, tf.bool)

    def test_static_fields_retrace(self):
        f, traces = counted()
        x = tf.constant(1.0)
        for name in ("a", "b", "a", ("a", 1)):
            f(Point(x=x, name=name))
        self.assertLen(traces, 3)

    def test_types_of_static_numbers_retrace(self):
        f, traces = counted()
        for name in (1, 1.0, True, (1,), (1.0,), {"k": 1}, {"k": True}):
            f(Point(x=tf.constant(1.0), name=name))
        self.assertLen(traces, 7)
        f(Point(x=tf.constant(1.0), name={"k": 1}))
        self.assertLen(traces, 7)

    def test_equal_logic_shares_a_trace_and_other_logic_does_not(self):
        traces = []

        @tf.function
        def f(scaler, x):
            traces.append(1)
            return scaler(x)

        self.assertAllEqual(f(Scaler(factor=3.0), tf.constant(1.0)), 6.0)
        self.assertAllEqual(f(Scaler(factor=3.0), tf.constant(2.0)), 12.0)
        self.assertLen(traces, 1)
        self.assertAllEqual(f(Scaler(factor=4.0), tf.constant(1.0)), 8.0)
        self.assertLen(traces, 2)


class FrozenTest(tf.test.TestCase):
    def test_assignment_and_deletion(self):
        p = Point(x=1)
        with pytest.raises(
            dataclasses.FrozenInstanceError,
            match=r"cannot assign to Point\.x: the object is immutable; use \.replace\(\.\.\.\)",
        ):
            p.x = 2
        with pytest.raises(dataclasses.FrozenInstanceError, match=r"cannot delete Point\.x"):
            del p.x
        with pytest.raises(dataclasses.FrozenInstanceError):
            Scaler().double = 1.0

    def test_keyword_only(self):
        with pytest.raises(TypeError):
            Point(1)

    def test_replace(self):
        p = Point(x=1, name="a")
        q = p.replace(x=2)
        self.assertEqual((p.x, q.x, q.name), (1, 2, "a"))
        with pytest.raises(
            TypeError,
            match=r"Point\.replace: expected fields among \['x', 'y', 'name'\], got \['z'\]",
        ):
            p.replace(z=1)

    def test_static_arrays_and_tensors_are_refused(self):
        for bad in (
            np.zeros(2),
            tf.zeros(2),
            tf.Variable(1.0),
            (1, np.zeros(1)),
            {"a": tf.zeros([])},
        ):
            with pytest.raises(TypeError, match=r"Point\.name is a static field"):
                Point(x=1, name=bad)

    def test_derived_fields(self):
        s = Scaler(factor=3.0)
        self.assertEqual(s.double, 6.0)
        self.assertEqual(s.replace(factor=5.0).double, 10.0)
        with pytest.raises(TypeError):
            Scaler(double=1.0)
        copied = tf.nest.map_structure(lambda v: v, s)
        self.assertEqual(copied.double, 6.0)

    def test_derived_field_that_is_not_set(self):
        @struct.logic_dataclass
        class Forgetful(struct.Struct):
            size: int = struct.derived()

        with pytest.raises(TypeError, match=r"Forgetful\.size is declared with derived\(\)"):
            Forgetful()

    def test_post_init_sets_derived_fields_only(self):
        @struct.logic_dataclass
        class Meddler(struct.Struct):
            size: int = 1

            def __post_init__(self):
                self.size = 2

        with pytest.raises(dataclasses.FrozenInstanceError, match=r"declared with derived\(\)"):
            Meddler()

    def test_equality(self):
        self.assertEqual(Scaler(factor=1.0), Scaler(factor=1.0))
        self.assertEqual(hash(Scaler(factor=1.0)), hash(Scaler(factor=1.0)))
        self.assertNotEqual(Scaler(factor=1.0), Scaler(factor=2.0))
        self.assertNotEqual(Scaler(factor=1.0), Scaler(factor=1))
        self.assertNotEqual(Scaler(), 2.0)
        self.assertEqual(Holder(scaler=Scaler()), Holder(scaler=Scaler()))
        # With tensors inside, equality is identity.
        p = Point(x=tf.zeros([2]))
        self.assertEqual(p, p)
        self.assertNotEqual(p, Point(x=tf.zeros([2])))

    def test_logic_with_a_dynamic_field(self):
        h = Holder(scaler=Scaler(), weight=tf.constant(1.0))
        self.assertLen(tf.nest.flatten(h), 1)
        self.assertAllEqual(tf.nest.map_structure(tf.negative, h).weight, -1.0)

    def test_inheritance(self):
        @struct.dataclass
        class Point3(Point):
            z: Any = None

        p = Point3(x=tf.constant(1.0), z=tf.constant(2.0), name="c")
        self.assertLen(tf.nest.flatten(p), 2)
        self.assertEqual(p.replace(z=None).name, "c")


class TensorDictTest(tf.test.TestCase):
    def test_attributes_are_items(self):
        d = struct.TensorDict(a=1, b={"c": 2})
        self.assertEqual((d.a, d["b"].c, d.b["c"]), (1, 2, 2))
        d.e = {"f": 3}
        self.assertIsInstance(d.e, struct.TensorDict)
        del d.e
        self.assertNotIn("e", d)
        with pytest.raises(
            AttributeError, match=r"TensorDict has no item 'zz'; it has \['a', 'b'\]"
        ):
            _ = d.zz

    def test_nested_mappings_are_converted_by_every_way_in(self):
        d = struct.TensorDict([("a", {"x": 1})])
        d["b"] = {"x": 1}
        d.update({"c": {"x": 1}}, d={"x": 1})
        d.setdefault("e", {"x": 1})
        for name in "abcde":
            self.assertIsInstance(d[name], struct.TensorDict, name)
        self.assertIsInstance(d.copy(), struct.TensorDict)

    def test_numbers_are_values_not_literals(self):
        f, traces = counted()
        for value in (1.0, 2.0, 3.0):
            f(struct.TensorDict(b=value, a={"c": [value, (value,)]}))
        self.assertLen(traces, 1)

    def test_joined_dicts_are_tensor_dicts(self):
        d = struct.TensorDict(a=1) | {"b": {"c": 2}}
        self.assertIsInstance(d.b, struct.TensorDict)
        d |= {"e": {"f": 3}}
        self.assertIsInstance(d, struct.TensorDict)
        self.assertIsInstance(d.e, struct.TensorDict)
        self.assertIsInstance(struct.TensorDict(a=[{"b": 1}]).a[0], struct.TensorDict)

    def test_the_name_of_a_method_is_no_attribute(self):
        d = struct.TensorDict()
        for name in ("values", "items", "update", "replace"):
            with pytest.raises(AttributeError, match=rf"TensorDict.{name}: it is a method. Set"):
                setattr(d, name, 1)
            d[name] = 1
            self.assertEqual(d[name], 1)

    def test_tracing_keeps_the_type(self):
        for jit in (False, True):
            f, traces = counted(jit_compile=jit)
            d = f(struct.TensorDict(b=tf.constant(1.0), a={"c": tf.constant(2)}))
            self.assertIsInstance(d, struct.TensorDict)
            self.assertIsInstance(d.a, struct.TensorDict)
            self.assertAllEqual((d.b, d.a.c), (2.0, 3))
            f(struct.TensorDict(b=tf.constant(5.0), a={"c": tf.constant(7)}))
            self.assertLen(traces, 1)

    def test_dunder_probes_find_nothing(self):
        d = struct.TensorDict({"__wrapped__": 1})
        for name in ("__wrapped__", "__tf_tracing_type__", "__array__"):
            self.assertFalse(hasattr(d, name), name)

    def test_replace(self):
        d = struct.TensorDict(a=1)
        e = d.replace(a=2, b={"c": 3})
        self.assertEqual((d.a, e.a, e.b.c), (1, 2, 3))

    def test_assignment_while_tracing_is_refused(self):
        @tf.function
        def f(d):
            d.a = tf.constant(1)
            return d

        with pytest.raises(
            AttributeError, match=r"cannot assign TensorDict\.a inside a tf\.function"
        ):
            f(struct.TensorDict(a=tf.constant(0)))

    def test_in_a_loop(self):
        @tf.function
        def f(d):
            for _ in tf.range(3):
                d = d.replace(a=d.a + 1)
            return d

        self.assertAllEqual(f(struct.TensorDict(a=tf.constant(0))).a, 3)


class ArithmeticTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.nest = Point(x=tf.constant([[1.0, 2.0], [3.0, 4.0]]), y={"a": tf.constant([1, 2])})

    def test_add_subtract_scale(self):
        twice = struct.add(self.nest, self.nest)
        self.assertAllEqual(twice.x, [[2.0, 4.0], [6.0, 8.0]])
        self.assertAllEqual(struct.subtract(twice, self.nest).y["a"], [1, 2])
        self.assertAllEqual(struct.scale(self.nest, 3.0).y["a"], [3, 6])
        self.assertAllEqual(struct.scale(self.nest, tf.constant(0.5)).x, [[0.5, 1.0], [1.5, 2.0]])

    def test_rows(self):
        self.assertAllEqual(struct.slice(self.nest, 1, 2).x, [[3.0, 4.0]])
        self.assertAllEqual(struct.take(self.nest, 1).x, [3.0, 4.0])
        self.assertAllEqual(struct.take(self.nest, [1, 0, 1]).y["a"], [2, 1, 2])

    def test_stack_and_concat(self):
        stacked = struct.stack([self.nest, self.nest, self.nest])
        self.assertEqual(stacked.x.shape, [3, 2, 2])
        self.assertAllEqual(struct.take(stacked, 2).y["a"], self.nest.y["a"])
        self.assertEqual(struct.concat([self.nest, self.nest]).x.shape, [4, 2])

    def test_nests_that_cannot_be_stacked(self):
        a, b, c = {"x": tf.zeros(2)}, {"x": tf.zeros(3)}, {"y": tf.zeros(2)}
        for nests, got in (
            ([], "an empty list"),
            (3, "int"),
            ([a, b], r"\(2,\) float32 and \(3,\) float32 at x"),
            ([a, c], r"\(2,\) float32 and none at x"),
        ):
            with self.assertRaisesRegex(UserError, f"the nests to stack: .* got .*{got}"):
                struct.stack(nests)

    def test_on_variables_and_in_graphs(self):
        v = {"a": tf.Variable([1.0, 2.0])}
        self.assertAllEqual(struct.values(v)["a"], [1.0, 2.0])
        f = tf.function(lambda v: struct.add(v, struct.scale(v, 2.0)), jit_compile=True)
        self.assertAllEqual(f(v)["a"], [3.0, 6.0])

    def test_paths(self):
        nest = {"b": (Point(x=1, y=None), 2), "a": {"c": 3}, "n": None}
        self.assertEqual(struct.paths(nest), {"a/c": 3, "b/0/x": 1, "b/1": 2})
        self.assertEqual(struct.paths(5), {".": 5})
        leaves = [v for v in struct.paths(nest).values()]
        self.assertEqual(leaves, [int(v) for v in tf.nest.flatten(nest) if v is not None])
