"""Functions to search the greatest value of, and how a search is run on them."""

import functools

import numpy as np
import tensorflow as tf

from tfrl import seeding


def sphere(x):
    """-sum x^2 of vectors [..., D], greatest at 0."""
    return -tf.reduce_sum(tf.square(x), axis=-1)


def rosenbrock(x):
    """Minus Rosenbrock's valley, greatest at 1."""
    a, b = x[..., :-1], x[..., 1:]
    return -tf.reduce_sum(100.0 * tf.square(b - a * a) + tf.square(1.0 - a), axis=-1)


def rastrigin(x):
    """Minus Rastrigin's function, greatest at 0 among many hills."""
    return -tf.reduce_sum(tf.square(x) - 10.0 * tf.cos(2 * np.pi * x) + 10.0, axis=-1)


@functools.lru_cache(maxsize=32)
def _search(optimizer, function):
    """A whole search to a target as one compiled loop, traced once for all seeds."""

    @tf.function(autograph=False)
    def search(state, target, most):
        def body(state, best):
            population, state = optimizer.ask(state)
            fitness = function(population)
            return optimizer.tell(state, fitness), tf.maximum(best, tf.reduce_max(fitness))

        return tf.while_loop(
            lambda state, best: (best < target) & (state.generation < most),
            body,
            (state, tf.constant(-float("inf"))),
        )

    return search


def evaluations_to(optimizer, function, mean, target, seed, most=2_000):
    """Returns how many evaluations come before a candidate reaches the target; None if none does.

    A generation counts whole.
    """
    state = optimizer.init(tf.constant(mean, tf.float32), seeding.key(seed))
    target, most = tf.constant(target, tf.float32), tf.constant(most, tf.int64)
    state, best = _search(optimizer, function)(state, target, most)
    return int(state.generation) * optimizer.pop_size if best >= target else None


def told(optimizer, function, mean, generations=3, seed=0):
    """Returns the populations of some generations and the states after them."""
    state = optimizer.init(tf.constant(mean, tf.float32), seeding.key(seed))
    populations, states = [], []
    for _ in range(generations):
        population, state = optimizer.ask(state)
        state = optimizer.tell(state, function(population))
        populations.append(population.numpy())
        states.append(state)
    return populations, states
