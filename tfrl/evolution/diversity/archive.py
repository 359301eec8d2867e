"""The grid archive: the fittest candidate of each cell of the descriptor space."""

import tensorflow as tf

from tfrl import struct


@struct.dataclass
class GridArchive(struct.Struct):
    """The elites of C cells, numbered row by row.

    Source: Mouret & Clune 2015, section 3, https://arxiv.org/abs/1504.04909.

    Attributes:
      params: float32 [C, D].
      fitness: float32 [C]; -inf for an empty cell.
      descriptors: float32 [C, K].
    """

    params: tf.Tensor
    fitness: tf.Tensor
    descriptors: tf.Tensor

    def insert(
        self, cells: tf.Tensor, params: tf.Tensor, fitness: tf.Tensor, descriptors: tf.Tensor
    ) -> "GridArchive":
        """Returns the archive with each cell's elite replaced by a fitter candidate.

        Among candidates of one cell with equal fitness, the first counts.

        Args:
          cells: int32 [P], the cell of each candidate.
          params: float32 [P, D].
          fitness: float32 [P]; -inf is never inserted.
          descriptors: float32 [P, K].
        """
        num, size = self.fitness.shape[0], fitness.shape[0]
        best = tf.math.unsorted_segment_max(fitness, cells, num)  # [C]
        rival = tf.where(fitness == tf.gather(best, cells), tf.range(size), size - 1)
        place = tf.minimum(tf.math.unsorted_segment_min(rival, cells, num), size - 1)
        finite = tf.cast(tf.math.is_finite(fitness), tf.int32)
        better = (best > self.fitness) & (tf.math.unsorted_segment_sum(finite, cells, num) > 0)

        def chosen(new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
            return tf.where(better[:, None], tf.gather(new, place), old)

        return GridArchive(
            params=chosen(params, self.params),
            fitness=tf.where(better, best, self.fitness),
            descriptors=chosen(descriptors, self.descriptors),
        )


def grid_cells(
    descriptors: tf.Tensor, grid: tuple[int, ...], bounds: tuple[tuple[float, float], ...]
) -> tf.Tensor:
    """Returns the cell of each descriptor; descriptors out of bounds belong to the edge.

    Args:
      descriptors: float32 [P, K], finite.
      grid: The number of cells per descriptor, K numbers.
      bounds: (low, high) by descriptor.

    Returns:
      int32 [P].
    """
    low, high = (tf.constant(limit, tf.float32) for limit in zip(*bounds, strict=True))
    counts = tf.constant(grid, tf.float32)
    share = tf.clip_by_value((descriptors - low) / (high - low), 0.0, 1.0)
    index = tf.cast(tf.minimum(tf.floor(share * counts), counts - 1.0), tf.int32)
    cells = tf.zeros(index.shape[:1], tf.int32)
    for k, count in enumerate(grid):
        cells = cells * count + index[:, k]
    return cells


def coverage(archive: GridArchive) -> tf.Tensor:
    """Returns the share of cells with an elite, float32 scalar."""
    return tf.reduce_mean(tf.cast(tf.math.is_finite(archive.fitness), tf.float32))


def qd_score(archive: GridArchive, offset: float = 0.0) -> tf.Tensor:
    """Returns the sum of the elites' fitness above an offset, float32 scalar.

    Source: Pugh et al. 2015, https://doi.org/10.1145/2739480.2754664.

    Args:
      archive: The archive.
      offset: The least possible fitness, so that no elite counts less than an empty cell.
    """
    known = tf.math.is_finite(archive.fitness)
    return tf.reduce_sum(tf.where(known, archive.fitness - offset, 0.0))
