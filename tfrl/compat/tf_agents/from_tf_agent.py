"""TF-Agents' agents as modules of the Learner and as agents of the workflows."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents.categorical_dqn.categorical_dqn_agent import CategoricalDqnAgent
from tf_agents.agents.dqn.dqn_agent import DqnAgent
from tf_agents.agents.reinforce.reinforce_agent import ReinforceAgent

from tfrl import checks, struct
from tfrl.agents.core import Agent, ExternalUpdate
from tfrl.agents.random import RandomAgent
from tfrl.compat.tf_agents.from_tf_agent_calls import (
    EXPERIENCE,
    act,
    batch_spec,
    experience_of,
    initial_carry,
    needs_boundaries,
    no_info,
    rollout_batch,
    scalars,
    weights_of,
)
from tfrl.compat.tf_agents.from_tf_agent_logic import Logic, tell_limits, undecorated
from tfrl.compat.tf_agents.from_tf_agent_variables import drawn_from, unchecked
from tfrl.envs.core import Autoreset, Env
from tfrl.errors import UserError
from tfrl.traces import counted_separately
from tfrl.types import ActionOutput, AgentState, Nest, Trajectory


@struct.logic_dataclass
class TFAgentModule(Agent):
    """A TFAgent as an agent of this library.

    Its code runs unchanged; its state is outside, in an `AgentState`: networks in `params`, target
    networks in `target_params`, optimizers, counters, normalisers and other variables in `extra`.
    It trains by its own `train` and optimizers. Random numbers come from keys.

    Attributes:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      make_agent: A function `(time_step_spec, action_spec)` that makes the TFAgent; `init` calls it
        with all random numbers drawn from the key. Or a TFAgent; `init` copies its values.
      learns_from: "replay" or "rollout"; None for the default of its class.
      gamma: The factor by which its losses multiply discounts; None for the agent's gamma.
      steps: Steps of an item of the replay buffer (n); None for the agent's number.
      logic: The TFAgent.
      discount: `gamma`, for the replay buffer.
      n_step: `steps`, for the replay buffer.
    """

    obs_spec: Nest
    action_spec: Nest
    make_agent: Any
    learns_from: str | None = None
    gamma: float | None = None
    steps: int | None = None
    logic: Logic = struct.derived()
    discount: float = struct.derived()
    n_step: int = struct.derived()

    def __post_init__(self) -> None:
        """Makes the TFAgent, and traces its training to find its variables."""
        # Not in `tf.init_scope`, which would record no gradients.
        self.logic = Logic(self.make_agent, self.obs_spec, self.action_spec, self.learns_from)
        agent = self.logic.agent
        gamma = getattr(agent, "_gamma", None) if self.gamma is None else self.gamma
        self.discount = self._checked_gamma(gamma)
        self.n_step = self._checked_steps()
        spec = batch_spec(self.logic, self.obs_spec, self.action_spec)
        self.logic.find_variables(self._trained, spec)
        tell_limits(self.logic)

    def _checked_gamma(self, gamma: Any) -> float:
        if self.logic.form in ("frame", "sequence", "rollout") and gamma is None:
            return 1.0  # unused
        number = isinstance(gamma, int | float | np.number) and not isinstance(gamma, bool)
        if not number or not 0.0 < float(gamma) <= 1.0:
            raise UserError(
                f"gamma of {type(self.logic.agent).__name__}",
                expected="the discount of its losses, above 0 and at most 1",
                got=gamma,
                remedy="Pass the agent's discount, such as gamma=0.99, for the replay buffer.",
            )
        own = getattr(self.logic.agent, "_gamma", None)
        if isinstance(own, int | float) and abs(float(own) - float(gamma)) > 1e-6:
            raise UserError(
                f"gamma of {type(self.logic.agent).__name__}",
                expected=f"{own:g}, the agent's own discount",
                got=gamma,
                remedy="Leave it out: the replay buffer uses the agent's discount.",
            )
        return float(gamma)

    def _checked_steps(self) -> int:
        agent = self.logic.agent
        length = agent.train_sequence_length
        own = getattr(agent, "_n_step_update", 1 if length is None else length - 1)
        if self.steps is None:
            return int(own)
        checks.at_least(f"{type(self).__name__}.steps", self.steps, 1)
        if self.logic.form == "frames" and self.steps != own:
            raise UserError(
                f"steps of {type(agent).__name__}",
                expected=f"{own}, as set by its train_sequence_length",
                got=self.steps,
                remedy="Create the agent with this n_step_update.",
            )
        return self.steps

    @property
    def algorithm(self) -> str:
        """The class of the TFAgent, for messages."""
        return type(self.logic.agent).__name__

    # State.

    def init(self, key: tf.Tensor) -> AgentState:
        """Returns fresh values of all variables; computed eagerly, outside a strategy's scope."""
        with tf.init_scope():
            return self.logic.state(key)

    def initial_carry(self, batch_size: int) -> Nest:
        """Returns the initial carry of the policy, or None."""
        return initial_carry(self.logic, batch_size)

    # Acting.

    def _act(
        self, which: str, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest
    ) -> ActionOutput:
        def run(state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest) -> ActionOutput:
            specs = (self.obs_spec, self.action_spec)
            return act(self.logic, which, state, obs, key, carry, specs)

        return self._in_graph(which, run, state, obs, key, carry)

    def _in_graph(
        self, name: str, function: Callable[..., Any], state: AgentState, *args: Any
    ) -> Any:
        """Calls a function in a graph, since eager kernels bypass the variables' methods.

        Args:
          name: The name of the function; each is traced once.
          function: A function of `state` and `args`.
          state: Values or variables.
          *args: Nests.
        """
        if not tf.executing_eagerly():
            return function(state, *args)
        traced = self.logic.traced
        if name not in traced:
            traced[name] = tf.function(counted_separately(function), autograph=False)
        return traced[name](tf.nest.map_structure(tf.convert_to_tensor, state), *args)

    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Acts by the collect policy."""
        return self._act("explore", state, obs, key, carry)

    def evaluate_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Acts by the mode of the policy's distribution."""
        return self._act("greedy", state, obs, key, carry)

    def random_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Draws uniform actions, to fill a replay buffer."""
        random = RandomAgent(obs_spec=self.obs_spec, action_spec=self.action_spec)
        output = random.compute_actions(state, obs, key, carry)
        return output.replace(extras=no_info(self.logic, tf.nest.flatten(obs)[0].shape[0]))

    # Learning.

    epochs_and_minibatches = (1, 1)  # the agent runs epochs itself

    @property
    def learns_from_replay(self) -> bool:  # type: ignore[override]
        """Whether the agent learns from replayed experience."""
        return self.logic.form != "rollout"

    @property
    def takes_sequences(self) -> bool:
        """Whether the items of a replay buffer are sequences."""
        return self.logic.form == "sequence"

    @property
    def updates(self) -> tuple[ExternalUpdate, ...]:
        """One update: the agent's `train`."""
        return (ExternalUpdate(name="train", step=self.train),)

    def train(self, state: AgentState, batch: Nest, key: tf.Tensor) -> dict[str, tf.Tensor]:
        """Takes a training step of the TFAgent.

        Args:
          state: Variables, which are changed in place.
          batch: See `experience_of`.
          key: int32 [2].

        Returns:
          `loss`, and the means of the agent's other metrics. If no episode ends, REINFORCE takes no
          step: all metrics are then 0, and `no_episode_end` is 1.
        """
        plain = undecorated(self.logic.agent)
        with plain, self.logic.variables.stand_for(state), drawn_from(key), unchecked():
            if isinstance(self.logic.agent, ReinforceAgent) and self.logic.form == "rollout":
                return self._trained_if_ended(batch)
            return self._trained(batch)

    def _trained(self, batch: Nest) -> dict[str, tf.Tensor]:
        agent = self.logic.agent
        experience = experience_of(self.logic, batch, self.discount, self.n_step)
        if self.logic.form == "rollout":
            experience = agent.preprocess_sequence(experience)
        info = agent.train(experience, weights=weights_of(self.logic, batch))
        return scalars(info.loss, info.extra)

    def _trained_if_ended(self, batch: Nest) -> dict[str, tf.Tensor]:
        """Takes REINFORCE's step, which uses steps up to the last end of an episode, if any."""
        ended = tf.reduce_any(batch[EXPERIENCE].is_last())
        nothing = dict.fromkeys(self.logic.metrics, tf.constant(0.0))
        row = tf.cond(ended, lambda: self._trained(batch), lambda: nothing)
        return {**row, "no_episode_end": tf.cast(~ended, tf.float32)}

    def learner_batch(
        self, state: AgentState, trajectory: Trajectory
    ) -> tuple[Nest, dict[str, tf.Tensor]]:
        """Converts a rollout of autoreset NEXT_STEP to frames, one row for each environment."""
        return rollout_batch(self.logic, trajectory), {}

    def num_rows(self, rollout_length: int, num_envs: int) -> int:
        """Returns the number of environments: rows are whole sequences."""
        return num_envs

    def check_env(self, env: Env) -> None:
        """Raises a UserError for an autoreset mode without boundary frames, if needed."""
        if self.logic.form == "rollout" and env.autoreset is not Autoreset.NEXT_STEP:
            raise needs_boundaries(self.logic, getattr(env.autoreset, "name", "none"))

    @property
    def tells_td_errors(self) -> bool:
        """Whether prioritised replay works: only DQN reports TD errors and takes weights."""
        agent = self.logic.agent
        return isinstance(agent, DqnAgent) and not isinstance(agent, CategoricalDqnAgent)

    def td_errors(self, state: AgentState, batch: Nest, key: tf.Tensor) -> tf.Tensor:
        """Returns |target - Q(o, a)| of every row, float32 `[N]`, for prioritised replay.

        Raises:
          UserError: For an agent other than DQN, which does not report them.
        """
        agent = self.logic.agent
        if not self.tells_td_errors:
            raise UserError(
                "prioritized replay",
                expected="an agent that returns its TD errors, such as DqnAgent",
                got=type(agent).__name__,
                remedy="Sample uniformly.",
            )

        def errors(state: AgentState, batch: Nest, key: tf.Tensor) -> tf.Tensor:
            plain = undecorated(agent)
            with plain, self.logic.variables.read_as(state), drawn_from(key):
                experience = experience_of(self.logic, batch, self.discount, self.n_step)
                result = agent.loss(
                    experience, gamma=agent._gamma, reward_scale_factor=agent._reward_scale_factor
                )
            return tf.abs(result.extra.td_error)

        return self._in_graph("td_errors", errors, state, batch, key)


