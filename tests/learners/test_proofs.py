"""What the Learner promises about one module: gradients, clipping, schedules, options, state."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.learners.learner_fakes import (
    PLAIN,
    Dot,
    RegressionAgent,
    SumAgent,
    assert_same,
    built,
    changed,
    column,
    param,
    sgd,
    values,
)
from tfrl import seeding, struct
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import ALL_MODULES, KerasModule, Learner, ModuleConfig
from tfrl.ops import schedules

KEY = seeding.key(0)
pytestmark = pytest.mark.usefixtures("_eager_updates")
ID = "default_policy"
TWO = Dot(widths=(("u", 3), ("v", 2)))
GRADIENTS = {"u": np.array([3.0, -4.0, 0.5], np.float32), "v": np.array([12.0, 0.1], np.float32)}


def rows(n=8):
    return {"x": tf.reshape(tf.range(2.0 * n), [n, 2])}


def numbered(n):
    """Rows that say which they are; no gradient depends on it."""
    return {"w": tf.ones([n, 2]), "i": tf.range(float(n))}


def two_groups():
    return {g: tf.constant(x[np.newaxis]) for g, x in GRADIENTS.items()}


def message(fn, *args, **kwargs):
    with pytest.raises(UserError) as error:
        fn(*args, **kwargs)
    return str(error.value)


class Recording(Learner):
    """Notes what goes through the hooks; for eager updates."""

    def compute_gradients(self, loss_per_module, gradient_tape, params):
        found = super().compute_gradients(loss_per_module, gradient_tape, params)
        self.computed = [g.numpy() for g in found.values()]
        return found

    def postprocess_gradients(self, gradients_dict):
        found = super().postprocess_gradients(gradients_dict)
        self.processed = {ref.deref().name: g.numpy() for ref, g in found.items()}
        return found


class TwoOptimizers(Learner):
    """One optimizer for each of the groups u and v."""

    def configure_optimizers_for_module(self, module_id):
        for group, variable in self.module_state(module_id).params.items():
            self.register_optimizer(module_id, group, sgd(None), [variable], 1.0)


class Forgetful(Learner):
    """Returns no gradients, or only the first."""

    kept = 0

    def postprocess_gradients(self, gradients_dict):
        return dict(list(gradients_dict.items())[: self.kept]) if self.kept else None


class GradientTest(parameterized.TestCase):
    @parameterized.parameters((0, "NoneType"), (1, "none for 2 of 3"))
    def test_a_hook_that_returns_too_little_is_named(self, kept, got):
        learner = built(SumAgent(), Forgetful)
        learner.kept = kept
        with self.assertRaisesRegex(UserError, f"postprocess_gradients returns: .*got {got}"):
            learner.update_from_batch(rows(), compile="graph")

    def test_the_gradients_of_a_sum_of_parameters_are_ones(self):
        learner = built(SumAgent(), Recording, config=PLAIN.replace(log_gradients=False))
        learner.update_from_batch(rows(), compile="eager")
        self.assertLen(learner.computed, 3)
        for gradient in [*learner.computed, *learner.processed.values()]:
            np.testing.assert_array_equal(gradient, np.ones_like(gradient))

    @parameterized.parameters("graph", "xla")
    def test_a_hundred_sgd_updates_move_every_parameter_by_exactly_a_hundred_rates(self, mode):
        # 1/128 and its multiples up to 1 are exact in float32; so are the sums where the start is.
        learner = built(SumAgent(), config=PLAIN.replace(lr=2.0**-7))
        start = param(learner, ID, "a/kernel")
        for _ in range(100):
            learner.update_from_batch(rows(), compile=mode)
        np.testing.assert_array_equal(param(learner, ID, "b"), np.full(4, 1 - 100 / 128))
        np.testing.assert_array_equal(param(learner, ID, "a/bias"), np.full(2, -100 / 128))
        moved = start - param(learner, ID, "a/kernel")
        np.testing.assert_allclose(moved, 100 / 128, rtol=1e-5)

    def test_many_updates_trace_once(self):
        learner = built(SumAgent())
        for i in range(100):
            learner.update_from_batch(rows(), timesteps={"env_steps": i}, compile="graph")
        self.assertEqual(learner.trace_count, 1)
        self.assertEqual(int(learner.learner_steps), 100)
        self.assertEqual(int(learner.weights_seq_no), 100)


def clipped(gradients, limit, by):
    """NumPy's idea of clipping the gradients of one optimizer."""
    if by == "value":
        return {g: np.clip(x, -limit, limit) for g, x in gradients.items()}
    if by == "norm":
        norms = {g: np.sqrt(np.sum(x**2)) for g, x in gradients.items()}
    else:
        norm = np.sqrt(sum(np.sum(x**2) for x in gradients.values()))
        norms = dict.fromkeys(gradients, norm)
    return {g: x * min(1.0, limit / norms[g]) for g, x in gradients.items()}


