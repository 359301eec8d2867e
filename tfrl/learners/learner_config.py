"""Settings from which a Learner is made for an environment."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfrl import specs
from tfrl.agents.core import ALGORITHMS
from tfrl.errors import UserError, did_you_mean
from tfrl.learners.learner import Learner
from tfrl.learners.module_config import ModuleConfig


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """Settings of a Learner; `build_learner(env)` makes one.

    `LearnerConfig("PPO", {"hidden": (16,)}, ModuleConfig(lr=1e-3)).build_learner("tf:CartPole-v1")`

    Attributes:
      agent: The name or class of an algorithm, e.g. `tfrl.agents.PPO`, or a function of `obs_spec`
        and `action_spec` that returns a module; or `{module_id: one of these}`.
      agent_options: Other arguments of the agent, for all modules.
      module_config: As `config` of `Learner`.
      learner_class: The class of the learner.
      learner_options: Other arguments of the learner, such as `policies_to_train`.
      seed: The seed of the initial parameters.
    """

    agent: Any
    agent_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    module_config: ModuleConfig | Mapping[str, Any] | None = None
    learner_class: type[Learner] = Learner
    learner_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0

    def build_learner(
        self, env: Any = None, *, obs_spec: Any = None, action_spec: Any = None
    ) -> Any:
        """Makes a built learner; calling `build` on it again changes nothing.

        Args:
          env: A tfrl environment, a single Gymnasium environment, or an id for `make_env`. It is
            not stepped.
          obs_spec: Overrides the spec of `env`.
          action_spec: Overrides the spec of `env`.

        Raises:
          UserError: Without specs, for an unknown name, and as the agent and the Learner.
        """
        env_specs = _specs_of(env)
        specs = {"obs_spec": obs_spec, "action_spec": action_spec}
        env_specs.update({name: spec for name, spec in specs.items() if spec is not None})
        if missing := [name for name in specs if env_specs.get(name) is None]:
            raise UserError(
                "build_learner",
                expected="an environment, or obs_spec and action_spec",
                got=f"no {' and no '.join(missing)}",
                remedy="Pass env=tfrl.make_env(...), or its id.",
            )
        several = isinstance(self.agent, Mapping)
        makers = dict(self.agent) if several else {None: self.agent}
        agents = {m: _maker(x)(**env_specs, **self.agent_options) for m, x in makers.items()}
        modules = agents if several else agents[None]
        learner = self.learner_class(modules, config=self.module_config, **self.learner_options)
        learner.build(self.seed)
        return learner


def _specs_of(env: Any) -> dict[str, Any]:
    """The specs of an environment's observations and actions, of one row."""
    if env is None:
        return {}
    if isinstance(env, str):
        from tfrl.envs import make_env

        env = make_env(env)
    if hasattr(env, "obs_spec"):
        return {"obs_spec": env.obs_spec, "action_spec": env.action_spec}
    return {
        "obs_spec": specs.to_spec(env.observation_space),
        "action_spec": specs.to_spec(env.action_space),
    }


def _maker(agent: Any) -> Any:
    """The class of an algorithm by its name; other arguments unchanged."""
    if not isinstance(agent, str):
        return agent
    if agent not in ALGORITHMS:
        raise UserError(
            "LearnerConfig.agent",
            expected="the name of an algorithm, or a class",
            got=repr(agent),
            remedy=did_you_mean(agent, ALGORITHMS),
        )
    return ALGORITHMS[agent]
