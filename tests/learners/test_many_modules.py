"""Several modules in one Learner: sizes, sharing, joint losses, who is trained, who is guarded."""

from typing import Protocol

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.learners.learner_fakes import (
    PLAIN,
    Dot,
    EncoderHead,
    Held,
    RegressionAgent,
    SumAgent,
    assert_same,
    built,
    changed,
    column,
    param,
    values,
)
from tfrl import seeding, struct
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import (
    ALL_MODULES,
    Learner,
    Module,
    ModuleConfig,
    TargetNetworkAPI,
    ValueFunctionAPI,
)

KEY = seeding.key(0)
pytestmark = pytest.mark.usefixtures("_eager_updates")
SHARED = {"a/encoder": ["b/encoder"]}


def message(fn, *args, **kwargs):
    with pytest.raises(UserError) as error:
        fn(*args, **kwargs)
    return str(error.value)


def numbered(n):
    """Rows whose gradient is their number; the metric `rows` is the sum of those taken."""
    i = tf.range(float(n))
    return {"w": tf.stack([i, i], 1), "i": i}


def moved(learner, module_id, path="w", start=1.0):
    return start - param(learner, module_id, path)


def adam(config):
    return keras.optimizers.legacy.Adam()


class SizesTest(parameterized.TestCase):
    def test_each_has_its_own_rate_and_minibatch_size(self):
        config = {
            "a": PLAIN.replace(lr=0.5, minibatch_size=2),
            "b": PLAIN.replace(lr=0.25, minibatch_size=4),
        }
        learner = built({"a": Dot(), "b": Dot()}, config=config)
        row = learner.update_from_batch({"a": numbered(8), "b": numbered(8)})
        # Four steps of "a", one epoch; "b" has two an epoch and makes a second one. Each epoch adds
        # up to the mean row 3.5 times the number of its steps.
        self.assertEqual([row[m]["gradient_steps"] for m in "ab"], [4, 4])
        self.assertEqual([row[m]["learning_rate"] for m in "ab"], [0.5, 0.25])
        np.testing.assert_allclose(moved(learner, "a"), 0.5 * 4 * 3.5, rtol=1e-6)
        np.testing.assert_allclose(moved(learner, "b"), 0.25 * 4 * 3.5, rtol=1e-6)
        # The metric is the mean of the sums over a minibatch: 28 rows' numbers in 4 and in 2 parts.
        self.assertEqual([row[m]["rows"] for m in "ab"], [7.0, 14.0])

    def test_the_call_may_say_a_size_for_each_or_for_some(self):
        learner = built({"a": Dot(), "b": Dot()}, config=PLAIN.replace(minibatch_size=4))
        batch = {"a": numbered(8), "b": numbered(8)}
        row = learner.update_from_batch(batch, minibatch_size={"a": 1})
        self.assertEqual([row[m]["gradient_steps"] for m in "ab"], [8, 8])
        self.assertEqual([row[m]["rows"] for m in "ab"], [3.5, 14.0])
        row = learner.update_from_batch(batch, minibatch_size={"a": 2, "b": 8})
        self.assertEqual([row[m]["rows"] for m in "ab"], [7.0, 28.0])

    def test_fewer_rows_go_round_each_at_least_once(self):
        learner = built({"a": Dot(), "b": Dot()})
        row = learner.update_from_batch(
            {"a": numbered(12), "b": numbered(3)}, minibatch_size=2, shuffle=False
        )
        # "b" takes rows 01 20 | 01 20 | 01 20: sums 1, 2, ... in six steps.
        self.assertEqual([row[m]["gradient_steps"] for m in "ab"], [6, 6])
        self.assertEqual(row["b"]["rows"], 1.5)
        np.testing.assert_allclose(moved(learner, "b"), 6 * 0.75 / 8, rtol=1e-6)
        np.testing.assert_allclose(moved(learner, "a"), 6 * 5.5 / 8, rtol=1e-6)

    def test_results_do_not_depend_on_the_company(self):
        alone = built({"a": Dot(), "b": Dot()}, policies_to_train=["b"])
        both = built({"a": Dot(), "b": Dot()})
        batch = {"a": numbered(8), "b": numbered(8)}
        for learner in (alone, both):
            learner.update_from_batch(batch, minibatch_size=4, shuffle=False)
        np.testing.assert_array_equal(param(alone, "b"), param(both, "b"))
        np.testing.assert_array_equal(param(alone, "a"), [1.0, 1.0])

    def test_a_module_without_rows_waits(self):
        learner = built({"a": Dot(), "b": Dot()}, optimizer_fn=adam)
        before = values(learner)
        row = learner.update_from_batch({"b": numbered(4)})
        self.assertEqual(set(row), {"b", ALL_MODULES})
        touched = [p for p in changed(before, values(learner)) if "/a/" in p]
        self.assertEqual(touched, [])

    def test_empty_rows_name_the_module(self):
        learner = built({"a": Dot(), "b": Dot()})
        self.assertIn(
            "the batch of module 'b': expected at least one row, got none. Collect experience",
            message(learner.update_from_batch, {"a": numbered(4), "b": {"w": tf.zeros([0, 2])}}),
        )

    def test_sizes_that_do_not_divide_name_the_module(self):
        learner = built({"a": Dot(), "b": Dot()})
        self.assertIn(
            "minibatch_size of module 'a': expected a divisor of the 8 rows of the batch, got 3",
            message(
                learner.update_from_batch,
                {"a": numbered(8), "b": numbered(6)},
                minibatch_size={"a": 3, "b": 3},
            ),
        )

    def test_many_updates_of_two_trace_once(self):
        learner = built({"a": Dot(), "b": Dot()})
        batch = {"a": column([1, 1]), "b": column([1, 1])}
        for i in range(50):
            learner.update_from_batch(batch, timesteps=i, compile="graph")
        self.assertEqual(learner.trace_count, 1)


