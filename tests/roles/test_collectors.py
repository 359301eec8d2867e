"""A learner and its collectors, in threads of one process."""

import dataclasses
import functools
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

from tests.replay.reverb import test_duplicates
from tfrl.envs.remote_env import RemoteEnv
from tfrl.errors import UserError
from tfrl.launch import collect, learn, reverb_server, settings
from tfrl.replay.reverb import cancellable_call, connection
from tfrl.replay.reverb import tables as tables_lib
from tfrl.replay.reverb.buffer import InsertCount
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.server import ReverbServer
from tfrl.roles import collector as collector_lib
from tfrl.roles import heartbeat_sender, parameters, remote_collectors, tables
from tfrl.roles.collector import ReplayCollector, RolloutCollector
from tfrl.roles.remote_collectors import (
    RemoteCollectors,
    ReplayCollectors,
    RolloutCollectors,
)
from tfrl.workflows.collectors import Collected, Collectors, WaitEndedError

PPO = ("ppo/tf_cartpole.gin", "make_env.num_envs=4", "OnPolicyWorkflow.rollout_length=8",
       "OnPolicyWorkflow.num_epochs=1", "OnPolicyWorkflow.num_minibatches=1",
       "OnPolicyWorkflow.compile='graph'", "PPO.hidden=(4,)")  # fmt: skip
DQN = ("dqn/tf_cartpole.gin", "make_env.num_envs=2", "OffPolicyWorkflow.rollout_length=4",
       "OffPolicyWorkflow.random_steps=64", "OffPolicyWorkflow.batch_size=8",
       "OffPolicyWorkflow.compile='graph'", "InGraphReplay.capacity=1000",
       "DQN.normalize_obs=True", "DQN.hidden=(4,)", "InGraphReplay.kind='prioritized'",
       "InGraphReplay.alpha=1.0",
       "OffPolicyWorkflow.iterations_per_row=1")  # fmt: skip


def workflow(part, *bindings):
    return settings.assemble([part[0]], [*part[1:], *bindings]).workflow


class Job:
    """A server, and collectors in threads."""

    def __init__(self, part, num_collectors):
        self.part, self.count = part, num_collectors
        self.server = ReverbServer(tables.make_tables(workflow(part), num_collectors))
        self.collectors, self.threads, self.ended, self.closed = [], [], [], 0

    def begin(self):
        made = [workflow(self.part) for _ in range(self.count)]  # gin is not for threads
        for i, each in enumerate(made):
            thread = threading.Thread(target=self._play, args=(each, i))
            thread.start()
            self.threads.append(thread)

    def _play(self, each, i):
        kind = RolloutCollector if "ppo" in self.part[0] else ReplayCollector
        collector = kind(
            each, self.server.address, task_id=i, num_tasks=self.count, wait_seconds=30.0
        )
        self.collectors.append(collector)
        self.ended.append(collector.run())
        collector.close()
        self.closed += 1

    def join(self):
        for thread in self.threads:
            thread.join(timeout=30.0)
            assert not thread.is_alive()

    def inserted(self, table):
        info = reverb().Client(self.server.address).server_info()[table]
        return info.rate_limiter_info.insert_stats.completed


def advance(learner, state, until):
    rows = []
    while learner.env_steps(state) < until:
        done = learner.advance(state, 8, until)
        state, rows = done.state, [*rows, *done.rows]
    return state, rows


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


@pytest.fixture(name="queue")
def fixture_queue():
    """A learner of rollouts, and a function that queues one of a version over a line."""
    learner = workflow(PPO)
    server = ReverbServer(tables.make_tables(learner, 1))
    line = test_duplicates.Line(server.port)
    signature = tables.rollout_signature(tables.rollout_form(learner, 1), 1)
    writer = reverb().Client(line.address).trajectory_writer(1)

    def send(version):
        row = {name: np.zeros(s.shape, s.dtype.as_numpy_dtype) for name, s in signature.items()}
        row[collector_lib.POLICY_VERSION] = np.int64(version)
        writer.append(row)
        columns = {name: writer.history[name][-1] for name in row}
        writer.create_item(tables.ROLLOUTS, 1.0, columns)
        return writer

    made = []

    def make(**options):
        options = {"synchronous": False, "wait_seconds": 20.0, **options}
        made.append(RolloutCollectors(learner, server.address, **options))
        return made[0]

    yield make, send, line
    for collectors in made:
        collectors.close()
    writer.close()
    line.close()
    learner.close()
    server.stop()


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


