"""Modules that come, go and are copied in the middle of training."""

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
    assert_same,
    built,
    changed,
    column,
    metrics_of,
    param,
    values,
)
from tfrl import seeding, struct
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import ALL_MODULES, Learner, ModuleConfig

KEY = seeding.key(0)
pytestmark = pytest.mark.usefixtures("_eager_updates")
ROWS = column([1.0, 2.0], [0.5, -1.0])


def message(fn, *args, **kwargs):
    with pytest.raises(UserError) as error:
        fn(*args, **kwargs)
    return str(error.value)


def adam(config):
    return keras.optimizers.legacy.Adam()


def new_adam(config):
    return keras.optimizers.Adam(jit_compile=False)


def trained(*module_ids, optimizer_fn=adam, compile="eager", **kwargs):
    """A learner after a few updates, so that no slot is zero."""
    learner = built({m: Dot() for m in module_ids}, optimizer_fn=optimizer_fn, **kwargs)
    update(learner, 3, compile=compile)
    return learner


def update(learner, times=2, compile="eager", **kwargs):
    """Updates of all modules; by default eager, since a trace takes longer than the updates."""
    for _ in range(times):
        batch = dict.fromkeys(learner.modules, ROWS)
        options = {"key": KEY, "shuffle": False, "compile": compile, **kwargs}
        learner.update_from_batch(batch, **options)


def of(found, *module_ids):
    """Those of `values` that belong to some modules, and the counters."""
    parts = tuple(f"{kind}/{m}/" for kind in ("modules", "optimizers") for m in module_ids)
    return {p: v for p, v in found.items() if p.startswith((*parts, "counters/"))}


def everything(learner):
    """What an add, remove or copy that fails must leave as it is."""
    return {
        "modules": dict(learner.modules),
        "configs": dict(learner.configs),
        "policies_to_train": learner.policies_to_train,
        "structure_version": learner.structure_version,
        "trace_count": learner.trace_count,
        "optimizers": [(m, n) for m, n, _ in learner.optimizer_entries()],
        "ids": {p: id(v) for p, v in learner.variables().items()},
        "metrics": metrics_of(learner),
    }


