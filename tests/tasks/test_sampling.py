import functools
import io
import itertools
import time

import gymnasium
import numpy as np
import pytest
import rich.console
import tensorflow as tf

from tests.tasks.scripted import (
    PATIENCE,
    Gate,
    Policy,
    Scripted,
    check_total,
    check_trajectory,
    choose,
    make_pool,
)
from tfrl.envs.workers import WorkerError
from tfrl.errors import UserError
from tfrl.experiment.progress import Progress
from tfrl.tasks import Sampler, SamplingCounts, collect_samples, iter_samples

MODES = ("sync", "thread", "process")


@pytest.mark.parametrize("mode", MODES)
def test_every_number_of_every_sample(mode):
    counts = SamplingCounts()
    policy = Policy()
    with make_pool(lambda: Scripted([5, 4]), 2, mode) as pool:
        found = collect_samples(
            pool, policy, total_samples=50, max_wait_time=PATIENCE, counts=counts
        )
    check_total(found, 50)
    whole = [t for t in found if not t.cut]
    assert {len(t) for t in whole} == {4, 5}
    for t in whole:  # even lengths terminate, odd ones are truncated
        assert (t.termination[-1], t.truncation[-1]) == (len(t) == 4, len(t) == 5)
        assert t.start == 0
    assert all(t.truncation[-1] for t in found if t.cut) and len(found) - len(whole) <= 2
    assert policy.optimal == {False} and sum(policy.sizes) == 50
    assert counts == SamplingCounts(
        samples=50,
        trajectories=len(found),
        episodes=len(whole),
        batches=len(policy.sizes),
        states=50,
    )


def test_a_synchronous_pool_by_hand():
    # Two workers in turn, episodes of 3 steps, 10 samples: 3 + 3, then 2 + 2 that are cut.
    with make_pool(lambda: Scripted([3]), 2) as pool:
        policy = Policy()
        found = collect_samples(pool, policy, total_samples=10, optimal=True)
    check_total(found, 10)
    assert [(t.worker_id, t.episode, len(t), t.cut) for t in found] == [
        (0, 0, 3, False),
        (1, 0, 3, False),
        (0, 1, 2, True),
        (1, 1, 2, True),
    ]
    assert policy.sizes == [2] * 5 and policy.optimal == {True}


@pytest.mark.parametrize("mode", ["sync", "thread"])
def test_max_trajectory_length_ends_the_episode(mode):
    with make_pool(lambda: Scripted([10]), 2, mode) as pool:
        # In step, so that both play more than one episode.
        found = collect_samples(
            pool,
            Policy(),
            total_samples=60,
            max_trajectory_length=4,
            min_batch_size=2,
            max_wait_time=PATIENCE,
        )
    check_total(found, 60)
    for worker_id in range(2):
        mine = [t for t in found if t.worker_id == worker_id]
        assert [t.episode for t in mine] == list(range(len(mine)))
        assert {(t.start, len(t), t.cut) for t in mine[:-1]} == {(0, 4, False)}
    assert found[0].truncation.tolist() == [False] * 3 + [True] and not found[0].termination.any()


def test_an_episode_that_a_sampler_goes_on_with_ends_there_too():
    with make_pool(lambda: Scripted([10]), 1) as pool:
        sampler, counts = Sampler(pool), SamplingCounts()
        collect_samples(sampler, Policy(), total_samples=3)
        found = collect_samples(
            sampler, Policy(), total_samples=8, max_trajectory_length=4, counts=counts
        )
    check_total(found, 8)
    assert [(t.episode, t.start, len(t), t.cut) for t in found] == [
        (0, 3, 4, False),
        (1, 0, 4, False),
    ]
    assert counts.episodes == 2 and sampler.counts.samples == 3


def test_without_a_bound_in_time_all_states_are_waited_for():
    slow = functools.partial(Scripted, [5, 4], {0: 0.01})
    with make_pool(slow, 3, "thread") as pool:
        policy = Policy()
        check_total(collect_samples(pool, policy, total_samples=60, max_wait_time=None), 60)
        assert policy.sizes[:10] == [3] * 10
        policy = Policy()
        options = {"max_batch_size": 2, "max_wait_time": None}
        check_total(collect_samples(pool, policy, total_samples=30, **options), 30)
        assert set(policy.sizes[:10]) == {2}


