"""Converts distributions of TF-Agents' networks to distributions of this library.

A TF-Agents network returns a nest of TensorFlow Probability distributions, which cannot leave a
compiled function. Their parameters can: `parameters` extracts them, and `distribution` builds this
library's distribution from them and the action spec.
"""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions.shifted_categorical import ShiftedCategorical
from tf_agents.distributions.utils import SquashToSpecNormal

from tfrl import distributions, keras, specs, struct
from tfrl.agents import MultiAgent
from tfrl.agents.core import PolicyParameters
from tfrl.errors import UserError
from tfrl.experiment.export_functions import has_distribution
from tfrl.types import Nest

Parameters = dict[str, tf.Tensor]

_tfd = tfp.distributions


def exploring_distribution(agent: Any, state: Any, obs: Nest, carry: Nest) -> Nest:
    """Returns the distribution that `compute_actions` draws from.

    Args:
      agent: The agent.
      state: The agent's state, an `AgentState`; for a `MultiAgent` a dict of them.
      obs: A nest `[B, ...]` of the agent's `obs_spec`. Actions forbidden by its `action_mask` have
        probability 0.
      carry: The recurrent state before the step, or None.

    Returns:
      A nest like an action, of plain dicts and tuples: for a Discrete leaf a (Shifted)Categorical,
      for a MultiDiscrete or MultiBinary leaf independent ones; for a Box a Normal or
      MultivariateNormalDiag, or for squashed actions TF-Agents' SquashToSpecNormal. For DQN it is
      the mixture of the best action and, with probability epsilon, all valid actions.

    Raises:
      NotImplementedError: The agent has no distribution, or it is unknown.
    """
    if isinstance(agent, MultiAgent):
        result = {}
        for agent_id in sorted(agent.action_spec):
            module, before = agent.module_of(agent_id), (carry or {}).get(agent_id)
            own = (agent.modules[module], state[module], obs[agent_id], before)
            result[agent_id] = exploring_distribution(*own)
        return result
    if not has_distribution(agent):
        raise NotImplementedError(
            f"{type(agent).__name__} has no known action distribution. Call action, whose info has "
            "the log-probability if the agent returns it."
        )
    each: PolicyParameters | None = agent.exploration_parameters(state, obs, carry)
    if each is None:
        raise NotImplementedError(
            f"Exploratory actions of {type(agent).__name__} have no density, since its noise is "
            "clipped to the bounds. Call action, or add noise to the distribution of the greedy "
            "policy."
        )
    leaves = struct.paths(agent.action_spec)
    if list(each) == ["."] and list(leaves) != ["."]:
        (joint,) = each.values()
        each = _parted(*joint, leaves)
    parts = [_distribution(*each[path], spec) for path, spec in leaves.items()]
    return tf.nest.pack_sequence_as(agent.action_spec, parts)


