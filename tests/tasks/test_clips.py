import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.tasks.scripted import Policy, Scripted, make_pool
from tfrl.errors import UserError
from tfrl.tasks import (
    MultiReplaySamples,
    ReplayDataset,
    ReplaySamples,
    SampledTrajectory,
    Samples,
    clip_span,
    collect_samples,
)


def trajectory(length, worker_id=0, episode=0):
    """Observations [1000 * worker + 100 * episode + t, t], the end a termination."""
    steps = np.arange(length + 1)
    obs = np.stack([1000 * worker_id + 100 * episode + steps, steps], -1).astype(np.float32)
    ends = np.arange(length) == length - 1
    return SampledTrajectory(
        obs={"x": obs[:-1]},
        action=steps[:-1] % 3,
        reward=steps[:-1].astype(np.float32) / 2,
        termination=ends,
        truncation=np.zeros(length, bool),
        last_obs={"x": obs[-1]},
        extras={"value": -obs[:-1, 0]},
        worker_id=worker_id,
        episode=episode,
        start=0,
        cut=False,
    )


def rng(seed=0):
    return np.random.default_rng(seed)


def check_clip(clip, trajectories, size, stride):
    """Asserts that a clip lies within one of the trajectories; returns (which, first step)."""
    assert type(clip) is Samples and len(clip) == size
    first = clip.obs["x"][0]
    (found,) = [i for i, t in enumerate(trajectories) if t.obs["x"][0, 0] == first[0] - first[1]]
    source, start = trajectories[found], int(first[1])
    steps = start + stride * np.arange(size)
    assert steps[-1] < len(source)
    np.testing.assert_array_equal(clip.obs["x"], source.obs["x"][steps])
    for name in ("action", "reward", "termination", "truncation"):
        np.testing.assert_array_equal(getattr(clip, name), getattr(source, name)[steps])
    np.testing.assert_array_equal(clip.extras["value"], source.extras["value"][steps])
    # One step after the last, in the same episode.
    np.testing.assert_array_equal(clip.last_obs["x"], clip.obs["x"][-1] + 1)
    assert not clip.termination[:-1].any()
    return found, start


@hypothesis.settings(max_examples=80, deadline=None)
@hypothesis.given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    size=st.integers(1, 6),
    stride=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_clips_lie_within_one_trajectory(lengths, size, stride, seed):
    span = clip_span(size, stride)
    assert span == 1 + (size - 1) * stride
    stored = [trajectory(n, episode=i) for i, n in enumerate(lengths)]
    replay = ReplaySamples(stored, rng=rng(seed))
    assert len(replay) == sum(lengths)
    if max(lengths) < span:
        with pytest.raises(UserError, match=f"a longest trajectory of {max(lengths)} samples"):
            replay.sample(size, stride)
        return
    again = ReplaySamples(stored, rng=rng(seed))
    for _ in range(5):
        place = check_clip(replay.sample(size, stride), stored, size, stride)
        assert place == check_clip(again.sample(size, stride), stored, size, stride)
    newest = max(i for i, n in enumerate(lengths) if n >= span)
    clip = replay.sample(size, stride, only_last=True)
    assert check_clip(clip, stored, size, stride) == (newest, lengths[newest] - span)
    assert clip.termination[-1]


@pytest.mark.slow
def test_every_place_of_a_clip_is_equally_likely():
    # 5 samples have 3 places for clips of 3, 4 have 2, 2 have none.
    stored = [trajectory(5, episode=0), trajectory(2, episode=1), trajectory(4, episode=2)]
    replay = ReplaySamples(stored, rng=rng())
    counts = {}
    for _ in range(5000):
        place = check_clip(replay.sample(3), stored, 3, 1)
        counts[place] = counts.get(place, 0) + 1
    assert set(counts) == {(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)}
    # 1000 each, with a standard deviation of 28.
    assert max(abs(n - 1000) for n in counts.values()) < 140