def from_tf_agent(
    make_agent: Any,
    *,
    learns_from: str | None = None,
    gamma: float | None = None,
    n_step: int | None = None,
    obs_spec: Nest = None,
    action_spec: Nest = None,
) -> Any:
    """Makes an agent of this library from a TFAgent.

    `OffPolicyWorkflow(env=env, agent=from_tf_agent(make_agent))` trains it on any environments, and
    `Learner(from_tf_agent(make_agent, obs_spec=..., action_spec=...))` on any data.

    Args:
      make_agent: A function `(time_step_spec, action_spec)` that returns a TFAgent, or a TFAgent.
      learns_from: "replay" (items, or sequences for a network with a memory) or "rollout" (its own
        experience); None for the default: PPO and REINFORCE learn from rollouts, TF-Agents' other
        agents from replay.
      gamma: The factor by which its losses multiply discounts; None for the agent's gamma.
      n_step: Steps of an item of the replay buffer; None for the agent's number.
      obs_spec: The nest of specs of one observation; None if a workflow passes it.
      action_spec: The nest of specs of one action; None if a workflow passes it.

    Returns:
      A `TFAgentModule`; without specs a function that makes one from them.

    Raises:
      UserError: If `make_agent` makes no TFAgent, or the agent's state cannot be kept outside.
    """
    make_module = functools.partial(
        TFAgentModule, make_agent=make_agent, learns_from=learns_from, gamma=gamma, steps=n_step
    )
    if obs_spec is None and action_spec is None:
        return make_module
    if obs_spec is None or action_spec is None:
        raise UserError(
            "from_tf_agent",
            expected="both obs_spec and action_spec, or neither if a workflow passes them",
            got=f"no {'obs_spec' if obs_spec is None else 'action_spec'}",
            remedy="Pass both specs.",
        )
    return make_module(obs_spec=obs_spec, action_spec=action_spec)
