"""Settings of a module: checks and overrides."""

import inspect
import math

import gin
import pytest

from tfrl.errors import UserError
from tfrl.learners.module_config import ModuleConfig
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
            "ModuleConfig.lr: expected a number of at least 0, got -0.1. A negative one",
        ),
        ({"lr": math.nan}, "ModuleConfig.lr: expected a number of at least 0"),
        (
            {"lr": True},
            "ModuleConfig.lr: expected a number of at least 0, points [[0, v0], [t1, v1]",
        ),
        ({"lr": "fast"}, "got 'fast'. A schedule is one of tfrl.ops.schedules."),
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
        f"log_gradients, minibatch_size, adam_epsilon, got {name!r}. Did you mean {field}?"
    )
    assert f"got {name!r}. Did you mean {field}?" in message(
        ModuleConfig().with_overrides, {name: 1e-3}
    )


def test_settings_by_position():
    assert message(ModuleConfig, 1e-3) == (
        "ModuleConfig: expected settings by name, got 0.001. Write ModuleConfig(lr=0.001) for a "
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
