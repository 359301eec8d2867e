"""That sampling gives exactly the total, and what it discards for that."""

import logging

import hypothesis
import hypothesis.strategies as st
import pytest

from tests.tasks.scripted import PATIENCE, Policy, Scripted, check_total, make_pool
from tfrl.errors import UserError
from tfrl.tasks import SamplingCounts, collect_samples, iter_samples


@pytest.mark.parametrize("mode", ["sync", "thread"])
@pytest.mark.parametrize("shortest", [1, 4, 8])
@pytest.mark.parametrize("total", [8, 9, 35, 64])
def test_the_total_is_exact_and_no_trajectory_too_short(mode, shortest, total):
    counts = SamplingCounts()
    with make_pool(lambda: Scripted([17, 10, 3, 12]), 3, mode) as pool:
        found = collect_samples(
            pool,
            Policy(),
            total_samples=total,
            min_trajectory_length=shortest,
            max_wait_time=PATIENCE,
            counts=counts,
        )
    check_total(found, total)
    assert min(map(len, found)) >= shortest
    assert counts.states == total + counts.discarded_samples + counts.trimmed_samples
    assert counts.dropped_actions == 0 and counts.samples == total


def test_trajectories_are_trimmed_at_their_start_where_the_rest_could_not_be_made_up():
    # Episodes of 7, none shorter than 5: after two of them 2 of 16 are left, so 3 samples go.
    counts = SamplingCounts()
    with make_pool(lambda: Scripted([7]), 1) as pool:
        found = collect_samples(
            pool, Policy(), total_samples=16, min_trajectory_length=5, counts=counts
        )
    check_total(found, 16)
    assert [(len(t), t.start, t.cut) for t in found] == [
        (6, 1, False),
        (5, 2, False),
        (5, 0, True),
    ]
    assert counts.trimmed_samples == 3 and counts.discarded_samples == 0


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=8),
    shortest=st.integers(1, 7),
    pieces=st.integers(1, 9),
    extra=st.integers(0, 6),
    workers=st.integers(1, 4),
)
def test_whatever_the_episodes_are_the_total_is_exact(lengths, shortest, pieces, extra, workers):
    # From some episode on all have 2 * shortest samples: so every total can be made up.
    lengths = [*lengths, 2 * shortest]
    total = shortest * pieces + extra
    counts = SamplingCounts()
    with make_pool(lambda: Scripted(lengths), workers) as pool:
        stream = iter_samples(
            pool, Policy(), total_samples=total, clip_length=shortest, counts=counts
        )
        found = list(stream)
    check_total(found, total)
    assert min(map(len, found)) >= shortest
    assert counts.states == total + counts.discarded_samples + counts.trimmed_samples
    assert (counts.samples, counts.trajectories) == (total, len(found))


def test_too_short_episodes_are_discarded_counted_and_warned_of(caplog):
    counts = SamplingCounts()
    with make_pool(lambda: Scripted([2, 6, 3, 6]), 1) as pool, caplog.at_level(logging.WARNING):
        found = collect_samples(pool, Policy(), total_samples=12, clip_length=4, counts=counts)
    check_total(found, 12)
    assert [t.episode for t in found] == [1, 3]
    assert (counts.discarded_trajectories, counts.discarded_samples) == (2, 5)
    assert [record.getMessage() for record in caplog.records] == [
        "Discarded a trajectory of 2 samples of worker 0: min_trajectory_length is 4.",
        "Discarded 2 trajectories with 5 samples (min_trajectory_length is 4).",
    ]


def test_many_short_episodes_are_discarded_and_warned_of_at_growing_intervals(caplog):
    counts = SamplingCounts()
    # 250 episodes of 3 steps, then one of 40.
    with make_pool(lambda: Scripted([3] * 250 + [40]), 1) as pool:
        with caplog.at_level(logging.WARNING):
            found = collect_samples(pool, Policy(), total_samples=20, clip_length=16, counts=counts)
    check_total(found, 20)
    assert (counts.discarded_trajectories, counts.discarded_samples) == (250, 750)
    assert [record.getMessage() for record in caplog.records] == [
        "Discarded a trajectory of 3 samples of worker 0: min_trajectory_length is 16.",
        *(
            f"Discarded {n} trajectories with {3 * n} samples so far, the longest of 3; {3 * n} "
            "samples since the last usable trajectory. The newest has 3 samples of worker 0: "
            "min_trajectory_length is 16."
            for n in (10, 100)
        ),
        "Discarded 250 trajectories with 750 samples (min_trajectory_length is 16).",
    ]