@pytest.mark.parametrize("lost", [parameters.TABLE, tables.ROLLOUTS])
@pytest.mark.slow
def test_a_synchronous_learner_asks_again_after_a_restart_of_the_server(lost, monkeypatch):
    """A restarted server may have lost the learner's request, or rollouts for it."""
    job, learner = Job(PPO, 2), workflow(PPO)
    collectors = RolloutCollectors(learner, job.server.address, wait_seconds=30.0)
    state = learner.setup(0)
    job.begin()
    state, _ = advance(learner, state, 64)
    publish, before, restarts = parameters.publish, collectors._request, []

    def reconnect():
        collectors._variables._heartbeat.reconnections += 1

    def publish_then_lose(client, published):
        publish(client, published)
        if restarts or published.request == before:
            return
        if lost == tables.ROLLOUTS:
            next(client.sample(lost, 1, emit_timesteps=False))  # another reader takes it
        else:
            client.reset(lost)
        restarts.append(threading.Timer(0.5, reconnect))  # while the learner waits
        restarts[0].start()

    # Only the learner's publications: collectors publish nothing.
    monkeypatch.setattr(parameters, "publish", publish_then_lose)
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
            played, _, _ = workers[i].play(states[i].agent_state, (), (), None, waits=True)
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


def test_off_policy_counts_each_item_once_over_a_restart_of_the_learner():
    job, learner = Job(DQN, 2), workflow(DQN)
    collectors = ReplayCollectors(learner, job.server.address, wait_seconds=30.0)
    state = learner.setup(0)
    job.begin()
    state, rows = advance(learner, state, 300)
    values = {path: np.array(x) for path, x in learner.state_values(state).items()}
    before = int(state.metrics.episodes)
    later, until = state, 300
    while int(later.metrics.episodes) <= before:  # until it has read their reports
        until += 50
        later, _ = advance(learner, later, until)
    learner.close()  # it was killed; collectors go on
    learner = workflow(DQN)
    collectors = ReplayCollectors(learner, job.server.address, wait_seconds=30.0)
    state = learner.load_values(learner.setup(0), values)
    learner.replay_buffer(state).new_priority = 70.0  # as if a learner step had set it
    before, steps = learner.env_steps(state), state.metrics.learner["learner_steps"].numpy()
    assert before == rows[-1]["env_steps"] and steps == rows[-1]["learner_steps"]
    state, rows = advance(learner, state, until + 250)
    assert np.isfinite(rows[-1]["loss"])
    # Of the buffer's items, some of which are as old as the run; and of who plays now.
    assert 0.0 < rows[-1]["sample_age"] < rows[-1]["learner_steps"]
    assert 0.0 <= rows[-1]["policy_lag"] < rows[-1]["learner_steps"]
    assert rows[-1]["collectors"] == 2.0 and rows[-1]["heartbeat_age"] < 10.0
    assert 0.0 <= rows[-1]["server_heartbeat_age"] < 10.0
    seen = float(state.agent_state.normalizer.count)
    assert [c._buffer.new_priority for c in job.collectors] == [70.0, 70.0]
    collectors.finish(state)
    job.join()
    assert 300.0 < seen <= sum(c.env_steps for c in job.collectors)
    episodes = int(state.metrics.episodes) + collectors._new_episodes()
    while job.inserted("replay") > learner.env_steps(state):  # what came after the last look
        more, *_ = collectors.play(state.agent_state, (), None, None, waits=False)
        counted = state.metrics.env_steps + int(more.env_steps)
        state = state.replace(metrics=state.metrics.replace(env_steps=counted))
        episodes += int(more.episodes)
    played = sum(c.env_steps for c in job.collectors)
    assert learner.env_steps(state) == job.inserted("replay") <= played
    # Among them those whose reports the first learner has read after its checkpoint.
    assert episodes == job.inserted("episodes") == sum(c.episodes for c in job.collectors)
    collectors.finish(state)  # `play` has published since
    learner.close()
    learner = workflow(DQN)  # of another run
    collectors = ReplayCollectors(learner, job.server.address, wait_seconds=30.0)
    with pytest.raises(UserError, match=r"got \d+ env steps of a run that has ended. Resume"):
        collectors.begin(learner.setup(0))
    learner.close()
    job.server.stop()


def answer(table, inserts, start=None):
    """`server_info` of a server; `start` are its numbers and the inserts that it has restored."""
    stats = SimpleNamespace(completed=inserts)
    found = {table: SimpleNamespace(rate_limiter_info=SimpleNamespace(insert_stats=stats))}
    if start:
        names = zip((tables_lib.START, table), start, strict=True)
        signature = {name: SimpleNamespace(name=str(number)) for name, number in names}
        found[tables_lib.START] = SimpleNamespace(signature=signature)
    return found