class ClippingTest(parameterized.TestCase):
    @parameterized.product(by=("value", "norm", "global_norm"), limit=(0.7, 6.0, 100.0))
    def test_each_kind_is_numpys(self, by, limit):
        config = ModuleConfig(lr=1.0, grad_clip=limit, grad_clip_by=by)
        learner = built(TWO, config=config)
        row = learner.update_from_batch(two_groups())[ID]
        for group, expected in clipped(GRADIENTS, limit, by).items():
            moved = 1.0 - param(learner, ID, group)
            np.testing.assert_allclose(moved, expected, rtol=1e-5, atol=1e-6)
        # What is logged is the norm before clipping: sqrt(9 + 16 + 0.25 + 144 + 0.01).
        np.testing.assert_allclose(row["grad_norm"], np.sqrt(169.26), rtol=1e-6)

    def test_two_optimizers_of_one_module_are_clipped_apart(self):
        config = ModuleConfig(lr=1.0, grad_clip=1.0)
        learner = built(TWO, TwoOptimizers, config=config)
        row = learner.update_from_batch(two_groups())[ID]
        for group, gradient in GRADIENTS.items():
            moved = 1.0 - param(learner, ID, group)
            norm = np.linalg.norm(gradient)
            np.testing.assert_allclose(moved, gradient / norm, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(row[f"grad_norm/{group}"], norm, rtol=1e-6)
            self.assertEqual(row[f"{group}/learning_rate"], 1.0)
        self.assertNotIn("grad_norm", row)

    def test_logging_gradients_without_clipping_still_trains(self):
        learner = built(TWO, config=ModuleConfig(lr=1.0, grad_clip=None, log_gradients=True))
        learner.update_from_batch(two_groups())
        np.testing.assert_allclose(1.0 - param(learner, ID, "v"), GRADIENTS["v"], rtol=1e-6)

    def test_without_logging_there_is_no_norm_and_the_same_step(self):
        for log in (True, False):
            config = ModuleConfig(lr=1.0, grad_clip=1.0, log_gradients=log)
            learner = built(TWO, config=config)
            row = learner.update_from_batch(two_groups())[ID]
            self.assertEqual(log, "grad_norm" in row)
            expected = clipped(GRADIENTS, 1.0, "global_norm")["v"]
            np.testing.assert_allclose(1.0 - param(learner, ID, "v"), expected, rtol=1e-5)

    def test_without_logging_no_norm_of_any_optimizer_is_left(self):
        config = PLAIN.replace(log_gradients=False)
        row = built(TWO, TwoOptimizers, config=config).update_from_batch(two_groups())[ID]
        self.assertEmpty([name for name in row if "grad_norm" in name])
        batch = {"x": tf.ones([4, 2]), "y": tf.ones([4])}
        row = built(RegressionAgent(), config=config).update_from_batch(batch)[ID]
        self.assertEmpty([name for name in row if "grad_norm" in name])


@struct.logic_dataclass
class Root(Dot):
    """sqrt(x . (w - 1)) at w = 1: the loss is 0, its gradient infinite or 0 / 0."""

    def loss(self, params, batch, outputs, key):
        return tf.sqrt(tf.reduce_mean(outputs) - tf.reduce_mean(tf.reduce_sum(batch["w"], -1)))


class GuardTest(parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_a_finite_loss_with_a_gradient_that_is_not_is_left_out(self, log):
        learner = built(Root(), config=PLAIN.replace(log_gradients=log))
        before = values(learner)
        row = learner.update_from_batch(column([1.0, 2.0]))
        self.assertEqual(row[ID]["loss"], 0.0)
        self.assertEqual(row[ID]["skipped_steps"], 1)
        self.assertEqual(row["__all_modules__"]["skipped_steps"], 1)
        self.assertEqual(row[ID]["nonfinite/grad_norm"], 1)
        moved = [p for p in changed(before, values(learner)) if not p.startswith("counters/")]
        self.assertEqual(moved, [])

    @parameterized.parameters(True, False)
    def test_raise_names_module_and_gradient_whether_it_is_logged_or_not(self, log):
        config = PLAIN.replace(log_gradients=log)
        learner = built({"a": Root()}, config=config, check_numerics="raise")
        self.assertRegex(
            message(learner.update_from_batch, {"a": column([1.0, 2.0])}),
            r"the loss of module 'a': expected finite values, got non-finite grad_norm "
            r"\(1 times\) in 1 gradient steps",
        )
        np.testing.assert_array_equal(param(learner, "a"), [1.0, 1.0])

    def test_without_logging_a_nonfinite_loss_is_guarded(self):
        learner = built(Dot(), config=PLAIN.replace(log_gradients=False))
        batch = column([np.nan, 1.0], [1.0, 1.0])
        row = learner.update_from_batch(batch, minibatch_size=1, shuffle=False)[ID]
        self.assertEqual(row["skipped_steps"], 1)
        np.testing.assert_allclose(param(learner, ID), 1 - 0.125)

    def test_a_loss_that_is_no_scalar_is_named(self):
        class PerRow(Learner):
            def compute_loss_for_module(self, module_id, update, params, state, batch, key):
                return tf.linalg.matvec(batch["w"], params["w"])

        learner = built({"a": Dot()}, PerRow)
        self.assertIn(
            "the loss of module 'a': expected a float scalar, got float32 of shape (3,)",
            message(learner.update_from_batch, {"a": column([1, 1], [2, 2], [3, 3])}),
        )

    def test_a_metric_that_is_no_scalar_is_named(self):
        class PerRow(Learner):
            def compute_loss_for_module(self, module_id, update, params, state, batch, key):
                return tf.reduce_mean(params["w"]), {"td_error": batch["w"]}

        learner = built({"a": Dot()}, PerRow)
        text = message(learner.update_from_batch, {"a": column([1, 1], [2, 2], [3, 3])})
        self.assertIn("module 'a'", text)
        self.assertIn("td_error of shape (3, 2)", text)


class ScheduleTest(parameterized.TestCase):
    def test_each_optimizer_has_its_own(self):
        class Scheduled(Learner):
            def configure_optimizers_for_module(self, module_id):
                params = self.module_state(module_id).params
                points = [[0, 1.0], [100, 0.0]]
                line = schedules.LinearSchedule(0.0, 0.5, 100)
                self.register_optimizer(module_id, "u", sgd(None), [params["u"]], points)
                self.register_optimizer(module_id, "v", sgd(None), [params["v"]], line)

        learner = built(TWO, Scheduled)
        row = learner.update_from_batch(two_groups(), timesteps=25)[ID]
        self.assertEqual((row["u/learning_rate"], row["v/learning_rate"]), (0.75, 0.125))
        moved = {g: 1.0 - param(learner, ID, g) for g in ("u", "v")}
        np.testing.assert_allclose(moved["u"], 0.75 * GRADIENTS["u"], rtol=1e-6)
        np.testing.assert_allclose(moved["v"], 0.125 * GRADIENTS["v"], rtol=1e-6)

    def test_it_survives_a_resume_at_the_checkpointed_env_steps(self):
        config = PLAIN.replace(lr=[[0, 1.0], [100, 0.0]])
        learner = built(Dot(), config=config)
        learner.update_from_batch(column([1, 1]), timesteps=60)
        resumed = built(Dot(), config=config)
        resumed.set_state(learner.get_state())
        self.assertEqual(int(resumed.env_steps), 60)
        # None takes what the learner was told last.
        row = resumed.update_from_batch(column([1, 1]))[ID]
        self.assertAlmostEqual(row["learning_rate"], 0.4, places=6)
        self.assertEqual(row, learner.update_from_batch(column([1, 1]))[ID])
        assert_same(values(resumed), values(learner))

    def test_a_fixed_rate_changed_by_hand_stays_changed_also_after_a_resume(self):
        learner = built(Dot())
        learner.update_from_batch(column([1, 1]))
        learner.get_optimizer().learning_rate.assign(0.5)
        self.assertEqual(learner.update_from_batch(column([1, 1]))[ID]["learning_rate"], 0.5)
        resumed = built(Dot())
        resumed.set_state(learner.get_state())
        self.assertEqual(resumed.update_from_batch(column([1, 1]))[ID]["learning_rate"], 0.5)

    @parameterized.parameters(
        ([[0, 1.0], [200, 0.5], [100, 0.0]], "strictly increasing steps"),
        ([[0, 1.0]], "at least two points"),
        ([[10, 1.0], [20, 0.0]], "the first point at step 0"),
    )
    def test_points_that_are_no_schedule_are_value_errors(self, points, expected):
        with pytest.raises(ValueError, match=expected):
            ModuleConfig(lr=points)

        class Scheduled(Learner):
            def configure_optimizers_for_module(self, module_id):
                params = self.get_parameters(module_id)
                self.register_optimizer(module_id, "main", sgd(None), params, points)

        with pytest.raises(ValueError, match=expected):
            built(Dot(), Scheduled)


class OptionsTest(parameterized.TestCase):
    def test_total_minibatches_takes_the_place_of_the_epochs(self):
        learner = built(Dot())
        # Six rows of two are 3 minibatches an epoch: 7 are two epochs and one more.
        row = learner.update_from_batch(numbered(6), minibatch_size=2, num_total_minibatches=7)
        self.assertEqual(row[ID]["gradient_steps"], 7)
        self.assertEqual(row["__all_modules__"]["gradient_steps"], 7)
        np.testing.assert_allclose(param(learner, ID), 1 - 7 / 8)

    @parameterized.parameters((None,), (5,), ({"env_steps": 5},), (np.int64(5),), ([5],))
    def test_timesteps(self, timesteps):
        timesteps = tf.constant(5, tf.int64) if timesteps == [5] else timesteps
        learner = built(SumAgent())
        learner.update_from_batch(rows(), timesteps=3)
        row = learner.update_from_batch(rows(), timesteps=timesteps)
        told = 3 if timesteps is None else 5
        self.assertEqual(row["__all_modules__"]["env_steps"], told)
        self.assertEqual(int(learner.state.extra["seen"]), told)

    @parameterized.parameters(
        ({"frames": 3}, "{'frames': 3}"),
        ({"env_steps": 3, "frames": 12}, "'frames': 12"),
        ("many", "'many'"),
        (2.5, "2.5"),
        (-1, "-1"),
        (True, "True"),
    )
    def test_timesteps_that_are_none(self, timesteps, got):
        text = message(built(SumAgent()).update_from_batch, rows(), timesteps=timesteps)
        self.assertStartsWith(text, "timesteps: expected")
        self.assertIn(got, text)

    def test_the_modules_own_minibatch_size(self):
        learner = built(Dot(), config=PLAIN.replace(minibatch_size=2))
        self.assertEqual(learner.update_from_batch(numbered(6))[ID]["gradient_steps"], 3)
        # What the call says goes first.
        row = learner.update_from_batch(numbered(6), minibatch_size=3)
        self.assertEqual(row[ID]["gradient_steps"], 2)

    @parameterized.parameters(
        ({"w": tf.zeros([0, 2])}, "the batch of module 'default_policy': expected at least one"),
        ({}, "the batch: expected at least one row"),
        ({"w": tf.zeros([3, 2]), "i": tf.zeros([4])}, r"{'i': 4, 'w': 3}"),
        ({"w": tf.zeros([])}, "same number of rows"),
    )
    def test_batches_that_are_none(self, batch, expected):
        learner = built(Dot())
        self.assertIn(expected, message(learner.update_from_batch, batch))
        self.assertEqual(int(learner.weights_seq_no), 0)

    @parameterized.parameters(
        (dict(num_epochs=0), "num_epochs: expected a whole number of at least 1, got 0"),
        (dict(num_total_minibatches=-1), "num_total_minibatches: expected a whole number"),
        (dict(minibatch_size=0), "minibatch_size: expected a whole number of at least 1, got 0"),
        (dict(minibatch_size={"other": 2}), "minibatch_size: expected sizes for modules among"),
        (dict(remainder="keep"), "remainder: expected one of error, pad, drop, wrap"),
        (dict(compile="jit"), "compile: expected xla, graph or eager, got 'jit'"),
    )
    def test_options_that_are_none(self, options, expected):
        learner = built(Dot())
        self.assertIn(expected, message(learner.update_from_batch, numbered(6), **options))
        self.assertEqual(int(learner.learner_steps), 0)

    def test_numpy_batches_and_records_train_alike(self):
        one, other = built(Dot()), built(Dot())
        one.update_from_batch({"w": np.ones([4, 2], np.float32)})
        other.update_from_batch(struct.TensorDict({"w": tf.ones([4, 2])}))
        assert_same(values(one), values(other))


class IteratorTest(parameterized.TestCase):
    def test_all_batches_are_one_update(self):
        dataset = tf.data.Dataset.from_tensors(column([1.0, 3.0])).repeat()
        learner = built(Dot())
        row = learner.update_from_iterator(dataset, 4, timesteps=9)
        np.testing.assert_allclose(param(learner, ID), [1 - 4 / 8, 1 - 12 / 8])
        # The losses 4, 4 - 10/8, 4 - 20/8, 4 - 30/8 before each step: their mean is 2.125.
        self.assertAlmostEqual(row[ID]["loss"], 2.125, places=6)
        self.assertEqual(row[ID]["gradient_steps"], 4)
        self.assertEqual(row["__all_modules__"]["weights_seq_no"], 1)
        self.assertEqual(row["__all_modules__"]["env_steps"], 9)
        self.assertEqual(row["__all_modules__"]["dataset_num_iters_trained"], 4)
        learner.update_from_iterator(dataset, 2)
        self.assertEqual(learner.trace_count, 3)  # the steps, and what is before and after

    def test_options_are_those_of_a_batch(self):
        learner = built(Dot())
        row = learner.update_from_iterator(
            iter([numbered(4), numbered(4)]), 2, minibatch_size=1, num_epochs=3
        )
        self.assertEqual(row[ID]["gradient_steps"], 24)

    def test_a_key_is_that_of_the_first_batch(self):
        class Drawing(Dot):
            def loss(self, params, batch, outputs, key):
                loss, metrics = super().loss(params, batch, outputs, key)
                return loss, {**metrics, "draw": seeding.uniform(key, [])}

        def draws(update):
            learner = built(Drawing())
            return update(learner)[ID]["draw"]

        first = draws(lambda x: x.update_from_batch(numbered(4), key=seeding.key(7)))
        one = draws(lambda x: x.update_from_iterator([numbered(4)], key=7))
        three = draws(lambda x: x.update_from_iterator([numbered(4)] * 3, key=7))
        self.assertEqual(first, one)
        self.assertNotAlmostEqual(one, three, places=3)  # the mean of other draws

    def test_a_clone_has_its_own_place_in_a_list(self):
        rows = [column([1, 0]), column([2, 0]), column([4, 0])]
        learner = built(Dot())
        learner.update_from_iterator(rows, 1)
        clones = [learner.clone() for _ in range(2)]
        found = [x.update_from_iterator(rows, 1)[ID]["loss"] for x in clones]
        self.assertEqual(*found)

    def test_an_exhausted_one_says_how_far_it_came(self):
        learner = built(Dot())
        batches = [column([1, 1])] * 2
        self.assertIn(
            "the iterator of update_from_iterator: expected 3 batches, got 2 before its end. "
            "Repeat",
            message(learner.update_from_iterator, iter(batches), 3),
        )
        self.assertEqual(int(learner.learner_steps), 2)
        text = message(learner.update_from_iterator, iter([]), 1)
        self.assertIn("expected 1 batches, got 0 before its end", text)
        for nothing in ([], iter([])):
            text = message(learner.update_from_iterator, nothing)
            self.assertIn("expected some batches, got 0 before its end", text)

    def test_one_pass_or_cycles(self):
        learner = built(Dot())
        rows = [column([1, 0]), column([2, 0]), column([4, 0])]
        found = learner.update_from_iterator(rows)  # to its end
        self.assertEqual(found[ALL_MODULES]["dataset_num_iters_trained"], 3)
        self.assertIs(learner.iterator, rows)
        moved = []
        for _ in range(2):  # goes on where it stopped, and round
            before = param(learner, ID)[0]
            found = learner.update_from_iterator(rows, 2)
            moved.append((before - param(learner, ID)[0]) * 8)
        np.testing.assert_allclose(moved, [1 + 2, 4 + 1])
        self.assertEqual(found[ALL_MODULES]["dataset_num_iters_trained_lifetime"], 7)
        self.assertEqual(found[ID]["num_module_steps_trained"], 2)

    def test_hooks_run_once_around_all(self):
        calls = []

        class Hooked(Learner):
            def on_update_begin(self, *, timesteps):
                calls.append(("begin", timesteps))

            def before_gradient_based_update(self, *, timesteps):
                calls.append("before")
                self.metrics.log_value("before", timesteps, window=1)

            def after_gradient_based_update(self, *, timesteps):
                calls.append("after")

            def on_update_end(self, *, timesteps, results):
                calls.append(results["before"])

        learner = built(Dot(), Hooked)
        for _ in range(2):
            learner.update_from_iterator([column([1, 1])] * 3, timesteps=7, compile="eager")
        self.assertEqual(calls, [("begin", 7), "before", "after", 7] * 2)
        found = learner.update_from_iterator([column([1, 1])] * 3, timesteps=8)
        self.assertEqual(found["before"], 8)
        self.assertEqual(int(learner.weights_seq_no), 3)

    def test_a_module_that_comes_with_a_later_batch(self):
        learner = built({"a": Dot(), "b": Dot()})
        batches = [{"a": column([1, 1])}, {"a": column([1, 1]), "b": column([2, 2])}]
        found = learner.update_from_iterator(batches)
        self.assertEqual(found["a"]["gradient_steps"], 2)
        self.assertEqual(found["b"]["gradient_steps"], 1)
        self.assertEqual(found["b"]["weights_seq_no"], 1)

    @parameterized.parameters(0, -1, 1.5, True)
    def test_a_number_that_is_none(self, num_iters):
        text = message(built(Dot()).update_from_iterator, iter([]), num_iters)
        self.assertStartsWith(text, "num_iters: expected a whole number of at least 1 or None")


class HookTest(parameterized.TestCase):
    def test_they_are_traced_and_get_counters_as_tensors(self):
        calls = []

        class Hooked(Learner):
            def build(self, key=0):
                self.seen = [tf.Variable(0, dtype=tf.int64) for _ in range(2)]
                self.first = tf.Variable([0.0, 0.0])
                super().build(key)

            def before_gradient_based_update_for_module(self, module_id, timesteps):
                super().before_gradient_based_update_for_module(module_id, timesteps)
                calls.append(("before", module_id, tf.is_tensor(timesteps), timesteps.dtype))
                self.seen[0].assign(timesteps)
                self.first.assign(self.module_state(module_id).params["w"])

            def after_gradient_based_update_for_module(self, module_id, timesteps):
                super().after_gradient_based_update_for_module(module_id, timesteps)
                calls.append(("after", module_id, tf.is_tensor(timesteps), timesteps.dtype))
                # It runs after the steps: how far the parameters went is known.
                moved = self.first - self.module_state(module_id).params["w"]
                self.seen[1].assign(tf.cast(tf.round(8 * moved[0]), tf.int64))

        learner = built(Dot(), Hooked)
        for timesteps in (10, 20, 30):
            learner.update_from_batch(
                numbered(6), minibatch_size=2, timesteps=timesteps, compile="graph"
            )
            self.assertEqual(int(learner.seen[0]), timesteps)
            self.assertEqual(int(learner.seen[1]), 3)  # three steps of 1/8
        expected = [("before", ID, True, tf.int64), ("after", ID, True, tf.int64)]
        self.assertEqual(calls, expected)  # once, for one trace

    def test_a_modules_hooks_move_its_state(self):
        @struct.logic_dataclass
        class Target(Dot):
            def init(self, key):
                state = super().init(key)
                return state.replace(target_params=state.params)

            def after_update(self, state, timesteps):
                mix = tf.nest.map_structure(
                    lambda t, p: (t + p) / 2, state.target_params, state.params
                )
                return state.replace(target_params=mix)

        learner = built(Target())
        learner.update_from_batch(column([1, 1]))
        np.testing.assert_allclose(learner.state.target_params["w"], 1 - 1 / 16)
        np.testing.assert_allclose(learner.state.params["w"], 1 - 1 / 8)

    def test_a_hook_that_is_due_now_and_then_changes_nothing_otherwise(self):
        @struct.logic_dataclass
        class Seldom(Dot):
            def init(self, key):
                state = super().init(key)
                return state.replace(target_params=state.params, extra=tf.constant(0))

            def adapt(self, state, metrics):
                return state.replace(extra=state.extra + 1)

            def after_update_due(self, state, timesteps):
                return tf.equal(state.extra % 3, 0)  # `adapt` has run

            def after_update(self, state, timesteps):
                return state.replace(target_params=state.params)

        learner = built(Seldom())
        seen = []
        for _ in range(7):
            learner.update_from_batch(column([1, 1]))
            seen.append(float(learner.state.target_params["w"][0]))
        np.testing.assert_allclose(seen, [1, 1, 5 / 8, 5 / 8, 5 / 8, 2 / 8, 2 / 8], atol=1e-6)


SEQ, TRAINED = "weights_seq_no", "should_module_be_updated"


class StateTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.learner = built(
            {"a": TWO, "b": Dot()}, optimizer_fn=lambda c: keras.optimizers.legacy.Adam()
        )
        self.learner.update_from_batch({"a": two_groups(), "b": column([1, 1])}, timesteps=7)

    @parameterized.parameters(
        (None, None, {"rl_module", "optimizer", "counters", "metrics", TRAINED, SEQ}, "ab"),
        ("rl_module", None, {"rl_module", SEQ}, "ab"),
        (["rl_module/a"], SEQ, {"rl_module"}, "a"),
        (["rl_module", "counters"], ["rl_module/a"], {"rl_module", "counters", SEQ}, "b"),
        (None, ["optimizer", "metrics", TRAINED], {"rl_module", "counters", SEQ}, "ab"),
        (None, "rl_module", {"optimizer", "counters", "metrics", TRAINED, SEQ}, ""),
        ([], None, {SEQ}, ""),
    )
    @pytest.mark.variants(3)
    def test_components(self, components, not_components, parts, modules):
        state = self.learner.get_state(components, not_components=not_components)
        self.assertEqual(set(state), parts)
        self.assertEqual(set(state.get("rl_module", {})), set(modules))

    def test_one_optimizer(self):
        (name, _) = self.learner.get_optimizers_for_module("a")[0]
        for component in ("optimizer/a", f"optimizer/a/{name}"):
            state = self.learner.get_state([component])
            self.assertEqual(
                {m: list(found) for m, found in state["optimizer"].items()}, {"a": [name]}
            )
            self.assertEqual(list(state), ["optimizer", SEQ])
            self.assertIn("iterations", state["optimizer"]["a"][name])
            self.assertIn("m/params/u", state["optimizer"]["a"][name])

    @parameterized.parameters("components", "not_components")
    def test_an_unknown_component_is_named_with_those_that_there_are(self, argument):
        text = message(self.learner.get_state, **{argument: ["rl_module/c", "optimiser"]})
        self.assertStartsWith(text, f"{argument}: expected ")
        self.assertIn("rl_module/a, rl_module/b, optimizer/a", text)
        self.assertIn("got 'rl_module/c', 'optimiser'", text)

    def test_a_part_loads_alone(self):
        other = built({"a": TWO, "b": Dot()}, optimizer_fn=lambda c: keras.optimizers.legacy.Adam())
        before = values(other)
        other.set_state(self.learner.get_state(["rl_module/a"]))
        moved = changed(before, values(other))
        weights = ["modules/a/params/u", "modules/a/params/v"]
        self.assertEqual(moved, ["counters/weights_seq_no", *weights])
        np.testing.assert_array_equal(param(other, "a", "u"), param(self.learner, "a", "u"))

    def test_what_is_returned_is_a_copy(self):
        state = self.learner.get_state()
        state["rl_module"]["a"]["params/u"][:] = 77.0
        frozen = self.learner.get_state()["rl_module"]["b"]["params/w"].copy()
        self.assertLess(param(self.learner, "a", "u").max(), 77.0)
        self.learner.update_from_batch({"b": column([1, 1])})
        self.assertFalse(np.array_equal(param(self.learner, "b"), frozen))

    def test_all_that_is_unknown_is_named_and_nothing_loaded(self):
        state = self.learner.get_state(["rl_module", "counters"])
        state["rl_module"]["a"]["params/u"] = np.zeros(3, np.float32)
        state["rl_module"]["c"] = {}
        state["counters"]["frames"] = 3
        state["optimizer"] = {"a": {"main": {}}}
        state["buffer"] = {}
        before = values(self.learner)
        text = message(self.learner.set_state, state)
        for part in (
            "unknown component 'buffer'",
            "unknown module 'c'",
            "unknown counter 'frames'",
            "unknown optimizer 'main' of module 'a'",
        ):
            self.assertIn(part, text)
        assert_same(before, values(self.learner))

    def test_load_if_newer(self):
        older = self.learner.get_state(["rl_module", "weights_seq_no"])
        self.learner.update_from_batch({"a": two_groups()})
        newer = self.learner.get_state(["rl_module", "weights_seq_no"])
        collector = built({"a": TWO, "b": Dot()})
        self.assertTrue(collector.load_if_newer(newer))
        weights = param(collector, "a", "u")
        np.testing.assert_array_equal(weights, newer["rl_module"]["a"]["params/u"])
        self.assertFalse(collector.load_if_newer(newer))
        self.assertFalse(collector.load_if_newer(older))
        np.testing.assert_array_equal(param(collector, "a", "u"), weights)
        collector.set_state(older)  # loads all that it is given
        np.testing.assert_array_equal(
            param(collector, "a", "u"), older["rl_module"]["a"]["params/u"]
        )
        self.assertEqual(int(collector.weights_seq_no), 1)

    def test_load_if_newer_needs_the_number(self):
        state = self.learner.get_state("rl_module", not_components=SEQ)
        text = message(self.learner.load_if_newer, state)
        self.assertIn("weights_seq_no", text)
        self.assertIn("['rl_module']", text)

    def test_parameter_counts_are_in_the_metrics(self):
        # Three and two trained floats; a count that no gradient trains.
        @struct.logic_dataclass
        class Counting(Dot):
            def init_params(self, key):
                return {**super().init_params(key), "count": tf.constant([1, 2])}

        learner = built({"a": TWO, "c": Counting()})
        row = learner.update_from_batch({"c": column([1, 1])})
        self.assertEqual(row["c"]["num_trainable_parameters"], 2)
        self.assertEqual(row["c"]["num_non_trainable_parameters"], 2)
        # Of all modules, also those that this batch does not train.
        self.assertEqual(row["__all_modules__"]["num_trainable_parameters"], 7)
        self.assertEqual(row["__all_modules__"]["num_non_trainable_parameters"], 2)

    def test_the_logger_sums_steps_keeps_counters_and_averages_the_rest(self):
        learner = built(Dot())
        for timesteps in (10, 20):
            batch = column([1, 1], [np.nan, 1])
            learner.update_from_batch(batch, minibatch_size=1, shuffle=False, timesteps=timesteps)
        row = learner.metrics.reduce()
        # The loss is 2 and then 1.75.
        self.assertEqual(row[ID]["loss"], 1.875)
        self.assertEqual((row[ID]["gradient_steps"], row[ID]["skipped_steps"]), (4, 2))
        self.assertEqual(row[ID]["num_trainable_parameters"], 2)
        for name, value in (("env_steps", 20), ("learner_steps", 4), ("gradient_steps", 4)):
            self.assertEqual(row[ALL_MODULES][name], value)

    def test_the_default_key_is_of_the_gradient_steps_so_far(self):
        batch = {"x": seeding.normal(KEY, [12, 2]), "y": tf.range(12.0)}
        by_hand, alone = built(RegressionAgent()), built(RegressionAgent())
        for steps in (0, 6):
            key = seeding.stream(seeding.key(0), "learner/updates")  # of its own key
            key = seeding.fold_in(key, tf.constant(steps, tf.int64))
            by_hand.update_from_batch(batch, minibatch_size=2, key=key)
            alone.update_from_batch(batch, minibatch_size=2)
        assert_same(values(by_hand), values(alone))


def line(n=64):
    x = seeding.normal(seeding.key(1), [n, 2])
    return {"x": x, "y": x[:, 0] - 2.0 * x[:, 1] + 0.5}


class KerasTest(parameterized.TestCase):
    def test_a_model_trains_and_its_moving_statistics_with_it(self):
        def make():
            layers = keras.layers
            return keras.Sequential(
                [keras.Input([2]), layers.BatchNormalization(momentum=0.5), layers.Dense(1)]
            )

        module = KerasModule(model_fn=make, loss_fn="mse")
        learner = built(
            module,
            config=ModuleConfig(lr=0.1),
            optimizer_fn=lambda c: keras.optimizers.legacy.Adam(),
        )
        first = learner.update_from_batch(line(), num_epochs=1)[ID]["loss"]
        row = learner.update_from_batch(line(), num_epochs=60, minibatch_size=32, compile="graph")[
            ID
        ]
        last = learner.update_from_batch(line())[ID]["loss"]
        self.assertGreater(first, 1.0)
        self.assertLess(last, 0.05)
        # Scale and shift, kernel and bias: 2 + 2 + 2 + 1; mean and variance are 2 + 2.
        self.assertEqual(row["num_trainable_parameters"], 7)
        self.assertEqual(row["num_non_trainable_parameters"], 4)
        x = line()["x"]
        mean = [v for p, v in struct.paths(learner.state.params).items() if "moving_mean" in p]
        np.testing.assert_allclose(mean[0], tf.reduce_mean(x, 0), atol=0.2)
        predicted = module.predict(learner.state.params, x)[:, 0]
        self.assertLess(float(tf.reduce_mean(tf.square(predicted - line()["y"]))), 0.2)


class BuildTest(parameterized.TestCase):
    def test_no_module_is_an_error(self):
        self.assertIn("expected at least one module", message(Learner, {}))

    @parameterized.parameters("", "a/b", "a\\b", "..", "end.", "end ", "__all_modules__")
    def test_ids_are_checked(self, module_id):
        self.assertStartsWith(message(Learner, {module_id: Dot()}), "module id: expected ")
        learner = built({"a": Dot()})
        self.assertStartsWith(message(learner.add_module, module_id, Dot()), "module id: expected ")

    @parameterized.parameters(
        ("update_from_batch", ({},)),
        ("update_from_iterator", ([],)),
        ("update_from_episodes", ([],)),
        ("module_state", ()),
        ("get_parameters", ()),
        ("get_state", ()),
        ("set_state", ({},)),
        ("load_if_newer", ({},)),
        ("save_to_path", ("x",)),
        ("restore_from_path", ("x",)),
        ("variables", ()),
        ("clone", ()),
        ("get_optimizer", ()),
    )
    def test_use_before_build_says_so(self, method, args):
        text = message(getattr(Learner(Dot()), method), *args)
        self.assertIn("expected a built learner, got a learner without variables. Call ", text)
        self.assertIn(method if method != "get_parameters" else "module_state", text)

    def test_build_is_idempotent(self):
        learner = built(Dot())
        learner.update_from_batch(column([1, 1]))
        before, ids = values(learner), {p: id(v) for p, v in learner.variables().items()}
        learner.build(seeding.key(9))
        assert_same(before, values(learner))
        self.assertEqual(ids, {p: id(v) for p, v in learner.variables().items()})


if __name__ == "__main__":
    tf.test.main()
