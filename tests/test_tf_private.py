"""One test of each private part of TensorFlow that the library uses.

With a new version of TensorFlow, what fails here names what it has changed.
"""

import ast
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfrl import tf_private

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_one_module_imports_them():
    def imported(path):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield node.module

    paths = [
        path
        for path in (ROOT / "tfrl").rglob("*.py")
        if any(name.startswith("tensorflow.python") for name in imported(path))
    ]
    assert paths == [ROOT / "tfrl" / "tf_private.py"]


def _concrete(fn, *specs, jit=False):
    return tf.function(fn, autograph=False, jit_compile=jit).get_concrete_function(*specs)


class TestGraphs:
    @pytest.mark.parametrize("jit", [False, True])
    def test_in_xla_also_in_a_loop_within(self, jit):
        found = []

        def body(i):
            found.append(tf_private.in_xla(tf.compat.v1.get_default_graph()))
            return i + 1

        _concrete(lambda: tf.while_loop(lambda i: i < 3, body, [0]), jit=jit)
        assert found == [jit]

    def test_is_control_flow(self):
        found = []

        def note():
            found.append(tf_private.is_control_flow(tf.compat.v1.get_default_graph()))
            return 1

        def fn(x):
            note()
            return (
                tf.cond(x, note, note)
                + tf.while_loop(lambda i: i < 1, lambda i: [i + note()], [0])[0]
            )

        _concrete(fn, tf.TensorSpec([], tf.bool))
        assert found == [False, True, True, True]

    def test_function_graph(self):
        inner = tf.function(lambda x: x * 2)
        graph = _concrete(lambda x: inner(x), tf.TensorSpec([])).graph
        (call,) = [op for op in graph.get_operations() if "PartitionedCall" in op.type]
        body = tf_private.function_graph(graph, call.get_attr("f").name)
        assert "Mul" in [op.type for op in body.get_operations()]
        assert tf_private.function_graph(graph, "no_such_function") is None

    def test_remove_control_inputs(self):
        with tf.Graph().as_default():
            first, other = tf.constant(1.0), tf.constant(2.0)
            with tf.control_dependencies([first]):
                second = tf.identity(other)
            assert [op.name for op in second.op.control_inputs] == [first.op.name]
            tf_private.remove_control_inputs(second.op)
            assert not second.op.control_inputs

    def test_decode_structure(self):
        from tensorflow.python.saved_model import nested_structure_coder

        nest = {"x": tf.TensorSpec([2], tf.int64, "x")}
        assert tf_private.decode_structure(nested_structure_coder.encode_structure(nest)) == nest

    def test_random_ops_are_where_tensorflow_finds_them(self, monkeypatch):
        monkeypatch.setattr(
            tf_private.random_ops, "random_uniform", lambda *args, **kwargs: tf.fill([2], 0.25)
        )
        assert tf.random.uniform([2]).numpy().tolist() == [0.25, 0.25]


class TestVariables:
    def test_is_resource_variable(self):
        assert tf_private.is_resource_variable(tf.Variable(1.0))
        assert not tf_private.is_resource_variable(tf.constant(1.0))
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            mirrored = tf.Variable(1.0)
        assert not tf_private.is_resource_variable(mirrored)

    def test_set_handle(self):
        mine, other = tf.Variable(1.0), tf.Variable(5.0)
        own = mine.handle
        tf_private.set_handle(mine, other.handle)
        mine.assign_add(1.0)
        tf_private.set_handle(mine, own)
        assert (mine.numpy(), other.numpy()) == (1.0, 6.0)

    def test_traced_values_stand_for_the_variable(self):
        variable = tf.Variable([1.0, 2.0])

        def fn(value):
            traced = tf_private.TracedValue(variable, value)
            variable.__dict__.update(traced.methods)
            try:
                first = variable * 2
                variable.assign_add([1.0, 1.0])
                variable.assign_sub([0.0, 3.0])
                parts = variable.sparse_read([1]), variable.gather_nd([[0]])
                return first, variable + 0, variable.read_value(), *parts
            finally:
                for name in traced.methods:
                    del variable.__dict__[name]

        made = _concrete(fn, tf.TensorSpec([2]))
        assert not made.captured_inputs  # no read of the variable itself is left
        found = [x.numpy().tolist() for x in made(tf.constant([10.0, 20.0]))]
        assert found == [[20.0, 40.0], [11.0, 18.0], [11.0, 18.0], [18.0], [11.0]]
        assert variable.numpy().tolist() == [1.0, 2.0]


class TestCalls:
    @pytest.mark.parametrize("jit", [False, True])
    def test_other_variables_in_the_place_of_captured_ones(self, jit):
        first, second = tf.Variable(1.0), tf.Variable(10.0)

        def fn(x):
            first.assign_add(x)
            return [first + 0.0, x]

        made = _concrete(fn, tf.TensorSpec([]), jit=jit)
        out = tf_private.call_flat(made, [tf.constant(2.0)], [second.handle])
        assert [x.numpy() for x in out] == [12.0, 2.0]
        out = tf_private.direct_call(made, [second.handle])([tf.constant(3.0)])
        assert [x.numpy() for x in out] == [15.0, 3.0]
        assert (first.numpy(), second.numpy()) == (1.0, 15.0)

    def test_errors_of_a_direct_call_name_the_operation(self):
        made = _concrete(lambda x: [tf.debugging.check_numerics(x, "bad")], tf.TensorSpec([]))
        call = tf_private.direct_call(made, [])
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
            call([tf.constant(np.nan)])

    def test_element_reader(self):
        data = tf.data.Dataset.from_tensor_slices({"a": [1, 2], "b": [[3.0], [4.0]]})
        read = tf_private.element_reader(iter(data))
        assert [[x.numpy().tolist() for x in read()] for _ in range(2)] == [[1, [3.0]], [2, [4.0]]]
        with pytest.raises(tf.errors.OutOfRangeError):
            read()


class TestRuntime:
    def test_has_started(self):
        tf.constant(1.0)
        assert tf_private.has_started()

    def test_is_op_determinism_enabled(self):
        assert tf_private.is_op_determinism_enabled() is False  # tests/launch switches it on

    def test_calls_in_the_background(self):
        executor = tf_private.async_executor()
        double = tf.function(lambda x: x * 2)
        result = tf_private.call_within(executor, double, tf.constant(4.0))
        assert result.numpy() == 8.0
        executor.wait()
        executor.clear_error()
        assert double(tf.constant(1.0)).numpy() == 2.0


LEAK = """
import tracemalloc
import tensorflow as tf
from tfrl.tf_private import shrink_tensor_leak

shrink_tensor_leak()
tf.Variable([0.0])
tracemalloc.start()
before = tracemalloc.get_traced_memory()[0]
for _ in range(10_000):
    tf.constant(0)
print((tracemalloc.get_traced_memory()[0] - before) / 10_000)
"""


def test_a_freed_tensor_leaves_at_most_16_bytes():
    # In a process of its own: only the first 30 tensors matter.
    command = [sys.executable, "-c", LEAK]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert float(done.stdout) < 17  # 48 without the call, on Python 3.11
