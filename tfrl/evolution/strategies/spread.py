"""Standard deviations and covariances within the limits of float32."""

import tensorflow as tf

# The squares of these bounds, and of the steps between them, are finite in float32.
_LEAST_STD, _GREATEST_STD = 1e-18, 1e18

# The bound of the log of the factor by which one generation changes a standard deviation. Sampled
# candidates do not reach it; injected candidates may.
_MOST_LOG_FACTOR = 3.0


def bounded_std(std: tf.Tensor) -> tf.Tensor:
    """Clips standard deviations to the range that float32 can square."""
    return tf.clip_by_value(std, _LEAST_STD, _GREATEST_STD)


def growth(log_factor: tf.Tensor) -> tf.Tensor:
    """Returns exp(log_factor), at most e^3 and at least e^-3."""
    return tf.exp(tf.clip_by_value(log_factor, -_MOST_LOG_FACTOR, _MOST_LOG_FACTOR))


def within_bounds(log_factors: tf.Tensor) -> tf.Tensor:
    """Scales logs of factors [D] to within +-3 if necessary; a sum of 0 stays one."""
    return log_factors * tf.minimum(1.0, _MOST_LOG_FACTOR / tf.reduce_max(tf.abs(log_factors)))


def spectral(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns ascending eigenvalues [D] and eigenvectors [D, D] (columns) of a symmetric matrix."""
    return tf.linalg.eigh((matrix + tf.transpose(matrix)) / 2.0)


def from_spectral(values: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    """Returns the symmetric matrix of eigenvalues and eigenvectors of any sign."""
    return tf.matmul(vectors * values, vectors, transpose_b=True)