class SharedEncoderTest(parameterized.TestCase):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    def shared(self, **kwargs):
        modules = kwargs.pop("modules", {"a": EncoderHead(head=2.0), "b": EncoderHead(head=3.0)})
        return built(modules, shared=SHARED, **kwargs)

    BATCH = {"a": column([1.0, 2.0]), "b": column([4.0, 0.5])}

    def test_the_gradient_is_that_of_the_sum_of_the_losses(self):
        learner = self.shared()
        row = learner.update_from_batch(self.BATCH)
        # 2 (1, 2) + 3 (4, 0.5) = (14, 5.5); heads: x . (1, 1) = 3 and 4.5.
        np.testing.assert_allclose(moved(learner, "a", "encoder/kernel"), [14 / 8, 5.5 / 8])
        np.testing.assert_allclose(moved(learner, "a", "head", 2.0), 3 / 8)
        np.testing.assert_allclose(moved(learner, "b", "head", 3.0), 4.5 / 8)
        self.assertEqual((row["a"]["loss"], row["b"]["loss"]), (6.0, 13.5))

    def test_it_is_one_variable_with_one_optimizer(self):
        learner = self.shared()
        kernels = [learner.module_state(m).params["encoder"]["kernel"] for m in "ab"]
        self.assertIs(kernels[0], kernels[1])
        owners = [
            (m, name)
            for m, name, entry in learner.optimizer_entries()
            if any(p is kernels[0] for p in entry.params)
        ]
        self.assertEqual(owners, [("a", "default_optimizer")])
        ((_, optimizer),) = learner.get_optimizers_for_module("b")
        self.assertLen(
            learner.filter_param_dict_for_optimizer(
                {p.ref(): p for p in learner.get_parameters("b")}, optimizer
            ),
            1,
        )

    def test_it_counts_once(self):
        row = self.shared().update_from_batch(self.BATCH)
        self.assertEqual([row[m]["num_trainable_parameters"] for m in "ab"], [3, 3])
        self.assertEqual(row[ALL_MODULES]["num_trainable_parameters"], 4)

    def test_a_clone_keeps_it_shared_apart_from_the_original(self):
        learner = self.shared(optimizer_fn=adam)
        learner.update_from_batch(self.BATCH)
        other = learner.clone()
        kernels = [other.module_state(m).params["encoder"]["kernel"] for m in "ab"]
        self.assertIs(kernels[0], kernels[1])
        frozen = values(learner)
        other.update_from_batch(self.BATCH)
        assert_same(frozen, values(learner))
        learner.update_from_batch(self.BATCH)
        assert_same(values(other), values(learner))

    def test_saved_and_restored_it_goes_on(self):
        learner = self.shared(optimizer_fn=adam)
        learner.update_from_batch(self.BATCH)
        path = learner.save_to_path(self.folder / "saved")
        other = self.shared(optimizer_fn=adam)
        other.restore_from_path(path)
        again = Learner.from_checkpoint(path, shared=SHARED, optimizer_fn=adam)
        for one in (learner, other, again):
            one.update_from_batch(self.BATCH, key=KEY)
        assert_same(values(learner), values(other))
        assert_same(values(learner), values(again))

    def test_it_trains_with_the_borrower_alone(self):
        config = PLAIN.replace(lr=[[0, 0.25], [100, 0.125]])
        learner = self.shared(policies_to_train=["b"], config=config)
        row = learner.update_from_batch(self.BATCH, timesteps=100)
        # 3 (4, 0.5), by the rate of the owner's optimizer, which follows its schedule.
        np.testing.assert_allclose(moved(learner, "a", "encoder/kernel"), [12 / 8, 1.5 / 8])
        np.testing.assert_allclose(moved(learner, "a", "head", 2.0), 0.0)
        np.testing.assert_allclose(moved(learner, "b", "head", 3.0), 4.5 / 8)
        self.assertEqual(set(row), {"b", ALL_MODULES})

    def test_the_owner_alone(self):
        learner = self.shared()
        learner.update_from_batch({"a": self.BATCH["a"]})
        np.testing.assert_allclose(moved(learner, "b", "encoder/kernel"), [2 / 8, 4 / 8])
        np.testing.assert_allclose(moved(learner, "b", "head", 3.0), 0.0)

    def test_a_stopped_borrower_teaches_it_nothing_more(self):
        @struct.logic_dataclass
        class Stopping(EncoderHead):
            def should_stop(self, metrics):
                return metrics["mean_x"] > 5.0

            def loss(self, params, batch, outputs, key):
                return tf.reduce_mean(outputs), {"mean_x": tf.reduce_mean(batch["w"])}

        @struct.logic_dataclass
        class Frozen(Stopping):
            """Its head has no gradient, so that the encoder's is known."""

            def forward(self, params, batch, key):
                params = {**params, "head": tf.stop_gradient(params["head"])}
                return EncoderHead.forward(self, params, batch, key)

        learner = self.shared(modules={"a": EncoderHead(head=0.0), "b": Frozen(head=1.0)})
        batch = {"a": column(*[[0, 0]] * 3), "b": column([1, 1], [9, 9], [1, 1])}
        row = learner.update_from_batch(batch, minibatch_size=1, shuffle=False)
        self.assertEqual([row[m]["gradient_steps"] for m in "ab"], [3, 2])
        # The rows 1 and 9 of "b" count, also that which stops it: its gradient is part of a step of
        # the owner. The third row does not.
        np.testing.assert_allclose(moved(learner, "a", "encoder/kernel"), 10 / 8)

    @parameterized.parameters(
        ({"a/encodr": ["b/encoder"]}, r"got 'a/encodr'. Did you mean encoder"),
        ({"a/encoder": ["b/encodr"]}, r"got 'b/encodr'. Did you mean encoder"),
        ({"a/encoder": ["c/encoder"]}, r"got 'a/encoder': 'c/encoder'"),
        ({"b/encoder": ["a/encoder"]}, r"got 'b/encoder': 'a/encoder'"),
        ({"a": ["b"]}, r"got 'a': 'b'"),
        ({"a/head": ["b/encoder"]}, r"shared parameters of module 'b': expected the leaves and"),
    )
    def test_groups_that_cannot_be_shared(self, shared, expected):
        modules = {"a": EncoderHead(), "b": EncoderHead()}
        text = message(lambda: built(modules, shared=shared))
        self.assertRegex(text, expected)

    def test_groups_of_other_leaves_cannot_be_shared(self):
        @struct.logic_dataclass
        class Biased(EncoderHead):
            def init_params(self, key):
                params = EncoderHead.init_params(self, key)
                return {**params, "encoder": {**params["encoder"], "bias": tf.zeros([2])}}

        text = message(lambda: self.shared(modules={"a": EncoderHead(), "b": Biased()}))
        self.assertIn("none for params/encoder/bias", text)


