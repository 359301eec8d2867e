"""Policies in PolicySaver's layout, read by TF-Agents' own class."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.q_rnn_network import QRnnNetwork
from tf_agents.policies import SavedModelPyTFEagerPolicy
from tf_agents.trajectories import time_step

from tests.compat.tf_agents.from_tf_agent_cases import (
    BOX,
    CHOICE,
    FACTORIES,
    KEY,
    VECTOR,
    made,
    make_dqn,
)
from tests.experiment.export_in_process import in_process
from tfrl import seeding, specs
from tfrl.agents import DQN, PPO, TD3
from tfrl.compat.tf_agents import from_tf_agent
from tfrl.compat.tf_agents.as_tf_policy import write_policies
from tfrl.errors import UserError
from tfrl.experiment import export
from tfrl.experiment.export import save_functions
from tfrl.experiment.export_functions import policy_functions
from tfrl.experiment.export_verify import AgentOracle, verify


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_tf_agents_reads_is_compared_with_the_policy(tmp_path, monkeypatch):
    in_process(monkeypatch)
    agent = DQN(obs_spec=tf.TensorSpec([3]), action_spec=specs.DiscreteSpec(3), hidden=(8,))
    state = agent.init(seeding.key(0))
    write_policies(agent, state, tmp_path, 5)
    policy, oracle = policy_functions(agent, state), AgentOracle(agent, state)
    told = verify("tf_agents", tmp_path, policy, oracle)
    assert (told["equal"], told["outputs"]["explore/action"]) == (1.0, 1.0)
    assert {name.split("/")[0] for name in told["outputs"]} == {"action", "explore", "single"}
    assert told["not_compared"] == {}
    other = AgentOracle(agent, state.replace(extra={**state.extra, "epsilon": tf.constant(0.5)}))
    with pytest.raises(UserError, match=r"equal choices: explore/action 0\.\d+\."):
        verify("tf_agents", tmp_path, policy, other)


@pytest.mark.slow
def test_draws_of_a_policy_with_memory_are_repeated(tmp_path, monkeypatch):
    in_process(monkeypatch)
    agent = PPO(obs_spec=VECTOR, action_spec=BOX, memory="gru", memory_size=4)
    state = agent.init(KEY)
    write_policies(agent, state, tmp_path, 0)
    told = verify("tf_agents", tmp_path, policy_functions(agent, state), AgentOracle(agent, state))
    assert {"explore/action", "explore/state_policy_hidden"} <= set(told["outputs"])


@pytest.mark.slow
def test_draws_that_follow_no_key_are_not_compared(tmp_path, monkeypatch):
    in_process(monkeypatch)

    class Noisy(TD3):
        def compute_actions(self, state, obs, key, carry=None):
            output = super().compute_actions(state, obs, key, carry)
            noisy = output.action + tf.random.normal(tf.shape(output.action))
            return output.replace(action=noisy)

    agent = Noisy(obs_spec=VECTOR, action_spec=BOX, hidden=(8,))
    state = agent.init(KEY)
    write_policies(agent, state, tmp_path, 0)
    told = verify("tf_agents", tmp_path, policy_functions(agent, state), AgentOracle(agent, state))
    assert "explore/action" not in told["outputs"]
    why = "it draws by RandomStandardNormal, past its key"
    assert told["not_compared"] == {"explore": why}
    assert told["max_error"] <= 1e-5


def recurrent_dqn():
    def make(time_step_spec, action_spec):
        return make_dqn(time_step_spec, action_spec, network=QRnnNetwork)

    return from_tf_agent(make, obs_spec=VECTOR, action_spec=CHOICE)


@pytest.mark.parametrize("name", ["ddpg", "recurrent_dqn"])
@pytest.mark.slow
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


@functools.cache
def exported(name):
    module = made(name)
    state = module.init(KEY)
    return module, state, policy_functions(module, state), AgentOracle(module, state)


FAST = [("dqn", "onnx"), ("categorical_dqn", "onnx"), ("dqn", "tf_agents")]
EVERY = [
    pytest.param(name, form, marks=() if (name, form) in FAST else pytest.mark.slow)
    for name in FACTORIES
    if "n_step" not in name
    for form in ("saved_model", "tf_agents", "tflite", "onnx")
]


@pytest.mark.parametrize(("name", "form"), EVERY)
@pytest.mark.variants(1)
def test_every_agent_of_tf_agents_in_every_format(tmp_path, monkeypatch, name, form):
    if form == "onnx":
        pytest.importorskip("tf2onnx", reason="the extra 'export' is not installed")
        pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    in_process(monkeypatch)
    module, state, policy, oracle = exported(name)
    place = tmp_path / "policy"
    if form == "saved_model":
        save_functions(policy, place)
    elif form == "tf_agents":
        write_policies(module, state, place, 5)
    else:
        place.mkdir()
        write = export.write_tflite if form == "tflite" else export.write_onnx
        about = write(policy, place)
        assert about.get("ops", "built-in") == "built-in"
    told = verify(form, place, policy, oracle)
    assert told["equal"] == 1.0 or told["max_error"] <= 1e-5
    explores = {"explore/action"} if form in ("saved_model", "tf_agents") else set()
    assert {"action/action", "single/action"} | explores <= set(told["outputs"])
