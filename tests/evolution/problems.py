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


def tell(optimizer, state, population, function):
    """Tells the values of a function, with more objectives or descriptors where a search has them.

    The second and third objective are spheres around 1 and 2, the descriptors the first parameters.
    """
    fitness = function(population)
    if optimizer.num_objectives > 1:
        more = [sphere(population - i) for i in range(1, optimizer.num_objectives)]
        # Rounded: of two equal candidates, an error of the last bit lets one dominate the other.
        fitness = tf.round(100.0 * tf.stack([fitness, *more], axis=1)) / 100.0
    if hasattr(optimizer, "descriptor_bounds"):
        descriptors = population[:, : len(optimizer.grid)]
        return optimizer.tell(state, fitness, descriptors=descriptors)
    return optimizer.tell(state, fitness)


def evaluations_over(optimizer, function, firsts, target, most=1_000):
    """Returns the evaluations to the target from several first populations, compiled once for all.

    Args:
      optimizer: A search with its own state's `population`.
      function: Of the population.
      firsts: By seed, float [P, D] each.
      target: Fitness.
      most: Generations; None stands for a target that was not reached within them.
    """

    @tf.function(autograph=False)
    def search(state):
        def body(state, best):
            population, state = optimizer.ask(state)
            fitness = function(population)
            return optimizer.tell(state, fitness), tf.maximum(best, tf.reduce_max(fitness))

        return tf.while_loop(
            lambda state, best: (best < target) & (state.generation < most),
            body,
            (state, tf.constant(-float("inf"))),
        )

    found = []
    for seed, first in enumerate(firsts):
        state = optimizer.init(tf.zeros([first.shape[1]]), seeding.key(seed))
        population = tf.constant(first, tf.float32)
        state, best = search(state.replace(search=state.search.replace(population=population)))
        reached = float(best) >= target
        found.append(int(state.generation) * optimizer.pop_size if reached else None)
    return found


def evaluate_two(x):
    """Two objectives float32 [P, 2]: spheres around 0 and 1; the front is the line between."""
    x = tf.convert_to_tensor(x)
    return tf.stack([sphere(x), sphere(x - 1.0)], axis=1)