class Joint(Learner):
    """Two modules pull each other: the loss is |a - b|^2 / 2, besides nothing of their own."""

    def compute_losses(self, *, updates, states, batch, keys):
        gap = states["a"].params["w"] - states["b"].params["w"]
        return {"a": (tf.reduce_sum(gap**2) / 2, {"gap": tf.norm(gap)}), "b": tf.constant(0.0)}


class AllModules(Learner):
    """One Adam over the parameters of all modules."""

    def configure_optimizers(self):
        params = [p for m in self.modules for p in self.get_parameters(m)]
        self.register_optimizer(ALL_MODULES, "joint", self._optimizer_fn(None), params, 0.125)


class JointTest(parameterized.TestCase):
    def test_a_joint_loss_gives_gradients_to_both(self):
        modules = {"a": Dot(), "b": Dot()}
        learner = built(modules, Joint)
        learner.module_state("b").params["w"].assign([3.0, 1.0])
        row = learner.update_from_batch({m: column([9, 9]) for m in modules})
        np.testing.assert_allclose(param(learner, "a"), [1.0 + 2 / 8, 1.0])
        np.testing.assert_allclose(param(learner, "b"), [3.0 - 2 / 8, 1.0])
        self.assertEqual((row["a"]["loss"], row["a"]["gap"], row["b"]["loss"]), (2.0, 2.0, 0.0))

    def test_a_term_added_in_compute_gradients_counts(self):
        class Decayed(Learner):
            def compute_gradients(self, loss_per_module, gradient_tape, params):
                decay = tf.add_n([tf.reduce_sum(x) for x in params.values()])
                losses = {**loss_per_module, "decay": decay}
                return super().compute_gradients(losses, gradient_tape, params)

        learner = built({"a": Dot(), "b": Dot()}, Decayed)
        learner.update_from_batch({"a": column([1, 2]), "b": column([0, 0])})
        np.testing.assert_allclose(moved(learner, "a"), [2 / 8, 3 / 8])
        np.testing.assert_allclose(moved(learner, "b"), [1 / 8, 1 / 8])

    @parameterized.parameters(("a",), ("a", "b", "c"), (ALL_MODULES,))
    def test_losses_of_other_modules_list_both_sides(self, *ids):
        class Wrong(Learner):
            def compute_losses(self, **kwargs):
                return dict.fromkeys(ids, tf.constant(0.0))

        learner = built({"a": Dot(), "b": Dot()}, Wrong)
        text = message(learner.update_from_batch, {m: column([1, 1]) for m in "ab"})
        self.assertIn("compute_losses: expected a loss for each of the modules ['a', 'b']", text)
        self.assertIn(f"got losses for {sorted(ids)}", text)

    def test_an_optimizer_of_all_modules_trains(self):
        learner = built({"a": Dot(), "b": Dot()}, AllModules)
        batch = {"a": column([3.0, 0.0]), "b": column([0.0, 4.0])}
        row = learner.update_from_batch(batch)
        np.testing.assert_allclose(moved(learner, "a"), [3 / 8, 0])
        np.testing.assert_allclose(moved(learner, "b"), [0, 4 / 8])
        self.assertEqual(int(learner.get_optimizer(ALL_MODULES).iterations), 1)
        self.assertEqual(row["a"]["learning_rate"], 0.125)
        self.assertEqual(row["b"]["grad_norm"], 5.0)  # of all its parameters together

    def test_it_is_clipped_over_all_its_parameters_by_its_own_settings(self):
        config = dict.fromkeys("ab", PLAIN) | {ALL_MODULES: ModuleConfig(grad_clip=1.0)}
        learner = built({"a": Dot(), "b": Dot()}, AllModules, config=config)
        learner.update_from_batch({"a": column([3.0, 0.0]), "b": column([0.0, 4.0])})
        np.testing.assert_allclose(moved(learner, "a"), [0.6 / 8, 0], rtol=1e-6)
        np.testing.assert_allclose(moved(learner, "b"), [0, 0.8 / 8], rtol=1e-6)

    def test_it_follows_its_schedule(self):
        class Scheduled(Learner):
            def configure_optimizers(self):
                params = [p for m in self.modules for p in self.get_parameters(m)]
                points = [[0, 1.0], [10, 0.0]]
                self.register_optimizer(
                    ALL_MODULES, "joint", keras.optimizers.legacy.SGD(), params, points
                )

        learner = built({"a": Dot(), "b": Dot()}, Scheduled)
        row = learner.update_from_batch({m: column([1, 1]) for m in "ab"}, timesteps=5)
        self.assertEqual(row["b"]["learning_rate"], 0.5)
        np.testing.assert_allclose(moved(learner, "a"), 0.5)

    def test_modules_of_other_frequency_share_it(self):
        # The delayed one has gradients in every second step only.
        @struct.logic_dataclass
        class Delayed(Dot):
            @property
            def updates(self):
                (update,) = super().updates
                return (update.replace(every=2),)

        learner = built({"a": Dot(), "b": Delayed()}, AllModules)
        batch = {m: column(*[[1, 1]] * 3) for m in "ab"}
        learner.update_from_batch(batch, minibatch_size=1)
        np.testing.assert_allclose(moved(learner, "a"), 3 / 8)
        np.testing.assert_allclose(moved(learner, "b"), 2 / 8)  # in steps 0 and 2

    def test_a_nonfinite_gradient_of_it_is_named_and_leaves_all_alone(self):
        learner = built({"a": Dot(), "b": Dot()}, AllModules, check_numerics="raise")
        text = message(
            learner.update_from_batch, {"a": column([1, 1]), "b": column([np.inf, -np.inf])}
        )
        self.assertIn("module 'b': loss (1 times), grad_norm (1 times), mean_x (1 times)", text)
        for m in "ab":
            np.testing.assert_array_equal(param(learner, m), [1.0, 1.0])


