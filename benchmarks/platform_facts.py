"""Facts behind the library's design, measured on the installed TensorFlow.

    python -m benchmarks.platform_facts

One JSON line per fact; docs/platforms.md has the table.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tfrl  # noqa: F401  (silences TensorFlow's start-up messages)

# isort: split
import tensorflow as tf

UNARY: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "add, multiply": lambda x: x * 1.7 + 0.3,
    "divide": lambda x: 1.0 / (x + 5.0),
    "sqrt": lambda x: tf.sqrt(tf.abs(x)),
    "exp": tf.exp,
    "log": lambda x: tf.math.log(tf.abs(x) + 0.1),
    "log1p": lambda x: tf.math.log1p(tf.abs(x)),
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "softplus": tf.nn.softplus,
    "sin": tf.sin,
    "erf": tf.math.erf,
    "softmax": tf.nn.softmax,
    "sum": lambda x: tf.reduce_sum(x, -1),
    "matmul": lambda x: tf.matmul(x, x, transpose_b=True),
    "cumsum": lambda x: tf.cumsum(x, -1),
}


def in_modes(fn: Callable[..., Any], *args: Any) -> dict[str, np.ndarray]:
    """Returns the result of a function in each mode."""
    modes = {
        "eager": fn,
        "graph": tf.function(fn, autograph=False),
        "xla": tf.function(fn, autograph=False, jit_compile=True),
    }
    return {name: np.asarray(call(*args)) for name, call in modes.items()}


def same_bits(fn: Callable[..., Any], *args: Any) -> dict[str, bool]:
    """Returns whether graph mode and XLA are bitwise equal to eager mode."""
    results = in_modes(fn, *args)
    return {
        mode: results[mode].tobytes() == results["eager"].tobytes() for mode in ("graph", "xla")
    }


def operations() -> dict[str, Any]:
    """Returns the operations that XLA computes bitwise equally, and the others."""
    x = tf.constant(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32) * 3)
    results = {name: same_bits(fn, x) for name, fn in UNARY.items()}
    return {
        "graph_differs": [n for n, same in results.items() if not same["graph"]],
        "xla_same": [n for n, same in results.items() if same["xla"]],
        "xla_differs": [n for n, same in results.items() if not same["xla"]],
    }


def philox() -> dict[str, Any]:
    """Returns whether Philox draws have the same bits in each mode."""
    seed = tf.constant([1, 2])

    def bits(seed: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_uniform(
            [1000], seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
        )

    def uniform(seed: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_uniform([1000], seed, alg="philox")

    def normal(seed: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_normal([1000], seed, alg="philox")

    from tfrl import seeding

    return {
        "integers": same_bits(bits, seed),
        "uniform": same_bits(uniform, seed),
        "normal": same_bits(normal, seed),
        "tfrl.seeding.uniform": same_bits(lambda s: seeding.uniform(s, [1000]), seed),
        "tfrl.seeding.normal": same_bits(lambda s: seeding.normal(s, [1000]), seed),
    }


def ring() -> dict[str, Any]:
    """Returns microseconds of adding a row to 100,000 and reading 256 of them, in both orders."""
    buffer = tf.Variable(tf.zeros([100_000, 32]), trainable=False)
    rows = tf.random.uniform([256], maxval=100_000, dtype=tf.int32)

    def add(i: tf.Tensor) -> None:
        buffer.scatter_update(tf.IndexedSlices(tf.ones([1, 32]), tf.reshape(i, [1])))

    def add_first(i: tf.Tensor) -> tf.Tensor:
        add(i)
        return tf.reduce_sum(tf.gather(buffer, rows))

    def read_first(i: tf.Tensor) -> tf.Tensor:
        total = tf.reduce_sum(tf.gather(buffer, rows))
        add(i)
        return total

    microseconds = {}
    for name, fn in (("add_then_read", add_first), ("read_then_add", read_first)):
        for jit in (False, True):

            def loop(n: tf.Tensor, fn: Callable[..., Any] = fn) -> tf.Tensor:
                return tf.while_loop(
                    lambda i, total: i < n, lambda i, total: (i + 1, total + fn(i)), [0, 0.0]
                )[1]

            call = tf.function(loop, autograph=False, jit_compile=jit)
            call(tf.constant(10))
            start = time.perf_counter()
            call(tf.constant(200))
            seconds = time.perf_counter() - start
            microseconds[f"{name}_{'xla' if jit else 'graph'}"] = round(seconds / 200 * 1e6, 1)
    return microseconds


def distributed_arguments() -> dict[str, Any]:
    """Returns whether a trace writes its mirrored-variable arguments, or the first ones."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        first, second = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function(autograph=False)
    def add(variable: Any) -> None:
        strategy.run(lambda: variable.assign_add(1.0, read_value=False))

    def plain(variable: tf.Variable) -> None:
        variable.assign_add(1.0)

    add(first)
    add(second)
    own = [tf.Variable(0.0), tf.Variable(0.0)]
    call = tf.function(plain, autograph=False)
    for variable in own:
        call(variable)
    return {
        "mirrored": [float(v.values[0]) for v in (first, second)],
        "plain": [float(v) for v in own],
    }


def xla_memory() -> dict[str, Any]:
    """Returns the MB that a small XLA program keeps."""

    def resident() -> float:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    weights = [tf.Variable(tf.ones([64, 64])) for _ in range(4)]

    def loss() -> tf.Tensor:
        y = tf.ones([8, 64])
        for w in weights:
            y = tf.tanh(y @ w)
        return tf.reduce_sum(y)

    def step(i: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            value = loss()
        for w, gradient in zip(weights, tape.gradient(value, weights), strict=True):
            w.assign_sub(gradient * 1e-3)
        return [i + 1]

    def make(number: int) -> None:
        @tf.function(autograph=False, jit_compile=True)
        def call() -> tf.Tensor:
            return tf.while_loop(lambda i: i < number, step, [0])

        call()

    for number in range(3):
        make(number)
    before = resident()
    for number in range(3, 23):
        make(number)
    return {"mb_a_program": round((resident() - before) / 20, 2)}


def main() -> None:
    """Prints the facts."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    for fact in (operations, philox, ring, distributed_arguments, xla_memory):
        row = {"fact": fact.__name__, "tensorflow": tf.__version__, **fact()}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