def test_there_is_an_end_to_discarding():
    def collect(most):
        # 4 of 5 steps, one of 9, then 5 for ever.
        with make_pool(lambda: Scripted([5, 5, 5, 5, 9, 5]), 1) as pool:
            options = {"clip_length": 8, "max_discarded_in_a_row": most, "counts": counts}
            return collect_samples(pool, Policy(), total_samples=20, **options)

    counts = SamplingCounts()
    with pytest.raises(UserError) as error:
        collect(100)
    # The 20 before the long one are not counted.
    assert counts.discarded_samples == 120
    assert str(error.value) == (
        "iter_samples: expected usable trajectories: min_trajectory_length is 8, got no usable "
        "trajectory in the last 100 env steps; the longest discarded trajectory had 5 samples. "
        "Lower the clip length or min_trajectory_length, make the episodes longer, or raise "
        "max_discarded_in_a_row (None for no limit)."
    )
    counts = SamplingCounts()
    with pytest.raises(UserError, match="no usable trajectory in the last 20 env steps"):
        collect(20)
    assert counts.discarded_samples == 20


def test_a_total_that_the_episodes_cannot_make_up_is_told_apart():
    # 7 samples of at least 4 each are one trajectory of 7, and episodes have 5.
    with make_pool(lambda: Scripted([5]), 1) as pool, pytest.raises(UserError) as error:
        collect_samples(
            pool,
            Policy(),
            total_samples=7,
            min_trajectory_length=4,
            max_discarded_in_a_row=500,
        )
    assert (
        "with it, the 7 remaining samples cannot be divided into trajectories of at least 4 "
        "samples, got no usable trajectory in the last 500 env steps"
    ) in str(error.value)


@pytest.mark.parametrize(
    "lengths, total, bounds, found, thrown_away",
    [
        # 10 = 5 + 5 only: no trajectory of 4 is of use.
        ([4, 20], 10, (4, 5), [5, 5], [4]),
        ([4, 4, 4, 20], 10, (4, 5), [5, 5], [4, 4, 4]),
        # Behind 9 only 11 would be left, between 10 and 2 * 8.
        ([9, 20], 20, (8, 10), [10, 10], [9]),
        # 2 * 6 are less and 2 * 7 are more than the 13 behind a 7.
        ([7, 7, 20], 20, (6, 10), [7, 7, 6], []),
        # Without a longest: behind 4 there are 6 left, of which 5 leave 1. So the 4 goes for a 5.
        ([4, 5], 10, (4, None), [5, 5], [4]),
        # Behind 5 and 5 there are 3 left: one sample goes after all, of the newest that has it.
        ([5], 13, (4, None), [5, 4, 4], []),
        # 4 + 4 leave 3, which 4 + 7 do not need: the second 4 stays out.
        ([4, 4, 20], 11, (4, None), [4, 7], [4]),
    ],
)
def test_what_the_episodes_can_make_up_is_reached(lengths, total, bounds, found, thrown_away):
    shortest, longest = bounds
    counts = SamplingCounts()
    with make_pool(lambda: Scripted(lengths), 1) as pool:
        trajectories = collect_samples(
            pool,
            Policy(),
            total_samples=total,
            min_trajectory_length=shortest,
            max_trajectory_length=longest,
            max_discarded_in_a_row=500,
            counts=counts,
        )
    check_total(trajectories, total)
    assert [len(t) for t in trajectories] == found
    assert counts.discarded_trajectories == len(thrown_away)
    assert counts.discarded_samples == sum(thrown_away)
    assert counts.states == total + counts.discarded_samples + counts.trimmed_samples


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    lengths=st.lists(st.integers(1, 14), max_size=8),
    last=st.integers(0, 8),
    shortest=st.integers(1, 7),
    room=st.one_of(st.none(), st.integers(0, 5)),
    total=st.integers(1, 60),
    workers=st.integers(1, 4),
)
def test_every_total_that_the_last_episodes_can_make_up_is_reached(
    lengths, last, shortest, room, total, workers
):
    # From some episode on all have `last` samples: they alone could make the total up.
    last += shortest
    longest = None if room is None else shortest + room
    most = last if longest is None else min(last, longest)
    # An oracle of sums: so many samples are one of `shortest` to `most` and such a sum.
    sums = [True]
    for n in range(1, total + 1):
        sums.append(any(sums[n - k] for k in range(shortest, min(most, n) + 1)))
    hypothesis.assume(sums[total])
    counts = SamplingCounts()
    with make_pool(lambda: Scripted([*lengths, last]), workers) as pool:
        found = collect_samples(
            pool,
            Policy(),
            total_samples=total,
            clip_length=shortest,
            max_trajectory_length=longest,
            max_discarded_in_a_row=5_000,
            counts=counts,
        )
    check_total(found, total)
    assert min(map(len, found)) >= shortest
    assert longest is None or max(map(len, found)) <= longest
    assert counts.states == total + counts.discarded_samples + counts.trimmed_samples
    assert (counts.samples, counts.trajectories) == (total, len(found))


def test_a_stream_of_one_length_has_no_end():
    with make_pool(lambda: Scripted([7]), 1) as pool:
        stream = iter_samples(
            pool, Policy(), total_samples=None, clip_length=5, max_trajectory_length=5
        )
        found = [next(stream) for _ in range(3)]
    assert [(len(t), t.episode, t.start) for t in found] == [(5, 0, 0), (5, 1, 0), (5, 2, 0)]
