"""Registers the names for gin files: factories, agents, workflows.

Gin configures factories, workflows and mains, never ops. The rest of the library does not know gin.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import gin
import gymnasium.wrappers

from tfrl import agents, distributions, evolution, learners, networks, replay, tasks, workflows
from tfrl.agents.core import Agent, on_algorithm
from tfrl.compat import tf_agents_factories
from tfrl.envs import registry
from tfrl.envs import wrappers as wrappers_lib
from tfrl.envs.action_masks import split_mask
from tfrl.envs.core import Env, Wrapper
from tfrl.errors import UserError
from tfrl.evolution import pbt
from tfrl.keras import api as keras
from tfrl.launch.gin_files import declare_scopes
from tfrl.learning import optimizers
from tfrl.networks.core import Torso
from tfrl.ops import schedules
from tfrl.replay import reverb
from tfrl.types import Nest

declare_scopes("eval")


@gin.configurable
def make_env(
    env_id: str,
    num_envs: int = 1,
    autoreset: str = "SAME_STEP",
    max_episode_steps: int | None = None,
    wrappers: tuple[Callable[..., Any], ...] = (),
    outer_wrappers: tuple[Callable[..., Any], ...] = (),
    info_fields: tuple[str, ...] = (),
    env_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Makes environments, see `tfrl.make_env`.

    Args:
      env_id: `suite:task`, for example `tf:CartPole-v1`.
      num_envs: The number of environments (B).
      autoreset: NEXT_STEP, SAME_STEP, SAME_STEP_CACHED or DISABLED.
      max_episode_steps: The step limit of episodes; None for the task's limit.
      wrappers: `(@ActionRepeat, ...)`, or functions from environment to environment, innermost
        first, below time limit and autoreset. For Gymnasium environments, Gymnasium's wrappers, for
        example `(@ClipAction,)`.
      outer_wrappers: Wrappers above time limit and autoreset; for environments on the host
        RewardScale, RewardClip and RewardNormalize.
      info_fields: Names of numbers in `info`, for example `('success',)`; their means over episodes
        become metrics.
      env_kwargs: Further arguments of the task.
    """
    more = {"info_fields": info_fields} if info_fields else {}
    return registry.make_env(
        env_id,
        num_envs=num_envs,
        autoreset=autoreset,
        max_episode_steps=max_episode_steps,
        wrappers=_wrappings("wrappers", wrappers),
        outer_wrappers=_wrappings("outer_wrappers", outer_wrappers),
        **{**more, **(env_kwargs or {})},
    )


def _wrapping(wrapper: Callable[..., Any]) -> Callable[[Any], Any]:
    """Returns a wrapper as a function of the environment, with its gin bindings.

    The bindings are applied here, since worker processes do not have gin's configuration.
    """
    if isinstance(wrapper, type) and issubclass(wrapper, Wrapper):
        return functools.partial(_wrap, wrapper)
    plain = _importable(wrapper)
    for known in (wrapper, plain):  # a reference in a gin file is neither
        try:
            return _Sendable(wrapper, plain, gin.get_bindings(known))
        except ValueError:
            continue
    return wrapper  # a function that gin does not know


class _Sendable:
    """Calls gin's wrapper here, so that gin notes its use; pickles as the plain, bound wrapper."""

    def __init__(
        self, wrapper: Callable[..., Any], plain: Callable[..., Any], bindings: dict[str, Any]
    ):
        self._wrapper = wrapper  # gin passes its bindings and marks them as read
        self._plain = functools.partial(plain, **bindings)
        self.__name__ = getattr(plain, "__name__", type(plain).__name__)

    def __call__(self, env: Env) -> Env:
        return self._wrapper(env)

    def __reduce__(self) -> Any:
        return self._plain.__reduce__()


