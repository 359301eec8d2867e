"""Weighted recombination of the best candidates."""

import math

import numpy as np
import tensorflow as tf


def best_first(candidates: tf.Tensor, fitness: tf.Tensor, num: int | None = None) -> tf.Tensor:
    """Sorts candidates [P, D] by descending fitness [P]; returns the first `num`, or all."""
    order = tf.argsort(fitness, direction="DESCENDING", stable=True)
    return tf.gather(candidates, order[:num])


def log_weights(num: int, start: float) -> np.ndarray:
    """Returns weights of the best candidates, float64 [num], best first.

    w_i = (log(start) - log(i)) / sum,  i = 1 .. num
    """
    raw = math.log(start) - np.log(np.arange(1, num + 1))
    return raw / raw.sum()


def combine(weights: np.ndarray | tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns sum_i w_i rows_i, float32 [D], of weights [K] and rows [K, D]."""
    return tf.linalg.matvec(rows, tf.cast(weights, tf.float32), transpose_a=True)
