"""Distributions that TF-Agents' networks give, as distributions of this library.

A network of TF-Agents ends in a nest of distributions of TensorFlow Probability, objects that do
not leave a compiled function. Their parameters do: `parameters` takes them out, and `distribution`
makes of them, and of the spec of the actions, what our agents take.
"""

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions.utils import SquashToSpecNormal

from tfrl import distributions, specs
from tfrl.errors import UserError
from tfrl.types import Nest

Parameters = dict[str, tf.Tensor]

_tfd = tfp.distributions


def parameters(nest: Nest) -> tuple[Parameters, ...]:
    """Takes the parameters out of the distributions of all leaves of an action.

    Args:
      nest: A nest of distributions, one for each leaf.

    Returns:
      For each leaf `{"logits"}`, `{"loc", "scale"}` or `{"squashed_loc", "squashed_scale"}`.

    Raises:
      UserError: For a distribution of another kind.
    """
    return tuple(_parameters(leaf) for leaf in tf.nest.flatten(nest))


def _parameters(leaf: Any) -> Parameters:
    if isinstance(leaf, _tfd.Categorical):
        return {"logits": leaf.logits_parameter()}
    if isinstance(leaf, SquashToSpecNormal):
        inner = _parameters(leaf.input_distribution)
        return {f"squashed_{name}": value for name, value in inner.items()}
    if isinstance(leaf, _tfd.Normal | _tfd.MultivariateNormalDiag):
        return {"loc": leaf.mean(), "scale": leaf.stddev()}
    if isinstance(leaf, _tfd.Independent):
        return _parameters(leaf.distribution)
    error = UserError(
        "distribution of a TF-Agents network",
        expected="a Categorical, a Normal, a MultivariateNormalDiag or a SquashToSpecNormal",
        got=type(leaf).__name__,
        remedy="Give the network another projection network, or take its EncodingNetwork as a "
        "torso.",
    )
    error._keras_call_info_injected = True  # type: ignore[attr-defined]  # pass as it is
    raise error


def distribution(
    found: tuple[Parameters, ...], action_spec: Nest, masks: list[Any]
) -> distributions.Distribution:
    """Makes the distribution over the actions of a spec.

    Args:
      found: As from `parameters`, leaves `[..., *leaf shape]`, of logits one axis more.
      action_spec: The nest of specs of one action.
      masks: Which values of each leaf are valid, or None; as `ActionDistribution.check_mask` gives
        them.
    """
    leaves = tf.nest.flatten(action_spec)
    parts = tuple(_leaf(p, s, m) for p, s, m in zip(found, leaves, masks, strict=True))
    if specs.is_spec(action_spec):
        return parts[0]
    return distributions.Joint(parts=parts, spec=action_spec)


def _leaf(found: Parameters, spec: Any, mask: Any) -> distributions.Distribution:
    shape = tuple(spec.shape.as_list())
    if "logits" in found:
        return _categorical(found["logits"], spec, mask)
    squashed = "squashed_loc" in found
    loc, scale = (found[f"squashed_{n}" if squashed else n] for n in ("loc", "scale"))
    loc, log_std = (_flat(tf.cast(x, tf.float32), len(shape)) for x in (loc, tf.math.log(scale)))
    common: dict[str, Any] = {"event_shape": shape, "dtype": spec.dtype}
    if not squashed:
        return distributions.DiagonalGaussian(loc=loc, log_std=log_std, **common)
    low, high = (tuple(b.reshape(-1).tolist()) for b in specs.bounds(spec))
    return distributions.SquashedGaussian(loc=loc, log_std=log_std, low=low, high=high, **common)


def _categorical(logits: tf.Tensor, spec: Any, mask: Any) -> distributions.Distribution:
    low, high = specs.bounds(spec)
    if not spec.shape.rank:
        made = distributions.Categorical
        return made.from_logits(logits, mask, start=int(low), dtype=spec.dtype)
    rank = logits.shape.rank - 1 - spec.shape.rank
    rows = [low.size, logits.shape[-1]]  # K elements, A values
    logits = tf.reshape(logits, tf.concat([tf.shape(logits)[:rank], rows], 0))
    nvec = high.astype(int) - low.astype(int) + 1
    if mask is not None and isinstance(spec, specs.BinarySpec):  # [..., K]; 0 is always valid
        mask = tf.stack([tf.ones_like(mask), mask], axis=-1)
    return distributions.MultiCategorical.from_logits(logits, nvec, mask, low, spec.dtype)


def _flat(x: tf.Tensor, event_rank: int) -> tf.Tensor:
    """Makes one axis of those of an action; a scalar one gets one."""
    if event_rank == 1:
        return x
    lead = x.shape.rank - event_rank
    size = x.shape[lead:].num_elements()
    return tf.ensure_shape(
        tf.reshape(x, tf.concat([tf.shape(x)[:lead], [size]], 0)), x.shape[:lead] + [size]
    )