def test_batches_are_at_most_as_large_as_asked_for():
    with make_pool(lambda: Scripted([5]), 4) as pool:
        policy = Policy()
        check_total(collect_samples(pool, policy, total_samples=40, max_batch_size=3), 40)
        assert max(policy.sizes) == 3
        policy = Policy()
        check_total(collect_samples(pool, policy, total_samples=40, max_batch_size=99), 40)
        assert max(policy.sizes) == 4


class Waits:
    """Takes notes of how long a pool was waited for while states were there to act on."""

    def __init__(self, monkeypatch, pool):
        self.longest, self._ready = 0.0, 0
        get_state, send_action = pool.get_state, pool.send_action

        def noted(timeout=None):
            if self._ready:
                self.longest = max(self.longest, np.inf if timeout is None else timeout)
            state = get_state(timeout)
            self._ready += bool(state) and not state.last
            return state

        def sent(*args):
            self._ready -= 1
            return send_action(*args)

        monkeypatch.setattr(pool, "get_state", noted)
        monkeypatch.setattr(pool, "send_action", sent)


def held(gate):
    """A factory whose worker 0 answers no action before the gate opens."""
    return functools.partial(Scripted, [1000], gates={0: gate})


@pytest.mark.parametrize("waits", [0.05, 0.2])
@pytest.mark.variants(1)
def test_a_batch_is_waited_for_no_longer_than_max_wait_time(waits, monkeypatch):
    # The other two could fill a batch of 2, but not of 3.
    times = []
    policy = Policy(lambda n: times.append(time.monotonic()))
    gate = Gate()
    with make_pool(held(gate), 3, "thread") as pool, gate:
        noted = Waits(monkeypatch, pool)
        found = collect_samples(
            pool, policy, total_samples=12, min_batch_size=3, max_wait_time=waits
        )
        assert pool.restarts == 0
    check_total(found, 12)
    # All three are together at most once; from then on the others wait in vain each time.
    assert policy.sizes.count(3) <= 1 and set(policy.sizes) <= {1, 2, 3}
    assert np.median(np.diff(times)) >= 0.9 * waits
    assert noted.longest <= waits + 1e-6  # a sum and a difference of floats


def test_a_large_enough_batch_is_not_waited_for():
    gate = Gate()
    with make_pool(held(gate), 3, "thread") as pool, gate:
        stream = iter_samples(
            pool,
            Policy(),
            total_samples=None,
            max_trajectory_length=5,
            min_batch_size=2,
            max_wait_time=10 * PATIENCE,
        )
        # A wait for the third would last until its worker is given up as hung.
        found = list(itertools.islice(stream, 8))
        stream.close()
        assert pool.restarts == 0
    assert [check_trajectory(t) for t in found] == [5] * 8


def test_states_that_cannot_come_are_not_waited_for():
    # 4 samples of at least 4: one worker alone may act, so a batch of 2 can never come together.
    with make_pool(lambda: Scripted([9]), 3, "thread") as pool:
        policy = Policy()
        found = collect_samples(
            pool,
            policy,
            total_samples=4,
            min_trajectory_length=4,
            min_batch_size=2,
            max_wait_time=PATIENCE / 4,
        )
    check_total(found, 4)
    assert policy.sizes == [1] * 4


@pytest.mark.parametrize("shortest", [1, 6])
def test_a_slow_worker_loses_its_share_to_the_others_at_the_end(shortest):
    counts = SamplingCounts()
    gate = Gate()
    with make_pool(held(gate), 4, "thread") as pool, gate:
        sampler = Sampler(pool)
        gate.set()
        before = together(sampler, 8 * 4)  # all have begun
        gate.clear()
        found = collect_samples(
            sampler,
            Policy(),
            total_samples=200,
            min_trajectory_length=shortest,
            max_wait_time=0.2,
            counts=counts,
        )
        # Its action is under way all the time, and it is not given up as hung.
        assert pool.restarts == 0
    check_total(before + found, 232)
    assert min(map(len, found)) >= shortest
    assert 0 not in {t.worker_id for t in found}
    # The others too may lose theirs on a machine that lets them wait.
    assert counts.dropped_actions >= 1
    lost = counts.discarded_samples + counts.trimmed_samples + counts.dropped_actions
    assert counts.states == 200 + lost


def together(sampler, total):
    """Samples with all workers in step, so that each gives the same number."""
    count = len(sampler.pool)
    return collect_samples(
        sampler, Policy(), total_samples=total, min_batch_size=count, max_wait_time=PATIENCE
    )


