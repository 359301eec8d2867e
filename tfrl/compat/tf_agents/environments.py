"""Environments of this library as TF-Agents' `PyEnvironment` and `TFEnvironment`."""

from typing import Any

from tf_agents.environments.py_environment import PyEnvironment
from tf_agents.environments.tf_environment import TFEnvironment
from tf_agents.environments.tf_py_environment import TFPyEnvironment

from tfrl.compat.tf_agents.players import make_player
from tfrl.compat.tf_agents.py_environment import BatchedEnvironment, SingleEnvironment
from tfrl.compat.tf_agents.tf_environment import GraphEnvironment
from tfrl.envs.core import Autoreset, Env, Wrapper
from tfrl.envs.host import on_host
from tfrl.envs.host_env import HostEnv
from tfrl.envs.multi_agent import MultiAgentEnv
from tfrl.envs.wrappers.episode import Episode
from tfrl.errors import UserError


def as_py_environment(
    env: Env, seed: int = 0, discount: float = 1.0, batched: bool | None = None
) -> PyEnvironment:
    """Makes a TF-Agents PyEnvironment of an environment.

    The episodes are those of `env.reset(seed)`; further resets begin others, which follow from the
    seed too. `close` closes environments on the host.

    Args:
      env: What `make_env` returns, of any autoreset mode. Several environments on the host of
        another mode than NEXT_STEP are closed, and made anew with it.
      seed: What the first reset is made from; later `seed(...)` sets another.
      discount: Of steps that do not terminate; above 0. It is a part of the task: agents multiply
        it by their own gamma.
      batched: Whether actions and time steps have a batch axis. None for one environment without,
        and several with it.

    Returns:
      The environment; `get_info()` has the items of `EnvState.info`.

    Raises:
      UserError: For an environment that has no form there.
    """
    env = _checked(env, discount)
    if batched is None:
        batched = env.num_envs > 1
    if not batched and env.num_envs > 1:
        raise UserError(
            "as_py_environment: batched",
            expected="True for several environments",
            got=f"{batched!r} for {env.num_envs}",
            remedy="Leave it out, or make the environment with num_envs=1.",
        )
    kind = BatchedEnvironment if batched else SingleEnvironment
    return kind(make_player(env, seed, discount))


def as_tf_environment(env: Env, seed: int = 0, discount: float = 1.0) -> TFEnvironment:
    """Makes a TF-Agents TFEnvironment of an environment.

    One of the device becomes operations of the graph, its state variables: a driver's loop over
    it holds no Python. One on the host becomes a TFPyEnvironment.

    Args:
      env: As of `as_py_environment`.
      seed: As of `as_py_environment`.
      discount: As of `as_py_environment`.

    Raises:
      UserError: For an environment that has no form there.
    """
    if isinstance(env, HostEnv):
        return TFPyEnvironment(as_py_environment(env, seed, discount, batched=True))
    return GraphEnvironment(_checked(env, discount), seed, discount)


def _checked(env: Any, discount: float) -> Env:
    """Returns an environment whose episodes begin in rows of their own."""
    fits = isinstance(env, Env) and not isinstance(env.unwrapped, MultiAgentEnv)
    if not fits or env.autoreset is None:
        raise UserError(
            "environment for TF-Agents",
            expected="what tfrl.make_env returns, with one agent",
            got=repr(env) if not isinstance(env, Env) else f"a {type(env).__name__}",
            remedy="Register a task of yours and make it by make_env; TF-Agents has one agent "
            "an environment.",
        )
    if not 0 < discount <= 1:
        raise UserError(
            "discount",
            expected="a number above 0 and at most 1: 0 stands for a termination",
            got=repr(discount),
            remedy="Leave it out; agents have a gamma of their own.",
        )
    if isinstance(env, HostEnv):
        if env.num_envs == 1 or env.autoreset is Autoreset.NEXT_STEP:
            return env
        # TF-Agents shows the first observation in a step of its own, while the others go on.
        other = env.copy(autoreset=Autoreset.NEXT_STEP)
        env.close()
        return other
    if on_host(env):
        raise UserError(
            f"{type(env.unwrapped).__name__} for TF-Agents",
            expected="an environment on the device, or a HostEnv",
            got="one that is called from the graph",
            remedy="Make it by the suite gymnasium, for example.",
        )
    return _next_step(env)


def _next_step(env: Env) -> Env:
    """Returns the environment with autoreset NEXT_STEP."""
    if env.autoreset is Autoreset.NEXT_STEP:
        return env
    outer: Any = env
    if isinstance(env, Episode):
        return outer.replace(mode=Autoreset.NEXT_STEP)
    if isinstance(env, Wrapper):
        return outer.replace(env=_next_step(env.env))
    raise UserError(
        f"autoreset of {type(env).__name__}",
        expected="NEXT_STEP, or an environment of make_env",
        got=env.autoreset and env.autoreset.name,
        remedy="Leave the autoreset to make_env.",
    )