class AddTest(parameterized.TestCase):
    @parameterized.parameters(adam, new_adam)
    def test_the_others_keep_every_bit(self, optimizer_fn):
        learner = trained("a", "b", optimizer_fn=optimizer_fn)
        before, ids = values(learner), {p: id(v) for p, v in learner.variables().items()}
        learner.add_module("c", Dot())
        after = values(learner)
        assert_same(before, {p: after[p] for p in before})
        now = {p: id(v) for p, v in learner.variables().items()}
        self.assertEqual(ids, {p: now[p] for p in ids})
        self.assertNotEmpty([p for p in after if p.startswith("optimizers/c/")])

    def test_the_compiled_update_is_rebuilt_once(self):
        learner = trained("a", "b", compile="graph")
        learner.add_module("c", Dot())
        self.assertEqual(learner.trace_count, 0)
        for i in range(20):
            update(learner, 1, timesteps=i, compile="graph", shuffle=False)
        self.assertEqual(learner.trace_count, 1)
        learner.remove_module("a")
        for i in range(20):
            update(learner, 1, timesteps=i, compile="graph", shuffle=False)
        self.assertEqual(learner.trace_count, 1)

    def test_the_newcomer_trains_by_its_own_settings(self):
        learner = built({"a": Dot()}, config=PLAIN.replace(lr=0.5))
        learner.add_module("b", Dot(), config_overrides={"lr": 0.25, "minibatch_size": 1})
        self.assertEqual(learner.configs["b"], PLAIN.replace(lr=0.25, minibatch_size=1))
        row = learner.update_from_batch({"a": column([1, 1]), "b": column([1, 1], [3, 3])})
        np.testing.assert_allclose(param(learner, "a"), 1 - 0.5 * 2)
        np.testing.assert_allclose(param(learner, "b"), 1 - 0.25 * 4)
        self.assertEqual(row["b"]["learning_rate"], 0.25)

    def test_a_whole_config_takes_the_place_of_the_defaults(self):
        learner = built({"a": Dot()})
        config = ModuleConfig(lr=0.5, grad_clip=2.0)
        learner.add_module("b", Dot(), config_overrides=config)
        self.assertEqual(learner.configs["b"], config)

    def test_a_scheduled_newcomer_is_where_the_others_are(self):
        points = [[0, 1.0], [100, 0.0]]
        learner = built({"a": Dot()}, config=PLAIN.replace(lr=points))
        learner.update_from_batch({"a": ROWS}, timesteps=50)
        learner.add_module("b", Dot())
        row = learner.update_from_batch({"b": ROWS})
        self.assertEqual(row["b"]["learning_rate"], 0.5)

    def test_a_state_may_come_with_it(self):
        source = trained("a")
        learner = trained("b")
        learner.add_module("a", Dot(), state=source.get_state()["rl_module"]["a"])
        np.testing.assert_array_equal(param(learner, "a"), param(source, "a"))

    def test_before_build_it_is_built_with_the_others(self):
        learner = Learner({"a": Dot()}, config=PLAIN)
        learner.add_module("b", Dot())
        learner.build(KEY)
        both = Learner({"a": Dot(), "b": Dot()}, config=PLAIN)
        both.build(KEY)
        assert_same(values(learner), values(both))

    def test_policies_to_train_are_said_with_it(self):
        learner = trained("a", "b")
        learner.add_module("c", Dot(), policies_to_train=["c"])
        before = values(learner)
        update(learner)
        moved = changed(before, values(learner))
        self.assertTrue(all("/c/" in p or p.startswith("counters/") for p in moved), moved)
        self.assertIn("modules/c/params/w", moved)

    def test_a_collection_does_not_take_in_a_newcomer_by_itself(self):
        learner = trained("a", policies_to_train=["a"])
        learner.add_module("b", Dot())
        self.assertFalse(learner.should_module_be_updated("b"))

    @parameterized.parameters(
        (dict(module_id="a"), "add_module('a'): expected an unused module id, got one of ["),
        (dict(module_id="a/b"), "module id: expected"),
        (dict(module=object()), "got object without init and forward"),
        (dict(config_overrides={"learning_rate": 1.0}), "config_overrides: expected fields of"),
        (dict(config_overrides={"lr": -1.0}), "ModuleConfig.lr"),
        (
            dict(policies_to_train=["d"]),
            "policies_to_train: expected a collection of modules among",
        ),
        (dict(state={"params/v": np.ones(2, np.float32)}), "missing rl_module/c/params/w"),
        (dict(state={"params/w": np.ones(3, np.float32)}), "of shape (3,) for (2,)"),
    )
    @pytest.mark.variants(3)
    def test_a_failed_add_changes_nothing(self, arguments, expected):
        learner = trained("a", "b", compile="graph")
        self.assertEqual(learner.trace_count, 1)
        before, kept = everything(learner), values(learner)
        given = {"module_id": "c", "module": Dot(), **arguments}
        self.assertIn(expected, message(learner.add_module, **given))
        self.assertEqual(before, everything(learner))
        assert_same(kept, values(learner))
        update(learner, compile="graph")
        self.assertEqual(learner.trace_count, 1)
        # The id is still free.
        learner.add_module("c", Dot())
        update(learner)

    def test_a_fault_of_the_modules_own_changes_nothing_either(self):
        @struct.logic_dataclass
        class Broken(Dot):
            def init_params(self, key):
                raise RuntimeError("no parameters today")

        @struct.logic_dataclass
        class Nameless(Dot):
            @property
            def updates(self):
                return (super().updates[0].replace(groups=("x",)),)

        learner = trained("a")
        before, kept = everything(learner), values(learner)
        with pytest.raises(RuntimeError, match="no parameters today"):
            learner.add_module("c", Broken())
        self.assertIn(
            "over its parameter groups ['w']", message(learner.add_module, "c", Nameless())
        )
        self.assertEqual(before, everything(learner))
        assert_same(kept, values(learner))

    def test_an_optimizer_hook_that_covers_nothing_changes_nothing(self):
        class Fixed(Learner):
            def configure_optimizers_for_module(self, module_id):
                if module_id == "a":
                    super().configure_optimizers_for_module(module_id)

        learner = built({"a": Dot()}, Fixed)
        before = everything(learner)
        self.assertIn("none for ['c/w']", message(learner.add_module, "c", Dot()))
        self.assertEqual(before, everything(learner))


