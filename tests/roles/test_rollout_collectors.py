"""Collectors of rollouts and their learner, in threads of one process."""

import dataclasses
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.roles.jobs import PPO, Job, advance, workflow
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.server import ReverbServer
from tfrl.roles import collector as collector_lib
from tfrl.roles import parameters, tables
from tfrl.roles.remote_collectors import RolloutCollectors
from tfrl.workflows.collectors import Collected


@pytest.mark.parametrize("synchronous", [True, False])
def test_on_policy(synchronous):
    job, learner = Job(PPO, 2), workflow(PPO)
    collectors = RolloutCollectors(
        learner,
        job.server.address,
        synchronous=None if synchronous else False,
        max_policy_lag=3,
        wait_seconds=30.0,
    )
    state = learner.setup(0)
    job.begin()
    state, rows = advance(learner, state, 320)
    collectors.finish(state)
    job.join()
    assert job.ended == [True, True]
    collectors._watching.join(timeout=5.0)  # the last evaluation may take long: that is no alarm
    assert not collectors._watching.is_alive()
    # A batch is 8 steps of the 4 environments that the two collectors share.
    assert [row["env_steps"] for row in rows] == list(range(32, 321, 32))
    assert learner.env_steps(state) == 320
    assert state.metrics.learner["learner_steps"].numpy() == 10
    lags = [row["policy_lag"] for row in rows]
    if synchronous:
        assert lags == [0.0] * 10
        assert not any(row["dropped_rollouts"] for row in rows)
    else:
        assert max(lags) <= 3.0
    assert sum(c.env_steps for c in job.collectors) >= 320
    assert np.isfinite(rows[-1]["loss"]) and rows[-1]["episode_return"] > 5.0
    learner.close()
    job.server.stop()


def test_a_synchronous_run_is_repeatable():
    losses = []
    for _ in range(2):
        job, learner = Job(PPO, 2), workflow(PPO)
        collectors = RolloutCollectors(learner, job.server.address, wait_seconds=30.0)
        state = learner.setup(0)
        job.begin()
        state, rows = advance(learner, state, 192)
        losses.append([row["loss"] for row in rows])
        collectors.finish(state)
        job.join()
        learner.close()
        job.server.stop()
    assert losses[0] == losses[1]


def test_a_rollout_that_was_sent_again_is_taken_once(queue):
    make, send, line = queue
    collectors, taken = make(), []
    deadline = time.monotonic() + 60.0
    send(1).flush()
    taken.append(collectors._next(deadline, None))
    line.hold()  # the collector does not learn that its rollout has arrived
    writer = send(2)
    with pytest.raises(reverb().errors.DeadlineExceededError):
        writer.flush(timeout_ms=500)
    taken.append(collectors._next(deadline, None))
    line.cut()
    # A flush waits until all have arrived, also the one that is sent again.
    thread = threading.Thread(target=lambda: [send(version).flush() for version in (3, 4)])
    thread.start()
    taken += [collectors._next(deadline, None) for _ in range(2)]
    thread.join()
    assert [int(item[collector_lib.POLICY_VERSION]) for item in taken] == [1, 2, 3, 4]
    assert collectors._duplicates.count == 1


@pytest.mark.parametrize(("bound", "lags"), [(None, [0]), (3, [2])])
def test_rollouts_of_policies_that_a_restored_learner_has_lost(queue, bound, lags):
    """Their lag is unknown: they count as new, or are dropped if there is a bound."""
    make, send, _ = queue
    collectors = make(max_policy_lag=bound)
    collectors._steps = tf.constant(5)
    versions = (900,) if bound is None else (900, 3)
    thread = threading.Thread(target=lambda: [send(v).flush() for v in versions])
    thread.start()
    rollouts, found = collectors._gather(None)
    assert (len(rollouts), found, collectors._dropped) == (1, lags, len(versions) - 1)
    thread.join()


