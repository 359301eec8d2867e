"""Modules of the Learner: the protocol, duck-typed objects, ids, required interfaces."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.learners import train_steps
from tfrl import seeding, struct
from tfrl.agents.core import Agent
from tfrl.agents.ppo import PPO
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import modules
from tfrl.learners.optimizers import ALL_MODULES, DEFAULT_OPTIMIZER
from tfrl.types import AgentState

KEY = seeding.key(3)
TIME = tf.constant(7, tf.int64)


def message(fn, *args, **kwargs):
    with pytest.raises(UserError) as error:
        fn(*args, **kwargs)
    return str(error.value)


@struct.logic_dataclass
class Linear(modules.Module):
    """y = w x, with a group of counts that no gradient can train."""

    def init_params(self, key):
        return {"w": {"w": tf.ones([2])}, "count": tf.constant([1, 2])}

    def forward(self, params, batch, key):
        return tf.linalg.matvec(batch["x"], params["w"]["w"])

    def loss(self, params, batch, outputs, key):
        return tf.reduce_mean(tf.square(outputs - batch["y"])), {"output": tf.reduce_mean(outputs)}


@struct.logic_dataclass
class Held(modules.Module):
    """Has parameters and no loss."""

    def init_params(self, key):
        return {"w": seeding.normal(key, [3])}

    def forward(self, params, batch, key):
        return params["w"]


class Constant(Held):
    """Has a loss and nothing to train."""

    def init_params(self, key):
        return {}

    def loss(self, params, batch, outputs, key):
        return tf.constant(0.0)


class SelfSupervised(Held):
    def compute_self_supervised_loss(self, params, state, batch, key):
        return tf.reduce_sum(tf.square(params["w"])) / 2.0


class Duck:
    """Fits by its methods alone."""

    def init(self, key):
        return {"w": np.ones([2], np.float32)}

    def forward(self, params, batch, key):
        return tf.linalg.matvec(batch["x"], params["w"])

    def loss(self, params, batch, outputs, key):
        return tf.reduce_mean(outputs)

    def compute_values(self, state, obs):
        return tf.zeros([obs.shape[0]])


# Row errors 1 + 2 - 1 = 2 and 3 + 4 - 1 = 6: the loss is (4 + 36) / 2 = 20, its gradient the mean
# of 2 e x: (2 * 2 * [1, 2] + 2 * 6 * [3, 4]) / 2 = [20, 28].
BATCH = {"x": tf.constant([[1.0, 2.0], [3.0, 4.0]]), "y": tf.constant([1.0, 1.0])}


class ModuleTest(parameterized.TestCase):
    def test_the_update_is_forward_and_loss(self):
        module = Linear()
        (update,) = module.updates
        assert update.name == DEFAULT_OPTIMIZER and update.groups == ("w",)
        found = train_steps.computed(train_steps.recording(module), module.init(KEY), BATCH, KEY)[
            update.name
        ]
        np.testing.assert_allclose(found.loss, 20.0)
        np.testing.assert_allclose(found.gradients["w"]["w"], [20.0, 28.0])
        np.testing.assert_allclose(found.metrics["output"], 5.0)
        assert list(found.gradients) == ["w"]

    @parameterized.parameters(Held, Constant)
    def test_without_loss_or_parameters_there_is_nothing_to_train(self, cls):
        module = cls()
        assert module.updates == ()
        assert isinstance(module.init(KEY), AgentState)

    def test_a_self_supervised_loss_is_the_modules_own(self):
        module = SelfSupervised()
        (update,) = module.updates
        state = module.init(KEY)
        found = train_steps.computed(train_steps.recording(module), state, BATCH, KEY)[update.name]
        np.testing.assert_allclose(found.gradients["w"], state.params["w"])

    def test_hooks_are_those_of_an_agent(self):
        module = Linear()
        state = module.init(KEY)
        assert module.before_update(state, TIME) is state
        assert module.after_update(state, TIME) is state
        assert module.prepare_minibatch(state, BATCH, lambda x: x) is BATCH
        assert module.should_stop({}) is None
        assert type(module).should_stop is Agent.should_stop
        assert module.after_update_due(state, TIME) is None
        hooks = ("before_update", "after_update", "after_update_due")
        for name in ("init", *hooks, "prepare_minibatch", "should_stop"):
            assert callable(getattr(Agent, name)) and callable(getattr(module, name))

    def test_groups_are_found_by_one_call_of_init_also_while_tracing(self):
        calls = []

        class Counting(Linear):
            def init_params(self, key):
                calls.append(tf.executing_eagerly())
                return super().init_params(key)

        module = Counting()
        tf.function(lambda: [tf.constant(len(module.updates)) for _ in range(3)])()
        assert calls == [True]

    def test_forward_and_loss_draw_from_keys_of_their_own(self):
        class Noisy(Linear):
            def forward(self, params, batch, key):
                return seeding.uniform(key, [2])

            def loss(self, params, batch, outputs, key):
                return tf.reduce_sum(outputs - seeding.uniform(key, [2]))

        module = Noisy()
        loss, _ = module.update_loss({}, module.init(KEY), BATCH, KEY)
        assert abs(float(loss)) > 1e-3

    @parameterized.parameters(
        (lambda: tf.ones([2]), "expected a float scalar, got float32 of shape (2,)"),
        (lambda: tf.constant(1), "got int32 of shape ()"),
        (lambda: 1.0, "got 1.0. Reduce it over the rows"),
        (lambda: (tf.constant(1.0), 3.0), "expected metrics {name: scalar} next to the loss"),
    )
    def test_losses_that_are_none(self, make, expected):
        class Wrong(Linear):
            def loss(self, params, batch, outputs, key):
                return make()

        module = Wrong()
        found = message(module.update_loss, {"w": {"w": tf.ones([2])}}, None, BATCH, KEY)
        assert "the loss of Wrong: " in found and expected in found

    def test_parameters_that_are_no_groups(self):
        class Bare(Linear):
            def init_params(self, key):
                return tf.ones([2])

        assert "Bare.init: expected a dict {group: nest of tensors}" in message(Bare().init, KEY)


class AsModuleTest(parameterized.TestCase):
    def test_agents_and_modules_pass(self):
        spec = tf.TensorSpec([3])
        agent = PPO(obs_spec=spec, action_spec=spec, hidden=(4,))
        module = Linear()
        assert modules.as_module(agent, "a") is agent
        assert modules.as_module(module, "a") is module

    def test_a_duck_is_wrapped(self):
        module = modules.as_module(Duck(), "a")
        state = module.init(KEY)
        (update,) = module.updates
        found = train_steps.computed(train_steps.recording(module), state, BATCH, KEY)[update.name]
        np.testing.assert_allclose(found.gradients["w"], [2.0, 3.0])
        assert module.before_update(state, TIME) is state
        assert module.prepare_minibatch(state, BATCH, None) is BATCH
        assert module.should_stop({}) is None
        np.testing.assert_array_equal(module.compute_values(state, tf.ones([4, 1])), np.zeros(4))

    def test_the_hooks_of_a_duck_are_called(self):
        class Hooked(Duck):
            def after_update(self, state, timesteps):
                return state.replace(extra=timesteps)

            def after_update_due(self, state, timesteps):
                return timesteps > 5

            def prepare_minibatch(self, state, batch, all_reduce_sum):
                return all_reduce_sum(batch)

            def should_stop(self, metrics):
                return metrics["kl"] > 1.0

        module = modules.as_module(Hooked(), "a")
        assert bool(module.after_update_due(None, tf.constant(6)))
        assert module.after_update(module.init(KEY), TIME).extra is TIME
        assert module.prepare_minibatch(None, 2, lambda x: x * 2) == 4
        assert bool(module.should_stop({"kl": tf.constant(2.0)}))

    def test_a_duck_may_return_a_state_and_lack_a_loss(self):
        class Quiet:
            def init(self, key):
                return AgentState(params={"w": tf.ones([2])}, target_params={"w": tf.zeros([2])})

            def forward(self, params, batch, key):
                return params["w"]

        module = modules.as_module(Quiet(), "a")
        assert module.updates == ()
        np.testing.assert_array_equal(module.init(KEY).target_params["w"], [0.0, 0.0])

    @parameterized.parameters(
        (object(), "got object without init and forward. Add these methods, or derive it from"),
        (Duck, "got the class Duck. Give an instance of it."),
        (
            keras.Sequential(name="mine"),
            "got the bare Keras model 'mine'. Wrap it with its loss: tfrl.learners.KerasM",
        ),
    )
    def test_what_is_no_module(self, obj, expected):
        found = message(modules.as_module, obj, "pi")
        assert "module 'pi': expected an Agent, a Module, or an object with init(key)" in found
        assert expected in found


@pytest.mark.parametrize(
    ("module_id", "expected"),
    [
        ("", "got an empty string"),
        (3, "got 3 (int)"),
        (None, "got None (NoneType)"),
        ("a/b", "got 'a/b' with '/'"),
        ("a\\b", "with '\\\\'"),
        ("../a", "with '/', '..'"),
        ("a\0b", "with '\\x00'"),
        ("a.", "which ends in a dot"),
        ("a ", "which ends in a space"),
        (
            ALL_MODULES,
            "expected the id of one module, got '__all_modules__', which stands for all modules",
        ),
    ],
)
def test_ids_that_do_not_fit(module_id, expected):
    found = message(modules.check_module_id, module_id)
    assert found.startswith("module id: expected ") and expected in found


@pytest.mark.parametrize("module_id", ["a", "default_policy", "a.b", "policy 1", "é"])
def test_ids_that_fit(module_id):
    modules.check_module_id(module_id)
    for end in ("/", ".", " "):
        assert repr(module_id + end) in message(modules.check_module_id, module_id + end)


def test_missing_interfaces_are_named_with_their_methods():
    class Both(modules.ValueFunctionAPI, modules.TargetNetworkAPI):
        pass

    class Centralised:
        def compute_joint_values(self):
            pass

    duck = modules.as_module(Duck(), "a")
    held = Held()
    required = [modules.ValueFunctionAPI, modules.TargetNetworkAPI, Centralised]
    assert modules.missing_apis(duck, required[:1]) == []
    assert isinstance(duck, modules.ValueFunctionAPI)
    assert not isinstance(held, modules.ValueFunctionAPI)
    assert modules.missing_apis(held, required) == [
        "ValueFunctionAPI: compute_values",
        "TargetNetworkAPI: update_target",
        "Centralised: compute_joint_values",
    ]
    assert modules.missing_apis(duck, [Both]) == ["Both: update_target"]
    assert isinstance(SelfSupervised(), modules.SelfSupervisedLossAPI)
    assert not isinstance(duck, modules.SelfSupervisedLossAPI)
