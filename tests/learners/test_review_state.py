"""What a Learner says before it is built, of wrong states and settings, and what a save keeps."""

import numpy as np
import pytest
import tensorflow as tf

from tests.learners.learner_fakes import (
    Dot,
    EncoderHead,
    Held,
    assert_same,
    built,
    column,
    metrics_of,
    sgd,
    values,
)
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import ALL_MODULES, KerasModule, Learner, ModuleConfig

BATCH = {m: column([1.0, 2.0], [3.0, 4.0]) for m in "abc"}


def message(fn, *args, **kwargs):
    with pytest.raises(UserError) as error:
        fn(*args, **kwargs)
    return str(error.value)


class Joint(Learner):
    """One optimizer for all modules there are at `build`."""

    def configure_optimizers(self):
        params = (p for m in self.modules for p in self.get_parameters(m))
        adam = keras.optimizers.legacy.Adam()
        self.register_optimizer(ALL_MODULES, "joint", adam, params, 0.125)


# Before build.


@pytest.mark.parametrize(
    "name", ["learner_steps", "skipped_steps", "env_steps", "weights_seq_no", "key"]
)
def test_counters_before_build(name):
    assert message(getattr, Learner(Dot()), name) == (
        f"Learner.{name}: expected a built learner, got a learner without variables. "
        "Call learner.build(key) first."
    )
    assert getattr(built(Dot()), name).dtype.is_integer


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("register_optimizer", ("default_policy", "o", None, [])),
        ("get_optimizers_for_module", ()),
        ("filter_param_dict_for_optimizer", ({}, None)),
        ("copy_module", ("default_policy", "copy")),
    ],
)
def test_methods_before_build(method, args):
    said = message(getattr(Learner(Dot()), method), *args)
    assert said.startswith(f"Learner.{method}: expected a built learner")


def test_add_module_with_a_state_before_build():
    state = built({"a": Dot()}).get_state()["rl_module"]["a"]
    learner = Learner({"a": Dot()})
    said = message(learner.add_module, "b", Dot(), state=state)
    assert said.startswith("Learner.add_module: expected a built learner")
    assert list(learner.modules) == ["a"]


@pytest.mark.parametrize("method", ["get_optimizer", "get_optimizers_for_module"])
def test_optimizers_of_unknown_modules(method):
    said = message(getattr(built({"left": Dot()}), method), "lefd")
    assert said == (
        f"Learner.{method}('lefd'): expected one of the modules ['left'], got 'lefd'. "
        "Did you mean left?"
    )


def test_a_failed_build_leaves_nothing_behind():
    class Fails(Learner):
        broken = True

        def configure_optimizers_for_module(self, module_id):
            if not self.broken:
                super().configure_optimizers_for_module(module_id)

    learner = Fails(Dot())
    for _ in range(2):  # The second one is not silent.
        assert "an optimizer for every trained parameter" in message(learner.build)
        assert not learner.is_built
        assert "expected a built learner" in message(getattr, learner, "env_steps")
    learner.broken = False
    learner.build()
    assert learner.is_built


# Optimizers.


def test_parameters_that_no_update_trains():
    class Partly(EncoderHead):
        groups = ("head",)

    class Everything(Learner):
        def configure_optimizers_for_module(self, module_id):
            self.register_optimizer(module_id, "o", sgd(None), self.get_parameters(module_id))

    learner = Everything({"a": Partly()})
    assert message(learner.build) == (
        "register_optimizer('a', 'o'): expected parameters that an update of their module trains, "
        "got a/params/encoder/kernel:0, which no loss changes. Leave them out, "
        "or name their group in the module's updates."
    )


def test_an_optimizer_that_would_never_take_a_step():
    learner = built({"a": Dot(), "held": Held()})
    assert message(
        learner.register_optimizer, "held", "o", sgd(None), learner.get_parameters("held")
    ) == (
        "register_optimizer('held', 'o'): expected parameters that an update of their module "
        "trains, got held/params/w:0, which no loss changes. Leave them out, or name "
        "their group in the module's updates."
    )
    assert [name for _, name, _ in learner.optimizer_entries()] == ["default_optimizer"]