def test_a_worker_that_lost_its_share_begins_again_with_the_state_that_came_late():
    gate = Gate()
    with make_pool(held(gate), 3, "thread") as pool, gate:
        sampler = Sampler(pool)
        gate.set()
        first = together(sampler, 3)
        gate.clear()
        second = collect_samples(sampler, Policy(), total_samples=20, max_wait_time=0.05)
        gate.set()
        later = together(sampler, 6)
    check_total(first + second, 23)
    check_total(later, 6)
    assert 0 not in {t.worker_id for t in second}
    # Its step 1 had been taken, but is no sample.
    assert [(t.start, len(t)) for t in later if t.worker_id == 0] == [(2, 2)]


def test_an_error_of_the_model_leaves_the_workers_as_they_are():
    def fail(states, optimal):
        raise ZeroDivisionError("of the model")

    with make_pool(lambda: Scripted([9]), 2) as pool:
        sampler = Sampler(pool)
        first = collect_samples(sampler, Policy(), total_samples=4)
        with pytest.raises(ZeroDivisionError, match="of the model"):
            collect_samples(sampler, fail, total_samples=4)
        second = collect_samples(sampler, Policy(), total_samples=4)
    check_total(first + second, 8)
    assert [(t.start, len(t)) for t in second] == [(2, 2), (2, 2)]


def test_the_last_worker_is_never_given_up():
    # All take longer than max_wait_time; none may starve the others for ever.
    slow = functools.partial(Scripted, [1000], {0: 0.05, 1: 0.05, 2: 0.05})
    with make_pool(slow, 3, "thread") as pool:
        found = collect_samples(
            pool, Policy(), total_samples=13, min_trajectory_length=6, max_wait_time=0.0
        )
    check_total(found, 13)


def test_a_sampler_goes_on_where_it_stopped():
    with make_pool(lambda: Scripted([10]), 2) as pool:
        sampler = Sampler(pool)
        first = collect_samples(sampler, Policy(), total_samples=6)
        second = collect_samples(sampler, Policy(), total_samples=14)
        third = collect_samples(pool, Policy(), total_samples=2)
    check_total(first + second, 20)
    assert [(t.worker_id, t.start, len(t), t.cut) for t in first] == [
        (0, 0, 3, True),
        (1, 0, 3, True),
    ]
    assert [(t.start, len(t), t.cut) for t in second] == [(3, 7, False)] * 2
    # A pool itself begins new episodes; of episodes 1 the first state had been seen.
    assert [(t.episode, t.start) for t in third] == [(2, 0), (2, 0)]


@pytest.mark.parametrize("mode", ["sync", "thread"])
def test_a_stream_without_an_end_is_stopped_by_its_reader(mode):
    with make_pool(lambda: Scripted([3]), 2, mode) as pool:
        sampler = Sampler(pool)
        stream = iter_samples(sampler, Policy(), total_samples=None)
        first = list(itertools.islice(stream, 7))
        stream.close()
        assert [check_trajectory(t) for t in first] == [3] * 7
        # What was under way is dropped; its worker goes on from where it is.
        check_total(collect_samples(sampler, Policy(), total_samples=9), 9)


def test_two_readers_of_one_pool_are_found_out():
    with make_pool(lambda: Scripted([3]), 2) as pool:
        old = iter_samples(pool, Policy(), total_samples=30)
        next(old)
        collect_samples(pool, Policy(), total_samples=3)
        with pytest.raises(UserError, match="exclusive use of the pool"):
            list(old)


def test_a_worker_that_dies_ends_its_trajectory_without_the_lost_action(tmp_path):
    counts = SamplingCounts()
    env = functools.partial(Scripted, [8], None, 3, str(tmp_path / "mark"))
    with make_pool(env, 2, "process") as pool:
        # In step: the other worker waits for the one that is restarted, and cannot take its share.
        found = collect_samples(
            pool,
            Policy(),
            total_samples=60,
            min_batch_size=2,
            max_wait_time=PATIENCE,
            counts=counts,
        )
        assert pool.restarts == 1
    check_total(found, 60)
    (lost,) = [t for t in found if t.worker_id == 0 and t.episode == 0]
    assert len(lost) == 3 and lost.cut and lost.truncation.tolist() == [False, False, True]
    assert counts.dropped_actions == 1


class Raising(Scripted):
    def step(self, action):
        if self._obs[1] == 3:
            raise ArithmeticError("no fourth step")
        return super().step(action)


