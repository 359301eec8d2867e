"""Hand-written single-file OpenES on Pendulum: no library, no options, one XLA program.

The same sizes and the same task as `benchmarks.evolution`: a 2 x 16 tanh network, episodes of 200
steps, mirrored sampling, centered ranks, Adam.
"""

import math
from typing import Any

import tensorflow as tf

SIZES = [(3, 16), (16, 16), (16, 1)]
STEPS, DT = 200, 0.05


def make_generations(population: int, sigma: float = 0.1, lr: float = 0.05) -> Any:
    """Returns `run(carried, n)`, which runs n generations, and the initial carry."""
    dim = sum(i * o + o for i, o in SIZES)

    def networks(flat: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
        parts = tf.split(flat, [n for i, o in SIZES for n in (i * o, o)], axis=1)
        return [
            (tf.reshape(parts[2 * k], [population, i, o]), parts[2 * k + 1])
            for k, (i, o) in enumerate(SIZES)
        ]

    def returns(flat: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        layers = networks(flat)
        start = tf.random.stateless_uniform([population, 2], seed, -1.0, 1.0)
        theta, speed = start[:, 0] * math.pi, start[:, 1]

        def step(t: Any, theta: Any, speed: Any, total: Any) -> Any:
            x = tf.stack([tf.cos(theta), tf.sin(theta), speed], axis=1)
            for kernel, bias in layers:
                x = tf.tanh(tf.einsum("pi,pio->po", x, kernel) + bias)
            torque = 2.0 * x[:, 0]
            angle = tf.math.floormod(theta + math.pi, 2 * math.pi) - math.pi
            cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
            speed = speed + (15.0 * tf.sin(theta) + 3.0 * torque) * DT
            speed = tf.clip_by_value(speed, -8.0, 8.0)
            return t + 1, theta + speed * DT, speed, total - cost

        zeros = tf.zeros([population])
        return tf.while_loop(
            lambda t, *_: t < STEPS, step, (0, theta, speed, zeros), maximum_iterations=STEPS
        )[-1]

    def generation(carried: Any) -> Any:
        mean, m, v, t, fitness = carried
        seed = tf.stack([tf.cast(t, tf.int32), 1])
        half = tf.random.stateless_normal([population // 2, dim], seed)
        noise = tf.concat([half, -half], 0)
        fitness = returns(mean + sigma * noise, seed + 7)
        ranks = tf.cast(tf.argsort(tf.argsort(fitness)), tf.float32) / (population - 1.0) - 0.5
        gradient = tf.linalg.matvec(noise, ranks, transpose_a=True) / (population * sigma)
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        t += 1.0
        rate = lr * tf.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        return mean + rate * m / (tf.sqrt(v) + 1e-5), m, v, t, fitness

    @tf.function(jit_compile=True, autograph=False)
    def run(carried: Any, n: tf.Tensor) -> Any:
        def body(i: tf.Tensor, carried: Any) -> Any:
            return i + 1, generation(carried)

        return tf.while_loop(lambda i, _: i < n, body, (0, carried))[1]

    zeros = tf.zeros([dim])
    begin = 0.1 * tf.random.stateless_normal([dim], [0, 0])
    return run, (begin, zeros, zeros, tf.constant(0.0), tf.zeros([population]))