def test_an_optimizer_of_moving_statistics_alone():
    layers = [keras.Input([2]), keras.layers.BatchNormalization()]
    module = KerasModule(model=keras.Sequential(layers), loss_fn="mse")
    learner = built(module)
    moving = tf.nest.flatten(learner.state.params["model"]["state"])
    said = message(learner.register_optimizer, "default_policy", "o", sgd(None), moving)
    assert "moving_mean:0, " in said and "moving_variance:0, which no loss changes" in said


@pytest.mark.parametrize("rate", [-1, float("nan"), [[0, 0.1], [5, -1.0]]])
def test_rates(rate):
    learner = built({"a": Dot()})
    said = message(learner.register_optimizer, "a", "o", sgd(None), [], rate)
    assert said.startswith("lr_or_lr_schedule of register_optimizer('a', 'o'): expected a number")


def test_a_joint_optimizer_clips_as_its_modules():
    # The gradient is the mean of the rows, [2, 3]; by value at most 0.5.
    clip = {"grad_clip": 0.5, "grad_clip_by": "value"}

    class Sgd(Learner):
        def configure_optimizers(self):
            params = [p for m in self.modules for p in self.get_parameters(m)]
            self.register_optimizer(ALL_MODULES, "joint", sgd(None), params, 1.0)

    learner = built({"a": Dot(), "b": Dot()}, Sgd, config={"a": clip, "b": {"lr": 1.0, **clip}})
    learner.update_from_batch({m: BATCH[m] for m in "ab"})
    for m in "ab":
        np.testing.assert_allclose(learner.get_parameters(m)[0], [0.5, 0.5])
    # Its own optimizer trains a module that comes later.
    learner.add_module("c", Dot(), config_overrides={"grad_clip": None, "lr": 0.5})
    learner.update_from_batch(BATCH)
    np.testing.assert_allclose(learner.get_parameters("c")[0], [0.0, -0.5])
    other = Sgd({"a": Dot(), "b": Dot()}, config={"a": clip, "b": {}})
    said = message(other.build)
    assert "expected one setting for gradient clipping" in said
    assert "config={..., '__all_modules__': ModuleConfig(...)}" in said
    asked = {"a": clip, "b": {}, ALL_MODULES: {"grad_clip": 1.0}}
    built({"a": Dot(), "b": Dot()}, Sgd, config=asked)


# Arguments of the constructor.


def test_settings_as_dicts():
    learner = Learner({"a": Dot(), "b": Dot()}, config={"a": {"lr": 1e-3}, "b": ModuleConfig()})
    assert learner.configs == {"a": ModuleConfig(lr=1e-3), "b": ModuleConfig()}
    said = message(Learner, {"a": Dot()}, config={"a": {"rl": 1e-3}})
    assert "got 'rl'. Did you mean lr?" in said


def test_strategies_have_to_be_made():
    assert message(Learner, Dot(), strategy="mirrored") == (
        "Learner strategy: expected a tf.distribute.Strategy, or None, got 'mirrored'. "
        "Create one with tfrl.distribute.make_strategy(name)."
    )


def test_policies_to_train_out_of_a_generator():
    learner = built({"a": Dot(), "b": Dot()}, policies_to_train=(m for m in ["b"]))
    for _ in range(2):  # A generator that was read would train nothing the second time.
        row = learner.update_from_batch({m: BATCH[m] for m in "ab"})
        assert sorted(row) == [ALL_MODULES, "b"]
    assert "got 5" in message(Learner, Dot(), policies_to_train=5)