def test_inserts_before_the_first_look_at_a_restored_server_hide_no_lost_ones():
    count = InsertCount()

    def look(inserts, *start):
        count.look(answer("replay", inserts, start), "replay", 2)
        return count.total

    assert look(100, 1, 0) == 200
    assert look(130, 2, 90) == 280  # 10 were lost, and 40 are new
    assert look(140, 2, 90) == 300
    assert (count.counted, count.lost, count.start) == (280, 20, 2)
    assert look(160, 3, 150) == 340  # its checkpoint is newer than the last look
    assert look(5, 4, 0) == 350  # without a checkpoint
    # Two restarts since: of the 5 the first restored 4, and the second 6 of its inserts.
    assert look(7, "4 5 6", "0 4 6") == 356
    # Of a checkpoint before the last look, and of one before the server of the last look.
    assert look(3, "4 5 7", "0 4 3") == 356 and look(9, "4 8", "0 2") == 370
    assert look(3) == 370  # a server that does not say it: the least that it can have lost


def test_a_restored_server_says_how_many_inserts_it_has_restored(tmp_path):
    made, count = tables.make_tables(workflow(DQN), 1), InsertCount()
    row = [np.int32(1), np.int32(0), np.float32(2), np.float32(2)]

    def serve():
        server = ReverbServer([table.replace() for table in made], checkpoint_dir=tmp_path)
        return server, reverb().Client(server.address)

    def insert(client, number):
        for _ in range(number):
            client.insert(row, {tables.EPISODES: 1.0})

    server, client = serve()
    insert(client, 3)
    client.checkpoint()
    insert(client, 2)
    count.look(client.server_info(), tables.EPISODES)
    assert (count.counted, count.lost) == (5, 0)
    server.stop(checkpoint=False)
    server, client = serve()
    assert sorted(server.restored) == sorted(table.name for table in made)
    saved = [table.table_name for table in tables_lib.read_tables(server.restored_from)]
    assert sorted(saved) == sorted(server.restored)  # as in earlier versions
    insert(client, 4)  # before the next look
    count.look(client.server_info(), tables.EPISODES)
    assert (count.counted, count.lost) == (7, 2)
    client.checkpoint()
    insert(client, 2)
    count.look(client.server_info(), tables.EPISODES)
    for inserted in (3, 0):  # two restarts between two looks
        server.stop(checkpoint=False)
        server, client = serve()
        insert(client, inserted)
        client.checkpoint()
    count.look(client.server_info(), tables.EPISODES)
    assert (count.counted, count.lost) == (10, 4)
    server.stop()


def test_env_steps_are_counted_per_server_over_restarts(tmp_path):
    """A restored server has fewer inserts; what the others got meanwhile counts."""
    maker = tables.on_reverb(workflow(DQN).replay).replace(num_servers=2)
    servers = [ReverbServer(maker.of_one_server.make_tables()) for _ in range(2)]
    maker = maker.replace(address=",".join(server.address for server in servers))
    inserted = [0, 0]

    class FakeServer:
        def __init__(self, i):
            self.i = i

        def server_info(self):
            return answer("replay", inserted[self.i])

    def learner(buffer, env_steps):
        made = SimpleNamespace(
            _buffer=buffer, _servers=[FakeServer(0), FakeServer(1)], _table="replay",
            _block_size=4, _env_steps=env_steps, _looked=0.0,
        )  # fmt: skip
        made._counts = functools.partial(ReplayCollectors._counts, made)
        made._infos = functools.partial(ReplayCollectors._infos, made)
        return made

    def counts(made):
        made._looked = 0.0
        new = ReplayCollectors._new_steps(made)
        made._env_steps += new
        return new

    made = learner(maker.init(), 0)
    inserted[:] = 10, 10
    assert counts(made) == 80
    inserted[:] = 4, 13  # the first server has restarted, the second goes on
    assert counts(made) == 12
    inserted[:] = 5, 13
    assert counts(made) == 4
    made._buffer.shards[0].inserted["episodes"] = InsertCount(5, 3)
    made._buffer.save(str(tmp_path / "saved"), tables=False)
    inserted[:] = 7, 14  # and the learner is killed
    again = learner(maker.init(), made._env_steps)
    again._buffer.restore(str(tmp_path / "saved"))
    assert counts(again) == 12
    assert again._buffer.shards[0].inserted["episodes"] == InsertCount(5, 3)
    # A checkpoint of an earlier version has no counts.
    older = learner(maker.init(), 80)
    assert counts(older) == 4 and counts(learner(maker.init(), 90)) == 0
    for each in (made, again, older):
        each._buffer.close()
    for server in servers:
        server.stop()


