"""What a thousand resets and a hundred deaths leave behind: nothing."""

import functools
import gc
import random
import threading
import time

import pytest

from tests.envs.workers import processes
from tests.envs.workers.driving import ended, first_states, make_pool, play
from tests.envs.workers.environments import Pictures, Walk

# A state that were kept would be found: each has 100 kB.
LARGE = functools.partial(Pictures, size=100_000)


class Usage:
    """Processes, threads, descriptors and memory of this process, and of a pool's workers."""

    def __init__(self, pool):
        gc.collect()
        self.children = processes.children()
        self.threads = threading.active_count()
        self.descriptors = processes.descriptors()
        self.resident = processes.resident_mb()
        self.of_workers = [processes.descriptors(pid) for pid in pool.pids]
        self.workers_resident = [processes.resident_mb(pid) for pid in pool.pids]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_a_thousand_resets_leave_nothing(mode):
    with make_pool(LARGE, 2, mode) as pool:
        for generation in range(1, 1201):
            pool.reset()
            # Between none and all of two episodes of each worker are played.
            play(pool, lambda s, n=generation % 17: len(s) >= n)
            if generation == 200:
                before = Usage(pool)
        play(pool, lambda s: len(s) >= 16)
        after = Usage(pool)
        assert pool.generation == 1200 and pool.restarts == 0
        assert all(episode > 400 for episode in pool.next_episodes)
    assert after.children == before.children and after.threads == before.threads
    assert after.descriptors == before.descriptors and after.of_workers == before.of_workers
    assert after.resident - before.resident < 10.0
    for old, new in zip(before.workers_resident, after.workers_resident, strict=True):
        assert new - old < 3.0


@pytest.mark.slow
def test_pools_leave_nothing():
    for number in range(12):
        for mode in ("thread", "process"):
            with make_pool(Walk, 2, mode) as pool:
                pool.reset()
                first_states(pool)
        if number == 2:
            before = Usage(pool)
    after = Usage(pool)
    assert after.children == before.children and after.threads == before.threads
    assert after.descriptors == before.descriptors
    assert after.resident - before.resident < 10.0


def drive_and_kill(pool, kills, draw):
    """Plays while workers are killed at random points; returns how many episodes were lost.

    Keeps one state a worker, as more would look like a leak, and asserts that the next follows it.
    """
    newest, lost, next_kill = {}, 0, time.monotonic()
    while kills:
        state = pool.get_state(timeout=0.02)
        if state:
            lost += assert_follows(newest.get(state.worker_id), state)
            newest[state.worker_id] = state
            if not state.last:
                pool.send_action(state.step % 2, state.worker_id, state.generation)
        if time.monotonic() >= next_kill and len(pool.pids) > len(pool) // 2:
            # Its processes are not reaped yet, so that their numbers are nobody else's.
            processes.kill([draw.choice(pool.pids)])
            next_kill = time.monotonic() + draw.uniform(0.0, 0.6)
            kills -= 1
    return lost


def assert_follows(before, after):
    """Asserts that a worker's state may come after another; returns whether it is a loss."""
    place = (after.episode, after.step)
    if before is None or before.last:
        # Not always the next episode: some could not even begin.
        assert before is None or after.episode > before.episode
        assert after.first and not after.lost
    elif after.lost:
        assert place == (before.episode, before.step) and after.truncated
    else:
        assert place == (before.episode, before.step + 1)
    return after.lost


@pytest.mark.slow
def test_a_hundred_kills_at_random_points():
    workers, kills = 4, 100
    own = processes.children(), threading.active_count()
    with make_pool(Walk, workers, "process", max_episode_steps=20, max_restarts=100) as pool:
        pool.reset()
        play(pool, lambda s: all(ended(s, w) >= 1 for w in range(workers)))
        pool.reset()
        before = Usage(pool)
        lost = drive_and_kill(pool, kills, random.Random(0))
        # All are well again, and play whole episodes.
        pool.reset()
        well = play(pool, lambda s: all(ended(s, w) >= 2 for w in range(workers)))
        after = Usage(pool)
        # Kills of one process, before the first was noticed, are one death.
        assert kills / 4 <= pool.restarts <= kills
        assert len(pool.pids) == workers
    assert not any(state.lost for state in well)
    assert len(after.children) == len(before.children) and after.threads == before.threads
    assert after.descriptors == before.descriptors
    assert after.resident - before.resident < 10.0
    assert processes.gone(after.children - own[0])
    assert threading.active_count() <= own[1] + 1  # the launcher stays
    # Of some nothing was known yet: they were killed at their start.
    assert 1 <= lost <= pool.restarts