# States.


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (None, "None for a state, which is a dict"),
        (3, "3 for a state, which is a dict"),
        ({"rl_module": None}, "None for rl_module, which is a dict"),
        ({"rl_module": {"a": 3}}, "3 for rl_module/a, which is a dict"),
        ({"rl_module": {"a": {"params/w": None}}}, "rl_module/a/params/w that is not a number"),
        ({"rl_module": {"a": {"params/w": [[1], [1, 2]]}}}, "rows of different lengths"),
        ({"optimizer": {"a": 3}}, "3 for optimizer/a, which is a dict"),
        ({"counters": {"env_steps": 1.5}}, "env_steps of dtype float64 for int64"),
        ({"counters": {"env_steps": "x"}}, "env_steps that is not a number for int64"),
        ({"weights_seq_no": None}, "weights_seq_no that is not a number for int64"),
        ({"should_module_be_updated": ["c"]}, "should_module_be_updated of ['c']"),
        ({"metrics": {"bad": 1}}, "metrics of schema None"),
        ({"metrics": None}, "metrics of None"),
        ({"metrics": {"schema": 1, "metrics": [], "elapsed": "x"}}, "metrics with ValueError"),
    ],
)
def test_a_wrong_state_changes_nothing(part, expected):
    learner = built({"a": Dot()})
    learner.update_from_batch({"a": BATCH["a"]})
    before, rows = values(learner), metrics_of(learner)
    fine = {"rl_module": {"a": {"params/w": np.full([2], 9, np.float32)}}}
    state = {**fine, **part} if isinstance(part, dict) else part
    said = message(learner.set_state, state)
    assert said.startswith("Learner.set_state: expected")
    assert expected in said
    assert_same(values(learner), before)
    assert metrics_of(learner) == rows


def test_which_modules_are_trained_is_state(tmp_path):
    learner = built({"a": Dot(), "b": Dot()}, policies_to_train=["b"])
    state = learner.get_state()
    assert state["should_module_be_updated"] == ["b"]
    other = built({"a": Dot(), "b": Dot()})
    assert other.get_state()["should_module_be_updated"] is None
    other.set_state(state)
    assert not other.should_module_be_updated("a") and other.should_module_be_updated("b")
    other.set_state({"should_module_be_updated": None})
    assert other.should_module_be_updated("a")
    learner.save_to_path(tmp_path / "save")
    other.restore_from_path(tmp_path / "save", "rl_module")
    assert other.policies_to_train is None
    other.restore_from_path(tmp_path / "save")
    assert other.policies_to_train == ["b"]


def test_a_function_that_chooses_modules_is_kept(tmp_path):
    def choose(module_id, rows):
        return module_id == "a"

    learner = built({"a": Dot(), "b": Dot()}, policies_to_train=choose)
    assert "should_module_be_updated" not in learner.get_state()
    other = built({"a": Dot(), "b": Dot()}, policies_to_train=["b"])
    other.set_state(learner.get_state())
    assert other.policies_to_train == ["b"]
    other.save_to_path(tmp_path / "save")
    learner.restore_from_path(tmp_path / "save")
    assert learner.policies_to_train == ["b"]


def test_only_newer_weights_are_loaded_when_asked_so():
    learner = built({"a": Dot()})
    older = learner.get_state()
    for _ in range(3):
        learner.update_from_batch({"a": BATCH["a"]})
    weights = learner.get_parameters("a")[0].numpy()

    def loaded(number, **options):
        state = {**older, "weights_seq_no": number}
        learner.set_state(state, only_newer_weights=True)
        same = np.array_equal(learner.get_parameters("a")[0].numpy(), weights)
        found = int(learner.weights_seq_no.numpy())
        learner.set_state({"rl_module": {"a": {"params/w": weights}}, "weights_seq_no": 3})
        return not same, found

    assert loaded(2) == loaded(3) == (False, 3)
    assert loaded(4) == (True, 4)
    assert loaded(0) == (True, 3)  # of no age
    learner.set_state(older, only_newer_weights=True)  # The rest is loaded in any case.
    assert learner.learner_steps.numpy() == 0


