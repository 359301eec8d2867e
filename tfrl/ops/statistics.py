"""Running mean and variance of nests of observations, with masks, weights and a merge.

The counts and moments are kept in float64: in float32 a count stops growing at 2^24 rows, and the
sum of squared deviations stops at about 1e7 times a batch's. They are small; the rows themselves
are reduced in float32, as deviations from the batch's mean, and `mean`, `std` and `normalize`
return float32.

A single wrong value must not ruin them: values far outside the running scale are clipped, see
`update`.

Leaves of a nest that are not floating point (uint8 pixels, class indices, flags) have no statistics
and pass through `normalize` and `denormalize` unchanged.
"""

import math
from typing import Any

import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError
from tfrl.ops import _rows
from tfrl.ops._rows import expand

Nest = Any

# Scales from the mean beyond which a value is an outlier, and the clipped distance.
OUTLIER_SCALES, COUNTED_SCALES = 30.0, 5.0
# Above this, values are squared in units of 2^80, since float32 squares overflow at 2^64.
_LARGE, _UNIT = 2.0**50, 2.0**80
_LARGEST_LOG = math.log(tf.float32.max) - 1e-3


@struct.dataclass
class RunningStatistics(struct.Struct):
    """Moments of the rows seen so far.

    Attributes:
      count: float64 scalar, number of rows or sum of their weights; exact up to 2^53 rows.
      mean: Nest like the spec, float64 [*shape].
      m2: Nest like the spec, float64 [*shape], sum of squared deviations from the mean.
    """

    count: tf.Tensor
    mean: Nest
    m2: Nest


def init(spec: Nest) -> RunningStatistics:
    """Makes statistics of no rows; they normalise to the identity.

    Args:
      spec: Nest of `tf.TensorSpec`, of one row.

    Returns:
      Statistics with count 0.
    """

    def zeros(leaf: tf.TensorSpec) -> tf.Tensor:
        # A leaf without statistics keeps its rank, with size 0.
        shape = leaf.shape if leaf.dtype.is_floating else [0] * leaf.shape.rank
        return tf.zeros(shape, tf.float64)

    return RunningStatistics(
        count=tf.zeros([], tf.float64),
        mean=tf.nest.map_structure(zeros, spec),
        m2=tf.nest.map_structure(zeros, spec),
    )


def update(
    stats: RunningStatistics,
    batch: Nest,
    mask: Any = None,
    weights: Any = None,
    usual: float = 1.0,
) -> RunningStatistics:
    """Adds the rows of a batch, over all its leading axes.

      n' = n + n_b,  mean' = mean + (mean_b - mean) n_b / n',
      m2' = m2 + m2_b + (mean_b - mean)^2 n n_b / n'

    Source: Chan, Golub and LeVeque 1983,
    https://doi.org/10.1080/00031305.1983.10483115.

    A value x further than 30 s (and 30 times `usual`) from the mean is clipped to 5 s, and a
    non-finite one counts as the mean. The scale s is the largest of 1, the running standard
    deviation, and the geometric mean of max(|x' - mean|, 1) over the other rows x' of the batch. So
    a single value of 1e20 has little effect, but the statistics follow data to a new scale: at once
    if most rows of a batch move, else row by row if more than one in 25 does. Non-finite moments,
    of an earlier version, are reset.

    Args:
      stats: The statistics before.
      batch: Nest of [..., *shape], all leaves with the same leading axes.
      mask: bool [...], True for valid rows, or None.
      weights: float32 [...] of the rows, at least 0, or None for 1 each.
      usual: A normal distance from the mean.

    Returns:
      The updated statistics; an all-False mask changes nothing.

    Raises:
      UserError: When structures or leading axes do not fit.
    """
    stats = _finite(stats)
    return merge(stats, _of_batch(stats, batch, mask, weights, usual))


def limited(
    stats: RunningStatistics, batch: Nest, mask: Any = None, usual: float = 1.0
) -> tuple[Nest, list[tf.Tensor]]:
    """Returns the values of a batch after `update`'s clipping.

    Args:
      stats: The statistics before the batch.
      batch: As for `update`.
      mask: As for `update`.
      usual: As for `update`.

    Returns:
      The batch, and for each leaf with statistics bool [..., *shape], True where it was clipped;
      False where masked.
    """
    stats = _finite(stats)
    flags = None if mask is None else _rows.flag("mask", mask)
    values, outliers = [], []
    leaves = zip(*map(tf.nest.flatten, (batch, stats.mean, stats.m2)), strict=True)
    for x, mean, m2 in leaves:
        x = tf.convert_to_tensor(x)
        if x.dtype.is_floating:
            deviation = _deviation(m2, stats.count)
            x, outlier = _limited(tf.cast(x, tf.float32), mean, deviation, flags, usual)
            outliers.append(_rows.select(flags, outlier))
        values.append(x)
    return tf.nest.pack_sequence_as(batch, values), outliers