@pytest.mark.slow
def test_a_block_of_transitions_counts_as_many_env_steps():
    uniform = [b for b in DQN if "kind" not in b and "alpha" not in b]
    job, learner = Job(uniform, 1), workflow(uniform)
    collectors = ReplayCollectors(learner, job.server.address, wait_seconds=30.0)
    assert learner.replay.block_size == 8  # as many as a rollout has
    state = learner.setup(0)
    job.begin()
    state, rows = advance(learner, state, 200)
    collectors.finish(state)
    job.join()
    assert np.isfinite(rows[-1]["loss"]) and rows[-1]["episodes"] > 0
    assert rows[-1]["episode_return"] == rows[-1]["episode_length"] > 5.0  # a reward of 1 a step
    assert learner.env_steps(state) % 8 == 0
    assert 200 <= learner.env_steps(state) <= 8 * job.inserted("replay")
    assert 8 * job.inserted("replay") <= job.collectors[0].env_steps
    learner.close()
    job.server.stop()


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


def test_what_a_collector_reports_at_its_end_arrives(monkeypatch):
    monkeypatch.setattr(collector_lib, "_MOST_UNSENT", 3)
    # Until learning starts nobody waits for a learner.
    part = [*DQN, "OffPolicyWorkflow.learning_starts=500"]
    server = ReverbServer(tables.make_tables(workflow(part), 1))
    client = reverb().Client(server.address)
    parameters.publish(client, parameters.Published(tables.agent_form(workflow(part)), 0, 0, False))
    collector = ReplayCollector(workflow(part), server.address, pull_seconds=60.0)
    collector._last_report = time.monotonic()  # no report before the end
    calls = []
    for name in ("report", "_send_reports"):
        method = getattr(collector, name)
        noted = lambda *args, name=name, method=method, **kw: (  # noqa: E731
            calls.append(name), method(*args, **kw)
        )  # fmt: skip
        setattr(collector, name, noted)
    assert not collector.run(lambda: collector.env_steps >= 160)
    assert not calls  # the time of a report has not come
    collector.close()
    # More than may wait for a confirmation at a time.
    assert calls.count("_send_reports") > collector.episodes // 3 > 0
    # A writer that is closed may lose what it was given.
    assert calls[-1] == "_send_reports"
    episodes = client.server_info()["episodes"].current_size
    assert episodes == collector.episodes > 0
    told = [x.data for x in client.sample("episodes", episodes, emit_timesteps=False)]
    numbers, tasks, lengths, returns = map(list, zip(*told, strict=True))
    assert lengths == returns and min(lengths) > 0  # a reward of 1 a step
    assert sum(lengths) <= collector.env_steps == 160
    assert set(map(int, tasks)) == {0} and set(map(int, numbers)) == {1}
    assert client.server_info()["statistics"].current_size == 1
    server.stop()


def test_episodes_are_counted_over_restarts():
    """By the server's count; a learner that has not read their reports keeps the last means."""
    count, told = InsertCount(), []
    made = SimpleNamespace(
        _reports=lambda table: [told.pop(0) for _ in told[:]], _answers={}, _episodes=3,
        _means=(9.0, 9.0), _counts=lambda name: [count],
    )  # fmt: skip
    new = functools.partial(ReplayCollectors._new_episodes, made)

    def row(length, total, number=1):
        return [np.int32(number), np.int32(0), np.float32(length), np.float32(total)]

    def inserted(number):
        made._answers[tables.EPISODES] = answer(tables.EPISODES, number)

    assert new() == 0  # no answer yet
    inserted(5)  # two reports that a learner read after its checkpoint
    assert (new(), made._episodes, made._means) == (2, 5, (9.0, 9.0))
    told[:] = [row(2, 4), row(4, 8, 2)]
    inserted(7)
    assert (new(), made._episodes, made._means) == (2, 7, (2.0, 4.0))
    inserted(6)  # the server is restored
    assert (new(), count.lost) == (0, 1)
    inserted(7)
    assert (new(), made._episodes) == (1, 8)


def test_reports_wait_for_a_server_that_does_not_answer():
    calls = []

    def guard(fn, what):
        calls.append(what)
        raise reverb().errors.DeadlineExceededError("Flush call did not complete")

    collector = SimpleNamespace(
        _reporters={name: SimpleNamespace(flush=print) for name in ("episodes", "heartbeats")},
        connection=SimpleNamespace(guard=guard),
    )
    ReplayCollector._send_reports(collector)
    assert calls == ["reports of episodes", "reports of heartbeats"]


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


@pytest.mark.parametrize("request_number", [0, 1])
@pytest.mark.variants(1)
def test_a_collector_waits_for_a_lost_learner_with_a_bound_and_says_so(request_number, monkeypatch):
    monkeypatch.setattr(collector_lib, "_TELL_SECONDS", 0.5)
    server = ReverbServer(tables.make_tables(workflow(PPO), 2))
    state, lines = tables.agent_form(workflow(PPO)), []
    published = parameters.Published(state, 1, 0, False, request_number)
    parameters.publish(reverb().Client(server.address), published)
    collector = RolloutCollector(
        workflow(PPO), server.address, num_tasks=2, wait_seconds=2.0, log=lines.append
    )
    with pytest.raises(UserError, match="takes a rollout within 2 s, got no sign of it"):
        collector.run()
    assert lines == ["Collector 0 waits up to 2 s for the learner, which takes no rollouts."]
    # What it wrote last is in the queue; asynchronous collectors wait with one more.
    assert collector.env_steps == 16
    collector.close()
    server.stop()


