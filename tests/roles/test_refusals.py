"""Processes of another gin file, network or number are refused."""

import dataclasses
from types import SimpleNamespace

import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

from tests.roles.jobs import DQN, PPO, workflow
from tfrl.envs.remote_env import RemoteEnv
from tfrl.errors import UserError
from tfrl.launch import collect, learn, shared_flags
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.server import ReverbServer
from tfrl.roles import parameters, tables
from tfrl.roles.collector import ReplayCollector, RolloutCollector
from tfrl.roles.remote_collectors import ReplayCollectors, RolloutCollectors
from tfrl.workflows.collectors import Collectors


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


@pytest.mark.parametrize(
    ("part", "role"), [(PPO, RolloutCollector), (DQN, ReplayCollector)], ids=["ppo", "dqn"]
)
def test_a_collector_of_another_number_is_refused(part, role):
    served = workflow(part)
    settings = tables.shared_settings(served, 2)
    server = ReverbServer(tables.make_tables(served, 2), settings=settings)
    with pytest.raises(UserError) as error:
        role(workflow(part), server.address, task_id=3, num_tasks=4, wait_seconds=10.0)
    message = "the number of collectors: expected 2, as in the server at localhost:"
    assert str(error.value).startswith(message)
    server.stop()


@pytest.mark.parametrize(
    "changed", [{"replay_server": "localhost:1,"}, {"variable_server": "host"}], ids=str
)
def test_a_malformed_address_is_refused_before_waiting(changed):
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(**{"replay_server": "localhost:1", **changed}):
        with pytest.raises(UserError, match="expected host:port"):
            shared_flags.replay_server()


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


def test_what_does_not_divide_is_refused():
    with pytest.raises(UserError, match="a divisor of the 4 environments"):
        tables.make_tables(workflow(PPO), 3)


def test_servers_divide_the_environments_unless_steps_go_to_them_in_turn():
    made = workflow(DQN)
    replay, made.replay = made.replay, tables.on_reverb(made.replay).replace(n_step=1)
    tables.distributed_replay(made, 3)
    made.replay = replay  # items of several steps
    with pytest.raises(UserError, match="the 3 replay servers: expected a number that divides"):
        tables.distributed_replay(made, 3)


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