@struct.logic_dataclass
class SelfSupervised(Dot):
    def compute_self_supervised_loss(self, params, state, batch, key):
        return tf.reduce_sum(tf.square(params["w"])) / 2, {"size": tf.norm(params["w"])}


class WhoIsTrainedTest(parameterized.TestCase):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    def test_a_self_supervised_loss_is_used_whatever_the_learners(self):
        class Doubling(Learner):
            def compute_loss_for_module(self, module_id, update, params, state, batch, key):
                loss, metrics = super().compute_loss_for_module(
                    module_id, update, params, state, batch, key
                )
                return 2 * loss, metrics

        learner = built({"a": Dot(), "icm": SelfSupervised()}, Doubling)
        row = learner.update_from_batch({"a": column([1, 1]), "icm": column([9, 9])})
        np.testing.assert_allclose(moved(learner, "a"), 2 / 8)
        np.testing.assert_allclose(moved(learner, "icm"), 1 / 8)  # the gradient of w^2 / 2 is w
        self.assertAlmostEqual(row["icm"]["size"], np.sqrt(2), places=6)

    def test_a_module_without_loss_is_held_saved_and_skipped(self):
        learner = built({"a": Dot(), "teacher": Held()})
        teacher = param(learner, "teacher")
        row = learner.update_from_batch({"a": column([1, 1]), "teacher": column([1, 1])})
        self.assertEqual(set(row), {"a", ALL_MODULES})
        np.testing.assert_array_equal(param(learner, "teacher"), teacher)
        self.assertFalse(learner.should_module_be_updated("teacher"))
        self.assertEqual(learner.get_optimizers_for_module("teacher"), [])
        path = learner.save_to_path(self.folder / "saved")
        other = built({"a": Dot(), "teacher": Held()})
        other.module_state("teacher").params["w"].assign([0.0, 0.0, 0.0])
        other.restore_from_path(path)
        np.testing.assert_array_equal(param(other, "teacher"), teacher)
        self.assertEqual(row[ALL_MODULES]["num_non_trainable_parameters"], 3)

    def test_only_modules_without_loss_is_an_update_of_nothing(self):
        learner = built({"teacher": Held()})
        row = learner.update_from_batch({"teacher": column([1, 1])})
        self.assertEqual(set(row), {ALL_MODULES})
        self.assertEqual(row[ALL_MODULES]["gradient_steps"], 0)

    def test_a_collection_says_who_is_trained(self):
        learner = built({"a": Dot(), "b": Dot()}, policies_to_train=["b"])
        batch = {"a": column([1, 1]), "b": column([1, 1])}
        self.assertEqual(set(learner.update_from_batch(batch)), {"b", ALL_MODULES})
        np.testing.assert_array_equal(param(learner, "a"), [1.0, 1.0])
        self.assertEqual(int(learner.learner_steps), 1)

    def test_a_function_of_module_and_rows_says_who_is_trained(self):
        asked = []

        def choose(module_id, rows):
            asked.append((module_id, None if rows is None else int(rows["w"].shape[0])))
            return rows is not None and rows["w"].shape[0] >= 2

        learner = built({"a": Dot(), "b": Dot()}, policies_to_train=choose)
        batch = {"a": column([1, 1], [1, 1]), "b": column([1, 1])}
        self.assertEqual(set(learner.update_from_batch(batch)), {"a", ALL_MODULES})
        self.assertEqual(asked, [("a", 2), ("b", 1)])
        batch = {"a": column([1, 1]), "b": column([1, 1], [1, 1])}
        self.assertEqual(set(learner.update_from_batch(batch)), {"b", ALL_MODULES})

    @parameterized.parameters(
        (["c"], r"a collection of modules among \['a', 'b'\], or a function, got \['c'\]"),
        ("a", r"got 'a'. Pass \['a'\]"),
    )
    def test_a_choice_that_is_none(self, chosen, expected):
        modules = {"a": Dot(), "b": Dot()}
        text = message(Learner, modules, policies_to_train=chosen)
        self.assertRegex(text, f"policies_to_train: expected {expected}|{expected}")

    def test_unknown_ids_list_both_sides(self):
        learner = built({"a": Dot(), "b": Dot()})
        before = values(learner)
        text = message(learner.update_from_batch, {"a": column([1, 1]), "c": column([1, 1])})
        self.assertStartsWith(
            text,
            "the batch: expected rows for modules of this learner, ['a', 'b'], got rows for "
            "['a', 'c'], of which ['c'] are unknown.",
        )
        assert_same(before, values(learner))
        text = message(learner.update_from_batch, {"c": column([1, 1])})
        self.assertIn("['c'] are unknown", text)

    def test_rows_of_no_module_ask_for_an_id(self):
        text = message(built({"a": Dot(), "b": Dot()}).update_from_batch, column([1, 1]))
        self.assertIn("expected {module_id: rows} for modules among ['a', 'b']", text)

    @parameterized.parameters("module_state", "get_parameters", "should_module_be_updated")
    def test_looking_for_an_unknown_module_names_the_nearest(self, method):
        learner = built({"policy_a": Dot(), "policy_b": Dot()})
        text = message(getattr(learner, method), "polcy_a")
        self.assertIn("expected one of the modules ['policy_a', 'policy_b'], got 'polcy_a'", text)
        self.assertIn("Did you mean policy_a", text)


