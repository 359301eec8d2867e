"""Settings of a module: checks and overrides."""

import inspect
import math

import gin
import numpy as np
import pytest

from tests.learners.learner_fakes import SumAgent
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import Learner
from tfrl.learners.module_config import ModuleConfig
from tfrl.learning import optimizers
from tfrl.ops.schedules import CosineSchedule, LinearSchedule


def message(fn, *args, **kwargs):
    with pytest.raises(UserError) as error:
        fn(*args, **kwargs)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"lr": -0.1},
            "ModuleConfig.lr: expected a number of at least 0, got -0.1. Use a positive value",
        ),
        ({"lr": math.nan}, "ModuleConfig.lr: expected a number of at least 0"),
        (
            {"lr": True},
            "ModuleConfig.lr: expected a number of at least 0, points [[0, v0], [t1, v1]",
        ),
        ({"lr": "fast"}, "got 'fast'. Use a number or a schedule from tfrl.ops.schedules."),
        ({"lr": [[0, 1.0], [5, -1.0]]}, "ModuleConfig.lr: expected a number of at least 0, got [["),
        ({"lr": LinearSchedule(start=1.0, end=-1.0, steps=5)}, "ModuleConfig.lr: expected"),
        ({"lr": [[0, 1.0], [5, 0.5], [4, 0.1]]}, "expected strictly increasing steps, got"),
        ({"lr": [[0, 1.0], [0, 0.5]]}, "expected strictly increasing steps, got"),
        ({"lr": [[0, 1.0]]}, "expected at least two points, got"),
        ({"lr": []}, "expected at least two points, got"),
        ({"lr": [[1, 1.0], [5, 0.5]]}, "expected the first point at step 0, got"),
        ({"lr": [0, 1.0]}, "expected a list of [step, value] pairs, got"),
        ({"grad_clip": 0.0}, "ModuleConfig.grad_clip: expected a number above 0, or None, got 0.0"),
        ({"grad_clip": math.inf}, "ModuleConfig.grad_clip: expected a number above 0, or None"),
        ({"grad_clip_by": "norms"}, "expected one of global_norm, norm, value, got 'norms'"),
        ({"log_gradients": 1}, "ModuleConfig.log_gradients: expected True or False, got 1"),
        ({"minibatch_size": 0}, "ModuleConfig.minibatch_size: expected a whole number of at least"),
        ({"minibatch_size": 2.0}, "of at least 1, or None, got 2.0"),
        ({"adam_epsilon": None}, "ModuleConfig.adam_epsilon: expected a number above 0, got None"),
        ({"adam_epsilon": math.nan}, "ModuleConfig.adam_epsilon: expected a number above 0"),
    ],
)
def test_messages(change, expected):
    assert expected in message(ModuleConfig, **change)


@pytest.mark.parametrize(
    "lr", [0.0, 1, [[0, 1e-3], [10, 0.0]], CosineSchedule(start=1e-3, end=0.0, steps=100)]
)
def test_rates_that_are_fine(lr):
    assert ModuleConfig(lr=lr).lr == lr


def test_overrides():
    config = ModuleConfig(lr=0.1, grad_clip=None)
    changed = config.with_overrides({"lr": 0.2, "minibatch_size": 8})
    assert changed == ModuleConfig(lr=0.2, grad_clip=None, minibatch_size=8)
    assert config == ModuleConfig(lr=0.1, grad_clip=None)
    assert config.with_overrides(None) is config
    assert config.with_overrides({}) == config
    other = ModuleConfig()
    assert config.with_overrides(other) is other


def test_overrides_that_do_not_fit():
    config = ModuleConfig()
    found = message(config.with_overrides, {"lrr": 1.0, "clip": 2.0, "lr": 0.1})
    assert "config_overrides: expected fields of ModuleConfig, lr, grad_clip, " in found
    assert "got 'lrr', 'clip'. Did you mean lr?" in found
    assert "ModuleConfig.lr: expected" in message(config.with_overrides, {"lr": "x"})
    assert "expected a dict of ModuleConfig's fields" in message(config.with_overrides, 0.1)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("learning_rate", "lr"),
        ("Lr", "lr"),
        ("max_grad_norm", "grad_clip"),
        ("batch_size", "minibatch_size"),
        ("epsilon", "adam_epsilon"),
    ],
)
def test_settings_that_there_are_not(name, field):
    assert message(ModuleConfig, **{name: 1e-3}) == (
        "ModuleConfig: expected fields of ModuleConfig, lr, grad_clip, grad_clip_by, "
        f"log_gradients, minibatch_size, optimizer, adam_epsilon, got {name!r}. "
        f"Did you mean {field}?"
    )
    assert f"got {name!r}. Did you mean {field}?" in message(
        ModuleConfig().with_overrides, {name: 1e-3}
    )


