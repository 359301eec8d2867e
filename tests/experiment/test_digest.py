import hashlib

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.experiment.metadata import params_digest


@struct.dataclass
class Params(struct.Struct):
    z: tf.Tensor
    a: dict


def test_bytes_in_sorted_name_order():
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    params = Params(z=tf.constant([1, 2], tf.int64), a={"k": tf.Variable(kernel), "B": np.uint8(7)})
    # Sorted by code point: "a/B" before "a/k" before "z".
    content = b"\x07" + kernel.astype("<f4").tobytes() + np.array([1, 2], "<i8").tobytes()
    assert params_digest(params) == hashlib.sha256(content).hexdigest()


def test_order_is_that_of_whole_paths():
    one, two = np.float32([1]), np.float32([2])
    # "a-b" sorts before "a/c" although the key "a" sorts before "a-b".
    digest = params_digest({"a": {"c": one}, "a-b": two})
    assert digest == hashlib.sha256(two.tobytes() + one.tobytes()).hexdigest()


def test_memory_layout_does_not_matter_and_values_do():
    array = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    digest = params_digest({"w": array})
    assert digest == params_digest({"w": np.asfortranarray(array)})
    assert digest == params_digest({"w": array.astype(">f4")})
    assert digest == params_digest({"w": tf.Variable(array)})
    changed = array.copy()
    changed[3, 4] = np.nextafter(changed[3, 4], np.float32(9))
    assert digest != params_digest({"w": changed})


def test_nothing():
    assert params_digest({}) == hashlib.sha256(b"").hexdigest()