def _importable(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the object of a wrapper's module and name; gin's version cannot be pickled."""
    result: Any = sys.modules.get(getattr(wrapper, "__module__", ""))
    for name in getattr(wrapper, "__qualname__", "<lambda>").split("."):
        result = getattr(result, name, None)
    return result if callable(result) else wrapper


def _wrappings(name: str, wrappers: Any) -> list[Callable[[Any], Any]]:
    if not isinstance(wrappers, tuple | list):
        raise UserError(
            f"make_env.{name}",
            expected="a tuple of wrappers, innermost first",
            got=repr(wrappers),
            remedy="Write (@ClipAction,) for one wrapper, with parentheses and a comma.",
        )
    return [_wrapping(wrapper) for wrapper in wrappers]


def _wrap(wrapper: Callable[..., Env], env: Env) -> Env:
    """Applies a wrapper of device environments, which takes only keyword arguments."""
    return wrapper(env=env)


@gin.configurable(module="networks", denylist=["obs_spec", "action_spec"])
def make_policy(
    obs_spec: Nest,
    action_spec: Nest,
    torso: Torso | Callable[[Nest], Torso] | None = None,
    head_scale: float = 0.01,
) -> networks.PolicyNetwork:
    """Makes a policy network for `PPO.policy = @make_policy`.

    Args:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      torso: A torso, for example `@MLP()`, a function from the observation's spec to a torso, or
        None for `make_torso`.
      head_scale: The gain of the last layer.
    """
    return networks.PolicyNetwork(
        torso=_torso(torso, obs_spec),
        distribution=_configured(distributions.make_distribution)(action_spec),
        head_scale=head_scale,
    )


@gin.configurable(module="networks", denylist=["obs_spec", "action_spec"])
def make_value(
    obs_spec: Nest,
    action_spec: Nest,
    torso: Torso | Callable[[Nest], Torso] | None = None,
    head_scale: float = 1.0,
) -> networks.ValueNetwork:
    """Makes a value network for `PPO.value = @make_value`; see `make_policy` for arguments."""
    return networks.ValueNetwork(torso=_torso(torso, obs_spec), head_scale=head_scale)


def _torso(torso: Torso | Callable[[Nest], Torso] | None, obs_spec: Nest) -> Torso:
    if isinstance(torso, Torso):
        return torso
    return (torso or _configured(networks.make_torso))(obs_spec)


def _configured(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the factory with gin's configuration."""
    return gin.get_configurable(factory.__name__)


def _with_network_factories(agent_class: Callable[..., Agent]) -> Callable[..., Agent]:
    """Wraps an agent's constructor for gin, so that networks may be functions of the specs.

    The specs are known only once the workflow has its environments, so a gin file cannot construct
    the network itself.
    """

    @functools.wraps(agent_class, updated=())
    def make(*, obs_spec: Nest, action_spec: Nest, **options: Any) -> Agent:
        for name in ("policy", "value", "torso", "actor_torso"):
            network = options.get(name)
            if network is not None and not isinstance(network, networks.Network):
                # A torso gets only observations, without an action mask.
                input_spec = split_mask(obs_spec)[0]
                specs = (input_spec,) if name.endswith("torso") else (input_spec, action_spec)
                options[name] = network(*specs)
        return agent_class(obs_spec=obs_spec, action_spec=action_spec, **options)

    # Lets gin see the parameters and write their defaults to the operative configuration.
    make.__signature__ = inspect.signature(agent_class)  # type: ignore[attr-defined]
    return make


def _task_config(**values: Any) -> tasks.RLTaskConfig:
    return tasks.RLTaskConfig(**values)


# Gin would see only the fields of the class, not the groups.
_task_config.__signature__ = inspect.signature(tasks.RLTaskConfig)  # type: ignore[attr-defined]


# Gymnasium's wrappers for `make_env.wrappers`. Wrappers with running statistics are left out, since
# checkpoints would not save them: see PPO.normalize_obs and RewardNormalize.
_GYMNASIUM_WRAPPERS = (
    "ClipAction",
    "ClipReward",
    "DelayObservation",
    "DiscretizeAction",
    "DiscretizeObservation",
    "DtypeObservation",
    "FilterObservation",
    "FlattenObservation",
    "FrameStackObservation",
    "GrayscaleObservation",
    "MaxAndSkipObservation",
    "RepeatAction",
    "RescaleAction",
    "RescaleObservation",
    "ReshapeObservation",
    "ResizeObservation",
    "StickyAction",
    "TimeAwareObservation",
)


# TF-Agents' agents; TF-Agents is imported when one of them is created.
_TF_AGENTS = {
    "TFAgentsCategoricalDQN": tf_agents_factories.make_categorical_dqn,
    "TFAgentsDDPG": tf_agents_factories.make_ddpg,
    "TFAgentsDQN": tf_agents_factories.make_dqn,
    "TFAgentsPPO": tf_agents_factories.make_ppo,
    "TFAgentsReinforce": tf_agents_factories.make_reinforce,
    "TFAgentsSAC": tf_agents_factories.make_sac,
    "TFAgentsTD3": tf_agents_factories.make_td3,
}


# Not for gin files: interfaces and states.
_NOT_IN_GIN = (
    evolution.EvoOptimizer,
    evolution.EvoState,
    evolution.EvolutionStrategy,
    evolution.GridArchive,
)

# Those that `tfrl.learning.optimizers` lacks: two of one name would be ambiguous.
_KERAS_OPTIMIZERS = ("Adadelta", "Adafactor", "Adagrad", "Adamax", "Ftrl")


def _register() -> None:
    # Users type these module names: keep them short.
    for thing, module in (
        (agents.RandomAgent, "agents"),
        (learners.ModuleConfig, "learners"),
        (schedules.LinearSchedule, "schedules"),
        (schedules.PiecewiseLinearSchedule, "schedules"),
        (schedules.ExponentialSchedule, "schedules"),
        (schedules.CosineSchedule, "schedules"),
        *((optimizer, "optimizers") for optimizer in optimizers.BY_NAME.values()),
        (networks.MLP, "networks"),
        (networks.NatureCNN, "networks"),
        (networks.ImpalaCNN, "networks"),
        (networks.StateActionTorso, "networks"),
    ):
        gin.external_configurable(thing, module=module)
    for name in _KERAS_OPTIMIZERS:
        gin.external_configurable(
            getattr(keras.optimizers, name), name=name, module="keras.optimizers"
        )
    # Flags choose the strategy.
    for workflow in (
        workflows.EvolutionWorkflow,
        workflows.OffPolicyWorkflow,
        workflows.OnPolicyWorkflow,
    ):
        gin.external_configurable(workflow, module="workflows", denylist=["strategy"])
    gin.external_configurable(workflows.ERLWorkflow, module="workflows")
    gin.external_configurable(workflows.PBTWorkflow, module="workflows")
    for part in ("Hyperparameter", "Truncation", "Tournament", "Pairs", "Perturb", "CSOExplore"):
        gin.external_configurable(getattr(pbt, part), module="pbt")
    gin.external_configurable(tasks.TaskWorkflow, module="tasks")
    gin.external_configurable(_task_config, name="RLTaskConfig", module="tasks")
    for group in (tasks.EnvironmentConfig, tasks.DatasetConfig):
        gin.external_configurable(group, module="tasks")
    for name in evolution.__all__:
        part = getattr(evolution, name)
        if isinstance(part, type) and part not in (*_NOT_IN_GIN, evolution.PolicyAgent):
            gin.external_configurable(part, module="evolution")
    for shaping in ("centered_ranks", "finite", "log_utilities", "standardized"):
        gin.external_configurable(getattr(evolution, shaping), module="evolution")
    specs = ["obs_spec", "action_spec"]
    gin.external_configurable(evolution.PolicyAgent, module="agents", denylist=specs)
    # The workflow passes the other arguments.
    of_run = [*specs, "num_envs", "n_step", "discount"]
    for maker in (replay.InGraphReplay, reverb.ReverbReplay):
        gin.external_configurable(maker, module="replay", denylist=of_run)
    gin.external_configurable(reverb.TableConfig, module="replay")
    on_algorithm(_register_algorithm)
    for name, factory in _TF_AGENTS.items():
        gin.external_configurable(factory, name=name, module="tf_agents_in_tfrl", denylist=specs)
    gin.external_configurable(agents.MultiAgent, module="agents", denylist=specs)
    gin.external_configurable(networks.make_torso, module="networks", denylist=["obs_spec"])
    gin.external_configurable(
        distributions.make_distribution, module="distributions", denylist=["action_spec"]
    )
    for name in _GYMNASIUM_WRAPPERS:
        wrapper = getattr(gymnasium.wrappers, name, None)  # earlier versions have fewer
        if wrapper is not None:
            gin.external_configurable(wrapper, module="gymnasium.wrappers", denylist=["env"])
    for name in wrappers_lib.__all__:
        wrapper = getattr(wrappers_lib, name)
        if not name.startswith("Episode"):  # make_env adds that layer itself.
            gin.external_configurable(wrapper, module="wrappers", denylist=["env"])


def _register_algorithm(agent_class: Callable[..., Agent]) -> None:
    factory = _with_network_factories(agent_class)
    name = agent_class.__name__
    specs = ["obs_spec", "action_spec"]
    # A notebook may define its class again.
    on = gin.config._INTERACTIVE_MODE
    with contextlib.nullcontext() if on else gin.config.interactive_mode():
        gin.external_configurable(factory, name=name, module="agents", denylist=specs)


_register()
