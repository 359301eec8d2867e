"""TF-Agents: environments of this library as TF-Agents' own.

The other direction is the suite `tf_agents` of `tfrl.make_env`.
"""

from tfrl.compat.tf_agents.environments import as_py_environment, as_tf_environment
from tfrl.compat.tf_agents.specs import array_spec, from_tf_agents_spec, tensor_spec
from tfrl.compat.tf_agents.time_steps import split_action_mask, time_step, time_step_spec

__all__ = [
    "array_spec",
    "as_py_environment",
    "as_tf_environment",
    "from_tf_agents_spec",
    "split_action_mask",
    "tensor_spec",
    "time_step",
    "time_step_spec",
]
