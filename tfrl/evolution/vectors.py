"""Nests of parameters as vectors, and back."""

import math
from typing import Any

import tensorflow as tf

from tfrl.types import Nest


def ravel(params: Nest, *, batch_dims: int = 0) -> tf.Tensor:
    """Concatenates the leaves of a nest to vectors.

    Args:
      params: Leaves float32 `[*batch, ...]`, in the order of `tf.nest.flatten`.
      batch_dims: The rank of the batch: 0 for one nest, 1 for a population.

    Returns:
      float32 `[*batch, D]`, D the number of elements of one nest.
    """
    leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(params)]
    flat = [tf.reshape(x, [*x.shape[:batch_dims], math.prod(x.shape[batch_dims:])]) for x in leaves]
    return tf.concat(flat, axis=-1)


def unravel(vectors: tf.Tensor, like: Nest) -> Nest:
    """Splits vectors into nests; the inverse of `ravel`.

    Args:
      vectors: float32 `[*batch, D]`.
      like: A nest with the structure and shapes of one result.

    Returns:
      A nest with leaves `[*batch, ...]`.
    """
    shapes: list[Any] = [list(leaf.shape) for leaf in tf.nest.flatten(like)]
    parts = tf.split(vectors, [math.prod(shape) for shape in shapes], axis=-1)
    batch = list(vectors.shape[:-1])
    leaves = [tf.reshape(part, [*batch, *shape]) for part, shape in zip(parts, shapes, strict=True)]
    return tf.nest.pack_sequence_as(like, leaves)
