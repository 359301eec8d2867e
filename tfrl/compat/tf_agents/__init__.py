"""TF-Agents: environments of this library as TF-Agents' own, and experience in its layout.

The other direction of environments is the suite `tf_agents` of `tfrl.make_env`. Reverb is imported
when something is written or read, and not before.
"""

from tfrl.compat.tf_agents.environments import as_py_environment, as_tf_environment
from tfrl.compat.tf_agents.replay import sequences, trajectory_spec, transitions, window_dataset
from tfrl.compat.tf_agents.replay_writer import TrajectoryWriter
from tfrl.compat.tf_agents.specs import array_spec, from_tf_agents_spec, tensor_spec
from tfrl.compat.tf_agents.time_steps import split_action_mask, time_step, time_step_spec

__all__ = [
    "TrajectoryWriter",
    "array_spec",
    "as_py_environment",
    "as_tf_environment",
    "from_tf_agents_spec",
    "sequences",
    "split_action_mask",
    "tensor_spec",
    "time_step",
    "time_step_spec",
    "trajectory_spec",
    "transitions",
    "window_dataset",
]
