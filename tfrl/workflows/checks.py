"""What a workflow checks of its arguments before anything is compiled."""

import inspect
from collections.abc import Mapping
from typing import Any

from tfrl import struct
from tfrl.agents.registry import algorithm_names
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.multi_agent import MultiAgentEnv
from tfrl.errors import UserError
from tfrl.evaluation.evaluator import Evaluator
from tfrl.learners.own_update import trains_itself
from tfrl.types import Nest


def check_whole(**sizes: Any) -> None:
    """Raises a UserError for a size that is no whole number of at least 1."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(
                name,
                expected="a whole number of at least 1",
                got=repr(value),
                remedy="Give a positive whole number.",
            )


def check_evaluator(evaluator: Any, eval_env: Any) -> None:
    """Raises a UserError for what is no Evaluator, and for environments beside those of one."""
    if not isinstance(evaluator, Evaluator):
        raise UserError(
            "evaluator",
            expected="a tfrl.evaluation.Evaluator, or None",
            got=repr(evaluator),
            remedy="Write Evaluator(env=env, agent=agent, num_episodes=32).",
        )
    if eval_env is not None:
        raise UserError(
            "eval_env",
            expected="None beside an evaluator, which has environments of its own",
            got=repr(eval_env),
            remedy="Give one of the two.",
        )


def name_of(agent: Any) -> str:
    """Returns the name of an agent's algorithm: its class, or that of the agent inside of it."""
    return getattr(agent, "algorithm", None) or type(agent).__name__


def made_agent(agent: Any, env: Env) -> Any:
    """Returns an agent, made for an environment if a class or a function is given.

    Raises:
      UserError: For what is neither.
    """
    if hasattr(agent, "compute_actions") and not isinstance(agent, type):
        return agent
    if not callable(agent):
        raise _no_agent(f"a {type(agent).__name__}")
    specs = {"obs_spec": env.obs_spec, "action_spec": env.action_spec}
    try:
        inspect.signature(agent).bind(**specs)
    except (TypeError, ValueError) as error:
        name = getattr(agent, "__name__", type(agent).__name__)
        raise _no_agent(f"{name}, of other arguments ({error})") from error
    made = agent(**specs)
    if not hasattr(made, "compute_actions"):
        raise _no_agent(f"a function that returned a {type(made).__name__}")
    return made


def _no_agent(got: str) -> UserError:
    return UserError(
        "agent",
        expected="an agent, or a class or function that makes one of obs_spec and action_spec",
        got=got,
        remedy="Give functools.partial(DQN, hidden=(64,)), or an agent made for this environment; "
        "one of TF-Agents goes through tfrl.compat.tf_agents.from_tf_agent.",
    )


def check_config(agent: Any, learner_config: Any) -> None:
    """Raises a UserError for a configuration of optimizers that an agent does not use."""
    if learner_config is not None and trains_itself(agent):
        raise UserError(
            "learner_config",
            expected=f"None, since {name_of(agent)} trains by optimizers of its own",
            got=repr(learner_config),
            remedy="Leave it out, and set the learning rate where that agent is made.",
        )


def check_on_policy(agent: Any) -> None:
    """Raises a UserError for an agent that learns from replayed transitions only."""
    if getattr(agent, "learns_from_replay", False):
        raise UserError(
            "agent",
            expected="one that learns from its own rollouts: " + algorithm_names(from_replay=False),
            got=f"{name_of(agent)}, which learns from replayed transitions",
            remedy="Train it by OffPolicyWorkflow.",
        )


def check_episodes(name: str, env: Any) -> Env:
    """Returns an environment with episodes; what is none is a UserError.

    Args:
      name: The argument's name, for the message.
      env: What was given.
    """
    if not isinstance(env, Env):
        raise UserError(
            name,
            expected="environments as tfrl.make_env gives them",
            got=type(env).__name__,
            remedy="Give its id: tfrl.make_env('gymnasium:CartPole-v1') for one of Gymnasium's.",
        )
    if env.autoreset is None:
        raise UserError(
            name,
            expected="environments with time limit and autoreset",
            got=f"the bare {type(env).__name__}",
            remedy="Register it with tfrl.envs.register and make it with tfrl.make_env.",
        )
    return env


def check_resets(env: Env) -> None:
    """Raises a UserError for training environments that stop after their first episodes."""
    if env.autoreset is Autoreset.DISABLED:
        raise UserError(
            "autoreset of the training environments",
            expected="NEXT_STEP, SAME_STEP or SAME_STEP_CACHED",
            got="DISABLED, under which there are no steps after the first episodes",
            remedy="Keep DISABLED for evaluation.",
        )


def check_ends(env: Env) -> None:
    """Raises a UserError for evaluation environments whose episodes may never end."""
    if env.max_episode_steps is None:
        name = getattr(getattr(env, "backend", None), "name", type(env.unwrapped).__name__)
        raise UserError(
            "max_episode_steps of the evaluation's environments",
            expected="a number of steps, so that an evaluation ends",
            got=f"None: {name} has no time limit of its own",
            remedy="Give make_env max_episode_steps (in gin: make_env.max_episode_steps and "
            "eval/make_env.max_episode_steps).",
        )


def check_fit(agent: Any, envs: Mapping[str, Env]) -> None:
    """Raises a UserError unless an agent can act in environments.

    Args:
      agent: The agent.
      envs: `{argument's name: environments}`; "env" are those of the training.
    """
    if isinstance(envs["env"].unwrapped, MultiAgentEnv) and not hasattr(agent, "modules"):
        raise UserError(
            "agent",
            expected="one that acts for several agents, as the environment asks for",
            got=type(agent).__name__,
            remedy="Wrap it: agent=functools.partial(MultiAgent, policies={'shared': PPO}).",
        )
    check_env = getattr(agent, "check_env", None)
    if check_env is not None:
        check_env(envs["env"])
    for name, env in envs.items():
        for kind in ("obs_spec", "action_spec"):
            want, have = _leaves(getattr(agent, kind)), _leaves(getattr(env, kind))
            if want != have:
                raise UserError(
                    f"{kind} of {name}",
                    expected=f"that of the agent, {want}",
                    got=str(have),
                    remedy="Train and evaluate on the same task, with an agent made for it.",
                )


def _leaves(spec: Nest) -> dict[str, tuple[Any, ...]]:
    """What must agree: shapes and dtypes by path. Bounds may differ, by a wrapper for one."""
    found = struct.paths(spec).items()
    return {path: (tuple(leaf.shape), leaf.dtype.name) for path, leaf in found}