@pytest.mark.slow
def test_workers_are_drawn_in_proportion_to_their_samples():
    stored = [trajectory(10, 0), trajectory(20, 1), trajectory(10, 1, 1), trajectory(2, 2)]
    replay = MultiReplaySamples(stored, rng=rng())
    assert {w: len(r) for w, r in replay.workers.items()} == {0: 10, 1: 30, 2: 2}
    draws = [check_clip(replay.sample(4), stored, 4, 1)[0] for _ in range(4000)]
    # Worker 2 has nothing that is long enough; 10 to 30 samples, not 7 to 24 places.
    assert set(draws) == {0, 1, 2}
    assert abs(draws.count(0) - 1000) < 5 * 28
    single = [check_clip(replay.sample(1), stored, 1, 1)[0] for _ in range(4200)]
    assert abs(single.count(3) - 200) < 5 * 14 and abs(single.count(0) - 1000) < 5 * 28


def test_only_last_ends_at_the_newest_sample_of_a_worker():
    stored = [trajectory(9, 0, 0), trajectory(7, 1, 0), trajectory(8, 0, 1)]
    replay = MultiReplaySamples(stored, rng=rng())
    places = {check_clip(replay.sample(3, 2, True), stored, 3, 2) for _ in range(50)}
    assert places == {(2, 3), (1, 2)}


def test_clips_do_not_share_memory_with_the_store():
    stored = trajectory(4)
    replay = ReplaySamples([stored], rng=rng())
    clip = replay.sample(4)
    for x, y in zip(tf.nest.flatten(clip), tf.nest.flatten(stored), strict=True):
        assert not np.shares_memory(x, y)


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(
    added=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=12),
    bound=st.integers(1, 25),
)
def test_the_oldest_samples_go_first(added, bound):
    replay = MultiReplaySamples(rng=rng(), max_samples=bound)
    stored = []
    for i, (length, worker_id) in enumerate(added):
        replay.add(trajectory(length, worker_id, i))
        # A plain list of samples as the oracle.
        stored = [*stored, *((worker_id, i, t) for t in range(length))][-bound:]
        assert len(replay) == len(stored) <= bound
        assert [
            (t.worker_id, t.episode, t.start + step)
            for t in replay.in_order()
            for step in range(len(t))
        ] == stored
        for t in replay.in_order():
            np.testing.assert_array_equal(t.obs["x"][:, 1], t.start + np.arange(len(t)))
            assert t.last_obs["x"][1] == t.start + len(t) and t.termination[-1]
        assert all(list(r.trajectories) and len(r) for r in replay.workers.values())
        assert sum(map(len, replay.workers.values())) == len(replay)


def test_exactly_the_bound_is_kept():
    replay = ReplayDataset(batch_size=2, clip_size=3, rng=rng(), replay_buffer_sample_size=10)
    sizes = []
    for i, length in enumerate([21, 2, 4, 1]):
        replay.add(trajectory(length, i % 2, i))
        sizes.append([len(t) for t in replay.samples.in_order()])
    # Of 21 samples the newest 10, of which 2, 4 and 1 take the places of the oldest.
    assert sizes == [[10], [8, 2], [4, 2, 4], [3, 2, 4, 1]] and len(replay) == 10
    oldest = replay.samples.in_order()[0]
    assert oldest.start == 18 and oldest.obs["x"][:, 1].tolist() == [18, 19, 20]
    # Clips are drawn of what is left: of 3 samples there is one place, of 4 there are two.
    found = {tuple(clip) for _ in range(50) for clip in replay.draw().obs["x"][..., 1].tolist()}
    assert found == {(18, 19, 20), (0, 1, 2), (1, 2, 3)}


