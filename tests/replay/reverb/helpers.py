"""What the tests of Reverb's buffer share: specs, streams, oracles, and reading a whole table."""

import tempfile

import numpy as np
import tensorflow as tf

from tests.replay import oracle
from tfrl.replay.reverb import ReverbReplay
from tfrl.replay.reverb.signature import PackedItems

OBS = tf.TensorSpec([1], tf.float32)
ACTION = tf.TensorSpec([], tf.int64)
DISCOUNT = 0.9
EPISODES = [(5, "term"), (1, "trunc"), (4, "trunc"), (7, "both"), (1, "term"), (2, "trunc")]
MODES = oracle.MODES


def maker(num_envs=2, **options):
    options = {"capacity": 1000, "discount": DISCOUNT, "timeout": 20.0, **options}
    return ReverbReplay(obs_spec=OBS, action_spec=ACTION, num_envs=num_envs, **options)


def streams(mode, num_envs, length, episodes=EPISODES):
    shifted = [episodes[i % len(episodes) :] + episodes[: i % len(episodes)] for i in range(9)]
    return [oracle.script(shifted[b], mode, length, 1000 * b) for b in range(num_envs)]


class Expected:
    """The items that a table has been given, in the order of each environment.

    A table holds an item as it was when it was complete; so the oracle is asked after every add.
    """

    def __init__(self, config, num_envs):
        length = config.steps if config.is_sequence else None
        period = config.period if config.is_sequence else None
        self.oracles = [
            oracle.Oracle(10**6, 10**6, config.n_step, DISCOUNT, length, period)
            for _ in range(num_envs)
        ]
        self.items = [{} for _ in range(num_envs)]

    def add(self, streams, start, stop):
        for stream, one in zip(streams, self.oracles, strict=True):
            one.add(stream[start:stop])
        self._look()

    def cut(self):
        for one in self.oracles:
            one.cut()
        self._look()

    def _look(self):
        for one, items in zip(self.oracles, self.items, strict=True):
            for number, item in one.items().items():
                items.setdefault(number, item)

    def all(self):
        return [item for items in self.items for item in items.values()]


def unbatched(batch):
    """The items of a batch as the oracle has them, with their indices."""
    if hasattr(batch, "steps"):
        items = _sequences(batch.steps)
    else:
        parts = (batch.obs[:, 0], batch.action, batch.reward, batch.next_obs[:, 0], batch.discount)
        items = zip(*(x.numpy().tolist() for x in parts), strict=True)
    return list(zip(batch.index.numpy().tolist(), items, strict=True))


def _sequences(steps):
    names = ("obs", "action", "reward", "next_obs", "termination", "truncation")
    columns = [getattr(steps, name).numpy() for name in names]
    columns[0], columns[3] = columns[0][..., 0], columns[3][..., 0]
    valid = steps.valid.numpy()
    lengths = valid.sum(axis=1)
    np.testing.assert_array_equal(valid, np.arange(valid.shape[1]) < lengths[:, None])
    for i in (1, 2, 4, 5):
        np.testing.assert_array_equal(columns[i] * ~valid, np.zeros_like(columns[i]))
    # Behind the end the last frame stands still.
    last = columns[3][np.arange(len(lengths)), lengths - 1]
    for i in (0, 3):
        rest = np.where(valid, last[:, None], columns[i])
        np.testing.assert_array_equal(rest, np.broadcast_to(last[:, None], rest.shape))
    for i, length in enumerate(lengths):
        yield tuple(tuple(c[i, j].item() for c in columns) for j in range(length))


def read_all(buffer, table=None):
    """All items of a table that is sampled at random, {index: item}."""
    size, found = int(buffer.size(table)), {}
    if not size:
        return found
    for batch in buffer.batches(_dataset(buffer, 32, table).take(400)):
        found.update(unbatched(batch))
        if len(found) == size:
            return found
    raise AssertionError(f"{len(found)} of {size} items were ever sampled")


def take(buffer, count, table=None):
    """The next `count` items of a table that gives each once, in order."""
    dataset = _dataset(buffer, 1, table).take(count)
    return [unbatched(batch)[0][1] for batch in buffer.batches(dataset)]


def _dataset(buffer, batch_size, table):
    """Made once for each buffer and table: it takes a second."""
    known = buffer.__dict__.setdefault("datasets_of_tests", {})
    key = (buffer.address, table, batch_size)
    if key not in known:
        known[key] = buffer.dataset(batch_size, table=table, prefetch=0)
    return known[key]


def close_to(got, wanted):
    """Compares items with those of the oracle, in order."""
    assert len(got) == len(wanted), (len(got), len(wanted))
    for one, other in zip(got, wanted, strict=True):
        assert np.shape(one) == np.shape(other), (one, other)
        np.testing.assert_allclose(
            np.array(one, np.float64), np.array(other, np.float64), rtol=1e-6
        )


def first_obs(item):
    return item[0][0] if isinstance(item[0], tuple) else item[0]


def add_all(buffer, streams, expected, stops):
    """Adds the rows up to each stop in turn."""
    start = 0
    for stop in stops:
        buffer.add(oracle.trajectory(streams, start, stop))
        expected.add(streams, start, stop)
        start = stop


def begin_anew(buffer):
    """Empties the tables."""
    buffer.cut()
    for config in buffer.replay.table_configs:
        buffer._connection.client.reset(config.name)


ROWS = oracle.trajectory(streams("SAME_STEP", 1, 40), 0, 40)


def rows(start, stop):
    return tf.nest.map_structure(lambda x: x[start:stop], ROWS)


def closed_after(test, **options):
    buffer = maker(num_envs=1, **options).init()
    test.addCleanup(buffer.close)
    return buffer


def new_folder(test):
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return folder.name + "/saved"


def stored(buffer, table="replay"):
    """{first observation: priority} of a table, as the server tells it."""
    count = 40 * int(buffer.size(table))
    samples = buffer._connection.client.sample(table, count, emit_timesteps=False)
    if buffer.replay.packed:
        packing = PackedItems(buffer.replay)
        found = [(packing.unpack(np.asarray(s.data[0]).reshape(1, -1))["obs"], s) for s in samples]
        return {float(obs.numpy().ravel()[0]): s.info.priority for obs, s in found}
    at = list(buffer.replay.signature(table)).index("obs")
    return {float(s.data[at].ravel()[0]): s.info.priority for s in samples}
