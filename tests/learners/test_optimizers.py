"""Optimizers as the Learner holds them: registration, slots, rates, steps, removal."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners.optimizers import ALL_MODULES, OptimizerEntry, OptimizerRegistry, adam
from tfrl.learning import optimizers as native
from tfrl.ops import schedules

K = keras.optimizers
ADAM_PATHS = ["iterations", "learning_rate", "m/w", "v/w"]


def variable(name, value=(1.0, 2.0)):
    return tf.Variable(value, name=name)


def ones(variables):
    return [tf.ones_like(v) for v in variables]


def message(fn, *args, **kwargs):
    with pytest.raises(UserError) as error:
        fn(*args, **kwargs)
    return str(error.value)


MAKERS = {
    "sgd": lambda: K.SGD(0.1, momentum=0.9),
    "adam": lambda: K.Adam(0.1, amsgrad=True),
    "adam_ema": lambda: K.Adam(0.1, use_ema=True, ema_overwrite_frequency=2),
    "adamw": lambda: K.AdamW(0.1, weight_decay=0.1),
    "rmsprop": lambda: K.RMSprop(0.1, centered=True),
    "adafactor": lambda: K.Adafactor(0.1),
    "ftrl": lambda: K.Ftrl(0.1),
    "lion": lambda: K.Lion(0.1),
    "native_adam": native.Adam,
    "native_adamw": native.AdamW,
    "native_rmsprop": lambda: native.RMSprop(centered=True),
    "native_sgd": lambda: native.SGD(momentum=0.9),
    "native_lion": native.Lion,
    "legacy_sgd": lambda: K.legacy.SGD(0.1, momentum=0.9),
    "legacy_adam": lambda: K.legacy.Adam(0.1),
    "legacy_rmsprop": lambda: K.legacy.RMSprop(0.1, momentum=0.5),
    "legacy_nadam": lambda: K.legacy.Nadam(0.1),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.variants(12)
def test_a_saved_optimizer_goes_on_to_the_bit(name, compiled):
    def make():
        params = [variable("m/a/kernel", [[1.0, 2.0]]), variable("m/a/bias"), variable("m/bias")]
        return params, OptimizerEntry(MAKERS[name](), params, prefix="m/")

    def stepper(params, entry):
        def step():
            entry.apply([p * p for p in params], params)

        return tf.function(step, jit_compile=True) if compiled else step

    params, entry = make()
    step = stepper(params, entry)
    step()
    step()
    saved = {k: v.numpy() for k, v in entry.variables().items()}
    weights = [p.numpy() for p in params]
    step()
    again, other = make()
    assert set(other.variables()) == set(saved)
    for k, v in other.variables().items():
        v.assign(saved[k])
    for p, w in zip(again, weights, strict=True):
        p.assign(w)
    stepper(again, other)()
    for p, q in zip(params, again, strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())
    assert not np.array_equal(params[0].numpy(), weights[0])


@pytest.mark.parametrize(
    ("make", "paths"),
    [
        (K.Adam, ADAM_PATHS),
        (K.legacy.Adam, ADAM_PATHS),
        (native.Adam, ADAM_PATHS),
        (native.SGD, ["iterations", "learning_rate"]),
        (lambda: K.Adam(use_ema=True), ["average/w", *ADAM_PATHS]),
        (K.legacy.SGD, ["iterations", "learning_rate"]),
        (K.legacy.Nadam, ["iterations", "learning_rate", "m/w", "m_cache", "v/w"]),
    ],
)
def test_variables_are_named_by_slot_and_parameter(make, paths):
    entry = OptimizerEntry(make(), [variable("policy/w")], prefix="policy/")
    assert sorted(entry.variables()) == sorted(paths)
    assert entry.variables()["learning_rate"] is entry.learning_rate


@pytest.mark.parametrize("make", [K.Adam, K.legacy.Adam, native.Adam])
def test_names_do_not_mix_up_parameters(make):
    # "a" is the end of the name of another, and two have the same name.
    params = [variable("a"), variable("m/a"), variable("b", [0.0]), variable("b", [0.0, 0.0, 0.0])]
    entry = OptimizerEntry(make(), params)
    found = {k: v.shape for k, v in entry.variables().items() if k.startswith("m/")}
    assert found == {"m/a": [2], "m/m/a": [2], "m/b": [1], "m/b#1": [3]}
    entry.apply([tf.fill([2], 10.0)], params[1:2])
    own = entry.variables()
    np.testing.assert_allclose(own["m/m/a"], [1.0, 1.0], rtol=1e-6)  # (1 - 0.9) * 10
    np.testing.assert_array_equal(own["m/a"], [0.0, 0.0])


@pytest.mark.parametrize("make", [lambda: K.SGD(1.0), lambda: K.legacy.SGD(1.0), native.SGD])
def test_a_fixed_rate_changed_by_hand_stays_changed(make):
    entry = OptimizerEntry(make(), [variable("w")], 0.5)
    assert entry.learning_rate.numpy() == 0.5
    assert entry.schedule is None  # nothing would change it back
    entry.learning_rate.assign(0.125)
    other = OptimizerEntry(make(), [variable("w")], 0.5)
    for name, v in other.variables().items():
        v.assign(entry.variables()[name])
    assert other.schedule is None
    assert other.learning_rate.numpy() == 0.125


@pytest.mark.parametrize(
    "rate", [[[0, 1.0], [100, 0.0]], schedules.LinearSchedule(start=1.0, end=0.0, steps=100)]
)
def test_a_schedule_follows_env_steps_without_a_new_trace(rate):
    entry = OptimizerEntry(K.SGD(7.0), [variable("w")], rate)
    assert entry.learning_rate.numpy() == 1.0

    @tf.function
    def follow(steps):
        entry.learning_rate.assign(entry.schedule(steps))

    for steps, expected in [(25, 0.75), (50, 0.5), (1000, 0.0)]:
        follow(tf.constant(steps, tf.int64))
        np.testing.assert_allclose(entry.learning_rate.numpy(), expected)
    assert follow.experimental_get_tracing_count() == 1


def test_none_leaves_the_optimizers_own_rate():
    assert OptimizerEntry(K.SGD(0.25), [variable("w")]).learning_rate.numpy() == 0.25
    rate = OptimizerEntry(native.SGD(), [variable("w")]).learning_rate
    assert rate.numpy() == np.float32(3e-4)


@pytest.mark.parametrize("make", [lambda: K.SGD(0.5), lambda: K.legacy.SGD(0.5)])
def test_some_of_the_variables_may_take_a_step(make):
    params = [variable("a"), variable("b")]
    entry = OptimizerEntry(make(), params)
    entry.apply(ones(params[1:]), params[1:])
    np.testing.assert_allclose(params[0], [1.0, 2.0])
    np.testing.assert_allclose(params[1], [0.5, 1.5])
    entry.apply([], [])
    assert entry.variables()["iterations"].numpy() == 1


@pytest.mark.parametrize("make", [K.Adam, K.legacy.Adam])
def test_no_parameters_can_be_added_later(make):
    entry = OptimizerEntry(make(), [variable("a")])
    late = variable("late")
    assert message(entry.apply, ones([late]), [late]) == (
        "OptimizerEntry.apply: expected variables that the optimizer was built for, got late:0. "
        "Register an optimizer for them; a built one takes no more variables."
    )
    assert "expected an unused optimizer, got a Adam already built" in message(
        OptimizerEntry, entry.optimizer, [late]
    )
    with pytest.raises(AttributeError):
        entry.params.append(late)


def test_new_nadam_is_refused_because_it_counts_in_python():
    assert "got tf.keras.optimizers.Nadam, which counts in Python. Use tf.keras" in message(
        OptimizerEntry, K.Nadam(), [variable("a")]
    )


@pytest.mark.parametrize("make", [K.Adam, K.legacy.Adam])
def test_a_keras_schedule_inside_is_refused(make):
    rate = K.schedules.ExponentialDecay(0.1, 100, 0.5)
    found = message(OptimizerEntry, make(rate), [variable("a")])
    assert "got a ExponentialDecay, which counts gradient steps. Set a" in found
    assert "lr_or_lr_schedule" in found


@pytest.mark.parametrize(
    ("optimizer", "params", "expected"),
    [
        (
            *("adam", [variable("a")]),
            "x: expected an optimizer from tfrl.learning.optimizers or Keras, got adam",
        ),
        (
            None,
            [tf.ones([2]), variable("a"), 3],
            "expected parameters that are tf.Variables, got EagerTensor (number 0), int (number 2)",
        ),
        (None, [], "expected at least one parameter, got none"),
        (None, [tf.Variable([1], name="n")], "expected parameters of floating point, got n:0"),
    ],
)
def test_messages_of_an_entry(optimizer, params, expected):
    optimizer = K.legacy.SGD() if optimizer is None else optimizer
    assert expected in message(OptimizerEntry, optimizer, params, thing="x").replace("'", "")


def test_a_parameter_twice_in_one_list():
    w = variable("w")
    assert "expected each parameter once, got w:0" in message(OptimizerEntry, K.SGD(), [w, w])


# The registry.


def registry():
    params = {"a": variable("a/w"), "b": variable("b/w")}
    found = OptimizerRegistry()
    found.add("a", "net", adam(), [params["a"]])
    found.add("b", "net", adam(), [params["b"]])
    return params, found


def test_the_key_is_the_pair():
    found = OptimizerRegistry()
    first = found.add("a", "b_c", adam(), [variable("w")])
    second = found.add("a_b", "c", adam(), [variable("w")])
    assert found.entry("a", "b_c") is first and found.entry("a_b", "c") is second
    assert [(m, n) for m, n, _ in found.entries()] == [("a", "b_c"), ("a_b", "c")]
    assert found.get("a") is first.optimizer


def test_state_of_two_modules_has_the_same_paths():
    _, found = registry()
    assert sorted(found.entry("a").variables()) == sorted(found.entry("b").variables())
    assert "a/net/m/w" in found.variables() and "b/net/v/w" in found.variables()


def test_messages_of_the_registry():
    params, found = registry()
    assert message(found.add, "a", "net", adam(), [variable("c")]) == (
        "register_optimizer('a', 'net'): expected an optimizer name that this module does not "
        "use, got one "
        "of ['net']. Choose a different name."
    )
    assert "got a/w:0 (in ('a', 'net')), b/w:0 (in ('b', 'net'))" in message(
        found.add, ALL_MODULES, "all", adam(), list(params.values())
    )
    assert "expected an optimizer of its own, got the optimizer of ('a', 'net')" in message(
        found.add, "a", "more", found.get("a"), [variable("c")]
    )
    assert "the optimizer's name: expected a string that can name a folder" in message(
        found.add, "a", "x/y", adam(), [variable("c")]
    )
    assert "expected one of ['net'], got 'nett'. Did you mean net?" in message(
        found.get, "a", "nett"
    )
    found.add("a", "second", adam(), [variable("c")])
    assert "expected one of ['net', 'second'], got None" in message(found.get, "a")


def test_coverage_counts_optimizers_of_any_owner():
    params, found = registry()
    c, d = variable("c/w"), variable("c/x")
    trained = {"a/w": params["a"], "b/w": params["b"], "c/w": c, "c/x": d}
    assert "got none for ['c/w', 'c/x']" in message(found.check_coverage, trained)
    found.add(ALL_MODULES, "shared", adam(), [c, d])
    found.check_coverage(trained)
    assert found.has(c) and not found.has(variable("c/w"))


def test_removing_a_module_touches_no_other_bit():
    own, kept, gone = variable("a/w"), variable("b/w"), variable("a/x")
    found = OptimizerRegistry()
    found.add("a", "net", adam(), [own])
    entry = found.add(ALL_MODULES, "shared", K.Adam(0.1), [gone, kept])
    lonely = variable("a/y")
    found.add(ALL_MODULES, "lonely", adam(), [lonely])
    entry.apply(ones([gone, kept]), [gone, kept])
    before = {k: v.numpy() for k, v in entry.variables().items()}
    found.remove_module("a", [own, gone, lonely])
    assert [(m, n) for m, n, _ in found.entries()] == [(ALL_MODULES, "shared")]
    after = {k: v.numpy() for k, v in entry.variables().items()}
    assert sorted(after) == ["iterations", "learning_rate", "m/b/w", "v/b/w"]
    for k, v in after.items():
        np.testing.assert_array_equal(v, before[k])
    value = kept.numpy()
    entry.apply(ones([kept]), [kept])
    assert not np.array_equal(value, kept.numpy())
    assert "got a/x:0" in message(entry.apply, ones([gone]), [gone])


def test_a_view_can_be_added_to_apart():
    _, found = registry()
    view = found.view()
    view.add("c", "net", adam(), [variable("c/w")])
    assert len(found.entries()) == 2 and len(view.entries()) == 3
    assert view.entry("a") is found.entry("a")


def test_a_copy_has_its_own_variables_and_the_schedule():
    w = variable("a/w")
    found = OptimizerRegistry()
    found.add("a", "net", K.AdamW(0.1, weight_decay=0.02), [w], [[0, 0.1], [10, 0.0]])
    mirror = variable("a/w")
    other = found.copy({w.ref(): mirror}).entry("a", "net")
    assert other.params == (mirror,)
    assert other.optimizer.weight_decay == 0.02
    np.testing.assert_allclose(other.schedule(tf.constant(5, tf.int64)), 0.05)
    np.testing.assert_allclose(found.entry("a").learning_rate, 0.1)
    assert sorted(other.variables()) == sorted(found.entry("a").variables())


_ON_TWO_REPLICAS = """
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tfrl.learners.optimizers import OptimizerEntry
K = tf.keras.optimizers
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for make in (lambda: K.SGD(0.5), lambda: K.legacy.SGD(0.5), K.AdamW, K.legacy.Adam):
    with strategy.scope():
        w = tf.Variable([1.0, 2.0], name="a/w", aggregation=tf.VariableAggregation.MEAN)
        entry = OptimizerEntry(make(), [w], [[0, 0.5], [10, 0.25]], prefix="a/")
    one = tf.Variable([1.0, 2.0], name="a/w")
    alone = OptimizerEntry(make(), [one], [[0, 0.5], [10, 0.25]], prefix="a/")

    @tf.function
    def step(entry_, w_, steps):
        entry_.learning_rate.assign(entry_.schedule(steps))
        def replica():
            entry_.apply([tf.constant([1.0, -1.0])], [w_])
        strategy.run(replica) if entry_ is entry else replica()

    for n in (0, 10, 10):
        step(entry, w, tf.constant(n, tf.int64))
        step(alone, one, tf.constant(n, tf.int64))
    for copy in strategy.experimental_local_results(w):
        np.testing.assert_array_equal(copy.numpy(), one.numpy())
    assert sorted(entry.variables()) == sorted(alone.variables()), entry.variables().keys()
    assert entry.variables()["iterations"].numpy() == 3
    assert not np.array_equal(one.numpy(), [1.0, 2.0])
print("equal")
"""


@pytest.mark.slow
def test_two_replicas_take_the_step_of_one():
    # Gradients are equal on both: with an aggregation the step would be twice as long.
    done = subprocess.run(
        [sys.executable, "-c", _ON_TWO_REPLICAS], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip().endswith("equal"), done.stderr[-3000:]