def test_of_too_long_a_trajectory_the_newest_samples_stay():
    replay = MultiReplaySamples([trajectory(3), trajectory(9, episode=1)], rng=rng(), max_samples=5)
    (kept,) = replay.workers[0].trajectories
    assert (len(kept), kept.start, kept.episode) == (5, 4, 1)
    assert kept.obs["x"][:, 1].tolist() == [4, 5, 6, 7, 8] and kept.termination[-1]
    assert kept.last_obs["x"][1] == 9


def test_a_batch_is_its_clips_one_after_the_other():
    stored = [trajectory(10, 0), trajectory(20, 1)]
    batch = MultiReplaySamples(stored, rng=rng(3)).sample_batch(6, 4, 2)
    alone = MultiReplaySamples(stored, rng=rng(3))
    for i in range(6):
        clip = alone.sample(4, 2)
        for x, y in zip(tf.nest.flatten(batch), tf.nest.flatten(clip), strict=True):
            np.testing.assert_array_equal(x[i], y)
    assert batch.obs["x"].shape == (6, 4, 2) and batch.last_obs["x"].shape == (6, 2)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda r: r.sample(0),
            "clip_size: expected a whole number of at least 1, got 0. Pass the number of samples "
            "per clip.",
        ),
        (
            lambda r: r.sample(2, 1.5),
            "stride: expected a whole number of at least 1, got 1.5. Pass the number of steps "
            "between samples.",
        ),
        (
            lambda r: r.sample(4, 2),
            "clip of 4 samples with stride 2: expected a trajectory of at least 7 samples, got "
            "a longest trajectory of 6 samples. Sample with clip_length=7, or use shorter clips.",
        ),
        (
            lambda r: MultiReplaySamples(rng=rng()).sample(2),
            "clip of 2 samples with stride 1: expected a trajectory of at least 2 samples, got "
            "no trajectory. Sample with clip_length=2, or use shorter clips.",
        ),
        (
            lambda r: ReplaySamples(rng=rng()).sample(1),
            "clip of 1 samples with stride 1: expected a trajectory of at least 1 samples, got "
            "no trajectory. Sample with clip_length=1, or use shorter clips.",
        ),
        (
            lambda r: r.sample_batch(0, 1),
            "batch_size: expected a whole number of at least 1, got 0. Pass the number of clips "
            "per batch.",
        ),
        (
            lambda r: ReplaySamples(rng=3),
            "rng of the clips: expected a numpy.random.Generator, got int. Pass "
            "numpy.random.default_rng(seed).",
        ),
        (
            lambda r: MultiReplaySamples(rng=rng(), max_samples=0),
            "max_samples: expected a whole number of at least 1, got 0. Pass the number of stored "
            "samples.",
        ),
        (
            lambda r: r.add(trajectory(3).replace(action=np.zeros([3], np.int16))),
            "action of a trajectory: expected int64 [], as in earlier trajectories, got int16 []. "
            "Use the same leaves, shapes and dtypes in all trajectories, also for leaves added by "
            "hooks.",
        ),
        (
            lambda r: r.add(trajectory(3).replace(extras={})),
            "extras/value of a trajectory: expected float32 [], as in earlier trajectories, got "
            "no leaf. Use the same leaves, shapes and dtypes in all trajectories, also for "
            "leaves added by hooks.",
        ),
        (
            lambda r: ReplayDataset(
                batch_size=2, clip_size=4, stride=4, rng=rng(), replay_buffer_sample_size=12
            ),
            "replay_buffer_sample_size: expected at least 13 steps, the span of a clip of 4 "
            "samples with stride 4, got 12. Raise it, or use shorter clips.",
        ),
        (
            lambda r: ReplayDataset(batch_size=2, clip_size=4, rng=rng()).as_dataset(),
            "clip of 4 samples with stride 1: expected a trajectory of at least 4 samples, got "
            "no trajectory. Sample with clip_length=4, or use shorter clips.",
        ),
    ],
)
def test_messages(call, message):
    replay = MultiReplaySamples([trajectory(6)], rng=rng())
    with pytest.raises(UserError) as error:
        call(replay)
    assert str(error.value) == message


