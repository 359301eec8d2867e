import functools

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from tfrl.learners import state_changes
from tfrl.learners.learner_state import LearnerState
from tfrl.xla import never_in_xla


def _kinds(fn):
    return {op.type for op in fn.get_concrete_function().graph.get_operations()}


class _Learner:
    """What `changed` takes of a learner."""

    def __init__(self, leaves):
        self.module_states = {"m": leaves}


class InPlaceTest(tf.test.TestCase):
    def _moving(self, variable, towards, share, assign=state_changes.assign, **options):
        def move():
            old = variable.read_value()
            assign(variable, old, old + share * (towards - old))

        return tf.function(never_in_xla(move), autograph=False, **options)

    def test_a_step_towards_another_is_one_operation_of_the_same_bits(self):
        start, towards = tf.random.normal([64, 3]), tf.random.normal([64, 3])

        def plainly(variable, old, new):
            variable.assign(new)

        for share in (0.005, tf.Variable(0.005)):
            for jit in (False, True):
                options = {"jit_compile": jit}
                variable = tf.Variable(start)
                move = self._moving(variable, towards, share, **options)
                move()
                plain = tf.Variable(start)
                self._moving(plain, towards, share, plainly, **options)()
                self.assertAllEqual(variable, plain)
                self.assertAllClose(variable, start + 0.005 * (towards - start))
                self.assertEqual("ResourceApplyGradientDescent" in _kinds(move), not jit)

    def test_eagerly_it_is_an_assignment(self):
        variable = tf.Variable([1.0, 2.0])
        old = variable.read_value()
        state_changes.assign(variable, old, old + 0.5 * (tf.constant([3.0, 3.0]) - old))
        self.assertAllEqual(variable, [2.0, 2.5])

    def test_what_is_made_of_something_else_is_assigned(self):
        variable, other = tf.Variable([1.0, 2.0]), tf.constant([10.0, 20.0])

        @functools.partial(tf.function, autograph=False)
        @never_in_xla
        def change(which):
            old = variable.read_value()
            new = {
                "another's": other + 0.5 * old,
                "a product": 3.0 * old,
                "a sum": old + other,
                "a broadcast": old + 2.0 * tf.constant(1.0),
                "two vectors": old + other * old,
                "a given one": other,
            }[which]
            state_changes.assign(variable, old, new)

        for which, expected in {
            "another's": [10.5, 21.0],
            "a product": [3.0, 6.0],
            "a sum": [11.0, 22.0],
            "a broadcast": [3.0, 4.0],
            "two vectors": [11.0, 42.0],
            "a given one": [10.0, 20.0],
        }.items():
            with self.subTest(which):
                variable.assign([1.0, 2.0])
                change(which)
                self.assertAllEqual(variable, expected)

    def test_whole_numbers_are_assigned(self):
        variable = tf.Variable([1, 2])

        @functools.partial(tf.function, autograph=False)
        @never_in_xla
        def change():
            old = variable.read_value()
            state_changes.assign(variable, old, old + 2 * (old - 1))

        change()
        self.assertAllEqual(variable, [1, 4])

    def test_values_read_before_stay_what_they_were(self):
        variable, towards = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])

        @functools.partial(tf.function, autograph=False)
        @never_in_xla
        def change():
            old = variable.read_value()
            state_changes.assign(variable, old, old + 0.5 * (towards - old))
            return old * 1.0, variable.read_value()

        before, after = change()
        self.assertAllEqual(before, [1.0, 2.0])
        self.assertAllEqual(after, [2.0, 3.0])

    def test_a_leaf_that_is_there_twice_moves_once(self):
        variable, towards = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])
        learner = _Learner({"a": variable, "b": variable, "c": tf.Variable([0.0, 0.0])})
        state = LearnerState(agent_state=learner.module_states, opt_state={}, counters={})

        def moved(before, _):
            return tf.nest.map_structure(lambda x: x + 0.5 * (towards - x), before)

        change = tf.function(
            never_in_xla(lambda: state_changes.changed(learner, state, "m", moved, None) and None),
            autograph=False,
        )
        change()
        self.assertAllEqual(variable, [2.0, 3.0])
        self.assertAllEqual(learner.module_states["m"]["c"], [1.5, 2.0])
        self.assertIn("ResourceApplyGradientDescent", _kinds(change))

    def test_a_variable_of_a_strategy_is_assigned(self):
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            variable = tf.Variable([1.0, 2.0])
        self.assertNotIsInstance(variable, resource_variable_ops.ResourceVariable)
        self._moving(variable, tf.constant([3.0, 4.0]), 0.5)()
        self.assertAllEqual(variable, [2.0, 3.0])


if __name__ == "__main__":
    tf.test.main()
