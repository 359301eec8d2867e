"""Each env step, episode and item counts once, over restarts of servers and learners."""

import dataclasses
import functools
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.roles.jobs import DQN, PPO, Job, advance, answer, workflow
from tfrl.errors import UserError
from tfrl.launch import reverb_server
from tfrl.replay.reverb import tables as tables_lib
from tfrl.replay.reverb.buffer import InsertCount
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.server import ReverbServer
from tfrl.roles import collector as collector_lib
from tfrl.roles import parameters, tables
from tfrl.roles.collector import ReplayCollector
from tfrl.roles.remote_collectors import ReplayCollectors, RolloutCollectors


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
        more = collectors.play(state.agent_state, waits=False)
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
