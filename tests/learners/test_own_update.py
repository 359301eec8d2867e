"""Modules that train by themselves: what is undone, counted and refused."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl.agents.core import ExternalUpdate
from tfrl.learners import Learner, Module, ModuleConfig


class Stepping(Module):
    """A module that adds what the batch says to its parameter; its loss is 1."""

    def init_params(self, key):
        return {"w": tf.constant([1.0, 2.0]), "count": tf.constant(0)}

    def forward(self, params, batch, key):
        return batch

    @property
    def updates(self):
        return (ExternalUpdate(name="add", step=self.step),)

    def step(self, state, batch, key):
        state.params["w"].assign_add(tf.reduce_mean(batch["x"]) * tf.constant([0.0, 1.0]))
        state.params["count"].assign_add(1)
        return {"loss": tf.constant(1.0)}


class GuardTest(parameterized.TestCase):
    @parameterized.parameters("graph", "xla", "eager")
    def test_parameters_that_are_not_finite_are_undone(self, compile):
        learner = Learner(Stepping(), check_numerics="skip")
        learner.build(0)
        update = {"compile": compile, "minibatch_size": 2, "shuffle": False}
        report = learner.update_from_batch({"x": tf.constant([3.0, 3, np.inf, 1])}, **update)
        self.assertEqual(report["__all_modules__"]["skipped_steps"], 1)
        np.testing.assert_array_equal(learner.state.params["w"], [1.0, 5.0])
        self.assertEqual(int(learner.state.params["count"]), 1)

    def test_nothing_is_undone_where_nothing_is_checked(self):
        learner = Learner(Stepping(), check_numerics="off")
        learner.build(0)
        learner.update_from_batch({"x": tf.constant([np.inf])})
        self.assertFalse(np.isfinite(learner.state.params["w"]).all())


class Slope(Module):
    """A module that gradients train."""

    def init_params(self, key):
        return {"w": tf.constant(1.0)}

    def forward(self, params, batch, key):
        return params["w"] * batch["x"]

    def loss(self, params, batch, outputs, key):
        return tf.reduce_mean(outputs)


class ConfigTest(parameterized.TestCase):
    def test_settings_of_an_optimizer_are_of_no_effect(self):
        Learner(Stepping(), config=ModuleConfig(minibatch_size=2, log_gradients=False))
        both = Learner({"own": Stepping(), "b": Slope()}, config=ModuleConfig(lr=0.1))
        both.build(0)
        both.add_module("more", Stepping(), config_overrides={"lr": 1e-3})
        batch = {"x": tf.ones([2])}
        both.update_from_batch({m: batch for m in both.modules})
        self.assertAlmostEqual(float(both.module_state("b").params["w"]), 0.9, 3)
        learner = Learner({"own": Stepping(), "b": Slope()}, config={"own": {}, "b": {"lr": 0.1}})
        learner.build(0)
        learner.add_module("more", Stepping(), config_overrides=learner.configs["own"])

    def test_its_parameters_count_as_trained(self):
        learner = Learner({"own": Stepping(), "b": Slope()})
        learner.build(0)
        counts = {"num_trainable_parameters": 3, "num_non_trainable_parameters": 0}
        self.assertEqual(learner.parameter_counts("own"), counts)
        self.assertEqual(learner.parameter_counts()["num_trainable_parameters"], 4)
