"""Datasets of batches sampled from a table."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl.replay.core import STATE_IN
from tfrl.replay.reverb.factory import ONCE, TableConfig
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.signature import (
    TERMINATED,
    TRUNCATED,
    PackedItems,
    rebuild,
    state_in_spec,
    step_extras,
    stored_signature,
)
from tfrl.types import Sequences, Trajectory, Transition

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay


# The beginning of a dataset's error message when sampling times out.
STARVED = "ReverbBuffer.dataset had nothing to sample in time"
# Sequences with more bytes of observations are padded one by one, see `_raw_batches`.
_LARGE_BYTES = 2**16
# The most items that a worker has in flight by default: with more, Reverb is slower for each.
MOST_IN_FLIGHT = 64
# Timeout of a single request of a dataset with `wait`.
_WAIT_SECONDS = 1.0


def transition(replay: "ReverbReplay", config: TableConfig, key: Any, flat: Any) -> Transition:
    """Returns items `[..., N]` without weights.

    Args:
      replay: The factory.
      config: The sampled table.
      key: The keys of the items, uint64 [..., N].
      flat: `{path: tensor}` by the table's signature; of packed items one transition each.
    """
    if replay.packed:
        (packed,) = flat.values()
        flat = PackedItems(replay).unpack(packed)
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
        index=tf.bitcast(key, tf.int64),
    )


def batches_of_blocks(
    replay: "ReverbReplay", config: TableConfig, info: Any, flat: Any, batches: int
) -> Transition:
    """Returns `batches` batches `[K, N, ...]` of one transition of each of N blocks.

    Args:
      replay: The factory.
      config: The sampled table.
      info: `reverb.SampleInfo`.
      flat: `{path: blocks}` by the table's signature.
      batches: K.
    """
    ((path, blocks),) = flat.items()
    drawn = PackedItems(replay).draw(blocks, batches)
    key = tf.broadcast_to(info.key, drawn.shape[:2])
    return transition(replay, config, key, {path: drawn})


def padded_item(config: TableConfig, flat: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Pads one sequence `[k, ...]` to L steps; a sequence of L steps is not copied."""
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
    """Repeats the last observations of a batch of sequences that is padded with zeros."""
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
      replay: The factory.
      config: The sampled table.
      info: `reverb.SampleInfo`.
      flat: `{path: tensor}` by the table's signature, padded.
      axis: The axis of the steps: 0 for one item (its two slices of the observations then share
        their memory), 1 for a batch.
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
    """Returns (N P(i))^-beta divided by the batch's maximum, float32 [N]; N cancels.

    Args:
      probability: float64 [N], P(i).
      beta: 0 (no correction) to 1.
    """
    ratio = probability / tf.reduce_min(probability)
    return tf.cast(tf.pow(ratio, -tf.cast(beta, tf.float64)), tf.float32)


def make_dataset(
    replay: "ReverbReplay",
    address: str,
    config: TableConfig,
    batch_size: int,
    beta: float | tf.Variable | Callable[[], Any] = 1.0,
    *,
    prefetch: int = 1,
    in_flight: int | None = None,
    num_workers: int | None = None,
    wait: bool = False,
) -> tf.data.Dataset:
    """Returns an infinite `tf.data.Dataset` of `Transition` or `Sequences` batches.

    Args:
      replay: The factory.
      address: "host:port" of the server.
      config: The table.
      batch_size: N.
      beta: The exponent of the importance weights; a variable is read, and a function called, for
        every batch.
      prefetch: Batches to prepare ahead, beside the items in flight.
      in_flight: Items that each worker samples ahead; None for twice the batch, but at most 64. It
        is 1 for "fifo" and "lifo", to keep their order.
      num_workers: Threads that sample; None for Reverb's choice. It is 1 for "fifo" and "lifo".
      wait: Whether to wait longer if nothing can be sampled for `timeout` seconds. If False, the
        dataset raises `tf.errors.InvalidArgumentError`. The destructor of an iterator waits up to
        `timeout` for a sample under way, with `wait` at most a second.
    """
    patience = min(replay.timeout, _WAIT_SECONDS) if wait else replay.timeout
    items = _items(replay, address, config, batch_size, in_flight, num_workers, patience)
    if wait:
        # The dataset of items ends when sampling times out; `flat_map` restarts it.
        endless = tf.data.Dataset.from_tensors(0).repeat()
        batches = _batches(replay, endless.flat_map(lambda _: items), config, batch_size, beta)
    else:
        batches = _batches(replay, items, config, batch_size, beta)
        batches = batches.concatenate(_starved(batches, config.name, replay.timeout))
    batches = batches.prefetch(prefetch) if prefetch else batches
    # Autotuning would time every item, but the sizes of the buffers are fixed here.
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.with_options(options)