def test_a_generator_is_optional():
    stored = [trajectory(30)]
    for replay in (ReplaySamples(stored), MultiReplaySamples(stored)):
        # 20 of 28 places each: that they all agree does not happen.
        assert len({replay.sample(3).obs["x"][0, 1] for _ in range(20)}) > 1
    dataset = ReplayDataset(batch_size=20, clip_size=3)
    dataset.add(stored)
    assert len(set(dataset.draw().obs["x"][:, 0, 1])) > 1


@pytest.mark.parametrize("size", [np.int64(2), np.uint8(2)])
def test_integers_of_numpy_are_counts(size):
    assert len(ReplaySamples([trajectory(6)], rng=rng()).sample(size, stride=size)) == 2


def test_the_dataset_gives_batches_of_the_current_store():
    def make():
        return ReplayDataset(
            batch_size=3, clip_size=4, stride=2, rng=rng(7), replay_buffer_sample_size=30
        )

    first, second = [trajectory(10), trajectory(12, 1)], [trajectory(25, 2)]
    replay, same = make(), make()
    for each in (replay, same):
        each.add(first)
    assert len(replay) == 22
    dataset = replay.as_dataset()
    shapes = tf.nest.map_structure(lambda s: (s.shape.as_list(), s.dtype), dataset.element_spec)
    assert shapes.obs == {"x": ([3, 4, 2], tf.float32)}
    assert shapes.last_obs == {"x": ([3, 2], tf.float32)}
    assert (shapes.reward, shapes.termination) == (([3, 4], tf.float32), ([3, 4], tf.bool))
    batches = iter(dataset)
    for stored in (first, second):
        for _ in range(4):
            batch, expected = next(batches), same.draw()
            assert type(batch) is Samples
            for x, y in zip(tf.nest.flatten(batch), tf.nest.flatten(expected), strict=True):
                np.testing.assert_array_equal(x, y)
            for i in range(3):
                clip = tf.nest.map_structure(lambda x, i=i: x[i].numpy(), batch)
                check_clip(clip, stored, 4, 2)
        for each in (replay, same):
            each.add(second[0])
    # Of those before, 5 samples are left: too few for a clip, which spans 7.
    assert len(replay) == 30


def test_the_dataset_goes_through_a_compiled_update():
    replay = ReplayDataset(batch_size=2, clip_size=3, only_last=True, rng=rng())
    replay.add(trajectory(8))
    traces = []

    @tf.function
    def update(clips):
        traces.append(1)
        return tf.reduce_sum(clips.reward, 1), clips.last_obs["x"][:, 1]

    for clips in replay.as_dataset().take(3):
        rewards, last = update(clips)
        # Steps 5, 6, 7 with rewards of half of them.
        assert rewards.numpy().tolist() == [9.0, 9.0] and last.numpy().tolist() == [8.0, 8.0]
    assert len(traces) == 1
    assert next(iter(replay)).termination.numpy().tolist() == [[False, False, True]] * 2


def test_from_workers_to_batches():
    with make_pool(lambda: Scripted([9, 5, 12]), 2) as pool:
        found = collect_samples(pool, Policy(), total_samples=60, clip_length=4)
    replay = ReplayDataset(batch_size=16, clip_size=4, rng=rng(), replay_buffer_sample_size=40)
    replay.add(found)
    assert 28 < len(replay) <= 40 and set(replay.samples.workers) == {0, 1}
    batch = replay.draw()
    step = batch.obs[..., 1]
    np.testing.assert_array_equal(np.diff(step), 1.0)
    np.testing.assert_array_equal(np.diff(batch.obs[..., 0]), 0.0)
    np.testing.assert_array_equal(batch.last_obs[:, 1], step[:, -1] + 1)
    np.testing.assert_array_equal(batch.reward, 10 * step + batch.action)
    np.testing.assert_array_equal(batch.extras["step"], 2 * step)
