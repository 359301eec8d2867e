"""The fingerprint of parameters, by which two runs are compared."""

import hashlib
from typing import Any

import numpy as np

from tfrl import struct


def params_digest(params: Any) -> str:
    """Returns the sha256 over the parameter bytes in sorted-name order.

    The names are the paths of `tfrl.struct.paths(params)`, sorted as Python sorts strings (by
    code point). The digest is taken over the concatenation of each leaf's values in row-major
    order, little-endian, in the leaf's own dtype; names, shapes and dtypes themselves are not
    part of it.

    Args:
      params: A nest of tensors, variables or arrays.

    Returns:
      64 lower-case hexadecimal digits.
    """
    digest = hashlib.sha256()
    for _, leaf in sorted(struct.paths(params).items()):
        array = np.asarray(leaf)
        little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        digest.update(little.tobytes(order="C"))
    return digest.hexdigest()
