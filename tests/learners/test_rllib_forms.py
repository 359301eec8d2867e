"""Forms of the Learner that readers of RLlib know: names of optimizers, APIs, configuration."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.learners.learner_fakes import Dot, RegressionAgent, built, column, param
from tfrl.errors import UserError
from tfrl.learners import (
    ALL_MODULES,
    DEFAULT_OPTIMIZER,
    Learner,
    LearnerConfig,
    ModuleConfig,
    ValueFunctionAPI,
)

ROWS = column([1, 2])


def test_names_of_optimizers():
    learner = built({"a": RegressionAgent(), "b": Dot()})
    critic = learner.get_optimizer("a", "critic")
    assert learner.get_optimizer("a", DEFAULT_OPTIMIZER) is critic  # the first
    assert learner.get_optimizer("a", "a_critic") is critic
    assert learner.get_optimizer(optimizer_name="a_critic") is critic
    assert learner.get_optimizer("b") is learner.get_optimizer("b", DEFAULT_OPTIMIZER)
    assert learner.get_optimizers_for_module() == []
    for wrong in (("a", "actr"), ("c", "critic"), (ALL_MODULES, "critic"), ("a", None)):
        for kind in (KeyError, ValueError, UserError):
            with pytest.raises(kind, match="expected one of"):
                learner.get_optimizer(*wrong)


def test_those_registered_under_all_modules():
    class Joint(Learner):
        def configure_optimizers(self):
            params = [p for m in self.modules for p in self.get_parameters(m)]
            self.register_optimizer(ALL_MODULES, "joint", tf.keras.optimizers.SGD(), params)

    learner = built({"a": Dot(), "b": Dot()}, Joint)
    ((name, found),) = learner.get_optimizers_for_module()
    assert name == "joint" and found is learner.get_optimizer(ALL_MODULES)
    assert learner.get_optimizers_for_module("a") == []


def as_property(self):
    return (ValueFunctionAPI,)


@pytest.mark.parametrize(
    "form", [property(as_property), classmethod(as_property), (ValueFunctionAPI,), as_property]
)
def test_required_apis_in_every_form(form):
    needs = type("Needs", (Learner,), {"rl_module_required_apis": form})
    with pytest.raises(UserError, match="which lacks ValueFunctionAPI"):
        needs(Dot())
    assert not needs({"a": Dot()}, policies_to_train=[]).rl_module_is_compatible(Dot())
    assert Learner.rl_module_required_apis() == () == Learner(Dot()).rl_module_required_apis


def test_a_module_that_is_not_compatible_is_held():
    class Valued(Dot):
        def compute_values(self, state, obs):
            return tf.zeros([1])

    needs = type("Needs", (Learner,), {"rl_module_required_apis": (ValueFunctionAPI,)})
    learner = built({"a": Valued(), "b": Dot()}, needs, policies_to_train=["a"])
    assert [m for m, *_ in learner.optimizer_entries()] == ["a"]
    assert set(learner.update_from_batch({"a": ROWS, "b": ROWS})) == {"a", ALL_MODULES}
    np.testing.assert_array_equal(param(learner, "b"), [1, 1])
    for chosen in (None, ["b"]):
        with pytest.raises(UserError, match="which lacks ValueFunctionAPI"):
            learner.train_only(chosen)
    learner.train_only(lambda module_id, rows: True)
    with pytest.raises(UserError, match="leave it out of policies_to_train"):
        learner.update_from_batch({"b": ROWS})
    learner.train_only(["a"])
    learner.add_module("c", Dot())
    assert learner.get_optimizers_for_module("c") == []


def test_small_things():
    learner = built({"a": Dot()})
    assert learner.framework == "tf2" and "CPU:0" in learner.device
    assert learner.apply(lambda own, x, y: (own, x + y), 1, y=2) == (learner, 3)
    names = [name for name, _ in learner.get_checkpointable_components()]
    assert names == ["rl_module/a", "optimizer/a/default_optimizer"]


def test_a_learner_out_of_settings():
    config = LearnerConfig("PPO", {"hidden": (8,)}, ModuleConfig(lr=0.5), seed=3)
    learner = config.build_learner(env="tf:CartPole-v1")
    learner.build()  # changes nothing
    again = config.build_learner(env=gymnasium.make("CartPole-v1"))
    for x, y in zip(learner.get_parameters(), again.get_parameters(), strict=True):
        np.testing.assert_array_equal(x, y)
    assert learner.configs["default_policy"].lr == 0.5
    env = tfrl.make_env("tf:Pendulum-v1")
    both = LearnerConfig({"a": tfrl.agents.SAC, "b": "TD3"}, learner_class=Learner)
    assert list(both.build_learner(env=env).modules) == ["a", "b"]
    with pytest.raises(UserError, match="Did you mean PPO"):
        LearnerConfig("PPOO").build_learner(env=env)
    with pytest.raises(UserError, match="no obs_spec and no action_spec"):
        config.build_learner()
