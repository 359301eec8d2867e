"""The TensorFlow operations supported by `NumpyProgram`, each as one NumPy function.

Each entry turns a graph node into a function of its input values. The node's attributes (axes,
dtypes, transposition) are read once, when the program is made.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

# maker(op) -> function of the input arrays; several outputs come as a tuple.
Maker = Callable[[tf.Operation], Callable[..., Any]]


def _known(op: tf.Operation, index: int) -> Any:
    """The value of a constant input (int or list of ints), or None."""
    value = tf.get_static_value(op.inputs[index])
    return None if value is None else value.tolist()


def _plain(fn: Callable[..., Any]) -> Maker:
    return lambda op: fn


def _sigmoid(op: tf.Operation) -> Callable[..., Any]:
    # Constants in arrays and results in place: a Python number costs a microsecond per operation.
    half, one = (np.array(x, op.outputs[0].dtype.as_numpy_dtype) for x in (0.5, 1))

    def sigmoid(x: np.ndarray) -> np.ndarray:
        y = np.asarray(np.multiply(x, half))
        np.tanh(y, y)
        np.add(y, one, y)
        return np.multiply(y, half, y)

    return sigmoid


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, np.zeros((), x.dtype))


def _log_softmax(x: np.ndarray) -> np.ndarray:
    # The ufuncs' own methods: np.max and np.sum take two microseconds more.
    shifted = x - np.maximum.reduce(x, -1, keepdims=True)
    return shifted - np.log(np.add.reduce(np.exp(shifted), -1, keepdims=True))


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - np.maximum.reduce(x, -1, keepdims=True))
    return e / np.add.reduce(e, -1, keepdims=True)


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _selu(x: np.ndarray) -> np.ndarray:
    # The constants of Klambauer et al. 2017, https://arxiv.org/abs/1706.02515, appendix A.1.4.
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    return (scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))).astype(x.dtype)


def _leaky_relu(op: tf.Operation) -> Callable[..., Any]:
    slope = np.float32(op.get_attr("alpha"))
    return lambda x: np.where(x > 0, x, slope * x)


def _matmul(op: tf.Operation) -> Callable[..., Any]:
    batched = op.type != "MatMul"
    names = ("adj_x", "adj_y") if batched else ("transpose_a", "transpose_b")
    left, right = (op.get_attr(n) for n in names)
    if not left and not right:
        if batched:
            return np.matmul
        return np.dot  # half a microsecond less

    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a = np.swapaxes(a, -1, -2) if left else a
        return np.matmul(a, np.swapaxes(b, -1, -2) if right else b)

    return matmul


def _reduction(fn: np.ufunc) -> Maker:
    def make(op: tf.Operation) -> Callable[..., Any]:
        keep = op.get_attr("keep_dims")
        # NumPy would sum int32 in int64.
        dtype = op.outputs[0].dtype.as_numpy_dtype
        known = _known(op, 1)
        if known is not None:
            along = tuple(known) if isinstance(known, list) else known
            along = along[0] if isinstance(along, tuple) and len(along) == 1 else along
            return lambda x, _: fn.reduce(x, along, dtype, None, keep)

        def reduce(x: np.ndarray, axis: np.ndarray) -> np.ndarray:
            axes = tuple(axis.tolist()) if axis.ndim else int(axis)
            return fn.reduce(x, axis=axes, dtype=dtype, keepdims=keep)

        return reduce

    return make


def _mean(op: tf.Operation) -> Callable[..., Any]:
    keep = op.get_attr("keep_dims")

    def mean(x: np.ndarray, axis: np.ndarray) -> np.ndarray:
        return np.mean(x, axis=tuple(np.ravel(axis).tolist()), keepdims=keep)

    return mean


def _all_or_any(fn: np.ufunc) -> Maker:
    def make(op: tf.Operation) -> Callable[..., Any]:
        keep = op.get_attr("keep_dims")
        return lambda x, axis: fn.reduce(x, axis=tuple(np.ravel(axis).tolist()), keepdims=keep)

    return make


def _cumsum(op: tf.Operation) -> Callable[..., Any]:
    if op.get_attr("exclusive") or op.get_attr("reverse"):
        raise NotImplementedError("exclusive or reverse Cumsum")
    dtype = op.outputs[0].dtype.as_numpy_dtype
    return lambda x, axis: np.add.accumulate(x, int(axis), dtype)


def _cast(op: tf.Operation) -> Callable[..., Any]:
    dtype = op.outputs[0].dtype.as_numpy_dtype
    return lambda x: x.astype(dtype)


def _reshape(x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    return x.reshape(tuple(int(n) for n in shape))


def _squeeze(op: tf.Operation) -> Callable[..., Any]:
    axes = tuple(op.get_attr("squeeze_dims")) or None
    return lambda x: np.squeeze(x, axes)


def _concat(*args: np.ndarray) -> np.ndarray:
    return np.concatenate(args[:-1], int(args[-1]))


def _stack(op: tf.Operation) -> Callable[..., Any]:
    axis = op.get_attr("axis")
    return lambda *xs: np.stack(xs, axis)


def _unstack(op: tf.Operation) -> Callable[..., Any]:
    axis = op.get_attr("axis")
    return lambda x: tuple(np.moveaxis(x, axis, 0))


def _split(op: tf.Operation) -> Callable[..., Any]:
    count, axis, shape = op.get_attr("num_split"), _known(op, 0), op.inputs[1].shape
    if axis is None or not shape.rank or shape[axis] is None:
        return lambda axis, x: tuple(np.split(x, count, int(axis)))
    size, before = shape[axis] // count, (slice(None),) * (axis % shape.rank)
    parts = [(*before, slice(i * size, (i + 1) * size)) for i in range(count)]
    return lambda _, x: [x[part] for part in parts]  # np.split takes six microseconds


def _split_sizes(x: np.ndarray, sizes: np.ndarray, axis: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.split(x, np.cumsum(sizes)[:-1], int(axis)))


def _strided_slice(op: tf.Operation) -> Callable[..., Any]:
    masks = {n: op.get_attr(f"{n}_mask") for n in ("begin", "end", "shrink_axis", "new_axis")}
    if op.get_attr("ellipsis_mask"):
        return _sliced_from_the_right(op, masks)
    known = [_known(op, i) for i in (1, 2, 3)]
    if None not in known:
        where = tuple(_index(masks, i, *known) for i in range(len(known[0])))
        return lambda x, *_: x[where]

    def cut(x: np.ndarray, begin: Any, end: Any, stride: Any) -> np.ndarray:
        return x[tuple(_index(masks, i, begin, end, stride) for i in range(len(begin)))]

    return cut


def _sliced_from_the_right(op: tf.Operation, masks: dict[str, int]) -> Callable[..., Any]:
    at = op.get_attr("ellipsis_mask").bit_length() - 1
    known = [_known(op, i) for i in (1, 2, 3)]
    if None not in known:
        where = [_index(masks, i, *known) for i in range(len(known[0]))]
        where[at] = Ellipsis
        return lambda x, *_: x[tuple(where)]

    def cut(x: np.ndarray, begin: Any, end: Any, stride: Any) -> np.ndarray:
        index = [_index(masks, i, begin, end, stride) for i in range(len(begin))]
        index[at] = Ellipsis
        return x[tuple(index)]

    return cut


def _index(masks: dict[str, int], i: int, begin: Any, end: Any, stride: Any) -> Any:
    if masks["new_axis"] >> i & 1:
        return np.newaxis
    if masks["shrink_axis"] >> i & 1:
        return int(begin[i])
    first = None if masks["begin"] >> i & 1 else int(begin[i])
    last = None if masks["end"] >> i & 1 else int(end[i])
    return slice(first, last, int(stride[i]))


def _slice(x: np.ndarray, begin: np.ndarray, size: np.ndarray) -> np.ndarray:
    pairs = zip(begin.tolist(), size.tolist(), strict=True)
    return x[tuple(slice(b, None if n < 0 else b + n) for b, n in pairs)]


def _gather(op: tf.Operation) -> Callable[..., Any]:
    if op.get_attr("batch_dims"):
        raise NotImplementedError("GatherV2 with batch_dims")
    return lambda x, index, axis: np.take(x, index, int(axis))


def _argmax(op: tf.Operation) -> Callable[..., Any]:
    dtype, axis = op.outputs[0].dtype.as_numpy_dtype, _known(op, 1)
    if axis is not None:
        return lambda x, _: x.argmax(axis).astype(dtype, copy=False)
    return lambda x, axis: np.argmax(x, int(axis)).astype(dtype)


def _one_hot(op: tf.Operation) -> Callable[..., Any]:
    if op.get_attr("axis") != -1:
        raise NotImplementedError("OneHot on an axis other than the last")
    depth = _known(op, 1)
    if depth is not None:
        places = np.arange(depth, dtype=op.inputs[0].dtype.as_numpy_dtype)
        kind = op.outputs[0].dtype.as_numpy_dtype
        if [_known(op, i) for i in (2, 3)] == [1, 0]:
            return lambda index, *_: (index[..., np.newaxis] == places).astype(kind)

    def one_hot(index: np.ndarray, depth: np.ndarray, on: Any, off: Any) -> np.ndarray:
        hot = index[..., np.newaxis] == np.arange(int(depth), dtype=index.dtype)
        return np.where(hot, on, off)

    return one_hot


def _shape(op: tf.Operation) -> Callable[..., Any]:
    dtype = op.outputs[0].dtype.as_numpy_dtype
    return lambda x: np.array(x.shape, dtype)


def _add_n(*xs: np.ndarray) -> np.ndarray:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def _clip(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)


def _bias_add(op: tf.Operation) -> Callable[..., Any]:
    if op.get_attr("data_format") not in (b"NHWC", "NHWC"):
        raise NotImplementedError("BiasAdd with channels first")
    return np.add


# Operations whose function returns a tuple, even for one value.
IN_TUPLES = ("Split", "SplitV", "Unpack")

OPS: dict[str, Maker] = {
    **dict.fromkeys(("Identity", "StopGradient", "EnsureShape"), _plain(lambda x, *_: x)),
    **dict.fromkeys(("Add", "AddV2"), _plain(np.add)),
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "BatchMatMul"), _matmul),
    **dict.fromkeys(("Select", "SelectV2"), _plain(np.where)),
    "Abs": _plain(np.abs),
    "All": _all_or_any(np.logical_and),
    "Any": _all_or_any(np.logical_or),
    "AddN": _plain(_add_n),
    "ArgMax": _argmax,
    "Atanh": _plain(np.arctanh),
    "BiasAdd": _bias_add,
    "BroadcastArgs": _plain(
        lambda x, y: np.array(np.broadcast_shapes(tuple(x), tuple(y)), x.dtype)
    ),
    "BroadcastTo": _plain(lambda x, shape: np.broadcast_to(x, tuple(shape))),
    "Cast": _cast,
    "ClipByValue": _plain(_clip),
    "ConcatV2": _plain(_concat),
    "Cumsum": _cumsum,
    "Elu": _plain(_elu),
    "Equal": _plain(np.equal),
    "Exp": _plain(np.exp),
    "ExpandDims": _plain(lambda x, axis: np.expand_dims(x, int(axis))),
    "Expm1": _plain(np.expm1),
    "Fill": _plain(lambda shape, x: np.full(tuple(shape), x)),
    "Floor": _plain(np.floor),
    "GatherV2": _gather,
    "Greater": _plain(np.greater),
    "GreaterEqual": _plain(np.greater_equal),
    "IsFinite": _plain(np.isfinite),
    "IsNan": _plain(np.isnan),
    "LeakyRelu": _leaky_relu,
    "Less": _plain(np.less),
    "LessEqual": _plain(np.less_equal),
    "Log": _plain(np.log),
    "Log1p": _plain(np.log1p),
    "LogSoftmax": _plain(_log_softmax),
    "LogicalAnd": _plain(np.logical_and),
    "LogicalNot": _plain(np.logical_not),
    "LogicalOr": _plain(np.logical_or),
    "Max": _reduction(np.maximum),
    "Maximum": _plain(np.maximum),
    "Mean": _mean,
    "Min": _reduction(np.minimum),
    "Minimum": _plain(np.minimum),
    "Mul": _plain(np.multiply),
    "Neg": _plain(np.negative),
    "NotEqual": _plain(np.not_equal),
    "OneHot": _one_hot,
    "OnesLike": _plain(np.ones_like),
    "Pack": _stack,
    "Pow": _plain(np.power),
    "Prod": _reduction(np.multiply),
    "RealDiv": _plain(np.divide),
    "Relu": _plain(lambda x: np.maximum(x, 0)),
    "Reshape": _plain(_reshape),
    "Rsqrt": _plain(lambda x: 1 / np.sqrt(x)),
    "Selu": _plain(_selu),
    "Shape": _shape,
    "Sigmoid": _sigmoid,
    "Sign": _plain(np.sign),
    "Slice": _plain(_slice),
    "Softmax": _plain(_softmax),
    "Softplus": _plain(_softplus),
    "Split": _split,
    "SplitV": _plain(_split_sizes),
    "Sqrt": _plain(np.sqrt),
    "Square": _plain(np.square),
    "SquaredDifference": _plain(lambda x, y: np.square(x - y)),
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "Sub": _plain(np.subtract),
    "Sum": _reduction(np.add),
    "Tanh": _plain(np.tanh),
    "Tile": _plain(lambda x, times: np.tile(x, tuple(times))),
    "Transpose": _plain(lambda x, axes: np.transpose(x, tuple(axes))),
    "Unpack": _unstack,
    "ZerosLike": _plain(np.zeros_like),
}