def test_settings_by_position():
    assert message(ModuleConfig, 1e-3) == (
        "ModuleConfig: expected keyword arguments, got 0.001. Write ModuleConfig(lr=0.001) for a "
        "learning rate."
    )


def test_gin_configures_it():
    configurable = gin.external_configurable(ModuleConfig, "SettingsOfThisTest")
    with gin.unlock_config():
        gin.bind_parameter("SettingsOfThisTest.lr", 0.25)
        with pytest.raises(ValueError, match="learning_rate"):
            gin.bind_parameter("SettingsOfThisTest.learning_rate", 0.25)
    try:
        config = configurable(grad_clip=1.0)
    finally:
        gin.clear_config()
    assert config == ModuleConfig(lr=0.25, grad_clip=1.0)
    assert list(inspect.signature(ModuleConfig).parameters)[:2] == ["lr", "grad_clip"]


class TestOptimizer:
    def test_by_name(self):
        assert ModuleConfig(adam_epsilon=1e-3).make_optimizer("x") == optimizers.Adam(epsilon=1e-3)
        assert ModuleConfig(optimizer="sgd").make_optimizer("x") == optimizers.SGD()

    def test_one_for_each_update(self):
        config = ModuleConfig(optimizer={"critic": optimizers.Lion(), "actor": "rmsprop"})
        made = [config.make_optimizer(n) for n in ("critic", "actor", "temperature")]
        assert made == [optimizers.Lion(), optimizers.RMSprop(), optimizers.Adam(epsilon=1e-5)]

    def test_rates_by_update(self, tmp_path):
        decay = LinearSchedule(start=0.5, end=0.0, steps=100)
        config = ModuleConfig(lr={"sum": decay, "other": np.float32(0.25)})
        assert [config.rate_of(n) for n in ("sum", "other", "third")] == [decay, 0.25, None]
        learner = Learner(SumAgent(), config=ModuleConfig(lr={"sum": decay}))
        learner.build(0)
        assert float(learner.get_optimizer().learning_rate) == 0.5
        learner.save_to_path(tmp_path / "save")
        again = Learner.from_checkpoint(tmp_path / "save", modules=SumAgent())
        assert again.configs == learner.configs
        for lr in ({"sum": -1.0}, {"sum": "fast"}, {"sum": {"sum": 1.0}}):
            assert "ModuleConfig.lr: expected a number of at least 0" in message(
                ModuleConfig, lr=lr
            )
        learner = Learner(SumAgent(), config=ModuleConfig(lr={"sun": 0.1}))
        assert "ModuleConfig.lr of module 'default_policy': expected names of updates" in message(
            learner.build
        )

    def test_the_rate_is_that_of_a_keras_optimizer_unless_it_is_given(self):
        rates = []
        for lr in (None, 0.5):
            config = ModuleConfig(lr=lr, optimizer=keras.optimizers.SGD(0.25))
            learner = Learner(SumAgent(), config=config)
            learner.build(0)
            rates.append(float(learner.get_optimizer().learning_rate))
        assert rates == [0.25, 0.5]

    def test_keras_optimizers_are_copied(self):
        given = keras.optimizers.Adam(0.25, beta_1=0.5)
        config = ModuleConfig(optimizer=given)
        one, other = config.make_optimizer("a"), config.make_optimizer("b")
        assert one is not other and one is not given and one.beta_1 == 0.5

    @pytest.mark.parametrize("wrong", ["adamm", 3, {"critic": "adamm"}, [], optimizers.Adam])
    def test_others_are_refused(self, wrong):
        assert "optimizer: expected one of adam, adamw" in message(ModuleConfig, optimizer=wrong)

    def test_an_update_that_there_is_not(self):
        learner = Learner(SumAgent(), config=ModuleConfig(optimizer={"sun": "sgd"}))
        assert "names of updates among sum, got 'sun'. Did you mean sum?" in message(learner.build)

    def test_a_learner_trains_by_it_and_comes_back_with_it(self, tmp_path):
        momentum = optimizers.SGD(momentum=0.5)
        learner = Learner(SumAgent(), config=ModuleConfig(lr=0.5, optimizer=momentum))
        learner.build(0)
        batch = {"x": np.zeros([4], np.float32)}
        for _ in range(2):
            learner.update_from_batch(batch)
        # Its gradient is 1: v = 0.5 v - lr, from 0.
        np.testing.assert_allclose(learner.state.params["b"], 1.0 - 0.5 - 0.75)
        assert int(learner.get_optimizer().iterations) == 2
        learner.save_to_path(tmp_path / "save")
        again = Learner.from_checkpoint(tmp_path / "save", modules=SumAgent())
        assert again.get_optimizer().optimizer == momentum
        again.update_from_batch(batch)
        np.testing.assert_allclose(again.state.params["b"], -0.25 - 0.875)
