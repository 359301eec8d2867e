"""An environment whose every number is known, a policy for it, and a check of what was sampled."""

import os
import signal
import threading
import time

import gymnasium
import numpy as np

from tfrl.envs.workers import WorkerPool, episode_seed

SEED = 11
# No test waits so long, however slow the machine is; what hangs ends all the same.
PATIENCE = 120.0
EPISODES = 400


def tag(worker_id, episode):
    """What an observation says of its episode; float32 holds it exactly."""
    return float(episode_seed(SEED, worker_id, episode) % 2**20)


def worker_of(seed):
    """The worker whose seed this is, of 8."""
    for episode in range(EPISODES):
        for worker_id in range(8):
            if episode_seed(SEED, worker_id, episode) == seed:
                return worker_id
    raise ValueError(seed)


class Gate(threading.Event):
    """Holds a worker of a pool of threads up until it is set, or its `with` block ends.

    The block stands within the pool's: a thread that hangs could not be closed. So a slow worker is
    one that certainly does not answer, and no test relies on one being faster than another.
    """

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.set()


class Scripted(gymnasium.Env):
    """Episode e of a process lasts `lengths[e]` steps (the last of them for all that follow).

    Observations are (tag, step) in one buffer, rewards 10 * step + action. Episodes of an even
    length terminate, of an odd length are truncated.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, [2], np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, lengths=(5,), delays=None, die_at=None, mark=None, gates=None):
        """Makes it.

        Args:
          lengths: Of episodes.
          delays: {worker: seconds of a step}.
          die_at: A step at which the process of worker 0 kills itself, once.
          mark: A file that says that it has.
          gates: {worker: what its steps wait for}.
        """
        self._lengths = lengths
        self._delays = delays or {}
        self._gates = gates or {}
        self._die_at = die_at
        self._mark = mark
        self._obs = np.zeros([2], np.float32)
        self._episode = -1
        self._worker = None

    def reset(self, *, seed=None, options=None):
        self._episode += 1
        if self._worker is None and (self._delays or self._mark or self._gates):
            self._worker = worker_of(seed)
        self._obs[:] = seed % 2**20, 0
        return self._obs, {}

    def step(self, action):
        time.sleep(self._delays.get(self._worker, 0.0))
        if self._worker in self._gates:
            self._gates[self._worker].wait(PATIENCE)
        if self._die_at == self._obs[1] and self._worker == 0 and not os.path.exists(self._mark):
            open(self._mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        reward = float(10 * self._obs[1] + action)
        self._obs[1] += 1
        length = self._lengths[min(self._episode, len(self._lengths) - 1)]
        end = self._obs[1] >= length
        return self._obs, reward, bool(end and length % 2 == 0), bool(end and length % 2 == 1), {}


def choose(obs):
    """The action of an observation `[..., 2]`."""
    return (obs.sum(-1) % 2).astype(np.int64)


class Policy:
    """Acts by `choose`; remembers the size of every batch."""

    def __init__(self, on_batch=None):
        self.sizes = []
        self.optimal = set()
        self._on_batch = on_batch

    def __call__(self, obs, optimal):
        assert obs.dtype == np.float32 and obs.shape[1:] == (2,)
        self.sizes.append(len(obs))
        self.optimal.add(optimal)
        if self._on_batch is not None:
            self._on_batch(len(self.sizes))
        return choose(obs), {"step": obs[:, 1] * 2, "net": {"tag": obs[:, 0]}}


def make_pool(env_factory, num_workers, mode="sync", **options):
    """A pool of a mode, `sync` included, with timeouts that end a broken test."""
    bounds = ("reset_timeout", "step_timeout", "start_timeout")
    options = dict.fromkeys(bounds, PATIENCE) | options
    if mode == "sync":
        return WorkerPool(env_factory, num_workers, force_sync=True, seed=SEED, **options)
    return WorkerPool(env_factory, num_workers, mode=mode, seed=SEED, **options)


def check_trajectory(trajectory):
    """Asserts every number of an unmodified trajectory; returns its length."""
    count = len(trajectory)
    steps = np.arange(trajectory.start, trajectory.start + count)
    mine = tag(trajectory.worker_id, trajectory.episode)
    obs = np.stack([np.full(count, mine), steps], -1).astype(np.float32)
    np.testing.assert_array_equal(trajectory.obs, obs)
    np.testing.assert_array_equal(trajectory.action, choose(obs))
    np.testing.assert_array_equal(trajectory.reward, 10.0 * steps + choose(obs))
    assert trajectory.reward.dtype == np.float32
    np.testing.assert_array_equal(trajectory.last_obs, [mine, steps[-1] + 1])
    np.testing.assert_array_equal(trajectory.extras["step"], 2.0 * steps)
    np.testing.assert_array_equal(trajectory.extras["net"]["tag"], obs[:, 0])
    ends = trajectory.termination | trajectory.truncation
    assert trajectory.termination.dtype == trajectory.truncation.dtype == np.bool_
    np.testing.assert_array_equal(ends, [False] * (count - 1) + [True])
    assert not (trajectory.cut and trajectory.termination[-1])
    return count


def check_total(trajectories, total):
    """Asserts all numbers of all trajectories, their sum, and that no sample is there twice."""
    assert sum(check_trajectory(t) for t in trajectories) == total
    places = [
        (t.worker_id, t.episode, step)
        for t in trajectories
        for step in range(t.start, t.start + len(t))
    ]
    assert len(set(places)) == total