def _parted(
    kind: str, parameters: dict[str, Any], leaves: dict[str, Any]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Splits the parameters of a joint vector into leaves."""
    sizes = [spec.shape.num_elements() for spec in leaves.values()]
    parts = {name: tf.split(x, sizes, axis=-1) for name, x in parameters.items()}
    return {path: (kind, {n: x[i] for n, x in parts.items()}) for i, path in enumerate(leaves)}


def _distribution(kind: str, parameters: dict[str, Any], spec: Any) -> Any:
    if kind in ("categorical", "multi_categorical"):
        return _masked_categorical(parameters["logits"], spec)
    shape = spec.shape.as_list()
    if kind == "bernoulli":
        bits = _tfd.Bernoulli(logits=_shaped(parameters["logits"], shape), dtype=spec.dtype)
        return _tfd.Independent(bits, len(shape)) if shape else bits
    loc, scale = (tf.cast(_shaped(parameters[n], shape), spec.dtype) for n in ("loc", "scale"))
    vector = len(shape) == 1
    dist = _tfd.MultivariateNormalDiag(loc, scale) if vector else _tfd.Normal(loc, scale)
    if kind == "tanh_gaussian":
        if spec.dtype != tf.float32:
            raise NotImplementedError(
                "TF-Agents' SquashToSpecNormal, the distribution of squashed actions, supports "
                f"only float32, got {spec.dtype.name}. Call action."
            )
        low, high = specs.bounds(spec)
        dist = SquashToSpecNormal(dist, specs.BoundedTensorSpec(shape, spec.dtype, low, high))
    return dist if vector or not shape else _tfd.Independent(dist, len(shape))


def _masked_categorical(logits: tf.Tensor, spec: Any) -> Any:
    """Returns one categorical per element; its values begin at the spec's minimum."""
    shape = spec.shape.as_list()
    if len(shape) != 1 and shape:
        lead, last = tf.shape(logits)[:-2], [*shape, logits.shape[-1]]
        logits = tf.ensure_shape(
            tf.reshape(logits, tf.concat([lead, last], 0)), [*logits.shape[:-2], *last]
        )
    start = np.asarray(specs.bounds(spec)[0])
    if start.any():
        dist = ShiftedCategorical(
            logits=logits, dtype=spec.dtype, shift=tf.constant(start, spec.dtype)
        )
    else:
        dist = _tfd.Categorical(logits=logits, dtype=spec.dtype)
    return _tfd.Independent(dist, len(shape)) if shape else dist


def _shaped(flat: tf.Tensor, shape: list[int]) -> tf.Tensor:
    """Reshapes parameters `[B, ...]` to the shape of an action."""
    full_shape = [*flat.shape[:1], *shape]
    if flat.shape.as_list() == full_shape:
        return flat
    return tf.ensure_shape(tf.reshape(flat, tf.concat([tf.shape(flat)[:1], shape], 0)), full_shape)


def parameters(nest: Nest) -> tuple[Parameters, ...]:
    """Extracts the parameters of the distributions of all leaves of an action.

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
        remedy="Use a different projection network, or use its EncodingNetwork as a torso.",
    )
    raise keras.allow_raise(error)


def distribution(
    all_parameters: tuple[Parameters, ...], action_spec: Nest, masks: list[Any]
) -> distributions.Distribution:
    """Makes the distribution over the actions of a spec.

    Args:
      all_parameters: The result of `parameters`, leaves `[..., *leaf shape]`; logits have one more
        axis.
      action_spec: The nest of specs of one action.
      masks: The valid values of each leaf, or None; from `ActionDistribution.check_mask`.
    """
    leaves = tf.nest.flatten(action_spec)
    parts = tuple(_leaf(p, s, m) for p, s, m in zip(all_parameters, leaves, masks, strict=True))
    if specs.is_spec(action_spec):
        return parts[0]
    return distributions.Joint(parts=parts, spec=action_spec)


def _leaf(leaf_parameters: Parameters, spec: Any, mask: Any) -> distributions.Distribution:
    shape = tuple(spec.shape.as_list())
    if "logits" in leaf_parameters:
        return _categorical(leaf_parameters["logits"], spec, mask)
    squashed = "squashed_loc" in leaf_parameters
    loc, scale = (leaf_parameters[f"squashed_{n}" if squashed else n] for n in ("loc", "scale"))
    loc, log_std = (_flat(tf.cast(x, tf.float32), len(shape)) for x in (loc, tf.math.log(scale)))
    common: dict[str, Any] = {"event_shape": shape, "dtype": spec.dtype}
    if not squashed:
        return distributions.DiagonalGaussian(loc=loc, log_std=log_std, **common)
    low, high = (tuple(b.reshape(-1).tolist()) for b in specs.bounds(spec))
    return distributions.SquashedGaussian(loc=loc, log_std=log_std, low=low, high=high, **common)


def _categorical(logits: tf.Tensor, spec: Any, mask: Any) -> distributions.Distribution:
    low, high = specs.bounds(spec)
    if not spec.shape.rank:
        categorical = distributions.Categorical
        return categorical.from_logits(logits, mask, start=int(low), dtype=spec.dtype)
    rank = logits.shape.rank - 1 - spec.shape.rank
    rows = [low.size, logits.shape[-1]]  # K elements, A values
    logits = tf.reshape(logits, tf.concat([tf.shape(logits)[:rank], rows], 0))
    nvec = high.astype(int) - low.astype(int) + 1
    if mask is not None and isinstance(spec, specs.BinarySpec):  # [..., K]; 0 is always valid
        mask = tf.stack([tf.ones_like(mask), mask], axis=-1)
    return distributions.MultiCategorical.from_logits(logits, nvec, mask, low, spec.dtype)


def _flat(x: tf.Tensor, event_rank: int) -> tf.Tensor:
    """Flattens the axes of an action into one; a scalar gets an axis."""
    if event_rank == 1:
        return x
    lead = x.shape.rank - event_rank
    size = x.shape[lead:].num_elements()
    return tf.ensure_shape(
        tf.reshape(x, tf.concat([tf.shape(x)[:lead], [size]], 0)), x.shape[:lead] + [size]
    )