def test_an_agent_without_statistics():
    counts = {"env_steps": np.int64(3), "episodes": np.int64(1)}
    told = {"episode_return": np.float32(2.0), "episode_length": np.float32(3.0)}
    collected = Collected(**counts, **told, metrics={"collectors": np.float32(2.0)})
    result = collected.as_result(None)
    assert result.normalizer is None
    assert {k: float(v) for k, v in result.metrics.items()} == {**told, "collectors": 2.0}
    assert {k: int(v) for k, v in result.counts.items()} == counts


@pytest.mark.parametrize("part", [PPO, DQN])
@pytest.mark.variants(1)
def test_a_signal_ends_a_learner_that_waits_for_experience(part, tmp_path, monkeypatch):
    left = []  # so that pytest's own end is not bounded
    monkeypatch.setattr(connection, "leave_behind", lambda *things: left.extend(things))
    job, learner, asked = Job(part, 2), workflow(part), threading.Event()
    kind = RolloutCollectors if part is PPO else ReplayCollectors
    collectors = kind(learner, job.server.address, wait_seconds=30.0, stops=asked.is_set)
    state = learner.setup(0)
    job.begin()
    state, _ = advance(learner, state, 320)
    for collector in job.collectors:
        collector._stops = lambda: True
    job.join()
    threading.Timer(1.0, asked.set).start()
    began = time.monotonic()
    while not asked.is_set():
        done = learner.advance(state, 10_000)
        state = done.state
    assert time.monotonic() - began < 10.0
    # What it has learnt is saved, with as many iterations as rows.
    learner.save(state, tmp_path)
    assert learner.env_steps(learner.restore(tmp_path)) == learner.env_steps(state) >= 320
    collectors._variables._heartbeat._lost_since = time.monotonic()  # nor for a server
    with pytest.raises(WaitEndedError):
        collectors._variables.server_info()
    collectors._published = -np.inf
    collectors.begin(state)  # does not raise: what follows can be saved
    learner.close()
    job.server.stop()


@pytest.mark.parametrize("part", [PPO, DQN])
def test_a_signal_ends_a_collector_whose_server_is_lost(part, monkeypatch):
    for module in (connection, cancellable_call):  # so that pytest's own end is not bounded
        monkeypatch.setattr(module, "leave_behind", lambda *things: None)
    monkeypatch.setitem(connection.Connection.__init__.__kwdefaults__, "heartbeat", 0.2)
    job = Job(part, 1)
    published = parameters.Published(tables.agent_form(workflow(part)), 0, 0, False)
    parameters.publish(reverb().Client(job.server.address), published)
    job.begin()
    while not (job.collectors and job.collectors[0].env_steps):
        time.sleep(0.05)
    job.server.stop(checkpoint=False)
    (collector,) = job.collectors
    while not collector.connection.away:
        time.sleep(0.05)
    time.sleep(0.5)
    assert job.threads[0].is_alive() and not job.ended  # it waits for the server
    began = time.monotonic()
    collector._stops = lambda: True
    job.join()
    assert time.monotonic() - began < 10.0
    assert (job.ended, job.closed) == ([False], 1)


def test_a_signal_ends_a_learner_whose_server_is_stopped(monkeypatch):
    monkeypatch.setattr(connection, "leave_behind", lambda *things: None)
    job, learner, answers = Job(PPO, 1), workflow(PPO), threading.Event()
    collectors = RolloutCollectors(
        learner, job.server.address, wait_seconds=60.0, stops=lambda: True
    )
    state = learner.setup(0)
    collectors._steps, collectors._iterating = state.metrics.learner["learner_steps"], True
    monkeypatch.setattr(parameters, "publish", lambda *_: answers.wait(30.0))
    monkeypatch.setattr(connection.Heartbeat, "busy", True)
    began = time.monotonic()
    with pytest.raises(WaitEndedError):
        collectors._publish(state.agent_state)
    assert time.monotonic() - began < 10.0
    collectors.end_call()  # it saves now, and the server may be writing the checkpoint
    collectors._end_if_asked()
    answers.set()
    learner.close()
    job.server.stop()


