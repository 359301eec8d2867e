"""The Learner: gradients, optimizers, minibatches, guards and state."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.learners.learner_fakes import RegressionAgent, SumAgent
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import Learner, ModuleConfig

KEY = seeding.key(0)
pytestmark = pytest.mark.usefixtures("_eager_updates")


def sgd(config):
    return keras.optimizers.legacy.SGD(0.1)


def built(agent, **kwargs):
    kwargs.setdefault("config", ModuleConfig(lr=0.1, grad_clip=None))
    learner = Learner(agent, **kwargs)
    learner.build(KEY)
    return learner


def values(learner):
    """Every variable of a learner by path, a copy."""
    return {path: v.numpy().copy() for path, v in learner.variables().items()}


def trained(learner, *args, **kwargs):
    """The metrics of the only module."""
    return learner.update_from_batch(*args, **kwargs)["default_policy"]


def rows(n=8):
    return {"x": tf.reshape(tf.range(2.0 * n), [n, 2])}


class LearnerTest(parameterized.TestCase):
    def test_minibatches_take_every_row_once_an_epoch(self):
        # Means over equal minibatches average to the mean over all rows: 15 halves here.
        learner = built(SumAgent())
        metrics = trained(learner, rows(8), num_epochs=3, minibatch_size=2)
        self.assertEqual(metrics["gradient_steps"], 12)
        self.assertAlmostEqual(metrics["mean_x"], 7.5, places=4)
        self.assertEqual(int(learner.learner_steps), 12)

    def test_sizes_that_do_not_divide_name_the_nearest(self):
        learner = built(SumAgent())
        with pytest.raises(
            UserError,
            match=r"minibatch_size: expected a divisor of the 8 rows of the batch, got 3 "
            r"\(remainder 2\). The nearest divisors are 2 and 4; or choose",
        ):
            learner.update_from_batch(rows(8), minibatch_size=3)
        with pytest.raises(UserError, match="minibatch_size: expected a whole number .* got True"):
            learner.update_from_batch(rows(8), minibatch_size=True)

    def test_padded_rows_are_masked(self):
        learner = built(RegressionAgent(delay=1), optimizer_fn=sgd)
        batch = {"x": tf.ones([3, 2]), "y": tf.ones([3])}
        learner.update_from_batch(batch, minibatch_size=2, remainder="pad", shuffle=False)
        # Two SGD steps on d/dw mean (w1 + w2 - 1)^2 = 2 (w1 + w2 - 1), whatever the padding:
        # w = 0.2 each after the first, then -2 * (0.4 - 1) * 0.1 = 0.12 more.
        np.testing.assert_allclose(learner.state.params["critic"], [0.32, 0.32], rtol=1e-5)

    def test_groups_have_their_own_frequency(self):
        learner = built(RegressionAgent(delay=2), optimizer_fn=sgd)
        batch = {"x": tf.zeros([4, 2]), "y": tf.zeros([4])}
        learner.update_from_batch(batch)
        first = learner.state.params["actor"].numpy()
        np.testing.assert_allclose(first, 0.2, rtol=1e-5)  # step 0: 0.1 * 2 * 1
        learner.update_from_batch(batch)
        np.testing.assert_array_equal(learner.state.params["actor"], first)  # step 1 is left out
        learner.update_from_batch(batch)
        np.testing.assert_allclose(learner.state.params["actor"], 0.36, rtol=1e-5)

    def test_an_update_touches_no_other_group(self):
        # The actor's update is the only one here: its loss depends on the critic too.
        agent = RegressionAgent()

        class ActorOnly(type(agent)):
            @property
            def updates(self):
                return (super().updates[1].replace(every=1),)

        learner = built(ActorOnly(), optimizer_fn=sgd)
        before = values(learner)
        learner.update_from_batch({"x": tf.ones([4, 2]), "y": tf.ones([4])})
        changed = [p for p, v in values(learner).items() if not np.array_equal(v, before[p])]
        moved = [p for p in changed if p.startswith("modules/")]
        self.assertEqual(moved, ["modules/default_policy/params/actor"])

    def test_the_schedule_follows_env_steps(self):
        learner = built(SumAgent(), config=ModuleConfig(lr=[[0, 1.0], [100, 0.0]], grad_clip=None))
        self.assertAlmostEqual(trained(learner, rows(), timesteps=25)["learning_rate"], 0.75)
        self.assertAlmostEqual(trained(learner, rows(), timesteps=200)["learning_rate"], 0.0)

    def test_agent_hooks_see_the_counter(self):
        learner = built(SumAgent())
        learner.update_from_batch(rows(), timesteps=77)
        self.assertEqual(int(learner.state.extra["seen"]), 77)

    def test_a_nonfinite_step_is_left_out_and_counted(self):
        learner = built(SumAgent(), check_numerics="skip")
        bad = {"x": tf.constant([[1.0, 1.0], [np.nan, 1.0], [1.0, 1.0], [1.0, 1.0]])}
        before = values(learner)
        metrics = trained(learner, bad, minibatch_size=1, shuffle=False)
        self.assertEqual(metrics["nonfinite/mean_x"], 1)
        self.assertEqual(metrics["nonfinite/loss"], 1)
        self.assertEqual(metrics["mean_x"], 1.0)
        self.assertEqual(int(learner.skipped_steps), 1)
        moved = before["modules/default_policy/params/b"] - learner.state.params["b"].numpy()
        self.assertTrue(np.all(np.isfinite(moved)) and np.all(moved > 0))

    def test_a_nonfinite_loss_is_named(self):
        learner = built(SumAgent(), check_numerics="raise")
        with pytest.raises(
            UserError,
            match=r"the loss of module 'default_policy': expected finite values, got non-finite "
            r"loss \(1 times\), mean_x \(1 times\) in 1 gradient steps. Lower the learning rate",
        ):
            learner.update_from_batch({"x": tf.fill([1, 2], np.nan)})

    def test_unchecked_numbers_go_through(self):
        learner = built(SumAgent(), check_numerics="off", optimizer_fn=sgd)
        metrics = trained(learner, {"x": tf.fill([1, 2], np.nan)})
        self.assertTrue(np.isnan(metrics["loss"]))
        self.assertNotIn("nonfinite/loss", metrics)

    def test_early_stop_takes_no_further_step(self):
        learner = built(SumAgent(stop_above=4.0), optimizer_fn=sgd)
        # Row means 0.5, 2.5, 4.5, 6.5: the third minibatch stops, and its own step is not taken.
        before = learner.state.params["b"].numpy()
        metrics = trained(learner, rows(4), minibatch_size=1, shuffle=False)
        self.assertEqual(metrics["gradient_steps"], 3)
        np.testing.assert_allclose(before - learner.state.params["b"], 0.2, rtol=1e-5)

    def test_set_state_names_all_that_does_not_fit(self):
        learner = built(SumAgent())
        state = learner.get_state()
        module = state["rl_module"]["default_policy"]
        module["params/b"] = np.zeros(5, np.float32)
        module["surplus"] = module.pop("extra/seen")
        with pytest.raises(UserError) as error:
            learner.set_state(state)
        self.assertIn("missing rl_module/default_policy/extra/seen", str(error.value))
        self.assertIn("unknown rl_module/default_policy/surplus", str(error.value))
        self.assertIn("params/b of shape (5,) for (4,)", str(error.value))

    def test_a_clone_goes_its_own_way(self):
        learner = built(SumAgent())
        learner.update_from_batch(rows(), key=KEY)
        other = learner.clone()
        frozen = values(learner)
        other.update_from_batch(rows(), key=KEY)
        for path, value in frozen.items():
            np.testing.assert_array_equal(value, values(learner)[path], err_msg=path)
        learner.update_from_batch(rows(), key=KEY)
        for path, value in values(learner).items():
            np.testing.assert_array_equal(value, values(other)[path], err_msg=path)

    @parameterized.parameters(
        lambda: keras.optimizers.Adam(0.1, jit_compile=False),
        lambda: keras.optimizers.legacy.Adam(0.1),
        lambda: keras.optimizers.RMSprop(0.1, jit_compile=False),
    )
    def test_any_keras_optimizer_trains_saves_and_goes_on(self, make):
        learner = built(SumAgent(), optimizer_fn=lambda config: make())
        learner.update_from_batch(rows(), key=KEY)
        state = learner.get_state()
        learner.update_from_batch(rows(), key=KEY)
        again = built(SumAgent(), optimizer_fn=lambda config: make())
        again.set_state(state)
        again.update_from_batch(rows(), key=KEY)
        for path, value in values(learner).items():
            np.testing.assert_array_equal(value, values(again)[path], err_msg=path)


class RegistrationTest(parameterized.TestCase):
    def test_a_duplicate_name_and_a_parameter_twice_are_errors(self):
        learner = built(SumAgent())
        with pytest.raises(
            UserError, match="expected an optimizer name that this module does not use"
        ):
            learner.register_optimizer("default_policy", "sum", sgd(None), [])
        with pytest.raises(UserError, match="expected parameters that no other optimizer trains"):
            learner.register_optimizer(
                "default_policy", "second", sgd(None), learner.get_parameters()[:1]
            )

    def test_a_parameter_that_is_no_variable_is_an_error(self):
        learner = built(SumAgent())
        with pytest.raises(UserError, match="expected parameters that are tf.Variables"):
            learner.register_optimizer("default_policy", "new", sgd(None), [tf.ones([2])])

    def test_a_parameter_in_no_optimizer_is_an_error(self):
        class Partial(Learner):
            def configure_optimizers_for_module(self, module_id):
                params = tf.nest.flatten(self.module_state(module_id).params["a"])
                self.register_optimizer(module_id, "half", sgd(None), params)

        with pytest.raises(UserError, match=r"got none for \['default_policy/b'\]"):
            Partial(SumAgent()).build(KEY)

    @parameterized.parameters(
        ({}, "got entries for []"),
        (
            {"default_policy": ModuleConfig(), "b": ModuleConfig()},
            "got entries for ['b', 'default_",
        ),
        (0.1, "got 0.1"),
    )
    def test_settings_that_do_not_fit_name_the_modules(self, config, got):
        with pytest.raises(UserError) as error:
            Learner(SumAgent(), config=config)
        self.assertIn("one for each of the modules ['default_policy']", str(error.value))
        self.assertIn(got, str(error.value))

    def test_settings_by_module(self):
        config = ModuleConfig(lr=0.5)
        learner = Learner(SumAgent(), config={"default_policy": config})
        self.assertEqual(learner.configs, {"default_policy": config})

    def test_check_numerics_is_checked(self):
        with pytest.raises(UserError, match="check_numerics: expected off, skip or raise"):
            Learner(SumAgent(), check_numerics="maybe")


if __name__ == "__main__":
    tf.test.main()
