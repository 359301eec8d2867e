"""What Reverb sampled as the records that a learner takes."""

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl.replay.reading import STATE_IN
from tfrl.replay.reverb.packing import Packing
from tfrl.replay.reverb.signature import (
    TERMINATED,
    TRUNCATED,
    rebuild,
    state_in_spec,
    step_extras,
)
from tfrl.replay.reverb.table_config import TableConfig
from tfrl.types import Sequences, Trajectory, Transition

if TYPE_CHECKING:
    from tfrl.replay.reverb.maker import ReverbReplay


def transition(replay: "ReverbReplay", config: TableConfig, info: Any, flat: Any) -> Transition:
    """Returns items `[N, ...]` without weights.

    Args:
      replay: The maker.
      config: The table that was sampled.
      info: `reverb.SampleInfo`.
      flat: `{path: tensor}` as the table's signature says.
    """
    if replay.packed:
        (packed,) = flat.values()
        flat = Packing(replay).unpack(packed)
    extras = {
        field: rebuild(field, spec, flat) for field, spec in step_extras(replay, config).items()
    }
    return Transition(
        obs=rebuild("obs", replay.obs_spec, flat),
        action=rebuild("action", replay.action_spec, flat),
        reward=flat["reward"],
        next_obs=rebuild("next_obs", replay.obs_spec, flat),
        discount=flat["discount"],
        extras=extras or None,
        index=tf.bitcast(info.key, tf.int64),
    )


def padded_item(config: TableConfig, flat: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns one sequence `[k, ...]` padded to L steps; of L steps it is not copied."""
    length, taken = config.steps, tf.shape(flat["flags"])[0]
    stacked = {path: x for path, x in flat.items() if not _is(path, STATE_IN)}

    def pad() -> dict[str, tf.Tensor]:
        still = tf.minimum(tf.range(length + 1), taken)
        return {
            path: tf.gather(x, still)
            if _is(path, "obs")
            else tf.pad(x, [[0, length - taken]] + [[0, 0]] * (x.shape.rank - 1))
            for path, x in stacked.items()
        }

    padded = tf.cond(tf.equal(taken, length), lambda: stacked, pad)
    sizes = {path: length + _is(path, "obs") for path in padded}
    shaped = {path: tf.ensure_shape(x, [sizes[path], *x.shape[1:]]) for path, x in padded.items()}
    return {**flat, **shaped}


def with_still_obs(config: TableConfig, flat: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns a batch of sequences, padded with zeros, with the last observations repeated."""
    valid = flat["flags"] > 0  # [N, L]
    taken = tf.reduce_sum(tf.cast(valid, tf.int32), axis=1, keepdims=True)
    still = tf.minimum(tf.range(config.steps + 1), taken)
    obs = {path: x for path, x in flat.items() if _is(path, "obs")}
    moved = tf.cond(
        tf.reduce_all(valid),
        lambda: obs,
        lambda: {path: tf.gather(x, still, batch_dims=1) for path, x in obs.items()},
    )
    return {**flat, **moved}


def sequences(
    replay: "ReverbReplay", config: TableConfig, info: Any, flat: dict[str, tf.Tensor], axis: int
) -> Sequences:
    """Returns padded items without weights.

    Args:
      replay: The maker.
      config: The table that was sampled.
      info: `reverb.SampleInfo`.
      flat: `{path: tensor}` as the table's signature says, padded.
      axis: That of the steps: 0 for one item (its two slices of the observations then share their
        memory), 1 for a batch.
    """
    before = (*[slice(None)] * axis, slice(None, -1))
    after = (*[slice(None)] * axis, slice(1, None))
    obs, flags = rebuild("obs", replay.obs_spec, flat), flat["flags"]
    state = state_in_spec(replay)
    extras = {field: rebuild(field, s, flat) for field, s in step_extras(replay, config).items()}
    steps = Trajectory(
        obs=tf.nest.map_structure(lambda x: x[before], obs),
        action=rebuild("action", replay.action_spec, flat),
        reward=flat["reward"],
        next_obs=tf.nest.map_structure(lambda x: x[after], obs),
        termination=_has(flags, TERMINATED),
        truncation=_has(flags, TRUNCATED),
        valid=flags > 0,
        **extras,
    )
    return Sequences(
        steps=steps,
        state_in=None if state is None else rebuild(STATE_IN, state, flat),
        index=tf.bitcast(info.key, tf.int64),
    )


def _is(path: str, field: str) -> bool:
    return path.partition("/")[0] == field


def _has(flags: tf.Tensor, bit: int) -> tf.Tensor:
    return tf.not_equal(tf.bitwise.bitwise_and(flags, tf.constant(bit, flags.dtype)), 0)


def weights(probability: tf.Tensor, beta: float | tf.Tensor) -> tf.Tensor:
    """Returns (N P(i))^-beta divided by the highest of the batch, float32 [N]; N cancels.

    Args:
      probability: float64 [N], P(i).
      beta: 0 (no correction) to 1.
    """
    ratio = probability / tf.reduce_min(probability)
    return tf.cast(tf.pow(ratio, -tf.cast(beta, tf.float64)), tf.float32)