def test_a_synchronous_learner_takes_one_rollout_of_each_collector_in_their_order(queue):
    """A restarted collector answers the same request again."""
    make, send, _ = queue
    collectors = make(synchronous=True)
    collectors._steps, collectors._request, collectors._num_collectors = tf.constant(5), 7, 2
    sent = [(1, 6), (1, 7), (1, 7), (0, 7)]  # collector, request
    thread = threading.Thread(
        target=lambda: [send(5, task_id=task, request=n).flush() for task, n in sent]
    )
    thread.start()
    collectors._gather(None)
    assert sorted(collectors._sources) == [(7, 0), (7, 1)] and collectors._dropped == 2
    thread.join()


@pytest.mark.parametrize("lost", [parameters.TABLE, tables.ROLLOUTS])
@pytest.mark.slow
def test_a_synchronous_learner_asks_again_after_a_restart_of_the_server(lost, monkeypatch):
    """A restarted server may have lost the learner's request, or rollouts for it."""
    job, learner = Job(PPO, 2), workflow(PPO)
    collectors = RolloutCollectors(learner, job.server.address, wait_seconds=30.0)
    state = learner.setup(0)
    job.begin()
    state, _ = advance(learner, state, 64)
    publish, before, restarts = parameters.Publisher.publish, collectors._request, []

    def reconnect():
        collectors._variables._heartbeat.reconnections += 1

    def publish_then_lose(publisher, published):
        publish(publisher, published)
        if restarts or published.request == before:
            return
        client = collectors._variables.client
        if lost == tables.ROLLOUTS:
            next(client.sample(lost, 1, emit_timesteps=False))  # another reader takes it
        else:
            client.reset(lost)
        restarts.append(threading.Timer(0.5, reconnect))  # while the learner waits
        restarts[0].start()

    # Only the learner's publications: collectors publish nothing.
    monkeypatch.setattr(parameters.Publisher, "publish", publish_then_lose)
    state, rows = advance(learner, state, 320)
    assert restarts
    assert [row["policy_lag"] for row in rows] == [0.0] * 8
    assert learner.env_steps(state) == 320
    collectors.finish(state)
    job.join()
    learner.close()
    job.server.stop()


class _TwoWorkers:
    """A `WorkerGroup` of two threads."""

    num_workers = 2

    def __init__(self, index, shared):
        self.index, self.is_chief = index, index == 0
        self._values, self._barrier = shared

    def all_gather(self, value):
        self._values[self.index] = value
        self._barrier.wait(timeout=30.0)
        values = list(self._values)
        self._barrier.wait(timeout=30.0)
        return values


