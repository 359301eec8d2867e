"""JAX environments inside TensorFlow graphs: Brax, gymnax, jumanji, and a user's pure functions.

`reset` and `step` are vectorised by `jax.vmap` and converted once by `jax2tf`; from then on they
are operations of TensorFlow, which compile together with the policy. JAX is imported when an
environment is made.
"""

from tfrl.envs.adapters.jax.bridge import JaxEnv, JaxTask, wrap
from tfrl.envs.adapters.jax.suites import BraxAdapter, create_wrapped_brax_env

__all__ = ["BraxAdapter", "JaxEnv", "JaxTask", "create_wrapped_brax_env", "wrap"]
