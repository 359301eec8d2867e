"""Policies in PolicySaver's layout, read by TF-Agents' own class."""

import numpy as np
import tensorflow as tf
from tf_agents.policies import SavedModelPyTFEagerPolicy
from tf_agents.trajectories import time_step

from tfrl import seeding, specs
from tfrl.agents import DQN
from tfrl.compat.tf_agents.export_policy import write_policies


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