def test_plain_numbers_fit():
    learner = built({"a": Dot()})
    learner.set_state(
        {
            "rl_module": {"a": {"params/w": [1, 2]}},
            "counters": {"env_steps": np.int32(7), "key": np.array([3, 4], np.int64)},
            "weights_seq_no": np.int64(5),
        }
    )
    np.testing.assert_array_equal(learner.get_parameters("a")[0], [1.0, 2.0])
    assert [learner.env_steps.numpy(), learner.weights_seq_no.numpy()] == [7, 5]
    np.testing.assert_array_equal(learner.key, [3, 4])


# Folders.


def test_a_component_is_one_name(tmp_path):
    learner = built({"a": Dot()})
    learner.save_to_path(tmp_path / "save")
    said = message(learner.restore_from_path, tmp_path / "save", component=["rl_module"])
    assert said == (
        'component: expected the name of a component, such as "rl_module", or None for all, got '
        "['rl_module']. Restore components one at a time."
    )


def test_a_save_keeps_who_is_trained_and_how(tmp_path):
    shared = {"a/encoder": ["b/encoder"]}
    modules = {"a": EncoderHead(), "b": EncoderHead(head=2.0)}
    options = dict(shared=shared, check_numerics="raise", policies_to_train=["b"])
    learner = built(modules, **options)
    learner.save_to_path(tmp_path / "save")
    found = Learner.from_checkpoint(tmp_path / "save", optimizer_fn=sgd)
    assert found.check_numerics == "raise"
    assert found.policies_to_train == ["b"]
    assert found.module_state("b").params["encoder"] == found.module_state("a").params["encoder"]
    other = Learner.from_checkpoint(
        tmp_path / "save", optimizer_fn=sgd, policies_to_train=["a"], check_numerics="off"
    )
    assert (other.policies_to_train, other.check_numerics) == (["a"], "off")


def test_a_function_has_to_be_given_again(tmp_path):
    learner = built({"a": Dot()}, policies_to_train=lambda module_id, rows: True)
    learner.save_to_path(tmp_path / "save")
    said = message(Learner.from_checkpoint, tmp_path / "save", optimizer_fn=sgd)
    assert "policies_to_train was a function" in said
    found = Learner.from_checkpoint(tmp_path / "save", optimizer_fn=sgd, policies_to_train=["a"])
    assert found.policies_to_train == ["a"]


@pytest.mark.parametrize("gone", [None, "a"])
@pytest.mark.variants(1)
def test_modules_that_came_later_come_later_again(tmp_path, gone):
    learner = Joint({"a": Dot(), "b": Dot()}, policies_to_train=["a", "b"])
    learner.build(seeding.key(0))
    learner.add_module("x", Dot())
    learner.add_module("c", Dot(), config_overrides={"lr": 0.5}, policies_to_train=["b", "c"])
    learner.add_module("held", Held())
    learner.remove_module("x")
    learner.update_from_batch(BATCH)
    if gone:
        learner.remove_module(gone)
    learner.save_to_path(tmp_path / "save")
    found = Joint.from_checkpoint(tmp_path / "save")
    assert list(found.modules) == list(learner.modules)
    assert found.configs == learner.configs
    assert found.policies_to_train == ["b", "c"]
    found.save_to_path(tmp_path / "again")
    for each in (found, Joint.from_checkpoint(tmp_path / "again")):
        assert_same(values(each), values(learner))
    kept = {m: BATCH[m] for m in "abc" if m != gone}
    for each in (learner, found):
        each.update_from_batch(kept, num_epochs=2)
    assert_same(values(found), values(learner))


def test_all_modules_of_the_build_are_gone(tmp_path):
    learner = built({"a": Dot()})
    learner.add_module("c", Dot())
    learner.remove_module("a")
    learner.save_to_path(tmp_path / "save")
    found = Learner.from_checkpoint(tmp_path / "save", optimizer_fn=sgd)
    assert_same(values(found), values(learner))