class RemoveTest(parameterized.TestCase):
    @parameterized.parameters(adam, new_adam)
    def test_the_others_keep_every_bit(self, optimizer_fn):
        learner = trained("a", "b", "c", optimizer_fn=optimizer_fn)
        before = values(learner)
        learner.remove_module("b")
        assert_same(of(before, "a", "c"), values(learner))

    def test_the_others_train_as_if_it_had_never_been(self):
        learner, never = trained("a", "b"), trained("a")
        learner.remove_module("b")
        # The keys of losses depend on the company; these losses draw nothing.
        for one in (learner, never):
            update(one, minibatch_size=1, shuffle=False)
        assert_same(of(values(learner), "a"), of(values(never), "a"))

    def test_its_metrics_vanish(self):
        learner = trained("a", "b")
        self.assertIn("b", learner.metrics.peek())
        learner.remove_module("b")
        self.assertNotIn("b", learner.metrics.peek())
        row = learner.update_from_batch({"a": ROWS})
        self.assertEqual(set(row), {"a", ALL_MODULES})
        self.assertEqual(set(learner.metrics.reduce()), {"a", ALL_MODULES})
        self.assertEqual(row[ALL_MODULES]["num_trainable_parameters"], 2)
        self.assertNotIn("b", learner.get_state()["rl_module"])
        self.assertNotIn("b", learner.get_state()["optimizer"])

    def test_its_rows_are_those_of_an_unknown_module(self):
        learner = trained("a", "b")
        learner.remove_module("b")
        text = message(learner.update_from_batch, {"a": ROWS, "b": ROWS})
        self.assertIn("got rows for ['a', 'b'], of which ['b'] are unknown", text)
        self.assertIn("one of the modules ['a']", message(learner.module_state, "b"))

    def test_a_collection_of_the_trained_leaves_it_out(self):
        learner = trained("a", "b", policies_to_train=["a", "b"])
        learner.remove_module("b")
        self.assertEqual(list(learner.policies_to_train), ["a"])
        update(learner)

    def test_it_leaves_an_optimizer_of_all_modules(self):
        class AllModules(Learner):
            def configure_optimizers(self):
                params = [p for m in self.modules for p in self.get_parameters(m)]
                self.register_optimizer(ALL_MODULES, "joint", adam(None), params, 0.125)

        learner = built({"a": Dot(), "b": Dot()}, AllModules)
        update(learner)
        before = values(learner)
        learner.remove_module("b")
        after = values(learner)
        self.assertEqual(
            sorted(set(before) - set(after)),
            [
                "modules/b/params/w",
                "optimizers/__all_modules__/joint/m/b/params/w",
                "optimizers/__all_modules__/joint/v/b/params/w",
            ],
        )
        self.assertEqual(changed(after, before), [])
        update(learner)
        self.assertFalse(np.array_equal(param(learner, "a"), after["modules/a/params/w"]))
        # What is saved now goes into a learner that never had the module.
        other = built({"a": Dot()}, AllModules)
        other.set_state(learner.get_state())
        for one in (learner, other):
            update(one)
        assert_same(values(learner), values(other))

    @parameterized.parameters(
        (("c",), {}, "one of the modules ['a', 'b'], got 'c'"),
        (
            ("b",),
            {"policies_to_train": ["c"]},
            "policies_to_train: expected a collection of modules among",
        ),
        (
            ("b",),
            {"policies_to_train": ["b"]},
            "a collection of modules among ['a'], or a function, got ['b'",
        ),
    )
    def test_a_failed_remove_changes_nothing(self, args, kwargs, expected):
        learner = trained("a", "b")
        before, kept = everything(learner), values(learner)
        self.assertIn(expected, message(learner.remove_module, *args, **kwargs))
        self.assertEqual(before, everything(learner))
        assert_same(kept, values(learner))
        update(learner)

    def test_the_last_one_stays(self):
        learner = trained("a")
        self.assertIn(
            "expected a learner that keeps at least one", message(learner.remove_module, "a")
        )

    def test_borrowers_go_before_lenders(self):
        modules = {"a": EncoderHead(), "b": EncoderHead(head=2.0)}
        learner = built(modules, shared={"a/encoder": ["b/encoder"]}, optimizer_fn=adam)
        update(learner)
        self.assertIn("got a module that lends to ['b']", message(learner.remove_module, "a"))
        kernel = learner.module_state("a").params["encoder"]["kernel"]
        before = values(learner)
        learner.remove_module("b")
        assert_same(of(before, "a"), values(learner))
        update(learner)
        self.assertFalse(np.array_equal(kernel, before["modules/a/params/encoder/kernel"]))

    def test_a_clone_is_not_touched(self):
        learner = trained("a", "b")
        other = learner.clone()
        kept = values(other)
        learner.remove_module("b")
        learner.add_module("c", Dot())
        self.assertEqual(list(other.modules), ["a", "b"])
        assert_same(kept, values(other))
        update(other)