def test_no_progress_names_the_collectors_that_block(monkeypatch):
    left = []
    monkeypatch.setattr(connection, "leave_behind", lambda *things: left.extend(things))
    job, learner, asked = Job(PPO, 2), workflow(PPO), threading.Event()
    collectors = RolloutCollectors(
        learner, job.server.address, wait_seconds=60.0, stops=asked.is_set
    )
    state = learner.setup(0)
    job.threads.append(threading.Thread(target=job._play, args=(workflow(PPO), 0)))
    job.threads[0].start()  # the other does not come
    learning = threading.Thread(target=learner.advance, args=(state, 10_000))
    learning.start()
    while not (said := collectors._who()).startswith("No rollout of collectors 1. "):
        assert learning.is_alive(), said
        time.sleep(0.1)
    assert "Last reports: collector 0 " in said
    asked.set()
    learning.join(timeout=30.0)
    assert not learning.is_alive()
    collectors._synchronous = False
    assert collectors._who().startswith("No report of collectors 1. ")
    collectors.finish(state)
    job.join()
    learner.close()
    job.server.stop()


@pytest.mark.parametrize("part", [PPO, DQN])
def test_no_progress_is_told_with_the_state_of_the_table(part, monkeypatch):
    monkeypatch.setattr(remote_collectors, "_PATIENCE_SECONDS", 0.6)
    job, learner, lines = Job(part, 2), workflow(part), []
    kind = RolloutCollectors if part is PPO else ReplayCollectors
    collectors = kind(learner, job.server.address, wait_seconds=60.0, log=lines.append)
    state = learner.setup(0)
    client = reverb().Client(job.server.address)
    client.insert([np.int64(1), np.int64(0), np.int32(1)], {tables.HEARTBEATS: 1.0})
    collectors.begin(state)
    while not lines:
        time.sleep(0.05)
    (line,) = lines
    missing, table, ratio = (
        ("No rollout of collectors 0, 1. ", "rollouts", 1)
        if part is PPO
        else ("", "replay", 8)  # a batch for each env step
    )
    assert line == (
        f"No progress for 1 s. {missing}Last reports: collector 1 0 s ago. Table '{table}': "
        f"0 items, 0 inserted, 0 sampled, {ratio} samples per insert."
    )
    collectors.end_call()
    collectors._env_steps += 1
    while len(lines) == 1:
        time.sleep(0.05)
    assert lines[1].startswith("No progress for 1 s. The learner evaluates or saves. ")
    learner.close()
    job.server.stop()


def test_each_of_several_replay_servers_is_described():
    info = answer("replay", 3)
    info["replay"].current_size = 3
    limiter = info["replay"].rate_limiter_info
    limiter.samples_per_insert, limiter.sample_stats = 8.0, SimpleNamespace(completed=4)

    def lost(timeout):
        raise RuntimeError

    clients = [SimpleNamespace(server_info=call) for call in (lambda timeout: info, lost)]
    servers = [SimpleNamespace(client=c, address=a) for c, a in zip(clients, "ab", strict=True)]
    made = SimpleNamespace(_experience=(servers, "replay"))
    made._of_table = functools.partial(RemoteCollectors._of_table, made)
    assert RemoteCollectors._of_tables(made) == (
        "Table 'replay' at a: 3 items, 3 inserted, 4 sampled, 8 samples per insert. "
        "The server at b does not respond."
    )


def test_reports_that_a_restored_server_gives_again_count_once():
    job, learner = Job(PPO, 1), workflow(PPO)
    collectors = RolloutCollectors(learner, job.server.address, wait_seconds=30.0)
    client = reverb().Client(job.server.address)
    client.insert([np.int64(1), np.int64(2), np.int32(0)], {tables.HEARTBEATS: 1.0})
    collectors._sample_reports(tables.HEARTBEATS)
    collectors._unread[tables.HEARTBEATS] *= 2
    assert [[int(x) for x in row] for row in collectors._reports(tables.HEARTBEATS)] == [[1, 2, 0]]
    assert collectors._reports(tables.HEARTBEATS) == []
    learner.close()
    job.server.stop()


def test_an_evaluator_is_heard(monkeypatch):
    left = []
    monkeypatch.setattr(heartbeat_sender, "leave_behind", left.append)
    monkeypatch.setattr(heartbeat_sender, "_SECONDS", 0.1)
    job, learner = Job(PPO, 1), workflow(PPO)
    collectors = RolloutCollectors(learner, job.server.address, wait_seconds=30.0)
    assert np.isnan(collectors._heartbeats()["evaluator_heartbeat_age"])
    said = []
    with pytest.raises(UserError, match="host:port"):
        heartbeat_sender.HeartbeatSender("localhost", tables.EVALUATOR_TASK, said.append)
    sender = heartbeat_sender.HeartbeatSender(
        job.server.address, tables.EVALUATOR_TASK, said.append
    )
    while np.isnan(collectors._heartbeats()["evaluator_heartbeat_age"]):
        time.sleep(0.05)
    told = collectors._heartbeats()
    assert 0.0 <= told["evaluator_heartbeat_age"] < 10.0 and told["collectors"] == 0.0
    assert "Last reports: evaluator 0 s ago." in collectors._who()
    sender.close()
    assert not left and not said
    learner.close()
    job.server.stop()
    plain = ReverbServer(tables.on_reverb(workflow(DQN).replay).make_tables())  # takes no reports
    sender = heartbeat_sender.HeartbeatSender(plain.address, tables.EVALUATOR_TASK, said.append)
    while not said:
        time.sleep(0.05)
    assert said[0].startswith(f"Note: the server at {plain.address} takes no heartbeat: ")
    sender.close()
    plain.stop()


