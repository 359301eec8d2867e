"""TF-Agents: this library's environments and agents for TF-Agents, and experience in its layout.

The suite `tf_agents` of `tfrl.make_env` is the other direction of environments. Reverb is imported
only when experience is written or read.
"""

# ruff: noqa: E402  (these imports need TF-Agents)
from tfrl import extras

extras.require_tf_agents("tfrl.compat.tf_agents")

from tfrl.compat.tf_agents.as_tf_agent import as_tf_agent
from tfrl.compat.tf_agents.as_tf_policy import as_tf_policy
from tfrl.compat.tf_agents.environments import as_py_environment, as_tf_environment
from tfrl.compat.tf_agents.from_tf_agent import TFAgentModule, from_tf_agent
from tfrl.compat.tf_agents.networks import from_tf_agents_network
from tfrl.compat.tf_agents.replay import (
    TrajectoryWriter,
    sequences,
    trajectory_spec,
    transitions,
    window_dataset,
)
from tfrl.compat.tf_agents.specs import array_spec, from_tf_agents_spec, tensor_spec
from tfrl.compat.tf_agents.task import TFAgentTask
from tfrl.compat.tf_agents.trajectories import (
    from_time_step,
    from_trajectory,
    split_action_mask,
    time_step,
    time_step_spec,
    to_trajectory,
    to_transitions,
)

__all__ = [
    "TFAgentModule",
    "TFAgentTask",
    "TrajectoryWriter",
    "array_spec",
    "as_py_environment",
    "as_tf_agent",
    "as_tf_environment",
    "as_tf_policy",
    "from_tf_agents_network",
    "from_tf_agent",
    "from_tf_agents_spec",
    "from_time_step",
    "from_trajectory",
    "sequences",
    "split_action_mask",
    "tensor_spec",
    "time_step",
    "time_step_spec",
    "to_trajectory",
    "to_transitions",
    "trajectory_spec",
    "transitions",
    "window_dataset",
]
