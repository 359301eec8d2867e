"""Runs an exact number of episodes and reports their returns."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.envs.core import Env
from tfrl.envs.env_calls import LOST
from tfrl.envs.host import on_host
from tfrl.envs.host_env import HostEnv
from tfrl.envs.multi_agent import agent_ids
from tfrl.envs.wrappers.rewards import RewardActive
from tfrl.errors import UserError
from tfrl.evaluation.result import EvaluationResult
from tfrl.rollout.acting import policy_for
from tfrl.rollout.episode import (
    EpisodeTotals,
    episode_limit,
    episode_totals,
    eval_rollout_episode,
    fast_eval_rollout_episode,
)
from tfrl.rollout.scan import scan
from tfrl.rollout.step import acting, check_autoreset
from tfrl.traces import counted_separately, logic_key, traces_of
from tfrl.types import ActionFn, EvaluatesActions, Nest, Trajectory

COMPILE_MODES = ("auto", "xla", "graph", "eager")


@struct.logic_dataclass
class Evaluator(struct.Struct):
    """Evaluates exactly `num_episodes` episodes, each weighted once.

    Episodes run in rounds: every environment runs one episode from a reset. The last round uses the
    first environments, whatever their episode lengths: using the episodes that finish first would
    favour short ones.

    With several agents (`tfrl.envs.MultiAgentEnv`) the return of an episode is the sum over its
    agents; the result also has each agent's. An agent gets no reward after its own end.

    Attributes:
      env: An environment with an autoreset mode, from `tfrl.make_env`.
      agent: Any object with `evaluate_actions`, or that function.
      num_episodes: Number of episodes; `evaluate` can override it.
      discount: Returns are sums of discount^k r_k.
      action_fn: `action_fn(agent_state, obs, key, carry) -> ActionOutput`; the agent's
        `evaluate_actions` if None.
      max_steps: Maximum steps of an episode; `env.max_episode_steps` if None.
      compile: How `evaluate` is compiled: `xla`, `graph`, `eager`, or `auto` (XLA on GPU and TPU,
        graph on CPU). With host environments only the policy is compiled, and `auto` measures.
    """

    env: Env
    agent: EvaluatesActions | ActionFn
    num_episodes: int = 10
    discount: float = 1.0
    action_fn: ActionFn | None = None
    max_steps: int | None = None
    compile: str = "auto"

    def __post_init__(self) -> None:
        """Checks the arguments."""
        checks.at_least("num_episodes", self.num_episodes, 1)
        checks.probability("discount", self.discount)
        checks.one_of("compile", self.compile, COMPILE_MODES)
        episode_limit(self.env, self.max_steps, name="max_steps")

    @property
    def episode_limit(self) -> int:
        """The maximum steps of an episode."""
        return episode_limit(self.env, self.max_steps, name="max_steps")

    @property
    def played_env(self) -> Env:
        """The environment for episodes, with zero reward for ended agents."""
        return RewardActive(env=self.env) if agent_ids(self.env) else self.env

    @property
    def _info_fields(self) -> tuple[str, ...]:
        """The fields of `info` at the ends of episodes."""
        reports_lost = isinstance(self.env, HostEnv) and self.env.reports_lost
        return (*self.env.info_fields, LOST) if reports_lost else self.env.info_fields

    def num_rounds(self, num_episodes: int) -> int:
        """The number of episodes per environment."""
        return -(-num_episodes // self.env.num_envs)

    def run(self, agent_state: Nest, key: tf.Tensor) -> tuple[Nest, ...]:
        """Runs the episodes; a pure function for eager, graph and XLA.

        Args:
          agent_state: The agent's state; leaves may be tensors or tf.Variables.
          key: int32 [2]. Episode i is the same for any `num_episodes`.

        Returns:
          Returns float32 [num_episodes] (with several agents, a dict) and lengths int32
          [num_episodes]; and `{name: float32 [num_episodes]}` if the environments have
          `info_fields`.
        """
        agent_state = struct.values(agent_state)
        batch, ids = [self.env.num_envs], agent_ids(self.env)
        one: Any = tf.TensorSpec(batch, tf.float32)
        spec: Any = (dict.fromkeys(ids, one) if ids else one, tf.TensorSpec(batch, tf.int32))
        if self._info_fields:
            spec = (*spec, dict.fromkeys(self._info_fields, one))
        rounds = self.num_rounds(self.num_episodes)
        _, played = scan(
            lambda carry, i: (carry, self.play_round(agent_state, key, i)), (), rounds, spec
        )  # [rounds, B]
        count = self.num_episodes
        return tf.nest.map_structure(lambda x: tf.reshape(x, [-1])[:count], played)

    def play_round(self, agent_state: Nest, key: tf.Tensor, index: tf.Tensor) -> tuple[Nest, ...]:
        """Runs round `index`: returns, lengths and fields of `info`, [B]; as `run`."""
        reset_key, key_of_round = self.round_keys(key, index)
        totals, _ = fast_eval_rollout_episode(
            self.played_env,
            self.agent,
            self.start(reset_key),
            agent_state,
            key_of_round,
            self.episode_limit,
            action_fn=self.action_fn,
            discount=self.discount,
            info_fields=self._info_fields,
        )
        infos = (totals.infos,) if totals.infos else ()
        return totals.discounted_returns, totals.episode_lengths, *infos

    def evaluate(
        self, agent_state: Nest, key: tf.Tensor, num_episodes: int | None = None
    ) -> EvaluationResult:
        """Runs the episodes, compiled once for any number, and computes their statistics.

        Args:
          agent_state: The agent's state; leaves may be tensors or tf.Variables.
          key: int32 [2].
          num_episodes: Number of episodes, instead of the field.

        Returns:
          Returns and lengths per episode, mean, standard deviation and interval.
        """
        count = self.num_episodes if num_episodes is None else num_episodes
        checks.at_least("num_episodes", count, 1)
        agent_state = struct.values(agent_state)  # so variables and tensors share one trace
        rounds = [
            self._compiled_play(agent_state, key, tf.constant(i))
            for i in range(self.num_rounds(count))
        ]
        return self.result(tf.nest.map_structure(lambda *xs: tf.concat(xs, 0)[:count], *rounds))

    def result(self, played: Any) -> EvaluationResult:
        """Computes the statistics of the results of `run`, on the host."""
        return EvaluationResult.of(*tf.nest.map_structure(lambda x: x.numpy(), played))

    @functools.cached_property
    def _compiled_play(self) -> Callable[..., Any]:
        play = self.compiled(lambda *args: self.play_round(*args))
        if on_host(self.env):  # a trace would keep them
            return play
        any_number = logic_key(self.replace(num_episodes=1))
        return traces_of(any_number).notes.setdefault("play", play)

    def compiled(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `fn`, which runs episodes, compiled in the mode `compile`."""
        if not isinstance(self.env, HostEnv):
            return compiled(fn, self.compile)
        if self.compile != "auto":
            agent, action_fn = acting(self.agent, self.action_fn, "evaluate_actions")
            for env in {self.env, *self.env.halves}:
                policy_for(env, agent, action_fn).mode = self.compile
        return fn

    def start(self, key: tf.Tensor) -> Any:
        """Resets the environments for a round; an agent's rewards must be single numbers."""
        state = self.env.reset(key)
        check_autoreset(self.env, state)
        if isinstance(state.reward, dict) and not agent_ids(self.env):
            raise UserError(
                "env",
                expected="one reward per step",
                got=f"a dict of rewards ({', '.join(sorted(state.reward))})",
                remedy="Pass an eval_env that combines them into one.",
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
    return tf.function(counted_separately(fn), jit_compile=mode == "xla", autograph=False)


@dataclasses.dataclass(frozen=True)
class CollectedEpisodes:
    """Episodes with their statistics, all in numpy.

    Attributes:
      result: Returns, lengths and statistics, as from `Evaluator.evaluate`.
      episodes: One Trajectory per episode, leaves [length, ...], every row valid.
      padded: All episodes as one Trajectory, leaves [T, N, ...], with `valid` False after the end.
    """

    result: EvaluationResult
    episodes: list[Trajectory]
    padded: Trajectory


@struct.logic_dataclass
class EpisodeCollector(Evaluator):
    """An `Evaluator` that also returns the trajectories.

    For the same key, `collect` and `evaluate` run the same episodes.

    Attributes:
      env_extra_fields: Names of `info` fields to store in `Trajectory.env_extras`.
    """

    env_extra_fields: tuple[str, ...] = ()

    def collect(self, agent_state: Nest, key: tf.Tensor) -> CollectedEpisodes:
        """Runs `num_episodes` episodes and copies them to the host, round by round.

        Args:
          agent_state: The agent's state; leaves may be tensors or tf.Variables.
          key: int32 [2].
        """
        agent_state = struct.values(agent_state)
        rounds = []
        for index in range(self.num_rounds(self.num_episodes)):
            played = self._compiled_round(agent_state, key, tf.constant(index))
            rounds.append(tf.nest.map_structure(lambda x: x.numpy(), played))
        count = self.num_episodes

        def join(axis: int, nests: list[Any]) -> Any:
            def one(*xs: np.ndarray) -> np.ndarray:
                return np.take(np.concatenate(xs, axis=axis), range(count), axis=axis)

            return tf.nest.map_structure(one, *nests)

        padded = join(1, [trajectory for trajectory, _ in rounds])
        totals = join(0, [totals for _, totals in rounds])
        lengths = totals.episode_lengths
        return CollectedEpisodes(
            result=EvaluationResult.of(totals.discounted_returns, lengths),
            episodes=[_episode(padded, i, int(n)) for i, n in enumerate(lengths)],
            padded=padded,
        )

    def run_round(
        self, agent_state: Nest, key: tf.Tensor, index: tf.Tensor
    ) -> tuple[Trajectory, EpisodeTotals]:
        """Runs round `index`; a pure function for eager, graph and XLA."""
        reset_key, step_key = self.round_keys(key, index)
        trajectory, _ = eval_rollout_episode(
            self.played_env,
            self.agent,
            self.start(reset_key),
            agent_state,
            step_key,
            self.episode_limit,
            self.env_extra_fields,
            self.action_fn,
        )
        return trajectory, episode_totals(trajectory, self.discount)

    @functools.cached_property
    def _compiled_round(self) -> Callable[..., Any]:
        return self.compiled(lambda *args: self.run_round(*args))


def _episode(padded: Trajectory, index: int, length: int) -> Trajectory:
    """Episode number `index` of [T, N, ...], cut to its length."""
    return tf.nest.map_structure(lambda x: x[:length, index].copy(), padded)
