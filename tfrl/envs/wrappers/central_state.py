"""Shows every agent's critic what all agents together know."""

from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.envs.action_masks import join_mask, split_mask
from tfrl.envs.core import Wrapper
from tfrl.envs.multi_agent import MultiAgentEnv
from tfrl.envs.wrappers.agent_id import append_id, float_vector, require_agents, with_id
from tfrl.envs.wrappers.base import require_bare
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class CentralState(Wrapper):
    """Gives each agent `{"own": its observation, "state": the global state and its one-hot id}`.

    The global state is the environment's `info["state"]` where it has one, else the observations of
    all agents side by side, in the order of their ids; one float32 vector, laid out as
    `ObservationFlatten` does; an action mask is a third item. Policies take "own", a centralised
    critic "state": `PPO(obs_key="own", value_obs_key="state")`. Below the autoreset only, so that
    `final_obs` has both too.

    Source: Yu et al. 2022 (MAPPO, "agent-specific global state"), https://arxiv.org/abs/2103.01955.
    """

    def __post_init__(self) -> None:
        """Checks the side, and that there are several agents."""
        require_bare(self, "Above it the state after a reset would stand beside that before.")
        require_agents("CentralState", self.env)

    @property
    def obs_spec(self) -> dict[str, Any]:
        """Two items an agent."""
        ids, spec = self._ids(), self._state_spec()
        found = {}
        for name in ids:
            seen, mask = split_mask(self.env.obs_spec[name])
            found[name] = join_mask({"own": seen, "state": with_id(spec, len(ids))}, mask)
        return found

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        return self._mapped(self.env.reset(key))

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        return self._mapped(self.env.step(state, action))

    def _ids(self) -> tuple[str, ...]:
        return require_agents("CentralState", self.env)

    def _task_state_spec(self) -> Nest:
        task = self.env.unwrapped
        return task.state_spec if isinstance(task, MultiAgentEnv) else None

    def _state_spec(self) -> Nest:
        spec = self._task_state_spec()
        if spec is not None:
            return spec
        return [split_mask(self.env.obs_spec[name])[0] for name in self._ids()]

    def _mapped(self, state: EnvState) -> EnvState:
        ids, spec = self._ids(), self._state_spec()
        if self._task_state_spec() is None:
            whole = [split_mask(state.obs[name])[0] for name in ids]
        else:
            whole = state.info["state"]
        vector = float_vector(spec, whole)  # [B, S]
        obs = {}
        for i, name in enumerate(ids):
            seen, mask = split_mask(state.obs[name])
            obs[name] = join_mask({"own": seen, "state": append_id(vector, i, len(ids))}, mask)
        return state.replace(obs=obs)