class RequiredApisTest(parameterized.TestCase):
    class Needs(Learner):
        @property
        def rl_module_required_apis(self):
            return (ValueFunctionAPI, TargetNetworkAPI)

    def test_what_a_module_lacks_is_named(self):
        text = message(self.Needs, {"a": Dot()})
        self.assertStartsWith(
            text,
            "module 'a': expected the APIs that Needs requires: ValueFunctionAPI, "
            "TargetNetworkAPI, got Dot, which lacks ValueFunctionAPI: compute_values, "
            "TargetNetworkAPI: update_target.",
        )
        learner = self.Needs({"teacher": Held()})  # nothing to train: nothing to ask for
        self.assertFalse(learner.rl_module_is_compatible(Dot()))
        self.assertIn("module 'late'", message(learner.add_module, "late", Dot()))
        self.assertEqual(list(learner.modules), ["teacher"])

    def test_a_module_that_has_all_is_taken(self):
        @struct.logic_dataclass
        class Full(Dot):
            def compute_values(self, state, obs):
                return tf.zeros([obs.shape[0]])

            def update_target(self, state):
                return state

        learner = self.Needs({"a": Full()})
        self.assertTrue(learner.rl_module_is_compatible(learner.modules["a"]))

    def test_a_protocol_of_the_users_own(self):
        class Speaks(Protocol):
            def speak(self): ...

        class Talkative(Learner):
            @property
            def rl_module_required_apis(self):
                return (Speaks,)

        self.assertIn("lacks Speaks: speak", message(Talkative, {"a": Dot()}))