@pytest.mark.parametrize(
    ("part", "binding", "message"),
    [
        (DQN, "DQN.n_step=5", "DQN.n_step: expected 3, as in the server at localhost:"),
        (DQN, "OffPolicyWorkflow.learning_starts=8", "OffPolicyWorkflow.learning_starts: expected"),
        (PPO, "PPO.discount=0.5", "PPO.discount: expected 0.98, as in the server at localhost:"),
    ],
)
def test_processes_of_other_settings_are_refused(part, binding, message):
    served, other = workflow(part), workflow(part, binding)
    server = ReverbServer(tables.make_tables(served, 1), settings=tables.shared_settings(served))
    client = reverb().Client(server.address)
    parameters.publish(client, parameters.Published(tables.agent_form(served), 0, 0, False))
    roles = (
        (RolloutCollector, RolloutCollectors)
        if part is PPO
        else (ReplayCollector, ReplayCollectors)
    )
    for role in roles:
        with pytest.raises(UserError) as error:
            role(other, server.address, wait_seconds=10.0)
        assert str(error.value).startswith(message)
        assert "Start all processes of a run with the same gin file" in str(error.value)
    server.stop()


def test_settings_whose_text_differs_between_processes_are_not_compared():
    @dataclasses.dataclass
    class Agent:
        plain: tuple = (1, ("a", None))
        functions: tuple = (len, min)

    made = SimpleNamespace(agent=Agent(), rollout_length=8)
    names = {name.partition(".")[2] for name in tables.shared_settings(made)}
    assert names == {"plain", "rollout_length"}


def test_a_learner_of_another_network_is_refused():
    server = ReverbServer(tables.make_tables(workflow(DQN), 1))
    with pytest.raises(UserError, match=r"the parameters at localhost:\d+, params/q/"):
        ReplayCollectors(
            workflow([x for x in DQN if "hidden" not in x]), server.address, wait_seconds=10.0
        )
    server.stop()


def test_a_collector_holds_few_transitions_that_a_limiter_does_not_take():
    part = ["dqn/tf_cartpole.gin", *DQN[1:3], "OffPolicyWorkflow.batch_size=8",
            "OffPolicyWorkflow.random_steps=64", "InGraphReplay.capacity=1000"]  # fmt: skip
    server = ReverbServer(tables.make_tables(workflow(part), 1))
    client = reverb().Client(server.address)
    parameters.publish(client, parameters.Published(tables.agent_form(workflow(part)), 0, 0, False))
    collector = ReplayCollector(workflow(part), server.address)
    began = time.monotonic()
    collector.run(lambda: time.monotonic() - began > 2.0)
    inserted = client.server_info()["replay"].rate_limiter_info.insert_stats.completed
    block = collector._buffer.replay.block
    assert block > 1 and collector.env_steps < block * (inserted + 10) + 8
    collector.close()
    server.stop()


def test_a_restored_server_forgets_parameters_and_rollouts(tmp_path):
    """The run may have ended, and its learner may have taken the rollouts."""
    learner = workflow(PPO)
    form = tables.rollout_signature(tables.rollout_form(learner, 1), 1)
    made, state = tables.make_tables(learner, 1), tables.agent_form(learner)
    rollout = [np.zeros(spec.shape, spec.dtype.as_numpy_dtype) for spec in tf.nest.flatten(form)]
    for is_early in (False, True):
        server = ReverbServer([table.replace() for table in made], checkpoint_dir=tmp_path)
        client = reverb().Client(server.address)
        if is_early:  # a learner that publishes before the server has forgotten
            parameters.publish(client, parameters.Published(state, 2, 0, False))
        reverb_server.forget_ended(server)
        sizes = {name: table.current_size for name, table in client.server_info().items()}
        empty = (tables.HEARTBEATS, parameters.TABLE, tables.ROLLOUTS, tables_lib.START)
        assert sizes == {**dict.fromkeys(empty, 0), parameters.TABLE: int(is_early)}
        client.insert(rollout, {tables.ROLLOUTS: 1.0})
        parameters.publish(client, parameters.Published(state, 1, 0, True))
        server.stop()


