"""Clipping against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tfrl.errors import UserError
from tfrl.learning.gradients import clip_gradients

GRADIENTS = [np.array([3.0, -4.0], np.float32), np.array([[12.0]], np.float32)]  # norms 5, 12; 13


def as_tensors():
    return [tf.constant(g) for g in GRADIENTS]


@pytest.mark.parametrize(
    ("limit", "by", "expected"),
    [
        (None, "global_norm", GRADIENTS),
        (6.5, "global_norm", [g / 2 for g in GRADIENTS]),
        (26.0, "global_norm", GRADIENTS),
        (6.0, "norm", [GRADIENTS[0], GRADIENTS[1] / 2]),
        (3.5, "value", [np.array([3.0, -3.5]), np.array([[3.5]])]),
    ],
)
def test_clip(limit, by, expected):
    clipped, norm = clip_gradients(as_tensors(), limit, by)
    assert float(norm) == pytest.approx(13.0)
    for have, want in zip(clipped, expected, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6)


def test_clipping_zeros_gives_zeros():
    clipped, norm = clip_gradients([tf.zeros([3])], 0.5)
    np.testing.assert_array_equal(clipped[0], np.zeros(3))
    assert float(norm) == 0.0


def test_unknown_clip_kind():
    with pytest.raises(UserError, match="grad_clip_by: expected one of global_norm, norm, value"):
        clip_gradients(as_tensors(), 1.0, "length")
