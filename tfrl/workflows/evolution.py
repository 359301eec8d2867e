"""Evolution: an iteration is a generation, on the device within one compiled call."""

import contextlib
import importlib.util
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.agents.core import Agent
from tfrl.distribute.replicas import Replicas
from tfrl.envs.core import Env
from tfrl.envs.host import check_place, on_host
from tfrl.envs.host_env import HostEnv, row_seeds, task_name, tolerant
from tfrl.errors import UserError
from tfrl.evaluation import Evaluator
from tfrl.evolution.core import EvoOptimizer, EvoState
from tfrl.evolution.diversity import MAPElites, plot_archive
from tfrl.evolution.fitness import fitness_metrics, lost_warning, mean_of_finite
from tfrl.evolution.host_population import play_on_host
from tfrl.evolution.many_objectives import plot_front
from tfrl.evolution.policy_agent import PolicyAgent
from tfrl.evolution.population import (
    Played,
    PopulationActing,
    bare,
    check_objectives,
    check_rewards,
    fitness_of,
    leaves_by_env,
    play_population,
    start_states,
    state_form,
)
from tfrl.ops import statistics
from tfrl.rollout import rollout
from tfrl.rollout.acting import policy_for
from tfrl.rollout.episode import EpisodeTotals, episode_limit
from tfrl.types import Nest
from tfrl.workflows import stages
from tfrl.workflows.autotune import choose_loop
from tfrl.workflows.checks import check_episodes, check_evaluator, check_search
from tfrl.workflows.core import Advance, Workflow
from tfrl.workflows.run_state import State
from tfrl.workflows.stages import MODES, Stages, auto_needs_timing

OBS_STATISTICS = ("none", "running", "fixed")
# Env steps of random play that fix the statistics of observations.
VIRTUAL_BATCH = 10_000
# Lanes of the processor's vector unit; a partial vector may round differently.
_LANES = 16
# The most members that play together on a CPU: for more XLA would split each small operation among
# threads, which takes longer than the operation.
_BLOCK = 256


@struct.dataclass
class SearchState(struct.Struct):
    """The `opt_state` of a run.

    Attributes:
      search: The optimizer's state.
      best: The parameters of the fittest member of the last generation; for several objectives by
        the first.
    """

    search: EvoState
    best: Nest


