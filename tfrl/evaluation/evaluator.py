"""Plays an exact number of episodes and reports their returns."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distribute.tracing import counted_apart
from tfrl.envs.core import Env
from tfrl.envs.host import on_host
from tfrl.envs.host_env import HostEnv
from tfrl.envs.multi_agent import agent_ids
from tfrl.envs.wrappers.reward_active import RewardActive
from tfrl.errors import UserError, did_you_mean
from tfrl.evaluation.result import EvaluationResult
from tfrl.rollout.acting import policy_for
from tfrl.rollout.episode import episode_limit, fast_eval_rollout_episode
from tfrl.rollout.scan import scan
from tfrl.rollout.step import ActionFn, autoreset_mode
from tfrl.traces import logic_key, traces_of
from tfrl.types import Nest

COMPILE_MODES = ("auto", "xla", "graph", "eager")


@struct.logic_dataclass
class Evaluator(struct.Struct):
    """Evaluates exactly `num_episodes` episodes, each weighted once.

    Episodes are played in rounds: every environment slot plays one episode from a fresh reset. Of
    the last round the first slots count, however long their episodes are: taking the episodes
    that finish first would favour short ones.

    With several agents (`tfrl.envs.MultiAgentEnv`) the return of an episode is the team's, the sum
    over its agents; the result has theirs too. An agent gets no reward for steps after its own end.

    Attributes:
      env: An environment with an autoreset mode, as `tfrl.make_env` gives it.
      agent: Any object with `evaluate_actions`.
      num_episodes: How many episodes count.
      discount: Returns are sums of discount^k r_k.
      action_fn: `action_fn(agent_state, obs, key, carry) -> ActionOutput`; the agent's
        `evaluate_actions` if None.
      max_steps: Steps after which an episode is cut; `env.max_episode_steps` if None.
      compile: How `evaluate` is compiled: `xla`, `graph`, `eager`, or `auto` (XLA on GPU and TPU,
        graph on CPU). In environments on the host the policy alone is: `auto` measures.
    """

    env: Env
    agent: Any
    num_episodes: int
    discount: float = 1.0
    action_fn: ActionFn | None = None
    max_steps: int | None = None
    compile: str = "auto"

    def __post_init__(self) -> None:
        """Checks the arguments."""
        _check_count("num_episodes", self.num_episodes)
        if not 0.0 <= self.discount <= 1.0:
            raise UserError(
                "discount",
                expected="a number from 0 to 1",
                got=repr(self.discount),
                remedy="Give 1 for plain returns.",
            )
        if self.compile not in COMPILE_MODES:
            raise UserError(
                "compile",
                expected=f"one of {', '.join(COMPILE_MODES)}",
                got=repr(self.compile),
                remedy=did_you_mean(str(self.compile), COMPILE_MODES),
            )
        episode_limit(self.env, self.max_steps, name="max_steps")

    @property
    def episode_limit(self) -> int:
        """The most steps that an episode may take."""
        return episode_limit(self.env, self.max_steps, name="max_steps")

    @property
    def played_env(self) -> Env:
        """The environment as it is played: agents that have ended are paid nothing."""
        return RewardActive(env=self.env) if agent_ids(self.env) else self.env

    @property
    def num_rounds(self) -> int:
        """How often every environment slot plays an episode."""
        return -(-self.num_episodes // self.env.num_envs)

    def run(self, agent_state: Any, key: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """Plays the episodes; a pure function for eager, graph and XLA.

        Args:
          agent_state: The agent's state; leaves may be tensors or tf.Variables.
          key: int32 [2]. Episode i is the same for any `num_episodes`.

        Returns:
          Returns float32 [num_episodes] (of several agents, a dict of them) and lengths int32
          [num_episodes].
        """
        agent_state = struct.values(agent_state)

        def play_round(carry: Any, index: tf.Tensor) -> tuple[Any, tuple[tf.Tensor, tf.Tensor]]:
            reset_key, key_of_round = self.round_keys(key, index)
            totals = fast_eval_rollout_episode(
                self.played_env,
                self.agent,
                self.start(reset_key),
                agent_state,
                key_of_round,
                self.episode_limit,
                action_fn=self.action_fn,
                discount=self.discount,
            )
            return carry, (totals.discounted_returns, totals.episode_lengths)

        batch, ids = [self.env.num_envs], agent_ids(self.env)
        one: Any = tf.TensorSpec(batch, tf.float32)
        spec = (dict.fromkeys(ids, one) if ids else one, tf.TensorSpec(batch, tf.int32))
        _, played = scan(play_round, (), self.num_rounds, spec)  # [rounds, B]
        count = self.num_episodes
        return tf.nest.map_structure(lambda x: tf.reshape(x, [-1])[:count], played)

    def evaluate(self, agent_state: Any, key: tf.Tensor) -> EvaluationResult:
        """Plays the episodes, compiled once, and computes their statistics on the host.

        Args:
          agent_state: The agent's state; leaves may be tensors or tf.Variables.
          key: int32 [2].

        Returns:
          Returns and lengths per episode, mean, standard deviation and interval.
        """
        # Values, so that variables and tensors share one trace.
        return self.result(self._compiled_run(struct.values(agent_state), key))

    def result(self, played: Any) -> EvaluationResult:
        """Computes the statistics of what `run` returned, on the host."""
        returns, lengths = tf.nest.map_structure(lambda x: x.numpy(), played)
        return EvaluationResult.of(returns, lengths)

    @functools.cached_property
    def _compiled_run(self) -> Callable[..., Any]:
        run = self.compiled(lambda agent_state, key: self.run(agent_state, key))
        if on_host(self.env):  # a trace would keep them
            return run
        return traces_of(logic_key(self)).notes.setdefault("run", run)

    def compiled(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `fn`, which plays, compiled in the mode `compile`."""
        if not isinstance(self.env, HostEnv):
            return compiled(fn, self.compile)
        if self.compile != "auto":
            action_fn = self.action_fn or self.agent.evaluate_actions
            for env in {self.env, *self.env.halves}:
                policy_for(env, self.agent, action_fn).mode = self.compile
        return fn

    def start(self, key: tf.Tensor) -> Any:
        """Resets the environments for a round; an agent's rewards must be single numbers."""
        state = self.env.reset(key)
        autoreset_mode(self.env, state)
        if isinstance(state.reward, dict) and not agent_ids(self.env):
            raise UserError(
                "env",
                expected="one reward per step",
                got=f"a dict of rewards ({', '.join(sorted(state.reward))})",
                remedy="Evaluate with an environment that combines them into one.",
            )
        return state

    def round_keys(self, key: tf.Tensor, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the keys of a round: for the reset and for the steps."""
        reset_key, step_key = tf.unstack(seeding.split(seeding.fold_in(key, index), 2))
        return reset_key, step_key


def compiled(fn: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """Returns `fn` compiled in a mode; `auto` is XLA on GPU and TPU, graph on CPU."""
    if mode == "eager":
        return fn
    if mode == "auto":
        accelerators = {d.device_type for d in tf.config.list_logical_devices()} & {"GPU", "TPU"}
        mode = "xla" if accelerators else "graph"
    return tf.function(counted_apart(fn), jit_compile=mode == "xla", autograph=False)


def _check_count(name: str, count: Any) -> None:
    is_int = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if not is_int or count < 1:
        raise UserError(
            name,
            expected="an int of at least 1",
            got=repr(count),
            remedy="Give the number of episodes to play.",
        )