def test_an_error_of_an_environment_reaches_the_reader_and_the_next_call_resets():
    # One worker: of two the second's error could arrive late, and the next reset would tell it.
    with make_pool(lambda: Raising([9]), 1, "thread") as pool:
        sampler = Sampler(pool)
        for _ in range(2):
            with pytest.raises(WorkerError, match="ArithmeticError: no fourth step"):
                collect_samples(sampler, Policy(), total_samples=40)
        check_total(collect_samples(sampler, Policy(), total_samples=3), 3)


class Nested(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        {
            "picture": gymnasium.spaces.Box(0, 255, [2, 2], np.uint8),
            "place": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(9)]),
        }
    )
    action_space = gymnasium.spaces.Dict({"push": gymnasium.spaces.Box(-1, 1, [3], np.float32)})

    def _observation(self):
        return {"picture": np.full([2, 2], self._t, np.uint8), "place": (self._t,)}

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return self._observation(), {}

    def step(self, action):
        self._t += 1
        return self._observation(), float(action["push"].sum()), self._t == 4, False, {}


@pytest.mark.parametrize("tensors", [False, True])
def test_nests_and_tensors(tensors):
    def get_actions(states, optimal):
        assert states["picture"].shape[1:] == (2, 2) and states["picture"].dtype == np.uint8
        push = np.repeat(states["place"][0][:, None], 3, 1).astype(np.float32) / 10
        return {"push": tf.constant(push) if tensors else push}

    with make_pool(Nested, 2) as pool:
        found = collect_samples(pool, get_actions, total_samples=8)
    assert len(found) == 2
    for t in found:
        assert t.obs["picture"][:, 0, 0].tolist() == t.obs["place"][0].tolist() == [0, 1, 2, 3]
        assert t.last_obs["picture"][0, 0] == t.last_obs["place"][0] == 4
        np.testing.assert_allclose(t.action["push"][:, 1], [0, 0.1, 0.2, 0.3])
        np.testing.assert_allclose(t.reward, [0, 0.3, 0.6, 0.9], rtol=1e-6)
        assert t.extras == {}


def test_hooks_are_called_once_a_trajectory_and_once_for_all():
    seen = []

    def one(trajectory):
        seen.append(len(trajectory))
        to_go = np.cumsum(trajectory.reward[::-1])[::-1]
        return trajectory.replace(extras={**trajectory.extras, "return": to_go})

    def all_of_them(trajectories):
        assert [len(t) for t in trajectories] == seen
        return trajectories[:1]

    with make_pool(lambda: Scripted([3]), 2) as pool:
        (only,) = collect_samples(
            pool,
            Policy(),
            total_samples=8,
            postprocess_trajectory=one,
            postprocess_trajectories=all_of_them,
        )
    # Rewards are 10 * step + action.
    actions = choose(only.obs)
    assert seen == [3, 3, 1, 1]
    assert only.extras["return"].tolist() == [
        30 + actions.sum(),
        30 + actions[1:].sum(),
        20 + actions[2],
    ]


@pytest.mark.parametrize(
    "hooks, message",
    [
        (
            {"postprocess_trajectory": lambda t: t.newest(2)},
            "postprocess_trajectory: expected 3 samples, as in its argument, got 2. Change only "
            "values and extras, not the number of samples.",
        ),
        (
            {"postprocess_trajectory": lambda t: None},
            "postprocess_trajectory: expected a SampledTrajectory, got NoneType. Return "
            "trajectory.replace(...).",
        ),
        (
            {"postprocess_trajectory": lambda t: t.replace(extras={"adv": np.zeros(2)})},
            "postprocess_trajectory: extras['adv']: expected an array [3, ...], one row per "
            "sample, got shape [2]. Return one row per sample.",
        ),
        (
            {"postprocess_trajectories": lambda ts: None},
            "postprocess_trajectories: expected a list of SampledTrajectory, got NoneType. Return "
            "the list of trajectories.",
        ),
        (
            {"postprocess_trajectories": lambda ts: [3]},
            "postprocess_trajectories: expected a list of SampledTrajectory, got int. Return "
            "trajectory.replace(...).",
        ),
    ],
)
def test_hooks_that_return_something_else_are_refused(hooks, message):
    with make_pool(lambda: Scripted([3]), 1) as pool, pytest.raises(UserError) as error:
        collect_samples(pool, Policy(), total_samples=6, **hooks)
    assert str(error.value) == message


