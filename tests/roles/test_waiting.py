"""Processes that wait for each other: bounds, signals, and messages about who is missing."""

import functools
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tests.roles.jobs import DQN, PPO, Job, advance, answer, workflow
from tfrl.errors import UnavailableError, UserError
from tfrl.replay.reverb import cancellable_call, connection
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.server import ReverbServer
from tfrl.roles import collector as collector_lib
from tfrl.roles import heartbeat_sender, parameters, remote_collectors, tables
from tfrl.roles.collector import ReplayCollector, RolloutCollector
from tfrl.roles.remote_collectors import RemoteCollectors, ReplayCollectors, RolloutCollectors
from tfrl.workflows.collectors import WaitEndedError


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


@pytest.mark.parametrize("part, request_number", [(PPO, 0), (PPO, 1), (DQN, 0)])
@pytest.mark.variants(2)
def test_a_collector_waits_for_a_lost_learner_with_a_bound_and_says_so(
    part, request_number, monkeypatch
):
    """Its exit code is 75: an engine starts it again, and the run goes on."""
    monkeypatch.setattr(collector_lib, "_TELL_SECONDS", 0.5)
    server = ReverbServer(tables.make_tables(workflow(part), 2))
    state, lines = tables.agent_form(workflow(part)), []
    published = parameters.Published(state, 1, 0, False, request_number)
    parameters.publish(reverb().Client(server.address), published)
    kind = RolloutCollector if part is PPO else ReplayCollector
    collector = kind(
        workflow(part), server.address, num_tasks=2, wait_seconds=2.0, log=lines.append
    )
    with pytest.raises(UnavailableError, match="takes experience within 2 s, got no sign of it"):
        collector.run()
    assert lines == ["Collector 0 waits up to 2 s for the learner, which takes no experience."]
    if part is PPO:
        # What it wrote last is in the queue; asynchronous collectors wait with one more.
        assert collector.env_steps == 16
    collector.close()
    server.stop()


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
    collectors.end_call()
    if part is DQN:
        learner.replay_buffer(state).connection._heartbeat._lost_since = time.monotonic()
    learner.save(state, tmp_path / "lost")  # a server that got the signal keeps its own tables
    assert (tmp_path / "lost" / f"ckpt-{learner.env_steps(state)}").is_dir()
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
    monkeypatch.setattr(collectors._publisher, "publish", lambda _: answers.wait(30.0))
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
    made = SimpleNamespace(_experience=(servers, "replay"), _variables=servers[1])
    made._of_table = functools.partial(RemoteCollectors._of_table, made)
    described = (
        "Table 'replay' at a: 3 items, 3 inserted, 4 sampled, 8 samples per insert. "
        "The server at b does not respond."
    )
    assert RemoteCollectors._of_tables(made) == described
    made._variables = SimpleNamespace(client=clients[1], address="c")
    assert RemoteCollectors._of_tables(made) == f"{described} The server at c does not respond."


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
