"""Small parts of the task layer: returns over trajectories, and stored replay buffers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.tasks.test_clips import rng, trajectory
from tfrl.tasks import MultiReplaySamples, ReplayDataset
from tfrl.tasks.clips import from_bytes, to_bytes
from tfrl.tasks.environments import EpisodeReturns


def part(start, length, episode=0, worker_id=0, cut=True):
    """Steps `start` and on of an episode, reward 1 each."""
    whole = trajectory(length, worker_id, episode)
    return whole.replace(start=start, cut=cut, reward=np.ones(length, np.float32))


def test_returns_add_up_over_the_parts_of_an_episode():
    returns = EpisodeReturns()
    assert returns.add([part(0, 3), part(3, 2), part(0, 7, worker_id=1, cut=False)]) == [(7.0, 7)]
    assert returns.add([part(5, 1, cut=False), part(0, 2, episode=1)]) == [(6.0, 6)]
    assert returns.add([part(2, 2, episode=1, cut=False)]) == [(4.0, 4)]


@pytest.mark.parametrize(
    "parts",
    [
        [part(2, 3, cut=False)],  # trimmed at its start
        [part(0, 3), part(4, 3, cut=False)],  # a discarded part between
        [part(0, 3, episode=1), part(3, 3, episode=2, cut=False)],
    ],
)
def test_an_episode_with_a_part_missing_is_left_out(parts):
    assert EpisodeReturns().add(parts) == []


def test_a_stored_buffer_is_read_back_bit_by_bit():
    stored = [trajectory(4), trajectory(7, 1, 2), part(3, 5, 3)]
    found = from_bytes(to_bytes(stored), like=trajectory(1))
    assert len(found) == 3
    for x, y in zip(found, stored, strict=True):
        tf.nest.assert_same_structure(x, y)
        for a, b in zip(tf.nest.flatten(x), tf.nest.flatten(y), strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
        assert (x.worker_id, x.episode, x.start, x.cut) == (y.worker_id, y.episode, y.start, y.cut)
    assert to_bytes([]).size == 0 and from_bytes(np.zeros([0], np.uint8), stored[0]) == []


def test_the_order_of_a_buffer_is_that_of_its_trajectories():
    stored = [trajectory(3, 1), trajectory(4, 0), trajectory(5, 1, 1), trajectory(6, 2)]
    replay = MultiReplaySamples(stored, rng=rng())
    assert [len(t) for t in replay.in_order()] == [3, 4, 5, 6]
    bounded = MultiReplaySamples(stored, rng=rng(), max_samples=12)
    # Of the second one the newest sample is left.
    assert [len(t) for t in bounded.in_order()] == [1, 5, 6]


def test_a_cleared_buffer_takes_new_trajectories():
    replay = ReplayDataset(batch_size=2, clip_size=2, rng=rng())
    replay.add([trajectory(5), trajectory(6, 1)])
    batches = iter(replay.as_dataset())
    next(batches)
    replay.clear()
    assert len(replay) == 0 and replay.samples.workers == {}
    replay.add(trajectory(2, episode=3))
    assert next(batches).obs["x"].numpy()[:, 0, 0].tolist() == [300.0, 300.0]