class CopyTest(parameterized.TestCase):
    @parameterized.parameters(adam, new_adam)
    def test_it_has_parameters_and_optimizer_state_in_one_call(self, optimizer_fn):
        learner = trained("a", "b", optimizer_fn=optimizer_fn)
        before = values(learner)
        learner.copy_module("a", "c")
        after = values(learner)
        assert_same(before, {p: after[p] for p in before})
        pairs = {p: p.replace("/a/", "/c/") for p in of(before, "a") if "/a/" in p}
        self.assertGreaterEqual(len(pairs), 5)  # w, its two slots, iterations, learning rate
        for path, copied in pairs.items():
            np.testing.assert_array_equal(after[copied], before[path], err_msg=copied)
        slots = [p for p in pairs.values() if p.startswith("optimizers/") and "params/w" in p]
        self.assertTrue(all(np.all(after[p]) for p in slots), slots)  # none is zero
        # On the same rows it takes the same steps.
        update(learner)
        np.testing.assert_array_equal(param(learner, "a"), param(learner, "c"))
        # And it goes its own way on others.
        learner.update_from_batch({"a": ROWS})
        self.assertFalse(np.array_equal(param(learner, "a"), param(learner, "c")))

    def test_it_takes_the_settings_and_a_rate_changed_by_hand(self):
        config = {"a": PLAIN.replace(lr=0.5), "b": PLAIN}
        learner = built({"a": Dot(), "b": Dot()}, config=config)
        learner.get_optimizer("a").learning_rate.assign(0.25)
        learner.copy_module("a", "c", policies_to_train=["c"])
        self.assertEqual(learner.configs["c"], config["a"])
        row = learner.update_from_batch({"c": column([1, 1])})
        self.assertEqual(row["c"]["learning_rate"], 0.25)

    def test_a_copy_frozen_for_league_play_stays_as_it_was(self):
        learner = trained("main")
        learner.copy_module("main", "rival_1", policies_to_train=["main"])
        frozen = param(learner, "rival_1")
        for i in range(3):
            learner.update_from_batch(dict.fromkeys(["main", "rival_1"], ROWS), timesteps=i)
        np.testing.assert_array_equal(param(learner, "rival_1"), frozen)
        learner.copy_module("main", "rival_2")
        np.testing.assert_array_equal(param(learner, "rival_2"), param(learner, "main"))

    def test_several_updates_and_other_state(self):
        learner = built({"td3": RegressionAgent()}, optimizer_fn=adam)
        batch = {"x": tf.ones([2, 2]), "y": tf.ones([2])}
        learner.update_from_batch({"td3": batch})
        learner.copy_module("td3", "copy")
        learner.update_from_batch({"td3": batch, "copy": batch})
        found = values(learner)
        for path in [p for p in found if "/td3/" in p]:
            np.testing.assert_array_equal(found[path.replace("/td3/", "/copy/")], found[path])

    def test_a_module_without_loss(self):
        learner = built({"a": Dot(), "teacher": Held()})
        learner.copy_module("teacher", "teacher_2")
        np.testing.assert_array_equal(param(learner, "teacher"), param(learner, "teacher_2"))

    def test_a_copy_of_a_borrower_has_an_encoder_of_its_own_with_its_slots(self):
        modules = {"a": EncoderHead(), "b": EncoderHead(head=2.0)}
        learner = built(modules, shared={"a/encoder": ["b/encoder"]}, optimizer_fn=adam)
        update(learner)
        before = values(learner)
        learner.copy_module("b", "c")
        after = values(learner)
        assert_same(before, {p: after[p] for p in before})
        kernels = [learner.module_state(m).params["encoder"]["kernel"] for m in "bc"]
        self.assertIsNot(kernels[0], kernels[1])
        np.testing.assert_array_equal(*kernels)
        for slot in "mv":
            found = after[f"optimizers/c/default_optimizer/{slot}/params/encoder/kernel"]
            lent = before[f"optimizers/a/default_optimizer/{slot}/params/encoder/kernel"]
            np.testing.assert_array_equal(found, lent)
            found = after[f"optimizers/c/default_optimizer/{slot}/params/head"]
            np.testing.assert_array_equal(
                found, before[f"optimizers/b/default_optimizer/{slot}/params/head"]
            )
        update(learner)

    def test_a_copy_out_of_an_optimizer_of_all_modules_keeps_its_slots(self):
        class AllModules(Learner):
            def configure_optimizers(self):
                params = [p for m in self.modules for p in self.get_parameters(m)]
                self.register_optimizer(ALL_MODULES, "joint", adam(None), params, 0.125)

        learner = built({"a": Dot(), "b": Dot()}, AllModules, optimizer_fn=adam)
        update(learner)
        learner.copy_module("a", "c")
        update(learner)
        np.testing.assert_allclose(param(learner, "a"), param(learner, "c"), rtol=1e-6)

    @parameterized.parameters(
        (("x", "c"), "one of the modules ['a', 'b'], got 'x'"),
        (("a", "b"), "expected an unused module id"),
        (("a", "c/d"), "module id: expected"),
    )
    def test_a_failed_copy_changes_nothing(self, args, expected):
        learner = trained("a", "b")
        before, kept = everything(learner), values(learner)
        self.assertIn(expected, message(learner.copy_module, *args))
        self.assertEqual(before, everything(learner))
        assert_same(kept, values(learner))

    def test_optimizers_that_do_not_correspond_change_nothing(self):
        class Odd(Learner):
            """The copy gets another kind of optimizer, whose slots cannot be copied."""

            def configure_optimizers_for_module(self, module_id):
                make = keras.optimizers.legacy
                optimizer = make.Adam() if module_id == "a" else make.Adagrad()
                params = self.get_parameters(module_id)
                self.register_optimizer(module_id, "main", optimizer, params, 0.125)

        learner = built({"a": Dot()}, Odd)
        update(learner)
        before, kept = everything(learner), values(learner)
        text = message(learner.copy_module, "a", "c")
        self.assertIn("accumulator/params/w", text)
        self.assertEqual(before, everything(learner))
        assert_same(kept, values(learner))