class EvolutionWorkflow(Workflow):
    """Searches for the parameters of a policy by the returns of whole episodes.

    An iteration is a generation: ask, play, tell. `agent_state` has the centre of the search, which
    is evaluated, exported and recorded. Evaluations also report the best member.
    """

    env: Env
    agent: Agent
    evaluator: Evaluator
    compile: str
    # The environments of one replica.
    part_env: Env

    def __init__(
        self,
        env: Env,
        agent: Agent | Callable[..., Agent] = PolicyAgent,
        optimizer: EvoOptimizer | None = None,
        evaluator: Evaluator | None = None,
        *,
        group: str = "policy",
        episodes_per_member: int = 1,
        common_random_numbers: bool = False,
        discount: float | None = None,
        objectives: Sequence[str] = (),
        obs_statistics: str = "none",
        record_obs: bool = False,
        max_episode_steps: int | None = None,
        eval_env: Env | None = None,
        eval_episodes: int = 32,
        compile: str = "auto",
        iterations_per_call: int | None = None,
        strategy: tf.distribute.Strategy | None = None,
    ):
        """Assembles the static logic; `setup` creates the state.

        Args:
          env: The task from `tfrl.make_env`. On the device a generation plays in `pop_size` times
            `episodes_per_member` copies of it, whatever its `num_envs`. On the host the members
            take turns in its `num_envs` environments. If a Gymnasium environment fails, its member
            is lost.
          agent: An agent with the group `group` of parameters, or a function (for example the
            class) that makes one from `obs_spec` and `action_spec`.
          optimizer: A search of `tfrl.evolution`.
          evaluator: Plays the evaluations, in separate environments; None for `eval_episodes`
            episodes in `eval_env`.
          group: The group of parameters to search: "policy", or "actor" for a TD3 agent.
          episodes_per_member: Episodes of each member; the fitness is their mean return.
          common_random_numbers: Whether all members of a generation use the same episode seeds.
          discount: The discount of the fitness; None for undiscounted returns.
          objectives: Names of rewards, one objective each, for an environment with a dict of
            rewards. On the host "reward" and names of `info_fields`, which are summed over the
            steps of an episode.
          obs_statistics: For an agent that normalises observations: "running" statistics of all
            members' observations, or statistics of a "fixed" batch of random play; else "none".
          record_obs: Whether `fitness` and `descriptors` get all observations, as `played.obs`.
          max_episode_steps: Steps after which episodes are truncated; None for the environment's
            limit.
          eval_env: The environments to evaluate on; by default the task of `env`.
          eval_episodes: Episodes of one evaluation.
          compile: "auto", "xla", "graph" or "eager"; "auto" times graph against XLA.
          iterations_per_call: Generations per compiled call; None for calls of half a second.
          strategy: A tf.distribute strategy, whose replicas divide the population, in one process
            or in several.

        Raises:
          UserError: For a population that the replicas cannot divide, objectives that the
            optimizer does not take, and other inconsistent settings.
        """
        super().__init__(iterations_per_call=iterations_per_call)
        checks.at_least("episodes_per_member", episodes_per_member, 1)
        checks.one_of("obs_statistics", obs_statistics, OBS_STATISTICS)
        checks.one_of("compile", compile, ("auto", *MODES))
        self.optimizer: EvoOptimizer = check_search(optimizer)
        checks.number("discount", discount, 0, 1, optional=True)
        checks.at_least("max_episode_steps", max_episode_steps, 1, optional=True)
        checks.strings("objectives", objectives)
        checks.boolean("record_obs", record_obs)
        checks.boolean("common_random_numbers", common_random_numbers)
        check_rewards(check_episodes("env", env))
        check_evaluator(evaluator, eval_env)
        specs = {"obs_spec": env.obs_spec, "action_spec": env.action_spec}
        self.agent = agent if isinstance(agent, Agent) else agent(**specs)
        self.group, self.discount, self.objectives = group, discount, tuple(objectives)
        self.episodes_per_member = episodes_per_member
        self.common_random_numbers = common_random_numbers
        self.obs_statistics, self.record_obs = obs_statistics, record_obs
        self.max_episode_steps = max_episode_steps
        self.compile = compile
        self._check_objectives()
        if self.objectives and isinstance(env, HostEnv):
            check_objectives(self.objectives, ("reward", *env.info_fields))
        self._check_statistics()
        episode_limit(env, max_episode_steps, name="max_episode_steps")
        self.env = tolerant(env)
        if not isinstance(env, HostEnv):
            self.env = env.with_num_envs(self.optimizer.pop_size * episodes_per_member)
        self.evaluator = evaluator or Evaluator(
            env=tolerant(eval_env or env),
            agent=self.agent,
            num_episodes=eval_episodes,
            max_steps=max_episode_steps,
        )
        self.use_strategy(Replicas(strategy).strategy)

    def _check_objectives(self) -> None:
        num_given, num_taken = max(1, len(self.objectives)), self.optimizer.num_objectives
        if num_given != num_taken:
            remedy = f"Choose NSGA2(num_objectives={num_given}) or RVEA, or fewer objectives."
            if num_given < num_taken:
                remedy = (
                    "Pass objectives=('reward', 'energy'), names of the environment's rewards; "
                    "RewardAndEnergy makes these two."
                )
            raise UserError(
                "objectives",
                expected=f"{num_taken} for {type(self.optimizer).__name__}",
                got=f"{num_given}: {', '.join(self.objectives) or 'the return'}",
                remedy=remedy,
            )

    def _check_statistics(self) -> None:
        normalizes = bool(getattr(self.agent, "normalize_obs", False))
        if normalizes != (self.obs_statistics != "none"):
            raise UserError(
                "obs_statistics",
                expected="running or fixed if the agent normalizes observations, otherwise none",
                got=f"{self.obs_statistics!r} with normalize_obs={normalizes}",
                remedy="Set both: PolicyAgent.normalize_obs=True and obs_statistics='running'.",
            )

    def use_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Divides the population of later runs among the replicas of a strategy."""
        self.replicas = Replicas(strategy)
        self._connect_workers()
        parts, members = self.replicas.num_replicas, self.optimizer.pop_size
        if isinstance(self.env, HostEnv):
            check_place(self.env.backend.name, parts)
        if members % parts:
            raise UserError(
                f"{type(self.optimizer).__name__}.pop_size",
                expected=f"a population that divides evenly over {parts} replicas",
                got=str(members),
                remedy=f"Use {self._next_size(math.lcm(parts, 2))}, or another number of replicas.",
            )
        if isinstance(self.env, HostEnv):
            self.part_env = self.env
            self._acting = PopulationActing(agent=self.agent, num_members=self.env.num_envs)
        else:  # equal blocks of whole processor vectors, so that every split gives the same bits
            blocks = -(-members // parts // _BLOCK)
            self._block = -(-members // parts // blocks // _LANES) * _LANES
            self.part_env = self.env.with_num_envs(blocks * self._block * self.episodes_per_member)

    def _next_size(self, multiple: int) -> int:
        """Returns the next greater multiple that the search takes as its population."""
        first = self.optimizer.pop_size // multiple * multiple + multiple
        for size in range(first, first + 1000 * multiple, multiple):
            with contextlib.suppress(UserError):  # RVEA takes the sizes of lattices
                self.optimizer.replace(pop_size=size)
                return size
        return first

    # Setup.

    def setup_agent_and_optimizer(self, key: tf.Tensor) -> tuple[Any, SearchState]:
        """Creates the agent's parameters, from which the search begins."""
        has_hook = type(self).fitness is not EvolutionWorkflow.fitness
        if self.objectives and not isinstance(self.env, HostEnv) and not has_hook:
            reward = state_form(bare(self.env), 1).reward
            check_objectives(self.objectives, sorted(reward) if isinstance(reward, dict) else ())
        keys = seeding.streams(key, ["agent", "search", "statistics"])
        agent_state = self.agent.init(keys["agent"])
        checks.known("group", [self.group], agent_state.params)
        params = agent_state.params[self.group]
        search = self.optimizer.init(params, keys["search"])
        if self.obs_statistics == "fixed":
            agent_state = self._with_virtual_batch(agent_state, keys["statistics"])
        return agent_state, SearchState(search=search, best=params)

    def _with_virtual_batch(self, agent_state: Nest, key: tf.Tensor) -> Any:
        """Returns the agent's state with observation statistics of random play."""
        from tfrl.agents import RandomAgent

        env = self.evaluator.env
        reset_key, play_key = tf.unstack(seeding.split(key, 2))
        random = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        length = -(-VIRTUAL_BATCH // env.num_envs)
        play = self.evaluator.compiled(
            lambda state, key: rollout(env, random, state, random.init(key), key, length)[0]
        )
        played = play(env.reset(reset_key), play_key)
        stats = statistics.update(agent_state.normalizer, played.obs, mask=played.valid)
        return agent_state.replace(normalizer=stats)

    def setup_env_state(self, key: tf.Tensor) -> None:
        """None: a generation begins with fresh episodes."""
        return None

    # A generation.

    def advance(self, state: State, iterations: int, until: int | None = None) -> Advance:
        """See `Workflow`; several processes begin with the chief's state."""
        if self.worker_group is not None:  # processors differ in the last bits of a search
            values = self.worker_group.broadcast_arrays(tf.nest.flatten(state))
            state = tf.nest.pack_sequence_as(state, list(map(tf.constant, values)))
        return super().advance(state, iterations, until)

    @tf.autograph.experimental.do_not_convert
    def iterate(self, state: State, key: tf.Tensor) -> tuple[dict[str, tf.Tensor], State]:
        """Runs one generation: ask, play, tell."""
        population, search = stages.stage("ask", self.optimizer.ask)(state.opt_state.search)
        played = self.play(state.agent_state, population, key)
        return stages.stage("tell", self.learn_from)(state, search, population, played)

    def play(self, agent_state: Nest, population: Nest, key: tf.Tensor) -> Played:
        """Plays the episodes of all members, divided among the replicas.

        Args:
          agent_state: The agent's state; the searched group is not read.
          population: Leaves `[P, ...]`.
          key: int32 [2].

        Returns:
          Returns and lengths `[P, E]`, the same for any number of replicas.
        """
        replicas, members = self.replicas, self.optimizer.pop_size
        reset_key, step_key = tf.unstack(seeding.split(key, 2))
        if isinstance(self.env, HostEnv):
            return play_on_host(
                self.env,
                self._acting,
                lambda params: self._with_params(agent_state, params),
                population,
                self._seeds(reset_key),
                step_key,
                objectives=self.objectives,
                **self._options,
            )
        start = start_states(bare(self.env), reset_key, members, common=self.common_random_numbers)
        part = members // replicas.num_replicas
        play = stages.stage("play", self._played)

        def own(population: Nest, start: Nest) -> Played:
            episodes = play(agent_state, population, start, step_key, replicas.index() * part)
            return replicas.gather(episodes)

        episodes = replicas.any_replica(replicas.run(own, population, start))  # [R, ...]
        return tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), episodes)

    def _played(
        self, agent_state: Nest, population: Nest, start: Nest, key: tf.Tensor, first: tf.Tensor
    ) -> Played:
        """Plays the episodes of one replica's members, from number `first` on."""
        members, episodes = self.optimizer.pop_size, self.episodes_per_member
        part, padded = members // self.replicas.num_replicas, self.part_env.num_envs // episodes
        if self.replicas.several or padded != members:
            mine = tf.minimum(first + tf.range(padded), members - 1)
            envs = tf.reshape(mine[:, tf.newaxis] * episodes + tf.range(episodes), [-1])
            population = struct.take(population, mine)
            start = tf.nest.map_structure(
                lambda x, each: tf.gather(x, envs) if each else x,
                start,
                leaves_by_env(bare(self.env)),
            )
        played = play_population(
            self.part_env,
            self.agent,
            start,
            lambda params: self._with_params(agent_state, params),
            population,
            key,
            block=self._block if auto_needs_timing() else None,
            **self._options,
        )
        totals = struct.slice(played.totals, 0, part)
        if played.obs is None:
            return Played(totals=totals)
        obs, valid = struct.slice((played.obs, played.valid), 0, part * episodes)
        return Played(totals=totals, obs=obs, valid=valid)

    @property
    def _options(self) -> dict[str, Any]:
        """Returns the options of playing a population."""
        return {
            "discount": self.discount,
            "length": self.max_episode_steps,
            "records": self.record_obs or self.obs_statistics == "running",
        }

    def _seeds(self, key: tf.Tensor) -> np.ndarray:
        """Returns seeds of the episodes on the host, int64 [P, E]; see `common_random_numbers`."""
        members, episodes = self.optimizer.pop_size, self.episodes_per_member
        if self.common_random_numbers:
            return np.tile(row_seeds(key, episodes), (members, 1))
        return row_seeds(key, members * episodes).reshape(members, episodes)

    def learn_from(
        self, state: State, search: EvoState, population: Nest, played: Played
    ) -> tuple[dict[str, tf.Tensor], State]:
        """Tells the search the fitness of its members.

        Returns:
          `{name: float32 scalar}`, and the state after the generation.
        """
        totals = played.totals
        fitness = self.optimizer.checked_fitness(self.fitness(played))
        metrics, index = fitness_metrics(fitness if fitness.shape.rank == 1 else fitness[:, 0])
        best = struct.take(population, index)
        # Passes the population that `ask` drew: `tell` would draw it again.
        descriptors = {}
        if isinstance(self.optimizer, MAPElites):
            descriptors["descriptors"] = self.descriptors(played)
        search = self.optimizer.tell(search, fitness, population, **descriptors)
        agent_state = self._with_params(state.agent_state, search.params)
        if self.obs_statistics == "running":
            stats = statistics.update(agent_state.normalizer, played.obs, mask=_known(played))
            agent_state = agent_state.replace(normalizer=stats)
        lengths = tf.cast(totals.episode_lengths, tf.float32)
        metrics = {
            **metrics,
            "episode_return": self._mean_return(totals),
            "episode_length": tf.reduce_mean(lengths),
            **self.optimizer.metrics(search),
        }
        counters = state.metrics.counted(
            env_steps=tf.reduce_sum(totals.episode_lengths),
            episodes=tf.size(totals.episode_lengths),
            episode_return=metrics["episode_return"],
            episode_length=metrics["episode_length"],
        )
        return metrics, state.replace(
            metrics=counters,
            agent_state=agent_state,
            opt_state=SearchState(search=search, best=best),
        )

    def _mean_return(self, totals: EpisodeTotals) -> tf.Tensor:
        """Returns the mean return of the members; of several rewards the first objective's."""
        returns = totals.episode_returns
        if isinstance(returns, dict):
            first = next((n for n in self.objectives if n in returns), min(returns))
            returns = returns[first]
        return mean_of_finite(tf.reduce_mean(returns, axis=-1))

    def fitness(self, played: Played) -> tf.Tensor:
        """Returns the members' fitness, float32 `[P]` or `[P, M]`; a hook.

        `objectives` names the M objectives of a hook, whatever the rewards.
        """
        return fitness_of(
            played.totals, discounted=self.discount is not None, objectives=self.objectives
        )

    def descriptors(self, played: Played) -> tf.Tensor:
        """Returns the members' behaviour descriptors for MAPElites, float32 `[P, K]`; a hook."""
        raise UserError(
            f"{type(self).__name__}.descriptors",
            expected="a method that computes the descriptors for MAPElites",
            got="no such method",
            remedy="Define descriptors(self, played) in a subclass to return float32 [P, K] from "
            "played.totals, or with record_obs=True from played.obs.",
        )

    def _with_params(self, agent_state: Nest, params: Nest) -> Any:
        return agent_state.replace(params={**agent_state.params, self.group: params})

    # For the runner.

    def settle_modes(self, state: State, run_stages: Stages) -> None:
        """Settles the mode of a generation; "auto" times graph against XLA."""
        if isinstance(self.env, HostEnv):
            run_stages.modes.update(loop="eager", ask="graph", tell="graph")
            return
        run_stages.modes.update(ask="eager", play="eager", tell="eager")  # within the one loop
        mode = self.compile
        if mode == "auto" and on_host(self.env):
            mode = "graph"
        elif mode == "auto" and self.replicas.several:
            mode = "xla"
        mode = choose_loop(mode, run_stages, lambda state: self.iterate(state, state.key), state)
        if self.replicas.several:  # reductions over replicas run outside of XLA
            run_stages.modes["play"], mode = mode, "graph"
        run_stages.modes["loop"] = mode

    @property
    def _host_policy(self) -> Any:
        """The members' policy on the host; its mode is timed in the first round."""
        return policy_for(self.env, self._acting, self._acting.evaluate_actions)  # type: ignore[arg-type]

    def use_compile(self, choices: str | Mapping[str, str]) -> None:
        """Sets the compile mode, on the host also the policy's, for example of a checkpoint."""
        super().use_compile(choices)
        if isinstance(self.env, HostEnv) and isinstance(choices, Mapping):
            self._host_policy.mode = choices.get("acting")

    def compile_choices(self, state: State) -> dict[str, str]:
        """Settles and returns the compile mode of a generation."""
        if isinstance(self.env, HostEnv):
            acting = self._host_policy.mode
            return {"iterations": "eager", **({"acting": acting} if acting else {})}
        if self.compile == "auto":
            modes = self.runner(state).settled(state).modes
            return {"iterations": modes["play" if self.replicas.several else "loop"]}
        return {"iterations": self.compile}

    # Looking at a run.

    def evaluate(self, state: State) -> tuple[dict[str, float], State]:
        """Evaluates the centre of the search and the best member: `eval_best_return_mean`."""
        key = seeding.fold_in(seeding.stream(state.key, "evaluation"), state.metrics.evaluations)
        metrics, after = super().evaluate(state)
        best = self._with_params(self.agent_state(state), state.opt_state.best)
        result = self.evaluator.evaluate(best, seeding.stream(key, "best"))
        return {**metrics, "eval_best_return_mean": result.metrics()["eval_return_mean"]}, after

    def write_pictures(self, state: State, folder: pathlib.Path) -> dict[str, pathlib.Path]:
        """Plots the Pareto front or the archive, if matplotlib is installed.

        A front has two or three objectives, an archive two descriptors.
        """
        search, pictures = state.opt_state.search, dict[str, pathlib.Path]()
        if importlib.util.find_spec("matplotlib") is None:
            return pictures
        fitness = getattr(search.search, "parent_fitness", None)
        if fitness is not None and len(self.objectives) in (2, 3):
            pictures["Front"] = folder / "front.png"
            plot_front(fitness, pictures["Front"], names=self.objectives)
        if isinstance(self.optimizer, MAPElites) and len(self.optimizer.grid) == 2:
            pictures["Archive"] = folder / "archive.png"
            plot_archive(self.optimizer, search, pictures["Archive"])
        return pictures

    def warning_of(self, row: Mapping[str, Any]) -> str | None:
        """Returns a warning about lost members, or None."""
        return lost_warning(row)

    @property
    def screen_metrics(self) -> tuple[str, ...]:
        """The metrics of the progress line, beside the mean fitness and the centre's return."""
        return ("fitness_best", "fitness_std")

    def describe(self) -> str:
        """Returns a short description: search, agent, task."""
        name, size = type(self.optimizer).__name__, self.optimizer.pop_size
        return f"{name} of {size} {type(self.agent).__name__}s on {task_name(self.env)}"

    def close(self) -> None:
        """Closes environments on the host."""
        for env in {id(e): e for e in (self.env, self.part_env, self.evaluator.env)}.values():
            if isinstance(env, HostEnv):
                env.close()


def _known(played: Played) -> tf.Tensor:
    """Returns bool [P E, T], the observations of episodes whose returns are finite."""
    returns = tf.stack(tf.nest.flatten(played.totals.episode_returns))  # [M, P, E]
    is_finite = tf.reduce_all(tf.math.is_finite(returns), axis=0)
    return played.valid & tf.reshape(is_finite, [-1, 1])