class FrequencyTest(parameterized.TestCase):
    def test_a_delayed_actor_among_others(self):
        learner = built({"td3": RegressionAgent(delay=2), "b": Dot()}, config=PLAIN)
        batch = {
            "td3": {"x": tf.zeros([3, 2]), "y": tf.zeros([3])},
            "b": column(*[[1, 1]] * 3),
        }
        row = learner.update_from_batch(batch, minibatch_size=1)
        # d/dw (w - 1)^2 = 2 (w - 1): 1/4 after step 0, none in step 1, 1/4 + 3/16 after step 2.
        np.testing.assert_allclose(param(learner, "td3", "actor"), 7 / 16)
        np.testing.assert_allclose(moved(learner, "b"), 3 / 8)
        # The mean over the two steps in which it was computed: (2 + 2 (3/4)^2) / 2.
        np.testing.assert_allclose(row["td3"]["actor/loss"], (2 + 9 / 8) / 2)
        self.assertEqual(int(learner.get_optimizer("td3", "actor").iterations), 2)
        self.assertEqual(int(learner.get_optimizer("td3", "critic").iterations), 3)

    def test_it_goes_on_over_calls(self):
        learner = built({"td3": RegressionAgent(delay=3), "b": RegressionAgent(delay=2)})
        batch = {"x": tf.zeros([1, 2]), "y": tf.zeros([1])}
        for _ in range(7):
            learner.update_from_batch({"td3": batch, "b": batch})
        # Steps 0, 3, 6 and 0, 2, 4, 6.
        self.assertEqual(int(learner.get_optimizer("td3", "actor").iterations), 3)
        self.assertEqual(int(learner.get_optimizer("b", "actor").iterations), 4)