@pytest.mark.slow
def test_a_worker_of_a_synchronous_learner_asks_again_though_the_chief_has_its_rollouts(
    monkeypatch,
):
    job = Job(PPO, 2)
    learners = [workflow(PPO) for _ in range(2)]
    workers = [RolloutCollectors(x, job.server.address, wait_seconds=30.0) for x in learners]
    states = [learner.setup(0) for learner in learners]
    job.begin()
    groups = ([0, 0], threading.Barrier(2))
    for i, learner in enumerate(learners):
        monkeypatch.setattr(learner, "_worker_group", _TwoWorkers(i, groups))
    chief_has_rollouts, other = threading.Event(), workers[1]
    gather, lost = RolloutCollectors._gather, []

    def gather_in_turn(self, agent_state):
        if self is not other:
            result = gather(self, agent_state)
            chief_has_rollouts.set()
            return result
        if not lost:
            assert chief_has_rollouts.wait(timeout=30.0)
            # Another reader takes the rollout of this worker, then the server restarts.
            client = self._variables.client
            lost.append(next(client.sample(tables.ROLLOUTS, 1, emit_timesteps=False)))

            def reconnect():
                self._variables._heartbeat.reconnections += 1

            threading.Timer(0.5, reconnect).start()
        return gather(self, agent_state)

    monkeypatch.setattr(RolloutCollectors, "_gather", gather_in_turn)
    rows = [[], []]

    def learn(i):
        workers[i].begin(states[i])
        for _ in range(3):
            played = workers[i].play(states[i].agent_state, waits=True)
            rows[i].append(played)

    threads = [threading.Thread(target=learn, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60.0)
        assert not thread.is_alive()
    assert lost and [len(x) for x in rows] == [3, 3]
    assert all(float(x.metrics["policy_lag"]) == 0.0 for x in rows[0] + rows[1])
    assert all(x.trajectory.reward.shape == (8, 2) for x in rows[0] + rows[1])
    workers[0].finish(states[0])
    job.join()
    for learner in learners:
        learner.close()
    job.server.stop()


@pytest.mark.slow
def test_a_learner_on_several_replicas():
    """Their rows together are those of one device, and so is what is learnt of them."""
    found = {}
    for devices in (["CPU:0"], ["CPU:0", "CPU:1"]):
        job, learner = Job(PPO, 2), workflow(PPO)
        collectors = RolloutCollectors(learner, job.server.address, wait_seconds=30.0)
        learner.use_strategy(tf.distribute.MirroredStrategy(devices))
        state = learner.setup(0)
        job.begin()
        state, rows = advance(learner, state, 96)
        collectors.finish(state)
        job.join()
        assert [row["env_steps"] for row in rows] == [32, 64, 96]
        assert rows[-1]["policy_lag"] == 0.0
        found[len(devices)] = rows
        learner.close()
        job.server.stop()
    # The same rollouts, though the collectors' order in a batch is that of who was first.
    for one, two in zip(found[1], found[2], strict=True):
        for name in ("episodes", "episode_return", "loss", "entropy"):
            np.testing.assert_allclose(two[name], one[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_learner_takes_no_rollout_of_a_run_that_has_ended():
    server = ReverbServer(tables.make_tables(workflow(PPO), 1))
    client = reverb().Client(server.address)
    for finished, left in ((False, 1), (True, 0)):
        learner = workflow(PPO)
        specs = tables.rollout_signature(tables.rollout_form(learner, 1), 1)
        row = [np.zeros(s.shape, s.dtype.as_numpy_dtype) for _, s in sorted(specs.items())]
        state = learner.setup(0)
        client.insert(row, {tables.ROLLOUTS: 1.0})
        parameters.publish(client, parameters.Published(state.agent_state, 50, 9, finished))
        made = RolloutCollectors(learner, server.address, synchronous=False, wait_seconds=30.0)
        made.begin(state)
        assert client.server_info()[tables.ROLLOUTS].current_size == left
        client.reset(tables.ROLLOUTS)
        made.close()
    server.stop()


@pytest.mark.slow
def test_collectors_wait_with_one_rollout_each():
    """What waits for the learner is by old parameters: one more is in the queue."""
    job, learner = Job(PPO, 2), workflow(PPO)
    published = parameters.Published(tables.agent_form(learner), 1, 0, False)
    client = reverb().Client(job.server.address)
    parameters.publish(client, published)
    job.begin()
    deadline = time.monotonic() + 30.0
    while not job.inserted("rollouts") and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)  # they do not play on
    assert job.inserted("rollouts") == 1
    assert sum(c.env_steps for c in job.collectors) <= 16  # one has handed its 8 x 2 steps over
    parameters.publish(client, dataclasses.replace(published, finished=True))
    job.join()
    assert job.ended == [True, True]
    learner.close()
    job.server.stop()


def test_an_agent_without_statistics():
    counts = {"env_steps": np.int64(3), "episodes": np.int64(1)}
    told = {"episode_return": np.float32(2.0), "episode_length": np.float32(3.0)}
    collected = Collected(**counts, **told, metrics={"collectors": np.float32(2.0)})
    result = collected.as_result(None)
    assert result.normalizer is None
    assert {k: float(v) for k, v in result.metrics.items()} == {**told, "collectors": 2.0}
    assert {k: int(v) for k, v in result.counts.items()} == counts
