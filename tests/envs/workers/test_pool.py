import functools
import gc
import threading
import time

import gymnasium
import numpy as np
import pytest

from tests.envs.workers import processes
from tests.envs.workers.driving import (
    MODES,
    MOSTLY_FAST_MODES,
    PATIENCE,
    act,
    assert_episode,
    ended,
    episodes_of,
    expected_episode,
    first_states,
    make_pool,
    play,
    quiet,
)
from tests.envs.workers.environments import Chosen, Fault, Numbered, Pictures, Walk
from tfrl.envs.workers import (
    AsyncEnvironmentWorker,
    NoState,
    SyncEnvironmentWorker,
    WorkerLimits,
    WorkerPool,
    WorkerState,
    episode_seed,
)
from tfrl.errors import UserError

ENDLESS = functools.partial(Walk, push=0.0)


@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_those_of_the_environment_played_by_hand(mode):
    push = 0.3
    with make_pool(lambda: Walk(push), 3, mode, seed=5) as pool:
        assert len(pool) == 3
        pool.reset()
        states = play(pool, lambda s: all(ended(s, w) >= 3 for w in range(3)))
    assert {state.generation for state in states} == {1}
    env = Walk(push)
    for worker_id in range(3):
        episodes = episodes_of(states, worker_id)
        assert list(episodes) == list(range(len(episodes))) and len(episodes) >= 3
        for episode in range(3):
            rows = expected_episode(env, 5, worker_id, episode)
            assert len(rows) > 2
            assert_episode(episodes[episode], rows)
            assert [s.first for s in episodes[episode]] == [True] + [False] * (len(rows) - 1)
            assert [s.last for s in episodes[episode]] == [False] * (len(rows) - 1) + [True]
            assert episodes[episode][0].info == {"seed": episode_seed(5, worker_id, episode)}
            assert episodes[episode][1].info.keys() == {"noise"}