class StopTest(parameterized.TestCase):
    def test_one_stops_the_other_does_not(self):
        learner = built({"a": Dot(stop_above=1.5), "b": Dot()})
        batch = {"a": column([1, 1], [2, 2], [1, 1], [1, 1]), "b": column(*[[1, 1]] * 4)}
        row = learner.update_from_batch(batch, minibatch_size=1, shuffle=False)
        # The second minibatch of "a" stops it, and its own step is not taken.
        np.testing.assert_allclose(moved(learner, "a"), 1 / 8)
        np.testing.assert_allclose(moved(learner, "b"), 4 / 8)
        self.assertEqual([row[m]["gradient_steps"] for m in "ab"], [2, 4])
        self.assertEqual(row["a"]["mean_x"], 1.5)
        self.assertEqual(row[ALL_MODULES]["gradient_steps"], 4)

    def test_when_all_have_stopped_the_update_ends(self):
        learner = built({"a": Dot(stop_above=1.5), "b": Dot(stop_above=1.5)})
        batch = {
            "a": column([2, 2], [1, 1], [1, 1], [1, 1]),
            "b": column([1, 1], [2, 2], [1, 1], [1, 1]),
        }
        learner.update_from_batch(batch, minibatch_size=1, shuffle=False)
        self.assertEqual(int(learner.learner_steps), 2)
        # The next update starts anew.
        learner.update_from_batch({m: column([1, 1]) for m in "ab"})
        np.testing.assert_allclose(moved(learner, "a"), 1 / 8)


