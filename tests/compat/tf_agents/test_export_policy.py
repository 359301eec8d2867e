"""Policies in PolicySaver's layout, read by TF-Agents' own class."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.q_rnn_network import QRnnNetwork
from tf_agents.policies import SavedModelPyTFEagerPolicy
from tf_agents.trajectories import time_step

from tests.compat.tf_agents.from_tf_agent_cases import CHOICE, KEY, VECTOR, made, make_dqn
from tests.experiment.export_in_process import in_process
from tfrl import seeding, specs
from tfrl.agents import DQN
from tfrl.compat.tf_agents import from_tf_agent
from tfrl.compat.tf_agents.export_policy import write_policies
from tfrl.experiment.export import save_functions
from tfrl.experiment.export_functions import policy_functions
from tfrl.experiment.export_oracle import AgentOracle
from tfrl.experiment.export_verify import verify


def test_policies_that_read_different_variables_have_a_checkpoint_each(tmp_path):
    """DQN's epsilon is read by the policy that explores alone."""
    agent = DQN(
        obs_spec=tf.TensorSpec([3]), action_spec=specs.DiscreteSpec(3), hidden=(8,), epsilon=0.0
    )
    states = {name: agent.init(seeding.key(i)) for i, name in enumerate(("first", "later"))}
    for i, (name, state) in enumerate(states.items()):
        about = write_policies(agent, state, tmp_path / name, 5 + i)
        assert about["policies"] == ["policy", "collect_policy"]
        assert all((tmp_path / name / c).is_dir() for c in about["checkpoints"])
    obs = seeding.normal(seeding.key(2), [200, 3])
    own = {n: agent.evaluate_actions(s, obs, seeding.key(0)).action for n, s in states.items()}
    assert (own["first"] != own["later"]).numpy().any()
    step = time_step.restart(obs, 200)
    for name in ("policy", "collect_policy"):
        policy = SavedModelPyTFEagerPolicy(
            str(tmp_path / "first" / name), load_specs_from_pbtxt=True, batch_time_steps=False
        )
        np.testing.assert_array_equal(policy.action(step).action, own["first"])
        (checkpoint,) = tmp_path.glob(f"later/checkpoints/{name}_checkpoint_*")
        policy.update_from_checkpoint(str(checkpoint))
        np.testing.assert_array_equal(policy.action(step).action, own["later"])
        assert policy.get_train_step() == 6


def test_what_tf_agents_reads_is_compared_with_the_policy(tmp_path, monkeypatch):
    in_process(monkeypatch)
    agent = DQN(obs_spec=tf.TensorSpec([3]), action_spec=specs.DiscreteSpec(3), hidden=(8,))
    state = agent.init(seeding.key(0))
    write_policies(agent, state, tmp_path, 5)
    policy, oracle = policy_functions(agent, state), AgentOracle(agent, state)
    told = verify("tf_agents", tmp_path, policy, oracle)
    assert told["equal"] == 1.0
    assert {name.split("/")[0] for name in told["outputs"]} == {"action", "single"}


def recurrent_dqn():
    def make(time_step_spec, action_spec):
        return make_dqn(time_step_spec, action_spec, network=QRnnNetwork)

    return from_tf_agent(make, obs_spec=VECTOR, action_spec=CHOICE)


@pytest.mark.parametrize("name", ["ddpg", "recurrent_dqn"])
def test_agents_of_tf_agents_whose_memory_moves_only_as_they_explore(tmp_path, monkeypatch, name):
    """DDPG's noise, and the recurrent state of DQN's collect policy."""
    in_process(monkeypatch)
    module = recurrent_dqn() if name == "recurrent_dqn" else made(name)
    state = module.init(KEY)
    policy, oracle = policy_functions(module, state), AgentOracle(module, state)
    moved = "state_noise_0" if name == "ddpg" else "state_explore_0"
    folder = save_functions(policy, tmp_path / "policy")
    told = verify("saved_model", folder, policy, oracle, count=60)
    assert {f"action/{moved}", f"explore/{moved}"} <= set(told["outputs"])
    obs = [tf.ones([2, 4])] * 2
    own = oracle.answers(obs, ("action", "explore"))
    explored = own[f"explore/{moved}"]
    assert (explored[0] != own[f"action/{moved}"][0]).any()
    assert (explored[1] != explored[0]).any(), "it goes on from its own memory"
