"""Plays episodes through pools, and without them for comparison."""

import select

import numpy as np
import pytest

from tfrl.envs.workers import NoState, WorkerPool, episode_seed

# Seconds that nothing takes however slow the machine is; what hangs ends all the same.
PATIENCE = 120.0
MODES = ("sync", "thread", "process")
# For what does not depend on how states travel: a process takes a third of a second to start.
MOSTLY_FAST_MODES = ("sync", "thread", pytest.param("process", marks=pytest.mark.slow))


def make_pool(env_factory, num_workers, mode, **options):
    """Returns a pool of a mode, `sync` included, with timeouts that end a broken test."""
    bounds = ("reset_timeout", "step_timeout", "start_timeout")
    options = dict.fromkeys(bounds, PATIENCE) | options
    if mode == "sync":
        return WorkerPool(env_factory, num_workers, force_sync=True, **options)
    return WorkerPool(env_factory, num_workers, mode=mode, **options)


def act(state):
    """An action that depends on all that identifies a state."""
    return (state.worker_id + state.episode + state.step) % 2


def play(pool, enough, choose=act):
    """Plays until `enough(states)`; returns all states in the order of their arrival."""
    states = []
    while not enough(states):
        state = pool.get_state(timeout=PATIENCE)
        assert state, f"{state} after {len(states)} states"
        states.append(state)
        if not state.last:
            pool.send_action(choose(state), state.worker_id, state.generation)
    return states


def episodes_of(states, worker_id):
    """Returns {episode: its states in order} of a worker."""
    found = {}
    for state in states:
        if state.worker_id == worker_id:
            found.setdefault(state.episode, []).append(state)
    return found


def ended(states, worker_id):
    """Returns how many episodes of a worker have ended."""
    return sum(state.last for state in states if state.worker_id == worker_id)


def first_states(pool):
    """Returns the first state of every worker, as {worker_id: state}."""
    found = {}
    while len(found) < len(pool):
        state = pool.get_state(timeout=PATIENCE)
        assert state.first and state.worker_id not in found
        found[state.worker_id] = state
    return found


def expected_episode(env, seed, worker_id, episode):
    """Plays an episode by hand; returns (obs, reward, terminated, truncated) of every state."""
    obs, _ = env.reset(seed=episode_seed(seed, worker_id, episode))
    rows, step, over = [(obs.copy(), 0.0, False, False)], 0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step((worker_id + episode + step) % 2)
        rows.append((obs.copy(), reward, terminated, truncated))
        step, over = step + 1, terminated or truncated
    return rows


def assert_episode(states, rows):
    """Asserts that the states of an episode are those that were expected."""
    assert [state.step for state in states] == list(range(len(rows)))
    for state, (obs, reward, terminated, truncated) in zip(states, rows, strict=True):
        np.testing.assert_array_equal(state.obs, obs)
        assert state.obs.dtype == obs.dtype
        assert (state.reward, state.terminated, state.truncated) == (reward, terminated, truncated)
    assert not any(state.lost for state in states)


def quiet(pool):
    """Asserts that no state is under way."""
    assert pool.get_state(timeout=PATIENCE) is NoState.IDLE


def arrived(pool, *worker_ids):
    """Waits until something of each of some workers can be read, an end included; reads nothing."""
    for worker_id in worker_ids:
        assert select.select([pool._workers[worker_id]._host.channel], [], [], PATIENCE)[0]
