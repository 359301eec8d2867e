"""Evolution-guided RL: a population and off-policy agents share a replay buffer."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.agents.core import Agent
from tfrl.envs.core import Env
from tfrl.envs.host import on_host
from tfrl.envs.host_env import HostEnv, row_seeds, task_name, tolerant
from tfrl.errors import UserError
from tfrl.evaluation import Evaluator
from tfrl.evolution.core import EvoOptimizer, EvoState
from tfrl.evolution.episodes import (
    Episodes,
    in_one_column,
    join_episodes,
    play_episodes,
    play_episodes_on_host,
)
from tfrl.evolution.fitness import fitness_metrics, lost_warning, mean_of_finite
from tfrl.evolution.injection import Injection
from tfrl.evolution.population import PopulationActing, bare, check_rewards, start_states
from tfrl.learners import (
    DEFAULT_MODULE_ID,
    CheckNumerics,
    Learner,
    ModuleConfig,
)
from tfrl.learners.learner_state import LearnerState
from tfrl.learning import leaves
from tfrl.metrics.accumulator import mean_of_steps
from tfrl.replay import InGraphReplay, ReplayBuffer
from tfrl.rollout.episode import episode_totals
from tfrl.types import EvaluatesActions, Nest, ReplayAgent, Trajectory
from tfrl.workflows import stages
from tfrl.workflows.autotune import choose_by_time
from tfrl.workflows.checks import (
    algorithm_name,
    check_agent,
    check_batch_size,
    check_counts,
    check_ends,
    check_episodes,
    check_evaluator,
    check_replay,
    check_room,
    check_search,
    check_variables,
    make_agent,
    make_replay,
    updates_ratio,
)
from tfrl.workflows.core import Workflow
from tfrl.workflows.learner_rows import checked_rows, in_one_row, name_in_row
from tfrl.workflows.offspring import LearnerSteps, train_members, with_one_update
from tfrl.workflows.run_state import State
from tfrl.workflows.run_values import filled
from tfrl.workflows.stages import Stages, auto_needs_timing, check_compile

STAGES = ("play", "update")
_CAPACITY = 1_000_000


@struct.dataclass
class ERLOptState(struct.Struct):
    """The `opt_state` of a run.

    Attributes:
      learner: `{module_id: {optimizer_name: {path: leaf}}}`, see `LearnerState`.
      search: The state of the population's search.
      best: The parameters of the fittest member of the last generation.
    """

    learner: dict[str, Any]
    search: EvoState
    best: Nest


class ERLWorkflow(Workflow):
    """Trains off-policy agents and a population of their actors from one replay buffer.

    An iteration is a generation. ERL: the members play, and each agent plays episodes with
    exploration. All steps go into the buffer. The agents take their learner steps, and the search
    gets the fitness (tell). Every `inject_every` generations the agents' actors enter the
    population.

    CEM-RL (`train_half`): one agent supplies the critics. Before a generation plays, each member of
    its first half takes policy gradient steps by the critics, which also learn.

    Sources: Khadka & Tumer 2018, algorithm 1, https://arxiv.org/abs/1805.07917; Pourchot & Sigaud
    2019, algorithm 1, https://arxiv.org/abs/1810.01222.
    """

    _not_traced = Workflow._not_traced | {"_learner"}
    env: Env
    agent: Agent
    evaluator: Evaluator
    compile: dict[str, str]

    def __init__(
        self,
        env: Env,
        agent: Agent | Callable[..., Agent] | Mapping[str, Any],
        optimizer: EvoOptimizer | None = None,
        evaluator: Evaluator | None = None,
        *,
        replay: InGraphReplay | Callable[..., InGraphReplay] | None = None,
        group: str = "actor",
        episodes_per_member: int = 1,
        episodes_per_agent: int = 1,
        common_random_numbers: bool = False,
        inject: str = "replace",
        inject_every: int = 1,
        pull_share: float = 0.5,
        train_half: bool = False,
        updates_per_step: float = 1.0,
        batch_size: int = 256,
        learning_starts: int = 1_000,
        learner_config: ModuleConfig | None = None,
        check_numerics: CheckNumerics = "raise",
        eval_env: Env | None = None,
        eval_episodes: int = 32,
        compile: str | Mapping[str, str] = "auto",
        iterations_per_call: int | None = None,
    ):
        """Assembles the static logic; `setup` creates the state.

        Args:
          env: The task from `tfrl.make_env`, with a step limit. On the device there are as many
            copies as a generation has episodes. On the host the episodes take turns in its
            `num_envs` environments. If a Gymnasium environment fails, its member is lost.
          agent: An off-policy agent with a group `group` of parameters (TD3, DDPG, SAC), or a
            function (for example the class) that makes one from `obs_spec` and `action_spec`. For
            several agents a dict by module id; their actors' parameters must have equal shapes, and
            the members act like the first agent.
          optimizer: A search of `tfrl.evolution`.
          evaluator: Plays the evaluations, in separate environments; None for `eval_episodes`
            episodes in `eval_env`.
          replay: A function (for example `functools.partial(InGraphReplay, capacity=100_000)`; in
            gin the class) that makes the replay buffer from `obs_spec`, `action_spec`, `num_envs`,
            `n_step` and `discount`; None for a million steps.
          group: The group of parameters that the population consists of.
          episodes_per_member: Episodes of each member; the fitness is their mean return.
          episodes_per_agent: Episodes that each agent plays in a generation, with exploration.
          common_random_numbers: Whether all members of a generation use the same episode seeds.
          inject: How the agents' actors enter the population. "replace": they replace the last
            candidates before these play. "extra": they play beside the population, and each
            replaces the worst member if it is fitter. "mean": the mean of the search moves towards
            the first agent's actor. "none": they do not.
          inject_every: Generations from one injection to the next.
          pull_share: The share of the distance that "mean" moves.
          train_half: Whether half of the offspring are trained before they play (CEM-RL).
          updates_per_step: Learner steps of each agent per env step of agents and population, after
            `learning_starts`. With `train_half` the critics' learner steps, which are divided
            evenly among the trained members; each trained member takes as many actor steps.
          batch_size: Rows of a learner step.
          learning_starts: Env steps before the first learner step.
          learner_config: Learning rate and gradient clipping; the default is 3e-4 and none.
          check_numerics: "off", "skip" or "raise", see `Learner`.
          eval_env: The environments to evaluate on; by default the task of `env`.
          eval_episodes: Episodes of one evaluation.
          compile: "auto", "xla", "graph", "eager", or a dict of them by stage: play (the episodes),
            update (one learner step). "auto" times graph against XLA.
          iterations_per_call: Generations per compiled call; None for calls of half a second.

        Raises:
          UserError: For agents that do not learn from replay or whose actors differ in form, a
            population that cannot be halved, and numbers out of bounds.
        """
        super().__init__(iterations_per_call=iterations_per_call)
        self.optimizer: EvoOptimizer = check_search(optimizer)
        checks.at_least("episodes_per_member", episodes_per_member, 1)
        checks.at_least("episodes_per_agent", episodes_per_agent, 1)
        checks.boolean("train_half", train_half)
        checks.boolean("common_random_numbers", common_random_numbers)
        check_counts(learning_starts=learning_starts)
        check_batch_size(batch_size, 1)
        self.group, self.train_half = group, train_half
        self.episodes_per_member = episodes_per_member
        self.episodes_per_agent = episodes_per_agent
        self.common_random_numbers = common_random_numbers
        self.batch_size, self.learning_starts = batch_size, learning_starts
        self._ratio = updates_ratio(updates_per_step)
        self.learner_config = learner_config or ModuleConfig(lr=3e-4, adam_epsilon=1e-8)
        self.check_numerics = check_numerics
        self.compile = check_compile(compile, STAGES)
        check_ends(check_episodes("env", env))
        check_rewards(env)
        check_evaluator(evaluator, eval_env)
        agents = agent if isinstance(agent, Mapping) else {DEFAULT_MODULE_ID: agent}
        self.modules = {m: make_agent(x, env) for m, x in agents.items()}
        self.agent = next(iter(self.modules.values()))
        self._check_agents()
        self.injection = Injection(
            optimizer=self.optimizer,
            kind=inject,
            every=inject_every,
            pull_share=pull_share,
            num_actors=len(self.modules),
        )
        if train_half:
            self._check_halves()
        self.replay = self._make_replay(replay)
        check_room(self.replay, batch_size)
        self._learner: Learner | None = None
        self.env = tolerant(env)
        self.evaluator = evaluator or Evaluator(
            env=tolerant(eval_env or env), agent=self.agent, num_episodes=eval_episodes
        )

    def _check_agents(self) -> None:
        first = self.agent
        for module_id, agent in self.modules.items():
            check_agent(agent)
            for name in ("n_step", "discount"):
                if getattr(agent, name) != getattr(first, name):
                    raise UserError(
                        f"{name} of agent {module_id!r}",
                        expected=f"{getattr(first, name)}, as in the first agent, since all learn "
                        "from the same replay items",
                        got=getattr(agent, name),
                        remedy="Use the same value for all agents.",
                    )

    def _check_halves(self) -> None:
        """Checks that half of the offspring can be trained."""
        size, name = self.optimizer.pop_size, type(self.optimizer).__name__
        if self.injection.kind != "none":
            raise UserError(
                "inject",
                expected="'none' with train_half, which trains the members' actors",
                got=repr(self.injection.kind),
                remedy="Set inject='none', or train_half=False for ERL.",
            )
        if len(self.modules) > 1:
            raise UserError(
                "agent",
                expected="one agent with train_half, whose critics the members share",
                got=f"{len(self.modules)}: {', '.join(self.modules)}",
                remedy="Pass one agent, or train_half=False for ERL.",
            )
        trains = [self.group in update.groups for update in self.agent.updates]
        if trains != [False, True]:
            raise UserError(
                "agent",
                expected=f"an agent that updates critics, then {self.group!r}, with train_half",
                got=f"{algorithm_name(self.agent)} with "
                f"{', '.join(u.name for u in self.agent.updates)}",
                remedy="Use TD3, DDPG or SAC.",
            )
        checks.even(f"{name}.pop_size", size, "half of the offspring are trained")

    def _make_replay(self, replay: Any) -> InGraphReplay:
        agent = cast(ReplayAgent, self.agent)
        if not hasattr(replay, "init") or isinstance(replay, type):
            replay = make_replay(
                "replay",
                replay or functools.partial(InGraphReplay, capacity=_CAPACITY),
                obs_spec=agent.obs_spec,
                action_spec=agent.action_spec,
                num_envs=1,  # episodes are stored one after the other
                n_step=agent.n_step,
                discount=agent.discount,
            )
        check_replay(replay, agent, 1)
        if not isinstance(replay, InGraphReplay) or replay.kind != "uniform":
            raise UserError(
                "replay",
                expected="an InGraphReplay with uniform sampling",
                got=f"{type(replay).__name__} of kind {getattr(replay, 'kind', None)!r}",
                remedy="Pass functools.partial(InGraphReplay, capacity=100_000).",
            )
        return replay

    # Setup.

    def setup(self, seed: int | tf.Tensor) -> State:
        """Returns a fresh state from a seed, or a key int32 [2]."""
        return self.postsetup_replay_buffer(self._begun(seed))

    def _begun(self, seed: int | tf.Tensor) -> State:
        """Returns a state over new variables."""
        keys = seeding.streams(seeding.as_key(seed), ("agent", "search", "run"))
        learner = self.setup_agent(keys["agent"])
        self._learner = self._learner or learner.form()
        own = learner.learner_state
        params = struct.values(self._actor_of(own.agent_state, next(iter(self.modules))))
        self._check_same_form(own.agent_state)
        search = self.optimizer.init(params, keys["search"])
        self.injection.check_search(search)
        return State(
            key=keys["run"],
            metrics=self.setup_workflow_metrics().replace(learner=own.counters),
            agent_state=own.agent_state,
            opt_state=ERLOptState(
                learner=own.opt_state,
                search=search,
                best=params,
            ),
            env_state=None,  # a generation plays whole episodes
            replay_buffer_state=self.replay.init().variables(),
        )

    def setup_agent(self, key: tf.Tensor) -> Learner:
        """Builds the learner of the agents."""
        learner = Learner(
            self.modules, config=self.learner_config, check_numerics=self.check_numerics
        )
        learner.build(key)
        return learner

    def _actor_of(self, agent_state: Mapping[str, Any], module_id: str) -> Nest:
        params = agent_state[module_id].params
        checks.known("group", [self.group], params)
        return params[self.group]

    def _check_same_form(self, agent_state: Mapping[str, Any]) -> None:
        """Checks that the actors that enter the population have the structure of its members."""
        forms = {}
        injects_all = self.injection.kind in ("replace", "extra")
        for module_id in list(self.modules)[: None if injects_all else 1]:
            leaves_of = struct.paths(self._actor_of(agent_state, module_id))
            forms[module_id] = {path: tuple(x.shape) for path, x in leaves_of.items()}
        first = next(iter(forms))
        for module_id, form in forms.items():
            if form != forms[first]:
                raise UserError(
                    f"group {self.group!r} of agent {module_id!r}",
                    expected=f"the parameter structure of agent {first!r}: {forms[first]}",
                    got=str(form),
                    remedy="Use one algorithm and one actor network for all agents, or inject only "
                    "the first agent, or none: inject='mean' or 'none'.",
                )

    # A generation.

    @tf.autograph.experimental.do_not_convert
    def iterate(self, state: State, key: tf.Tensor) -> tuple[dict[str, tf.Tensor], State]:
        """Runs one generation; changes the agents' and replay buffer's variables in place."""
        check_variables(
            "ERLWorkflow.iterate",
            state.replay_buffer_state,
            "whose agents and replay buffer change in place",
        )
        keys = seeding.streams(key, ("train", "play", "learn"))
        before = state.metrics.env_steps
        ask = stages.stage("ask", self.injection.ask)
        population, search = ask(state.opt_state.search, self._actors(state))
        row: dict[str, tf.Tensor] = {}
        if self.train_half:
            train = stages.stage("train", functools.partial(self.train_offspring, state))
            row, population = train(population, keys["train"], before)
        episodes = self.play(state, population, keys["play"])
        counts = tf.math.count_nonzero(episodes.trajectory.valid)
        learn = stages.stage("learn", functools.partial(self.learn_from, state))
        row = {**row, **learn(episodes, keys["learn"], before + counts)}
        tell = stages.stage("tell", functools.partial(self.tell, state))
        metrics, search, best = tell(search, population, episodes)
        counters = state.metrics.counted(
            env_steps=counts,
            episodes=tf.size(episodes.lost),
            episode_return=metrics["episode_return"],
            episode_length=metrics["episode_length"],
        )
        opt_state = state.opt_state.replace(search=search, best=best)
        return {**row, **metrics}, state.replace(metrics=counters, opt_state=opt_state)

    def _actors(self, state: State) -> list[Nest]:
        """Returns the parameters of the agents' actors, as tensors."""
        return [struct.values(self._actor_of(state.agent_state, m)) for m in self.modules]

    @property
    def explorers(self) -> dict[str, Any]:
        """The agents that play episodes with exploration, by module id."""
        return {} if self.train_half else self.modules

    def play(self, state: State, population: Nest, key: tf.Tensor) -> Episodes:
        """Plays a generation: each member's episodes in order, then each agent's.

        Args:
          state: The state of the run.
          population: Leaves `[M, ...]`.
          key: int32 [2].
        """
        agent_states = struct.values(state.agent_state)
        if isinstance(self.env, HostEnv):
            return self._played_on_host(agent_states, population, key)
        return stages.stage("play", self._played)(agent_states, population, key)

    def _played(self, agent_states: dict[str, Any], population: Nest, key: tf.Tensor) -> Episodes:
        """`play` on the device; a function of tensors."""

        def play(
            agent: EvaluatesActions, own: Nest, number: int, repeats: int, key: tf.Tensor, act: Any
        ) -> Episodes:
            start_key, key = tf.unstack(seeding.split(key, 2))
            env = self.env.with_num_envs(number)
            start = start_states(bare(env), start_key, repeats, common=True)
            return play_episodes(env, agent, start, own, key, act)

        acting = PopulationActing(agent=self.agent, num_members=self.injection.num_members)
        own = self._with_actor(agent_states, population)
        return self._all_play(play, acting, own, agent_states, key)

    def _played_on_host(
        self, agent_states: dict[str, Any], population: Nest, key: tf.Tensor
    ) -> Episodes:
        """`play` in Python, for environments on the host."""
        env = cast(HostEnv, self.env)

        def play(
            agent: EvaluatesActions, own: Nest, number: int, repeats: int, key: tf.Tensor, act: Any
        ) -> Episodes:
            start_key, key = tf.unstack(seeding.split(key, 2))
            state_of = own if callable(own) else lambda _: own
            seeds = np.tile(row_seeds(start_key, number // repeats), repeats)
            return play_episodes_on_host(env, agent, state_of, seeds, key, act)

        def member_state(job: np.ndarray) -> Any:
            numbers = tf.constant(job // self.episodes_per_member)
            return self._with_actor(agent_states, struct.take(population, numbers))

        acting = PopulationActing(agent=self.agent, num_members=env.num_envs)
        return self._all_play(play, acting, member_state, agent_states, key)

    def _all_play(
        self,
        play: Callable[..., Episodes],
        acting: PopulationActing,
        own: Any,
        agent_states: dict[str, Any],
        key: tf.Tensor,
    ) -> Episodes:
        """Plays the members' episodes, greedy, then the agents' episodes with exploration.

        Args:
          play: `play(agent, own, number, repeats, key, act)`: that many episodes, of which each
            start occurs `repeats` times.
          acting: Acts for the members.
          own: The state of the members, or a function of the numbers of episodes.
          agent_states: By module id.
          key: int32 [2].
        """
        members = self.injection.num_members
        repeats = members if self.common_random_numbers else 1
        args = (acting, own, members * self.episodes_per_member, repeats)
        parts = [play(*args, seeding.stream(key, "members"), None)]
        for m, agent in self.explorers.items():
            agent_key = seeding.stream(key, f"agent {m}")
            args = (agent, agent_states[m], self.episodes_per_agent, 1)
            parts.append(play(*args, agent_key, agent.compute_actions))
        return join_episodes(parts)

    def _with_actor(self, agent_states: Mapping[str, Any], params: Nest) -> Any:
        """Returns the first agent's state with other actor parameters."""
        own = next(iter(agent_states.values()))
        return own.replace(params={**own.params, self.group: params})

    def tell(
        self, state: State, search: EvoState, population: Nest, episodes: Episodes
    ) -> tuple[dict[str, tf.Tensor], EvoState, Nest]:
        """Tells the search the fitness of its members.

        Args:
          state: The state of the run; only its variables are used.
          search: As `ask` returned it.
          population: Leaves `[M, ...]`.
          episodes: As `play` returned them.

        Returns:
          `{name: float32 scalar}`, the state of the search, and the fittest candidate.
        """
        totals = episode_totals(episodes.trajectory)
        returns = tf.where(episodes.lost, float("nan"), totals.episode_returns)
        lengths = tf.cast(totals.episode_lengths, tf.float32)
        members = self.injection.num_members
        first = members * self.episodes_per_member
        fitness = tf.reduce_mean(tf.reshape(returns[:first], [members, -1]), axis=1)
        population, fitness, injected = self.injection.tell_arguments(search, population, fitness)
        metrics, index = fitness_metrics(fitness)
        best = tf.nest.map_structure(lambda x: x[index], population)
        search = self.optimizer.tell(search, fitness, population)
        if self.train_half:  # the agent's actor is the centre of the search
            module_id = next(iter(self.modules))
            own = self._actor_of(state.agent_state, module_id)
            tf.nest.map_structure(leaves.put, own, search.params)
        metrics = {
            **metrics,
            "injected_share": injected,
            "episode_return": metrics["fitness_mean"],
            "episode_length": tf.reduce_mean(lengths),
            **self.optimizer.metrics(search),
        }
        for i, m in enumerate(self.explorers):
            begin = first + i * self.episodes_per_agent
            own = returns[begin : begin + self.episodes_per_agent]
            metrics[name_in_row(m, "agent_return")] = mean_of_finite(own)
        if self.explorers:
            lost = ~tf.math.is_finite(returns[first:])
            metrics["episode_return"] = mean_of_finite(returns[first:])
            metrics["lost_agent_episodes"] = tf.reduce_sum(tf.cast(lost, tf.float32))
        return metrics, search, best

    # Learner steps.

    def learn_from(
        self, state: State, episodes: Episodes, key: tf.Tensor, env_steps: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Stores the episodes and takes the learner steps that are due, in place.

        Args:
          state: The state of the run; only its variables are used.
          episodes: As `play` returned them; lost episodes are left out.
          key: int32 [2].
          env_steps: int64, with the steps of the episodes.
        """
        trajectory = episodes.kept()
        self.replay_buffer(state).add(in_one_column(trajectory))
        self._observe(state, trajectory)
        if self.train_half:
            return {}
        number = self.updates_due(state, env_steps)
        take = self.learner_steps(state, self.learner_of(state), "update", env_steps)
        return {**take(number, key), "updates": tf.cast(number, tf.float32)}

    def _observe(self, state: State, trajectory: Trajectory) -> None:
        """Updates the agents' observation statistics."""
        for m, agent in self.modules.items():
            own = state.agent_state[m]
            if own.normalizer is not None:
                after = agent.update_normalizer(struct.values(own), trajectory).normalizer
                tf.nest.map_structure(leaves.put, own.normalizer, after)

    def updates_due(self, state: State, env_steps: tf.Tensor) -> tf.Tensor:
        """Returns the number of learner steps due since the last learner step, int32 scalar.

        After n env steps there are floor(r n) - floor(r s) learner steps in all, where r is
        `updates_per_step` and s is `learning_starts`. None are due while the replay buffer has
        fewer rows than a batch, since steps of lost episodes are not stored.
        """
        up, down = self._ratio.numerator, self._ratio.denominator
        # The learner's counter has the env steps of its last step.
        last = tf.convert_to_tensor(state.metrics.learner["env_steps"])
        begin = tf.maximum(last, self.learning_starts)
        due = env_steps * up // down - begin * up // down
        enough = tf.cast(self.replay_buffer(state).size(), tf.int64) >= self.batch_size
        return tf.cast(tf.where(enough, tf.maximum(due, 0), 0), tf.int32)

    def learner_steps(
        self, state: State, learner: Learner, name: str, env_steps: tf.Tensor
    ) -> LearnerSteps:
        """Returns a function that takes learner steps, each on a fresh sample.

        Args:
          state: The state of the run.
          learner: A learner over its variables.
          name: The name of the stage, "update" or a variant of it.
          env_steps: int64, for schedules.

        Returns:
          `take(number, key)`. It takes `number` learner steps, step j with `fold_in(key, j)`, and
          returns the means of their metrics, NaN without any.
        """
        buffer = self.replay_buffer(state)
        update = stages.stage(name, functools.partial(self.update, learner))

        def step(key: tf.Tensor) -> dict[str, tf.Tensor]:
            keys = seeding.streams(key, ("sample", "update"))
            batch = {
                m: self._sample(buffer, seeding.stream(keys["sample"], m)) for m in learner.modules
            }
            return update(batch, keys["update"], env_steps)

        def take(number: tf.Tensor, key: tf.Tensor) -> dict[str, tf.Tensor]:
            return mean_of_steps(number, lambda j, _: ((), step(seeding.fold_in(key, j))))[1]

        return take

    def _sample(self, buffer: ReplayBuffer, key: tf.Tensor) -> Nest:
        return buffer.sample(key, self.batch_size).replace(index=None)

    def update(
        self, learner: Learner, batch: Nest, key: tf.Tensor, timesteps: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Takes one learner step; a hook.

        Args:
          learner: A learner over the variables of the state.
          batch: `{module_id: rows}`.
          key: int32 [2].
          timesteps: int64, env steps so far.
        """
        return in_one_row(learner.update(batch, key=key, timesteps=timesteps, shuffle=False))

    # CEM-RL.

    def train_offspring(
        self, state: State, population: Nest, key: tf.Tensor, env_steps: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], Nest]:
        """Trains the first half of the candidates, and the critics in place; see `train_members`.

        Args:
          state: The state of the run; only its variables are used.
          population: Leaves `[P, ...]`.
          key: int32 [2].
          env_steps: int64, so far.

        Returns:
          `{name: float32 scalar}`, and the population with the trained candidates.
        """
        number, half = self.updates_due(state, env_steps), self.optimizer.pop_size // 2
        learner, (module_id,) = self.learner_of(state), self.modules
        own = state.agent_state[module_id]
        critic, actor = (update.name for update in self.agent.updates)
        steps = {}
        for name in (critic, actor):
            one = with_one_update(learner, module_id, name)
            steps[name] = self.learner_steps(state, one, f"update/{name}", env_steps)
        population, row = train_members(
            population,
            half,
            steps,
            number,
            key,
            actor=own.params[self.group],
            target=own.target_params.get(self.group),
            slots=state.opt_state.learner[module_id][actor],
        )
        for name in ("gradient_steps", "skipped_steps"):
            if f"{actor}/{name}" in row:
                row[name] = row[f"{critic}/{name}"] + row[f"{actor}/{name}"]
        row["updates"] = tf.cast(number, tf.float32)
        row["actor_updates"] = tf.cast(number * half, tf.float32)
        return row, population

    # The learner and the replay buffer of a state.

    @property
    def learner(self) -> Learner:
        """The learner's logic; `learner_of` is it over the variables of a state."""
        if self._learner is None:
            with tf.init_scope():
                self._learner = self.setup_agent(seeding.key(0)).form()
        return self._learner

    def learner_of(self, state: State) -> Learner:
        """Returns the learner over the variables of a state."""
        own = LearnerState(
            agent_state=state.agent_state,
            opt_state=state.opt_state.learner,
            counters=state.metrics.learner,
        )
        return self.learner.over(own)

    def replay_buffer(self, state: State) -> Any:
        """Returns the replay buffer over the variables of a state: `add`, `sample`, `size`."""
        return self.replay.over(state.replay_buffer_state, self.replicas)

    def ready(self, state: State) -> State:
        """Returns the state; a state of tensors is copied into variables.

        Raises:
          UserError: For a state that a later step has consumed, or of another structure.
        """
        if not leaves.in_place(state.replay_buffer_state):
            state = filled("the state given to ERLWorkflow", self._begun(state.key), state)
        return super().ready(state)

    def load_values(
        self, state: State, values: Mapping[str, Any], *, environments: bool = True
    ) -> State:
        """Returns `state` with every value replaced; see `Workflow.load_values`."""
        state = super().load_values(state, values, environments=environments)
        return state.replace(env_state=None)

    def _checked_rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the rows without zero counts; raises errors for losses that are not finite."""
        raises = self.check_numerics == "raise"
        return checked_rows(rows, self.modules, raises=raises)

    # For the runner.

    def settle_modes(self, state: State, run_stages: Stages) -> None:
        """Settles the mode of each stage; "auto" times graph against XLA."""
        host, eager = isinstance(self.env, HostEnv), set(self.compile.values()) == {"eager"}
        between = "graph" if host and not eager else "eager"
        run_stages.modes.update(dict.fromkeys(("ask", "train", "learn", "tell"), between))
        run_stages.modes["loop"] = "eager" if host or eager else "graph"
        notes = self.runner(state).traces.notes
        note = ("modes", tuple(sorted(self.compile.items())))
        if note not in notes:
            notes[note] = {name: self._settled(name, state, run_stages) for name in STAGES}
        run_stages.modes.update(notes[note])

    def _settled(self, name: str, state: State, run_stages: Stages) -> str:
        mode = self.compile[name]
        if name == "play" and isinstance(self.env, HostEnv):
            return "eager"
        if mode != "auto":
            return mode
        if name == "play" and on_host(self.env):
            return "graph"
        if not auto_needs_timing():
            return "xla"
        if name == "play":
            population, _ = self.injection.ask(state.opt_state.search, self._actors(state))
            args = (struct.values(state.agent_state), population, state.key)
            return choose_by_time(run_stages.stage("play", self._played), *args)
        return self._timed_update(state, run_stages)

    def _timed_update(self, state: State, run_stages: Stages) -> str:
        """Times a learner step on a batch of zeros, then restores the learner's variables."""
        learner, buffer = self.learner_of(state), self.replay_buffer(state)
        form: list[Nest] = []

        def sample() -> tf.Tensor:
            form[:] = [self._sample(buffer, state.key)]
            return tf.constant(0)

        tf.function(sample, autograph=False).get_concrete_function()  # and not run
        rows = tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), form[0])
        before = {path: v.numpy() for path, v in learner.variables().items()}

        def put_back() -> None:
            learner.assign_variables(before)

        step = run_stages.stage("update", functools.partial(self.update, learner))
        args = (dict.fromkeys(self.modules, rows), state.key, state.metrics.env_steps)
        mode = choose_by_time(step, *args, begin=put_back)
        put_back()
        return mode

    def use_compile(self, choices: str | Mapping[str, str]) -> None:
        """Sets the compile modes of runs that are set up from now on."""
        self.compile = check_compile(choices, STAGES)
        self._renew_runners()

    def compile_choices(self, state: State) -> dict[str, str]:
        """Settles and returns the compile modes by stage."""
        modes = self.runner(self.ready(state)).settled(state).modes
        return {name: modes[name] for name in STAGES}

    # Looking at a run.

    def agent_state(self, state: State) -> Any:
        """Returns the first agent's AgentState as tensors; with `train_half` the centre."""
        return struct.values(next(iter(state.agent_state.values())))

    def evaluate(self, state: State) -> tuple[dict[str, float], State]:
        """Evaluates the first agent, the centre of the search, and the best member.

        Metrics: `eval_return_mean`, ... of the agent, `eval_centre_return_mean` (without
        `train_half`, where the agent is the centre), `eval_best_return_mean`.
        """
        key = seeding.fold_in(seeding.stream(state.key, "evaluation"), state.metrics.evaluations)
        metrics, after = super().evaluate(state)
        others = {"best": state.opt_state.best}
        if not self.train_half:
            others["centre"] = state.opt_state.search.params
        for name, params in others.items():
            own = self._with_actor(struct.values(state.agent_state), params)
            result = self.evaluator.evaluate(own, seeding.stream(key, name))
            metrics[f"eval_{name}_return_mean"] = result.metrics()["eval_return_mean"]
        return metrics, after

    def warning_of(self, row: Mapping[str, Any]) -> str | None:
        """Returns a warning about lost members, or None."""
        return lost_warning(row)

    @property
    def screen_metrics(self) -> tuple[str, ...]:
        """The metrics of the progress line, beside the returns of the agents."""
        return ("fitness_best", "fitness_mean", "fitness_std", "eval_centre_return_mean")

    def describe(self) -> str:
        """Returns a short description: agents, search, task."""
        agents = ", ".join(map(algorithm_name, self.modules.values()))
        search = f"{type(self.optimizer).__name__} of {self.optimizer.pop_size}"
        how = f"inject={self.injection.kind}"
        if self.train_half:
            how = "half of the offspring trained"
        updates = f"{float(self._ratio):g} updates per env step"
        return f"{agents} and {search} on {task_name(self.env)}, {how}, {updates}"

    def close(self) -> None:
        """Closes environments on the host."""
        for env in {id(e): e for e in (self.env, self.evaluator.env)}.values():
            if isinstance(env, HostEnv):
                env.close()