@pytest.mark.parametrize("mode", MOSTLY_FAST_MODES)
def test_every_kind_of_space(mode):
    action = np.float32([0.25, 0.5])
    with make_pool(Numbered, 0 if mode == "sync" else 1, mode) as pool:
        pool.reset()
        states = play(pool, lambda s: len(s) == 4, choose=lambda state: action)
        assert pool.observation_space == Numbered().observation_space
        assert pool.action_space == Numbered().action_space
    env = Numbered()
    assert [(s.episode, s.step, s.reward, s.truncated) for s in states] == [
        (0, 0, 0.0, False),
        (0, 1, 0.75, True),
        (1, 0, 0.0, False),
        (1, 1, 0.75, True),
    ]
    for start in (0, 2):
        expected = [env.reset(seed=episode_seed(1337, 0, start // 2))[0], env.step(action)[0]]
        for state, obs in zip(states[start:], expected, strict=False):
            np.testing.assert_equal({**state.obs, "parts": ()}, {**obs, "parts": ()})
            number, flags = state.obs["parts"]
            assert number == obs["parts"][0] and number.dtype == np.int64
            np.testing.assert_array_equal(flags, obs["parts"][1])
            assert state.obs["image"].dtype == np.uint8


@pytest.mark.parametrize("mode", MOSTLY_FAST_MODES)
def test_states_that_the_caller_holds_do_not_change(mode):
    with make_pool(ENDLESS, 1, mode) as pool:
        pool.reset()
        states = play(pool, lambda s: len(s) == 4)
    assert [state.obs[1] for state in states] == [0, 1, 2, 3]
    for state in states:
        state.obs[:] = 0  # and they are the caller's own


@pytest.mark.parametrize("mode", MOSTLY_FAST_MODES)
def test_actions_are_copied(mode):
    with make_pool(Pictures, 2, mode) as pool:
        pool.reset()
        firsts = first_states(pool)
        action = np.array([3, 9])
        for worker_id in firsts:
            pool.send_action(action[worker_id], worker_id)
        action[:] = 77
        assert {pool.get_state(PATIENCE).obs[0] for _ in firsts} == {3, 9}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.variants(1)
def test_observations_larger_than_the_pipe(mode):
    with make_pool(Pictures, 2, mode) as pool:
        pool.reset()
        # The workers' pipes are full while nobody reads.
        time.sleep(0.0 if mode == "sync" else 1.0)
        states = play(pool, lambda s: len(s) >= 16, choose=lambda state: 7 + state.step)
    for state in states:
        value = 0 if state.first else 6 + state.step
        np.testing.assert_array_equal(state.obs, np.full([1_000_000], value, np.uint8))
    assert {state.step for state in states if state.last} == {3}


@pytest.mark.slow
def test_factories_and_actions_larger_than_the_pipe():
    data = np.arange(1_000_000)

    class Sums(Walk):
        def step(self, action):
            obs, _, *rest = super().step(0)
            return obs, float(action.sum() + data.sum()), *rest

    with make_pool(lambda: Sums(0.0), 2, "process") as pool:
        pool.reset()
        states = play(pool, lambda s: len(s) == 6, choose=lambda state: data)
    assert {state.reward for state in states if state.step} == {999_999 * 1_000_000.0}


@pytest.mark.parametrize("mode", MOSTLY_FAST_MODES)
def test_the_step_limit_truncates(mode):
    with make_pool(ENDLESS, 1, mode, max_episode_steps=4) as pool:
        pool.reset()
        states = play(pool, lambda s: len(s) == 10)
    assert [(s.step, s.terminated, s.truncated) for s in states[:5]] == [
        *((step, False, False) for step in range(4)),
        (4, False, True),
    ]
    assert [s.episode for s in states] == [0] * 5 + [1] * 5


def test_integers_of_numpy_are_counts():
    counts = {"max_episode_steps": np.int64(2), "first_episodes": np.int32(3)}
    with WorkerPool(ENDLESS, np.int64(2), force_sync=True, **counts) as pool:
        pool.reset()
        states = play(pool, lambda s: len(s) == 6)
        assert not pool.send_action(0, np.int64(0), generation=0)
    assert [s.episode for s in states] == [3] * 6 and states[-1].truncated


def test_an_end_at_the_step_limit_is_no_truncation():
    env = Walk(0.3)
    length = len(expected_episode(env, 1337, 0, 0)) - 1
    with make_pool(lambda: Walk(0.3), 0, "sync", max_episode_steps=length) as pool:
        pool.reset()
        last = play(pool, lambda s: ended(s, 0) == 1)[-1]
    assert (last.step, last.terminated, last.truncated) == (length, True, False)


@pytest.mark.parametrize("mode", MODES)
def test_idle_and_timed_out_are_told_apart(mode, tmp_path):
    go_on = tmp_path / "go_on"
    waits = {episode_seed(1337, 1, 0): Fault("waits", until=str(go_on))}
    with make_pool(lambda: Chosen(waits), 2, mode) as pool:
        with pytest.raises(UserError) as error:
            pool.get_state()
        assert str(error.value) == (
            "get_state: expected workers with an episode, got workers that were not reset. Call "
            "reset() first."
        )
        pool.reset()
        first_states(pool)
        quiet(pool)
        assert not NoState.IDLE and not NoState.TIMED_OUT
        pool.send_action(0, 1)
        if mode != "sync":
            before = time.monotonic()
            assert pool.get_state(timeout=0) is NoState.TIMED_OUT
            assert pool.get_state(timeout=0.05) is NoState.TIMED_OUT
            assert 0.05 <= time.monotonic() - before
            # A worker that is ready does not wait for the other.
            pool.send_action(0, 0)
            assert pool.get_state(PATIENCE).worker_id == 0
        go_on.touch()
        state = pool.get_state(timeout=None)
        assert bool(state) and (state.worker_id, state.step) == (1, 1)
        quiet(pool)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_stale_crosses_a_reset(mode):
    with make_pool(ENDLESS, 2, mode, max_episode_steps=3) as pool:
        old = []
        for generation in range(1, 31):
            pool.reset()
            assert pool.generation == generation
            # Actions for states of before are dropped, also after a state of now has come.
            assert not any(pool.send_action(0, s.worker_id, s.generation) for s in old)
            states = play(pool, lambda s, n=generation % 9: len(s) >= n)
            assert not any(pool.send_action(0, s.worker_id, s.generation) for s in old)
            assert {s.generation for s in states} <= {generation}
            for worker_id in range(2):
                steps = [s.step for s in states if s.worker_id == worker_id]
                assert steps == [i % 4 for i in range(len(steps))]
            old = states


@pytest.mark.parametrize("mode", MODES)
def test_episode_numbers_follow_what_the_caller_has_seen(mode):
    with make_pool(ENDLESS, 2, mode, max_episode_steps=1) as pool:
        assert pool.next_episodes == [0, 0]
        pool.reset()
        assert pool.next_episodes == [0, 0]
        pool.reset()
        firsts = first_states(pool)
        assert [firsts[w].episode for w in range(2)] == [0, 0]
        assert pool.next_episodes == [1, 1]
        pool.send_action(0, 0)
        assert pool.get_state(PATIENCE).last
        # Worker 0 has begun its episode 1, or is about to: nobody has seen it.
        assert pool.next_episodes == [1, 1]
        pool.reset()
        firsts = first_states(pool)
        assert [firsts[w].episode for w in range(2)] == [1, 1]
        seeds = [firsts[w].info["seed"] for w in range(2)]
        assert seeds == [episode_seed(1337, w, 1) for w in range(2)]


@pytest.mark.parametrize("mode", MOSTLY_FAST_MODES)
def test_a_resumed_pool_goes_on_with_the_seeds_that_follow(mode):
    with make_pool(ENDLESS, 2, mode, max_episode_steps=2) as pool:
        pool.reset()
        play(pool, lambda s: ended(s, 0) >= 2 and ended(s, 1) >= 1)
        following = pool.next_episodes
    assert all(episode >= 1 for episode in following)
    with make_pool(ENDLESS, 2, mode, first_episodes=following) as pool:
        pool.reset()
        firsts = first_states(pool)
    for worker_id, episode in enumerate(following):
        assert firsts[worker_id].episode == episode
        assert firsts[worker_id].info["seed"] == episode_seed(1337, worker_id, episode)


AWAITS_NONE = (
    "expected one action for each state from get_state, got an action for a worker without a "
    "pending state. Call get_state first; the last state of an episode takes no action, since the "
    "next episode starts automatically."
)


@pytest.mark.parametrize("mode", MOSTLY_FAST_MODES)
def test_one_action_for_each_state(mode):
    message = f"send_action to environment worker 0: {AWAITS_NONE}"
    with make_pool(ENDLESS, 1, mode, max_episode_steps=1) as pool:
        with pytest.raises(UserError) as error:
            pool.send_action(0, 0)
        assert str(error.value) == message
        pool.reset()
        with pytest.raises(UserError):
            pool.send_action(0, 0)
        assert pool.get_state(PATIENCE).first
        assert pool.send_action(1, 0) is True
        with pytest.raises(UserError):
            pool.send_action(1, 0)
        assert pool.get_state(PATIENCE).last
        with pytest.raises(UserError) as error:
            pool.send_action(1, 0)
        assert str(error.value) == message
        # None of that disturbed the worker.
        assert pool.get_state(PATIENCE).first
        for worker_id in (1, -1, "a", None, 0.5, False):
            with pytest.raises(UserError) as error:
                pool.send_action(0, worker_id)
            assert str(error.value) == (
                "worker_id of send_action: expected a whole number of at least 0 and at most 0, "
                f"got {worker_id!r}. Call send_action(action, worker_id). Use a worker_id from 0 "
                "to 0."
            )


@pytest.mark.parametrize("mode", MOSTLY_FAST_MODES)
def test_a_closed_pool_says_so(mode):
    pool = make_pool(ENDLESS, 1, mode)
    with pool:
        pool.reset()
        pool.get_state(PATIENCE)
    pool.close()
    calls = (pool.reset, pool.get_state, lambda: pool.send_action(0, 0))
    for call in calls:
        with pytest.raises(UserError) as error:
            call()
        assert str(error.value) == (
            "environment workers: expected open workers, got closed workers."
        )
    assert len(pool) == 1 and pool.pids == []


def test_no_workers_is_one_in_the_caller():
    before = processes.children()
    with WorkerPool(lambda: Walk(), 0) as pool:
        pool.reset()
        state = pool.get_state()
        assert len(pool) == 1 and isinstance(state, WorkerState) and state.first
        assert processes.children() == before and pool.pids == []


def test_a_forced_synchronous_pool_takes_turns():
    with WorkerPool(ENDLESS, 3, force_sync=True) as pool:
        pool.reset()
        states = play(pool, lambda s: len(s) == 9)
    assert [(s.step, s.worker_id) for s in states] == [(t, w) for t in range(3) for w in range(3)]


WRONG = [
    (
        {"num_workers": -1},
        "num_workers of a WorkerPool: expected a whole number of at least 0, got -1. Give 0 or "
        "more.",
    ),
    (
        {"mode": "proces"},
        "mode of the environment workers: expected one of process, thread, got 'proces'. Did you "
        "mean process?",
    ),
    (
        {"env_factory": "CartPole-v1"},
        "env_factory: expected a function without arguments that returns a gymnasium.Env, got "
        "'CartPole-v1' of type str. Pass functools.partial(gymnasium.make, 'CartPole-v1').",
    ),
    (
        {"first_episodes": [1, 2, 3]},
        "first_episodes of a WorkerPool: expected a whole number of at least 0, or 2 of them, one "
        "per worker, got [1, 2, 3]. Pass the next_episodes of the resumed run, with the same "
        "number of workers.",
    ),
    (
        {"first_episodes": 1.5},
        "first_episodes of a WorkerPool: expected a whole number of at least 0, got 1.5. Give 0 or "
        "more.",
    ),
    (
        {"max_episode_steps": True},
        "max_episode_steps of the environment workers: expected a whole number of at least 1 or "
        "None, got True. Give 1 or more.",
    ),
    (
        {"max_episode_steps": 0},
        "max_episode_steps of the environment workers: expected a whole number of at least 1 or "
        "None, got 0. Give 1 or more.",
    ),
    (
        {"step_timeout": 0},
        "step_timeout of the environment workers: expected a number above 0, got 0. Pass a finite "
        "number.",
    ),
    (
        {"cleanup_time": float("inf")},
        "cleanup_time of the environment workers: expected a number of at least 0, got inf. Pass "
        "a finite number.",
    ),
    (
        {"max_restarts": 1.5},
        "max_restarts of the environment workers: expected a whole number of at least 0, got 1.5. "
        "Give 0 or more.",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[next(iter(a)) for a, _ in WRONG])
@pytest.mark.variants(4)
def test_wrong_arguments_start_nothing(arguments, message):
    before = processes.children(), processes.descriptors()
    with pytest.raises(UserError) as error:
        WorkerPool(**{"env_factory": Walk, "num_workers": 2} | arguments)
    assert str(error.value) == message
    gc.collect()
    assert (processes.children(), processes.descriptors()) == before


def test_an_environment_instead_of_a_factory_is_refused():
    with pytest.raises(UserError) as error:
        WorkerPool(Walk(), 2)
    assert (
        "of type Walk. Pass a function that creates the environment, since each worker calls it."
        in (str(error.value))
    )


@pytest.mark.parametrize("timeout", [-1, "1", float("nan"), True])
def test_wrong_timeouts_of_get_state(timeout):
    with WorkerPool(Walk, 0) as pool:
        pool.reset()
        with pytest.raises(UserError) as error:
            pool.get_state(timeout)
    assert str(error.value) == (
        f"timeout of get_state: expected a number of at least 0 or None, got {timeout!r}. Pass 0 "
        "to return only available states, or None to wait."
    )


def test_a_factory_that_cannot_be_pickled():
    lock = threading.Lock()
    with pytest.raises(UserError) as error:
        WorkerPool(lambda: (lock, Walk())[1], 1)
    assert str(error.value).startswith(
        "env_factory: expected a picklable factory, since it is sent to the workers' processes, "
        "got TypeError: cannot pickle '_thread.lock' object. "
    )
    assert "Create unpicklable objects inside the factory, or pass mode='thread'." in str(
        error.value
    )
    # Threads need no pickle.
    with make_pool(lambda: (lock, Walk())[1], 1, "thread") as pool:
        pool.reset()
        assert pool.get_state(PATIENCE).first


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_alone(mode):
    def make(**options):
        if mode == "sync":
            return SyncEnvironmentWorker(ENDLESS, **options)
        return AsyncEnvironmentWorker(ENDLESS, mode=mode, limits=WorkerLimits(), **options)

    with make(worker_id=4, seed=3, max_episode_steps=2, first_episode=6) as worker:
        assert isinstance(worker.action_space, gymnasium.spaces.Discrete)
        assert worker.observation_space.shape == (2,)
        worker.reset()
        states = []
        while len(states) < 5:
            states.append(worker.get_state(PATIENCE))
            assert states[-1]
            if not states[-1].last:
                assert worker.send_action(act(states[-1]))
        assert [(s.worker_id, s.episode, s.step) for s in states] == [
            *((4, 6, step) for step in range(3)),
            *((4, 7, step) for step in range(2)),
        ]
        assert states[0].info["seed"] == episode_seed(3, 4, 6)
        assert (worker.next_episode, worker.generation, worker.restarts) == (8, 1, 0)
        worker.reset()
        state = worker.get_state(PATIENCE)
        assert (state.generation, state.episode, state.step) == (2, 8, 0)


@pytest.mark.parametrize("mode", MOSTLY_FAST_MODES)
@pytest.mark.parametrize("by_action", [False, True])
def test_one_worker_is_reset(mode, by_action):
    with make_pool(ENDLESS, 2, mode) as pool:
        pool.reset()
        firsts = first_states(pool)
        pool.send_action(0, 0)
        if by_action:
            assert not pool.send_action("reset", 1, generation=0)
            assert pool.send_action("reset", 1) is True
        else:
            pool.reset(1)
        states = sorted((pool.get_state(PATIENCE) for _ in range(2)), key=lambda s: s.worker_id)
        assert [(s.worker_id, s.episode, s.step) for s in states] == [(0, 0, 1), (1, 1, 0)]
        assert states[1].info["seed"] == episode_seed(1337, 1, 1)
        # What was for its former episode is dropped; the other's goes on.
        assert not pool.send_action(0, 1, firsts[1].generation)
        assert pool.send_action(0, 0, states[0].generation)
        assert pool.get_state(PATIENCE).step == 2
        # Also one that is busy, and all of them afterwards.
        pool.send_action(0, 1)
        pool.reset(1)
        assert pool.get_state(PATIENCE)[2:4] == (2, 0)
        pool.reset()
        assert {s.episode for s in first_states(pool).values()} == {1, 3}
        with pytest.raises(UserError, match="worker_id of reset: expected .* got 2. Use a"):
            pool.reset(2)
        with pytest.raises(UserError, match="got 'close'. Call close()"):
            pool.send_action("close", 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_pool_of_workers(mode):
    def make(worker_id, **options):
        kind = SyncEnvironmentWorker if mode == "sync" else AsyncEnvironmentWorker
        options |= {} if mode == "sync" else {"mode": mode}
        return kind(ENDLESS, worker_id=worker_id, seed=3 + worker_id, **options)

    workers = [make(w) for w in range(2)]
    workers[1].reset()
    assert workers[1].get_state(PATIENCE).info["seed"] == episode_seed(4, 1, 0)
    workers[1].send_action("reset")
    with WorkerPool.from_workers(workers) as pool:
        assert pool.next_episodes == [0, 1]
        pool.next_episodes = [5, 6]
        pool.reset()
        firsts = first_states(pool)
        assert [firsts[w].info["seed"] for w in range(2)] == [
            episode_seed(3, 0, 5),
            episode_seed(4, 1, 6),
        ]
        pool.send_action(0, 1)
        assert pool.get_state(PATIENCE)[:4] == (1, pool.generation, 6, 1)
        with pytest.raises(UserError, match="0 of a WorkerPool: expected a worker without a pool"):
            WorkerPool.from_workers(workers)
        pids = pool.pids
        assert len(pids) == (2 if mode == "process" else 0)
    assert processes.gone(pids)
    with make(1) as lonely, pytest.raises(UserError, match=r"in order, got worker_ids \[1\]"):
        WorkerPool.from_workers([lonely])


@pytest.mark.slow
def test_garbage_is_closed():
    pool = make_pool(ENDLESS, 2, "process")
    pool.reset()
    pids = list(first_states(pool)) and pool.pids
    assert len(pids) == 2 and None not in map(processes.parent, pids)
    del pool
    gc.collect()
    assert processes.gone(pids)