class GuardTest(parameterized.TestCase):
    BATCH = {"a": column([np.nan, 1], [1, 1]), "b": column([1, 1], [1, 1])}

    def test_a_nan_in_one_leaves_the_other_untouched(self):
        learner, clean = (built({"a": Dot(), "b": Dot()}, optimizer_fn=adam) for _ in range(2))
        options = dict(minibatch_size=1, shuffle=False)
        row = learner.update_from_batch(self.BATCH, **options)
        clean.update_from_batch({"a": column([1, 1]), "b": self.BATCH["b"]}, **options)
        found, expected = values(learner), values(clean)
        mine = [p for p in found if p.startswith(("modules/b/", "optimizers/b/"))]
        self.assertGreater(len(mine), 3)
        for path in mine:
            np.testing.assert_array_equal(found[path], expected[path], err_msg=path)
        # Of two steps of "a" one was taken.
        self.assertEqual(int(learner.get_optimizer("a").iterations), 1)
        self.assertEqual([row[m]["skipped_steps"] for m in "ab"], [1, 0])
        self.assertEqual(row[ALL_MODULES]["skipped_steps"], 1)
        self.assertEqual(int(learner.skipped_steps), 1)

    def test_steps_that_either_left_out_count_together(self):
        learner = built({"a": Dot(), "b": Dot()})
        batch = {"a": column([np.nan, 1], [1, 1]), "b": column([1, 1], [np.nan, 1])}
        row = learner.update_from_batch(batch, minibatch_size=1, shuffle=False)
        self.assertEqual([row[m]["skipped_steps"] for m in "ab"], [1, 1])
        self.assertEqual(row[ALL_MODULES]["skipped_steps"], 2)

    def test_raise_names_module_and_term(self):
        learner = built({"a": Dot(), "b": Dot()}, check_numerics="raise")
        self.assertRegex(
            message(learner.update_from_batch, self.BATCH),
            r"the loss of module 'a': expected finite values, got non-finite loss \(1 times\), "
            r"grad_norm \(1 times\), mean_x \(1 times\) in 1 gradient steps. Lower",
        )
        np.testing.assert_allclose(moved(learner, "b"), 1 / 8)

    def test_raise_names_all_modules_at_once(self):
        learner = built({"a": Dot(), "b": Dot(), "c": SumAgent()}, check_numerics="raise")
        batch = {"a": column([np.nan, 1]), "b": column([1, 1]), "c": {"x": tf.fill([1, 2], np.inf)}}
        text = message(learner.update_from_batch, batch)
        self.assertIn("module 'a': loss (1 times)", text)
        self.assertIn("module 'c': loss (1 times)", text)
        self.assertNotIn("module 'b'", text)


class MixedTest(parameterized.TestCase):
    def test_agents_modules_and_objects_go_together(self):
        class Duck:
            def init(self, key):
                return {"w": tf.ones([2])}

            def forward(self, params, batch, key):
                return tf.linalg.matvec(batch["w"], params["w"])

            def loss(self, params, batch, outputs, key):
                return tf.reduce_mean(outputs)

        learner = built({"agent": SumAgent(), "module": Dot(), "duck": Duck()})
        row = learner.update_from_batch(
            {"agent": {"x": tf.zeros([1, 2])}, "module": column([1, 1]), "duck": column([1, 1])}
        )
        self.assertEqual(set(row), {"agent", "module", "duck", ALL_MODULES})
        for module_id, path in (("agent", "b"), ("module", "w"), ("duck", "w")):
            np.testing.assert_allclose(moved(learner, module_id, path), 1 / 8)
        self.assertIsInstance(learner.modules["duck"], Module)


if __name__ == "__main__":
    tf.test.main()
