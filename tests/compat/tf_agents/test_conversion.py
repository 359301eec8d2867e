"""Specs and time steps of this library as TF-Agents' own, by hand and for any spec."""

import sys

import hypothesis
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from hypothesis import strategies as st
from tf_agents.specs import array_spec, tensor_spec

from tests import forked
from tfrl import specs
from tfrl.compat import tf_agents as compat
from tfrl.types import EnvState

INF = np.inf

EQUAL = [
    (tf.TensorSpec([3], tf.float32), array_spec.ArraySpec([3], np.float32, "x")),
    (tf.TensorSpec([2], tf.bool), array_spec.ArraySpec([2], np.bool_, "x")),
    (
        specs.BoundedTensorSpec([2], tf.float32, [-1.0, -INF], [1.0, 2.0]),
        array_spec.BoundedArraySpec(
            [2], np.float32, [-1.0, np.finfo(np.float32).min], [1.0, 2.0], "x"
        ),
    ),
    (specs.DiscreteSpec(4, start=2), array_spec.BoundedArraySpec([], np.int64, 2, 5, "x")),
    (
        specs.MultiDiscreteSpec([3, 4], [0, 1], tf.int32),
        array_spec.BoundedArraySpec([2], np.int32, [0, 1], [2, 4], "x"),
    ),
    (specs.BinarySpec(3), array_spec.BoundedArraySpec([3], np.int8, 0, 1, "x")),
    (
        specs.BoundedTensorSpec([2, 2, 1], tf.uint8, 0, 255),
        array_spec.BoundedArraySpec([2, 2, 1], np.uint8, 0, 255, "x"),
    ),
]


@st.composite
def leaves(draw):
    shape = draw(st.lists(st.integers(1, 3), max_size=3))
    kind = draw(st.sampled_from(["float", "bounded", "half", "discrete", "multi", "bool", "frame"]))
    if kind == "float":
        return tf.TensorSpec(shape, draw(st.sampled_from([tf.float32, tf.float64])))
    if kind == "bounded":
        low = draw(st.floats(-1e6, 0, width=32))
        return specs.BoundedTensorSpec(shape, tf.float32, low, low + 2)
    if kind == "half":
        low = np.full(shape, -INF)
        return specs.BoundedTensorSpec(shape, tf.float32, low, draw(st.floats(-9, 9, width=32)))
    if kind == "discrete":
        return specs.DiscreteSpec(draw(st.integers(1, 50)), draw(st.integers(-9, 9)), tf.int32)
    if kind == "multi":
        counts = draw(st.lists(st.integers(2, 9), min_size=1, max_size=4))
        return specs.MultiDiscreteSpec(counts)
    if kind == "bool":
        return tf.TensorSpec(shape, tf.bool)
    return specs.BoundedTensorSpec([*shape, 2], tf.uint8, 0, 255)


NESTS = st.recursive(
    leaves(),
    lambda inner: (
        st.dictionaries(st.sampled_from("abc d"), inner, min_size=1, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=4,
)


class SpecTest(parameterized.TestCase):
    @parameterized.parameters(*EQUAL)
    def test_by_hand_both_ways(self, ours, theirs):
        made = compat.array_spec(ours, "x")
        self.assertEqual(made, theirs)
        self.assertEqual(made.name, "x")
        self.assertEqual(compat.tensor_spec(ours, "x"), tensor_spec.from_spec(theirs))
        for back in (theirs, tensor_spec.from_spec(theirs)):
            self.assertEqual(compat.from_tf_agents_spec(back, "action"), ours)

    @hypothesis.given(spec=NESTS)
    @hypothesis.settings(deadline=None, max_examples=60)
    def test_round_trips(self, spec):
        for theirs in (compat.array_spec(spec, "x"), compat.tensor_spec(spec, "x")):
            tf.nest.assert_same_structure(theirs, spec)
            self.assertEqual(compat.from_tf_agents_spec(theirs, "action"), spec)

    def test_names_are_paths_that_operations_may_have(self):
        spec = {"a b": (tf.TensorSpec([1]), tf.TensorSpec([2]))}
        made = tf.nest.flatten(compat.tensor_spec(spec, "observation"))
        self.assertEqual([s.name for s in made], ["observation/a_b/0", "observation/a_b/1"])

    def test_arrays_of_integers_are_choices_as_actions_only(self):
        theirs = array_spec.BoundedArraySpec([2], np.int64, 0, 3)
        seen = compat.from_tf_agents_spec(theirs)
        self.assertEqual(seen, specs.BoundedTensorSpec([2], tf.int64, [0, 0], [3, 3]))
        self.assertEqual(
            compat.from_tf_agents_spec(theirs, "action"), specs.MultiDiscreteSpec([4, 4])
        )

    def test_integers_without_bounds(self):
        theirs = array_spec.BoundedArraySpec([2], np.int32)
        self.assertEqual(compat.from_tf_agents_spec(theirs), tf.TensorSpec([2], tf.int32))
        counter = array_spec.BoundedArraySpec([], np.int64, 0)  # up to the end of the dtype
        wide = compat.from_tf_agents_spec(counter)
        self.assertNotIsInstance(wide, specs.DiscreteSpec)
        self.assertEqual(int(wide.minimum), 0)
        frame = array_spec.ArraySpec([4, 4, 1], np.uint8)
        self.assertEqual(
            compat.from_tf_agents_spec(frame),
            specs.BoundedTensorSpec([4, 4, 1], tf.uint8, 0, 255),
        )


class TimeStepTest(parameterized.TestCase):
    @parameterized.parameters(np.asarray, tf.constant)
    def test_by_hand(self, array):
        #        begins, goes on, terminates, is truncated, both
        state = EnvState(
            env_state=None,
            obs={"x": array([0.0, 1.0, 2.0, 3.0, 4.0])},
            reward=array(np.array([9, 1, 2, 3, 4], np.float32)),
            termination=array([False, False, True, False, True]),
            truncation=array([False, False, False, True, True]),
            info={"episode_length": array([0, 1, 2, 3, 4])},
        )
        spec = {"x": tf.TensorSpec([], tf.float64)}
        made = compat.time_step(state, spec, discount=0.9)
        self.assertEqual(np.asarray(made.step_type).tolist(), [0, 1, 2, 2, 2])
        self.assertEqual(np.asarray(made.reward).tolist(), [0, 1, 2, 3, 4])
        want = np.array([1, 0.9, 0, 0.9, 0], np.float32)
        np.testing.assert_array_equal(made.discount, want)
        dtypes = [np.asarray(x).dtype for x in made[:3]]
        self.assertEqual(dtypes, [np.int32, np.float32, np.float32])
        self.assertEqual(tf.is_tensor(made.step_type), array is tf.constant)

    def test_mask(self):
        obs = {"observation": 1, "action_mask": 2}
        self.assertEqual(compat.split_action_mask(obs), (1, 2))
        self.assertEqual(compat.split_action_mask(3), (3, None))


def test_tf_agents_loads_when_it_is_used():
    code = (
        "import sys, tfrl.compat, tfrl.envs.suites; "
        "sys.exit('tf_agents' in sys.modules or 'gym' in sys.modules)"
    )
    done = forked.run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