def test_actions_of_another_number_than_states_are_refused():
    with make_pool(lambda: Scripted([3]), 2) as pool, pytest.raises(UserError) as error:
        collect_samples(pool, lambda states, optimal: np.zeros([3], int), total_samples=6)
    assert str(error.value) == (
        "action of get_actions: expected arrays [2, ...], one row per state, got [3, ...]. Return "
        "one action per state, in the order of the states."
    )


def test_progress_reaches_the_total():
    stream = io.StringIO()
    console = rich.console.Console(file=stream)
    with make_pool(lambda: Scripted([3]), 2) as pool:
        with Progress(20, "samples", console=console, every_seconds=0.0) as progress:
            collect_samples(pool, Policy(), total_samples=20, progress=progress)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("samples  10% 2/20") and lines[-1].startswith("samples 100% 20/20")


def test_progress_makes_its_own_bar(capsys):
    with make_pool(lambda: Scripted([3]), 2) as pool:
        collect_samples(pool, Policy(), total_samples=20, progress=True)
    assert "samples 100% 20/20" in capsys.readouterr().err


@pytest.mark.parametrize(
    "bounds, message",
    [
        (
            {"total_samples": 0},
            "total_samples: expected a whole number of at least 1, got 0. Pass a number of "
            "samples.",
        ),
        (
            {"total_samples": 2.5},
            "total_samples: expected a whole number of at least 1, got 2.5. Pass a number of "
            "samples.",
        ),
        (
            {"min_trajectory_length": 3, "clip_length": 4},
            "min_trajectory_length: expected at least the clip length, 4, got 3. Raise it, or "
            "leave it out for the clip length.",
        ),
        (
            {"min_trajectory_length": 5, "max_trajectory_length": 4},
            "max_trajectory_length: expected "
            "at least min_trajectory_length, 5, got 4. Raise it, or lower min_trajectory_length.",
        ),
        (
            {"clip_length": 21},
            "total_samples: expected at least min_trajectory_length, 21, got 20. Raise it to fit "
            "at least one trajectory.",
        ),
        (
            {"clip_length": 7, "max_trajectory_length": 8},
            "total_samples: expected a sum of trajectories of 7 to 8 samples, got 20. Use 16 or "
            "21, the nearest sums.",
        ),
        (
            {"min_batch_size": 3, "max_batch_size": 2},
            "min_batch_size: expected at most "
            "max_batch_size, 2, got 3. Lower it, or raise max_batch_size.",
        ),
        (
            {"min_batch_size": 3},
            "min_batch_size: expected at most max_batch_size, 2, got 3. Lower "
            "it, or raise max_batch_size.",
        ),
        (
            {"min_batch_size": 3, "max_batch_size": 8},
            "min_batch_size: expected at most the number of workers, 2, got 3. Lower it, or "
            "create a larger pool: each worker waits with one state.",
        ),
        (
            {"max_batch_size": 0},
            "max_batch_size: expected a whole number of at least 1, got 0. Pass a number of "
            "states.",
        ),
        (
            {"max_discarded_in_a_row": 0},
            "max_discarded_in_a_row: expected a whole number of at least 1, got 0. Pass a number "
            "of samples.",
        ),
        (
            {"max_wait_time": -1.0},
            "max_wait_time: expected a number of at least 0 or None, got -1.0. Pass the time in "
            "seconds, or 0 to not wait.",
        ),
        (
            {"max_wait_time": float("nan")},
            "max_wait_time: expected a number of at least 0 or None, got nan. Pass the time in "
            "seconds, or 0 to not wait.",
        ),
        (
            {"total_samples": None, "progress": True},
            "progress: expected False for an endless stream, got True. Leave it out, or pass "
            "total_samples.",
        ),
    ],
)
def test_contradictory_bounds_are_refused_at_once(bounds, message):
    with make_pool(lambda: Scripted([3]), 2) as pool:
        with pytest.raises(ValueError) as error:
            iter_samples(pool, Policy(), **({"total_samples": 20} | bounds))
        assert pool.generation == 0
    assert str(error.value) == message


def test_collecting_needs_an_end():
    with make_pool(lambda: Scripted([3]), 2) as pool, pytest.raises(UserError) as error:
        collect_samples(pool, Policy(), total_samples=None)
    assert str(error.value) == (
        "total_samples: expected a whole number of at least 1, got None. Pass total_samples; only "
        "iter_samples supports endless streams."
    )
