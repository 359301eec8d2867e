"""JAX environments inside TensorFlow graphs: Brax, gymnax, jumanji, and a user's pure functions.

`jax.vmap` vectorises `reset` and `step`, and `jax2tf` converts them once. They are then TensorFlow
operations, which compile together with the policy. JAX is imported when an environment is created.
"""

from tfrl.envs.adapters.jax.bridge import JaxEnv, JaxTask, wrap
from tfrl.envs.adapters.jax.suites import BraxAdapter, create_wrapped_brax_env

__all__ = ["BraxAdapter", "JaxEnv", "JaxTask", "create_wrapped_brax_env", "wrap"]