def count_outliers(stats: RunningStatistics, batch: Nest, mask: Any = None) -> tf.Tensor:
    """Returns the number of values that `limited` changes, int64; same arguments."""
    counts = [tf.math.count_nonzero(flags) for flags in limited(stats, batch, mask)[1]]
    return tf.add_n(counts) if counts else tf.zeros([], tf.int64)


def _finite(stats: RunningStatistics) -> RunningStatistics:
    """The statistics, with mean 0 and variance 1 instead of non-finite moments."""
    known = tf.nest.map_structure(
        lambda m, s: tf.math.is_finite(m) & tf.math.is_finite(s), stats.mean, stats.m2
    )
    mean = tf.nest.map_structure(lambda k, m: tf.where(k, m, 0.0), known, stats.mean)
    m2 = tf.nest.map_structure(lambda k, s: tf.where(k, s, stats.count), known, stats.m2)
    return RunningStatistics(count=stats.count, mean=mean, m2=m2)


def _deviation(m2: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """The standard deviation, float64; 0 before the first row."""
    return tf.sqrt(m2 / tf.maximum(count, 1.0))


def _limited(
    x: tf.Tensor, mean: tf.Tensor, deviation: tf.Tensor, mask: tf.Tensor | None, usual: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """The clipped values of a leaf, and where clipping changed them; see `update`.

    Args:
      x: float32 [..., *shape].
      mean: float64 [*shape], of the rows before.
      deviation: float64 [*shape].
      mask: bool [...], or None.
      usual: See `update`.
    """
    axes = list(range(x.shape.rank - mean.shape.rank))
    leading = tf.reduce_prod(tf.shape(x)[: len(axes)])
    rows = tf.cast(leading if mask is None else tf.math.count_nonzero(mask), tf.float32)
    centre = tf.cast(mean, tf.float32)
    finite = tf.math.is_finite(x)
    offset = tf.where(finite, x - centre, 0.0)
    # In logarithms, to avoid overflow; sums exclude the row itself.
    size = tf.math.log(tf.clip_by_value(tf.abs(offset), 1.0, tf.float32.max))
    size = _rows.select(mask, size)
    others = (tf.reduce_sum(size, axis=axes) - size) / tf.maximum(rows - 1.0, 1.0)
    own = tf.cast(tf.math.log(tf.maximum(deviation, 1.0)), tf.float32)
    scale = tf.maximum(own, others)
    beyond = tf.maximum(scale, math.log(usual)) + math.log(OUTLIER_SCALES)
    outlier = ~finite | (size > beyond)
    distance = tf.exp(tf.minimum(scale + math.log(COUNTED_SCALES), _LARGEST_LOG))
    return tf.where(outlier, centre + tf.sign(offset) * distance, x), outlier


def _of_batch(
    stats: RunningStatistics, batch: Nest, mask: Any, weights: Any, usual: float
) -> RunningStatistics:
    """Statistics of the batch alone; `stats` gives the scales, the structure and the ranks."""
    leaves, means = struct.paths(batch), struct.paths(stats.mean)
    if list(leaves) != list(means):
        raise UserError(
            "batch",
            expected=f"the leaves of the statistics ({', '.join(means)})",
            got=", ".join(leaves) or "none",
        )
    tensors = {path: tf.convert_to_tensor(x) for path, x in leaves.items()}
    weight = _row_weights(tensors, means, mask, weights)
    kept = None if mask is None else _rows.flag("mask", mask)
    total = tf.reduce_sum(tf.cast(weight, tf.float64))
    deviations = {path: _deviation(m2, stats.count) for path, m2 in struct.paths(stats.m2).items()}
    moments = [
        _moments(x, means[path], deviations[path], weight, total, kept, usual)
        for path, x in tensors.items()
    ]
    return RunningStatistics(
        count=total,
        mean=tf.nest.pack_sequence_as(stats.mean, [m for m, _ in moments]),
        m2=tf.nest.pack_sequence_as(stats.m2, [m for _, m in moments]),
    )


def _row_weights(
    tensors: dict[str, tf.Tensor], means: dict[str, Any], mask: Any, weights: Any
) -> tf.Tensor:
    """The float32 weight of each row, 0 where masked; checks the leading axes of all leaves."""
    first, x = next(iter(tensors.items()))
    axes = x.shape.rank - means[first].shape.rank
    rows = x.shape[:axes]
    for path, leaf in tensors.items():
        leading = leaf.shape[: max(0, leaf.shape.rank - means[path].shape.rank)]
        names = (f"leading axes of batch/{first}", f"leading axes of batch/{path}")
        checks.same_shape(names, (tf.TensorSpec(rows), tf.TensorSpec(leading)))
    weight = tf.ones(tf.shape(x)[:axes], tf.float32)
    if weights is not None:
        weight = _rows.floats("weights", weights)
        checks.same_shape((names[0], "weights"), (tf.TensorSpec(rows), weight))
    if mask is None:
        return weight
    mask = _rows.flag("mask", mask)
    checks.same_shape((names[0], "mask"), (tf.TensorSpec(rows), mask))
    return _rows.select(mask, weight)


def _moments(
    x: tf.Tensor,
    mean: tf.Tensor,
    deviation: tf.Tensor,
    weight: tf.Tensor,
    total: tf.Tensor,
    mask: tf.Tensor | None,
    usual: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and sum of squared deviations of one leaf of a batch, float64.

    The mean and the deviation are of the earlier rows.
    """
    if not x.dtype.is_floating:
        return tf.zeros_like(mean), tf.zeros_like(mean)
    x = _limited(_rows.select(mask, tf.cast(x, tf.float32)), mean, deviation, mask, usual)[0]
    weight = expand(weight, x.shape.rank)
    axes = list(range(x.shape.rank - mean.shape.rank))
    # Powers of two change no bit.
    large = tf.reduce_max(tf.abs(x), axis=axes) > _LARGE
    unit = tf.where(large, tf.constant(_UNIT, tf.float64), 1.0)
    x *= tf.cast(1.0 / unit, tf.float32)
    share = weight / tf.cast(tf.where(total > 0.0, total, tf.ones_like(total)), tf.float32)
    # The mean of the deviations corrects rounding in the first mean.
    centre = tf.reduce_sum(share * x, axis=axes)
    deviation = x - centre
    rest = tf.reduce_sum(share * deviation, axis=axes)
    m2 = tf.reduce_sum(weight * tf.square(deviation - rest), axis=axes)
    mean = tf.cast(centre, tf.float64) + tf.cast(rest, tf.float64)
    return mean * unit, tf.cast(m2, tf.float64) * tf.square(unit)


def merge(a: RunningStatistics, b: RunningStatistics) -> RunningStatistics:
    """Joins the statistics of two sets of rows; see `update` for the equations.

    Args:
      a: Statistics of some rows.
      b: Statistics of other rows.

    Returns:
      The statistics of all of them.
    """
    count = a.count + b.count
    share = b.count / tf.where(count > 0.0, count, tf.ones_like(count))
    mean = tf.nest.map_structure(lambda m, n: m + (n - m) * share, a.mean, b.mean)
    m2 = tf.nest.map_structure(
        lambda m, n, s, t: s + t + tf.square(n - m) * (a.count * share),
        a.mean, b.mean, a.m2, b.m2,
    )  # fmt: skip
    return RunningStatistics(count=count, mean=mean, m2=m2)


def difference(after: RunningStatistics, before: RunningStatistics) -> RunningStatistics:
    """Returns the statistics of the rows added in between; the inverse of `merge`.

    With d the difference: n_d = n' - n, mean_d = mean + (mean' - mean) n' / n_d,
    m2_d = m2' - m2 - (mean_d - mean)^2 n n_d / n'. The moments are float64, so about 1e-16 of the
    older sums is lost.

    Args:
      after: Statistics of all rows.
      before: Statistics of the first of them.

    Returns:
      The statistics of the other rows; empty if none were added.
    """
    count = after.count - before.count
    some = count > 0.0
    ratio = tf.where(some, after.count / tf.where(some, count, tf.ones_like(count)), 0.0)
    total = tf.where(after.count > 0.0, after.count, tf.ones_like(count))
    mean = tf.nest.map_structure(
        lambda m, n: tf.where(some, m + (n - m) * ratio, tf.zeros_like(m)), before.mean, after.mean
    )
    m2 = tf.nest.map_structure(
        lambda s, t, m, d: tf.where(
            some,
            tf.maximum(t - s - tf.square(d - m) * (before.count * count / total), 0.0),
            tf.zeros_like(s),
        ),
        before.m2, after.m2, before.mean, mean,
    )  # fmt: skip
    return RunningStatistics(count=count, mean=mean, m2=m2)


def merge_stacked(stacked: RunningStatistics) -> RunningStatistics:
    """Joins statistics that are stacked on a leading axis, as gathered from replicas.

      n = sum n_i,  mean = sum n_i mean_i / n,  m2 = sum m2_i + n_i (mean_i - mean)^2

    Each must cover different rows: gather the statistics of each replica's new rows
    (`update(init(spec), batch)`), join them, then `merge` them into the common statistics.

    Args:
      stacked: Statistics whose every leaf has a leading axis of the same size.

    Returns:
      The statistics of all rows, without the axis.
    """
    count = tf.reduce_sum(stacked.count)
    share = stacked.count / tf.where(count > 0.0, count, tf.ones_like(count))

    def joined_mean(mean: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(expand(share, mean.shape.rank) * mean, axis=0)

    def joined_m2(means: tf.Tensor, mean: tf.Tensor, m2: tf.Tensor) -> tf.Tensor:
        counts = expand(stacked.count, means.shape.rank)
        return tf.reduce_sum(m2 + counts * tf.square(means - mean), axis=0)

    mean = tf.nest.map_structure(joined_mean, stacked.mean)
    m2 = tf.nest.map_structure(joined_m2, stacked.mean, mean, stacked.m2)
    return RunningStatistics(count=count, mean=mean, m2=m2)


def mean(stats: RunningStatistics) -> Nest:
    """Returns the means, float32; 0 before the first row."""
    return tf.nest.map_structure(lambda m: tf.cast(m, tf.float32), stats.mean)


def variance(stats: RunningStatistics) -> Nest:
    """Returns the population variances m2 / count, float32; 1 before the first row.

    At most the largest float32.
    """
    any_rows = stats.count > 0.0
    count = tf.where(any_rows, stats.count, tf.ones_like(stats.count))

    def of_leaf(m2: tf.Tensor) -> tf.Tensor:
        value = tf.where(any_rows, m2 / count, tf.ones_like(m2))
        return tf.cast(tf.minimum(value, tf.float32.max), tf.float32)

    return tf.nest.map_structure(of_leaf, stats.m2)


def std(stats: RunningStatistics, min_std: float = 1e-6) -> Nest:
    """Returns the standard deviations, float32, at least `min_std`; 1 before the first row."""
    return tf.nest.map_structure(lambda v: tf.maximum(tf.sqrt(v), min_std), variance(stats))


def normalize(
    stats: RunningStatistics, x: Nest, clip: float | None = 10.0, min_std: float = 1e-6
) -> Nest:
    """Scales to mean 0 and standard deviation 1.

      clip((x - mean) / max(std, min_std), -clip, clip)

    Source: Andrychowicz et al. 2020 (observation normalisation), https://arxiv.org/abs/2006.05990.

    Args:
      stats: The statistics.
      x: Nest of [..., *shape]; leaves that are not floating point pass through.
      clip: Largest absolute value of the result, above 0, or None.
      min_std: Least standard deviation to divide by.

    Returns:
      Nest like x, of the same dtypes.

    Raises:
      UserError: When clip is not above 0.
    """
    checks.number("clip", clip, 0, closed=False, optional=True, remedy="Use None for no bound.")

    def scaled(leaf: Any, m: tf.Tensor, s: tf.Tensor) -> tf.Tensor:
        leaf = tf.convert_to_tensor(leaf)
        if not leaf.dtype.is_floating:
            return leaf
        y = (tf.cast(leaf, tf.float32) - m) / s
        if clip is not None:
            y = tf.clip_by_value(y, -clip, clip)
        return tf.cast(y, leaf.dtype)

    return tf.nest.map_structure(scaled, x, mean(stats), std(stats, min_std))


def denormalize(stats: RunningStatistics, x: Nest, min_std: float = 1e-6) -> Nest:
    """Undoes `normalize` where it did not clip.

      x max(std, min_std) + mean

    Args:
      stats: The statistics.
      x: Nest of [..., *shape]; leaves that are not floating point pass through.
      min_std: As given to `normalize`.

    Returns:
      Nest like x, of the same dtypes.
    """

    def unscaled(leaf: Any, m: tf.Tensor, s: tf.Tensor) -> tf.Tensor:
        leaf = tf.convert_to_tensor(leaf)
        if not leaf.dtype.is_floating:
            return leaf
        return tf.cast(tf.cast(leaf, tf.float32) * s + m, leaf.dtype)

    return tf.nest.map_structure(unscaled, x, mean(stats), std(stats, min_std))