def _items(
    replay: "ReverbReplay",
    address: str,
    config: TableConfig,
    batch_size: int,
    in_flight: int | None,
    num_workers: int | None,
    patience: float,
    **options: int,
) -> tf.data.Dataset:
    signature = stored_signature(replay, config)
    if config.kind in ONCE:
        in_flight, num_workers = 1, 1
    return reverb().TrajectoryDataset(
        server_address=address,
        table=config.name,
        dtypes={path: spec.dtype for path, spec in signature.items()},
        shapes={path: spec.shape for path, spec in signature.items()},
        max_in_flight_samples_per_worker=in_flight or min(2 * batch_size, MOST_IN_FLIGHT),
        num_workers_per_iterator=num_workers or -1,
        rate_limiter_timeout_ms=int(1000 * patience),
        **options,
    )


def _batches(
    replay: "ReverbReplay",
    items: tf.data.Dataset,
    config: TableConfig,
    batch_size: int,
    beta: Any,
) -> tf.data.Dataset:
    """Returns batches of a dataset of samples; drops the remainder at its end."""

    @tf.autograph.experimental.do_not_convert
    def decode(raw: Any) -> Any:
        if replay.block > 1:
            return batches_of_blocks(replay, config, raw.info, raw.data, replay.batches_each)
        return _weighted(config, *_decoded(replay, config, raw), beta)

    batches = _raw_batches(replay, items, config, batch_size).map(decode)
    return batches.unbatch() if replay.block > 1 else batches


def _raw_batches(
    replay: "ReverbReplay", items: tf.data.Dataset, config: TableConfig, batch_size: int
) -> tf.data.Dataset:
    """Returns batches for `_decoded`.

    All sequences of a batch must have one length. Large sequences are padded one by one: a sequence
    of L steps is then not copied, and the two slices of its observations share their memory. Small
    sequences are padded when they are batched, since a function per item would cost more than the
    copies.
    """
    if not config.is_sequence:
        return items.batch(batch_size, drop_remainder=True)
    if _is_large(replay, config):

        @tf.autograph.experimental.do_not_convert
        def item(sample: Any) -> Any:
            flat = padded_item(config, sample.data)
            items = sequences(replay, config, sample.info, flat, axis=0)
            return {"items": items, "probability": sample.info.probability}

        return items.map(item).batch(batch_size, drop_remainder=True)
    spec = items.element_spec
    shapes = {
        path: [
            config.steps + (path.partition("/")[0] == "obs") if d is None else d for d in s.shape
        ]
        for path, s in spec.data.items()
    }
    info = tf.nest.map_structure(lambda s: s.shape, spec.info)
    return items.padded_batch(
        batch_size, spec._replace(info=info, data=shapes), drop_remainder=True
    )


def _decoded(replay: "ReverbReplay", config: TableConfig, raw: Any) -> tuple[Any, tf.Tensor]:
    """Returns a batch and the probabilities of its items."""
    if replay.block > 1:
        batches = batches_of_blocks(replay, config, raw.info, raw.data, 1)
        return tf.nest.map_structure(lambda x: x[0], batches), raw.info.probability
    if not config.is_sequence:
        return transition(replay, config, raw.info.key, raw.data), raw.info.probability
    if _is_large(replay, config):
        return raw["items"], raw["probability"]
    flat = with_still_obs(config, raw.data)
    return sequences(replay, config, raw.info, flat, axis=1), raw.info.probability


def _is_large(replay: "ReverbReplay", config: TableConfig) -> bool:
    specs = tf.nest.flatten(replay.obs_spec)
    return sum(s.shape.num_elements() * s.dtype.size for s in specs) * config.steps > _LARGE_BYTES


def _starved(batches: tf.data.Dataset, table: str, timeout: float) -> tf.data.Dataset:
    """Returns a dataset of the same specs whose first element is an error."""
    spec = batches.element_spec
    message = (
        f"{STARVED}: table {table!r} gave no item for timeout={timeout:g} s. Add more steps, lower "
        "min_size, raise tolerance or timeout, or ask the dataset to wait."
    )

    def fail(zero: tf.Tensor) -> Any:
        with tf.control_dependencies([tf.debugging.Assert(zero > 0, [message])]):
            return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), spec)

    return tf.data.Dataset.from_tensors(tf.constant(0)).map(fail)


def make_draw(
    replay: "ReverbReplay", address: str, config: TableConfig, batch_size: int
) -> Callable[[Any], Any]:
    """Returns a function of beta that samples one batch from the table.

    Returns:
      The function; it returns None if sampling times out.
    """
    items = _items(
        replay, address, config, batch_size, batch_size, 1, replay.timeout, max_samples=batch_size
    )
    # Each draw creates an iterator. There is nothing to optimize, and an iterator with a function
    # takes milliseconds to create.
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    batches = _raw_batches(replay, items, config, batch_size).with_options(options)

    @tf.function(autograph=False)
    def decoded(raw: Any, beta: tf.Tensor) -> Any:
        return _weighted(config, *_decoded(replay, config, raw), beta)

    def draw(beta: Any) -> Any:
        raw = next(iter(batches), None)
        return None if raw is None else decoded(raw, tf.cast(beta, tf.float64))

    return draw


def _weighted(config: TableConfig, batch: Any, probability: tf.Tensor, beta: Any) -> Any:
    if config.kind != "prioritized":
        return batch
    now = beta() if callable(beta) else beta
    return batch.replace(weight=weights(probability, now))