class ContinueTest(parameterized.TestCase):
    """Save, load and continue equals not stopping, also after add and remove."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    SCHEDULED = PLAIN.replace(lr=[[0, 0.25], [1000, 0.0]], grad_clip=1.0)

    def experience(self, i):
        """Rows of the i-th update, with a remainder and in random order."""
        draw = seeding.normal(seeding.fold_in(KEY, i), [6, 2])
        return {"w": draw}

    def go_on(self, learner, begin, end, compile="eager"):
        for i in range(begin, end):
            learner.update_from_batch(
                dict.fromkeys(learner.modules, self.experience(i)),
                timesteps=100 * i,
                minibatch_size=2,
                compile=compile,
            )

    def changed_midway(self):
        learner = built({"a": Dot(), "b": Dot()}, optimizer_fn=adam, config=self.SCHEDULED)
        self.go_on(learner, 0, 2)
        learner.add_module("c", Dot())
        self.go_on(learner, 2, 4)
        learner.remove_module("a")
        learner.copy_module("b", "d")
        self.go_on(learner, 4, 5)
        return learner

    @parameterized.parameters("state", "folder", "from_checkpoint", "clone")
    @pytest.mark.variants(1)
    def test_after_add_remove_and_copy(self, way):
        learner = self.changed_midway()
        options = dict(optimizer_fn=adam, config=self.SCHEDULED)
        if way == "clone":
            other = learner.clone()
        elif way == "from_checkpoint":
            path = learner.save_to_path(self.folder / "saved")
            other = Learner.from_checkpoint(path, optimizer_fn=adam)
        else:
            # Built anew, in another order, or changed in the same way.
            other = built({"d": Dot(), "a": Dot(), "c": Dot()}, **options)
            other.add_module("b", Dot())
            other.remove_module("a")
            if way == "state":
                other.set_state(learner.get_state())
            else:
                other.restore_from_path(learner.save_to_path(self.folder / "saved"))
        mode = "graph" if way == "folder" else "eager"  # a trace takes longer than the updates
        self.go_on(other, 5, 7, mode)
        self.go_on(learner, 5, 7, mode)
        one, two = values(learner), values(other)
        self.assertEqual(sorted(one), sorted(two))
        self.assertEqual(changed(one, two), [])

    def test_the_metrics_go_on_too(self):
        learner = self.changed_midway()
        other = learner.clone()
        self.go_on(other, 5, 6)
        self.go_on(learner, 5, 6)
        self.assertEqual(metrics_of(learner), metrics_of(other))


if __name__ == "__main__":
    tf.test.main()
