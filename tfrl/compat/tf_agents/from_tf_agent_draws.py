"""Random draws of TF-Agents' code, from a key.

TF-Agents, TFP and Keras draw by TensorFlow's stateful operations, whose numbers no checkpoint
holds and which differ between eager, graph and XLA. They all call the functions of one module of
TensorFlow, so that for the time of a trace these can be made to draw from a key.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_random_ops

from tfrl import seeding

_LOCK = threading.RLock()


class _Draws:
    """The functions of `gen_random_ops`, with the same arguments; seeds are not read."""

    def __init__(self, key: tf.Tensor):
        self._key = key
        self._count = 0

    def _next(self) -> tf.Tensor:
        self._count += 1
        return seeding.fold_in(self._key, self._count)

    def random_uniform(
        self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: Any = None
    ) -> Any:
        return tf.cast(seeding.uniform(self._next(), shape), dtype)

    def random_uniform_int(
        self, shape: Any, minval: Any, maxval: Any, seed: int = 0, seed2: int = 0, name: Any = None
    ) -> Any:
        dtype = tf.convert_to_tensor(minval).dtype
        return tf.random.stateless_uniform(
            shape, self._next(), minval, maxval, dtype, alg=seeding.ALG
        )

    def random_standard_normal(
        self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: Any = None
    ) -> Any:
        return tf.cast(seeding.normal(self._next(), shape), dtype)

    def truncated_normal(
        self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: Any = None
    ) -> Any:
        return tf.random.stateless_truncated_normal(
            shape, self._next(), dtype=dtype, alg=seeding.ALG
        )

    def multinomial(
        self,
        logits: Any,
        num_samples: Any,
        seed: int = 0,
        seed2: int = 0,
        output_dtype: Any = tf.int64,
        name: Any = None,
    ) -> Any:
        logits = tf.convert_to_tensor(logits)  # [N, A]
        number = tf.get_static_value(num_samples)
        number = num_samples if number is None else number
        rows, actions = (logits.shape[i] or tf.shape(logits)[i] for i in range(2))
        u = seeding.uniform(self._next(), [rows, number, actions])
        gumbel = -tf.math.log(-tf.math.log(tf.maximum(u, 2.0**-25)))
        noisy = tf.cast(logits, tf.float32)[:, tf.newaxis] + gumbel
        return tf.argmax(noisy, axis=-1, output_type=output_dtype)

    def random_shuffle(self, value: Any, seed: int = 0, seed2: int = 0, name: Any = None) -> Any:
        value = tf.convert_to_tensor(value)
        draws = seeding.uniform(self._next(), [value.shape[0] or tf.shape(value)[0]])
        return tf.gather(value, tf.argsort(draws))

    def random_gamma(
        self, shape: Any, alpha: Any, seed: int = 0, seed2: int = 0, name: Any = None
    ) -> Any:
        alpha = tf.convert_to_tensor(alpha)
        whole = tf.concat([shape, tf.shape(alpha)], 0)
        return tf.random.stateless_gamma(whole, self._next(), alpha, dtype=alpha.dtype)

    def random_poisson_v2(
        self,
        shape: Any,
        rate: Any,
        seed: int = 0,
        seed2: int = 0,
        dtype: Any = tf.int64,
        name: Any = None,
    ) -> Any:
        rate = tf.convert_to_tensor(rate)
        whole = tf.concat([shape, tf.shape(rate)], 0)
        return tf.random.stateless_poisson(whole, self._next(), rate, dtype=dtype)


_NAMES = [name for name in vars(_Draws) if not name.startswith("_")]


@contextlib.contextmanager
def drawn_from(key: tf.Tensor) -> Iterator[None]:
    """Makes this thread's stateful random operations draw from a key, the first from child 1.

    A draw in the body of a `tf.while_loop` is traced once, and so the same in each pass.

    Args:
      key: int32 [2].
    """
    draws, me = _Draws(key), threading.get_ident()

    def here(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        mine = getattr(draws, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return (mine if threading.get_ident() == me else usual)(*args, **kwargs)

        return call

    with _replaced(gen_random_ops, _NAMES, here):
        yield


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Makes `tf.debugging.check_numerics` of this thread give back what it is given.

    TF-Agents' training steps check their losses by it, which ends a program in graph mode and does
    nothing in XLA. The Learner has its own check, which undoes the step.
    """
    me = threading.get_ident()

    def here(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def check_numerics(tensor: Any, message: str, name: Any = None) -> Any:
            if threading.get_ident() == me:
                return tf.convert_to_tensor(tensor)
            return usual(tensor, message, name)

        return check_numerics

    with _replaced(tf.debugging, ["check_numerics"], here):
        yield


@contextlib.contextmanager
def _replaced(
    module: Any, names: list[str], made: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Puts `made(name, usual)` in the place of functions of a module."""
    with _LOCK:
        before = {name: getattr(module, name) for name in names}
        try:
            for name, usual in before.items():
                setattr(module, name, made(name, usual))
            yield
        finally:
            for name, usual in before.items():
                setattr(module, name, usual)