def test_experience_of_a_learner_without_a_checkpoint_counts(monkeypatch):
    """A learner that was killed before its first checkpoint starts afresh."""
    lines, infos = [], [answer("replay", 0), answer("replay", 0)]
    made = SimpleNamespace(
        _infos=lambda: infos, _table="replay", _block_size=2, _servers=[], _variables=None,
        _log=lines.append,
    )  # fmt: skip
    monkeypatch.setattr(parameters, "has_ended", lambda _: False)
    ReplayCollectors._check_first_steps(made)
    assert not lines
    infos[1] = answer("replay", 600)
    ReplayCollectors._check_first_steps(made)
    assert lines == [
        "Note: the replay servers already have 1,200 env steps of an earlier learner. They count "
        "for this run, which has no checkpoint."
    ]


def test_what_does_not_divide_is_refused():
    with pytest.raises(UserError, match="a divisor of the 4 environments"):
        tables.make_tables(workflow(PPO), 3)


def test_on_policy_has_one_server(monkeypatch):
    monkeypatch.setattr(collect.common_flags, "common", lambda: SimpleNamespace(seed=0))
    flags.FLAGS.mark_as_parsed()
    made = workflow(PPO)
    with flagsaver.flagsaver(replay_server="localhost:1", variable_server="localhost:2"):
        for connect in (lambda: learn.prepare(made, bool), lambda: collect._collector(made, "a:1")):
            with pytest.raises(UserError, match="--variable_server=localhost:2: expected no value"):
                connect()


@pytest.mark.parametrize("flag", [{"synchronous": "true"}, {"max_policy_lag": 0}])
def test_off_policy_has_no_flags_of_rollouts(flag):
    flags.FLAGS.mark_as_parsed()
    made = workflow(DQN)
    with flagsaver.flagsaver(replay_server="localhost:1", **flag):
        with pytest.raises(UserError, match=f"--{next(iter(flag))}=.*: expected no value for off"):
            learn.prepare(made, bool)


def test_a_collector_that_is_restarted_in_the_random_phase_plays_other_episodes():
    server = ReverbServer(tables.make_tables(workflow(DQN), 1))
    published = parameters.Published(tables.agent_form(workflow(DQN)), 0, 0, False)
    keys = []
    for env_steps in (0, 40):
        now = dataclasses.replace(published, env_steps=env_steps)
        parameters.publish(reverb().Client(server.address), now)
        collector = ReplayCollector(workflow(DQN), server.address)
        keys.append(collector._key.numpy().tolist())
        collector.close()
    assert keys[0] != keys[1]
    server.stop()


class Silent(Collectors):
    """Collectors that are not there."""


def test_replicas_need_not_divide_the_environments_of_replay_collectors():
    learner = workflow([b.replace("num_envs=2", "num_envs=1") for b in DQN])
    learner.use_collectors(Silent(), RemoteEnv.of(learner.env, "here"))
    learner.use_strategy(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    assert learner.replica_env.num_envs == 1
    learner = workflow([b.replace("num_envs=4", "num_envs=1") for b in PPO])
    learner.use_collectors(Silent(), RemoteEnv.of(learner.env, "here"))
    with pytest.raises(UserError, match="num_envs: expected a multiple of the 2 replicas"):
        learner.use_strategy(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))


def test_sequences_are_refused():
    made = workflow(DQN)
    made.replay = tables.on_reverb(made.replay).replace(n_step=1, sequence_length=4)
    with pytest.raises(UserError, match="transitions, one per env step"):
        tables.make_tables(made, 1)


def test_a_server_of_another_file_is_refused():
    server = ReverbServer(tables.make_tables(workflow(PPO), 2))
    other = workflow([PPO[0], *PPO[1:2], "OnPolicyWorkflow.rollout_length=16", *PPO[3:]])
    with pytest.raises(UserError, match=r"expected .* \[16, 2\].*, got .* \[8, 2\]"):
        RolloutCollectors(other, server.address, wait_seconds=5.0)
    server.stop()


def test_a_server_for_other_environments_or_collectors_is_refused():
    server = ReverbServer(tables.make_tables(workflow(PPO), 2))  # 2 environments each
    twice = [b.replace("num_envs=4", "num_envs=8") for b in PPO]
    with pytest.raises(UserError, match=r"expected .* \[8, 4\].*, got .* \[8, 2\]"):
        RolloutCollectors(workflow(twice), server.address, wait_seconds=5.0)
    learner = workflow(PPO)
    collectors = RolloutCollectors(learner, server.address, wait_seconds=5.0)
    assert collectors.blank().valid.shape == [8, 4]
    learner.close()
    published = parameters.Published(tables.agent_form(workflow(twice)), 1, 0, False)
    parameters.publish(reverb().Client(server.address), published)
    with pytest.raises(UserError, match="expected rollouts of 4 collectors, got rollouts of 2"):
        RolloutCollector(workflow(twice), server.address, num_tasks=4, wait_seconds=5.0)
    server.stop()
