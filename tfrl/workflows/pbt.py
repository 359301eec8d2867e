"""Population-based training: stacked runs of one workflow that copy each other's state."""

import functools
import importlib.util
import numbers
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.agents.core import Agent
from tfrl.checks import Bound
from tfrl.envs.host import on_host
from tfrl.errors import UserError
from tfrl.evolution.fitness import fitness_metrics
from tfrl.evolution.lineage import Lineage, plot_lineage
from tfrl.evolution.pbt import Exploit, Hyperparameter, Perturb, Truncation
from tfrl.replay import InGraphReplay
from tfrl.types import Nest
from tfrl.workflows import stages
from tfrl.workflows.autotune import choose_loop
from tfrl.workflows.core import Workflow
from tfrl.workflows.erl import ERLWorkflow
from tfrl.workflows.off_policy import OffPolicyWorkflow
from tfrl.workflows.run_state import State
from tfrl.workflows.stages import MODES, Stages, auto_needs_timing

FITNESS = ("training", "evaluation")
# Bounds of the settings that belong to no agent.
_BOUNDS = {name: Bound(0, closed=False) for name in ("learning_rate", "noise_std")}


@struct.dataclass
class PBTState(struct.Struct):
    """The `opt_state` of a run.

    Attributes:
      members: The states of the members, leaves `[P, ...]`.
      velocity: float32 [H, P], for an exploration with velocities.
      lineage: The record of exploitation and exploration.
    """

    members: State
    velocity: tf.Tensor
    lineage: Lineage


class PBTWorkflow(Workflow):
    """Trains P members of one workflow in one compiled call; bad members copy good ones.

    An iteration is a round: `iterations_per_round` iterations of each member, their fitness, then
    exploitation (which member copies which) and exploration (new hyperparameters). Members differ
    only in their state, so they share a trace. On a CPU, as many train at a time as there are
    cores.

    `agent_state` is the best member's; it is evaluated, exported and recorded.

    Source: Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846.
    """

    compile: str

    def __init__(
        self,
        workflow: Workflow,
        hyperparameters: Sequence[Hyperparameter],
        num_members: int = 8,
        *,
        iterations_per_round: int = 10,
        exploit: Exploit | None = None,
        explore: Any = None,
        fitness: str = "training",
        max_rounds_recorded: int = 1_000,
        compile: str = "auto",
        iterations_per_call: int | None = None,
    ):
        """Assembles the static logic; `setup` creates the state.

        Args:
          workflow: Trains one member, on device environments: an OnPolicyWorkflow, an
            OffPolicyWorkflow whose replay buffer is in the graph, uniform and of single items, or
            an EvolutionWorkflow.
          hyperparameters: The hyperparameters that members differ in.
          num_members: P.
          iterations_per_round: Iterations of each member between two exploitations.
          exploit: Chooses which member copies which: `Truncation()` by default, `Tournament()`,
            `Pairs()`, or a function of fitness [P] and a key.
          explore: Chooses the next values: `Perturb()` by default, `CSOExplore()`.
          fitness: "training", the mean return of the episodes that ended last, or "evaluation",
            the mean return of the workflow's evaluation.
          max_rounds_recorded: Rounds that the lineage holds, from the first on; others are dropped.
          compile: "auto", "xla", "graph" or "eager", of the members; "auto" times graph against
            XLA.
          iterations_per_call: Rounds per compiled call; None for calls of about half a second.

        Raises:
          UserError: For a workflow whose states do not stack, and other inconsistent settings.
        """
        super().__init__(iterations_per_call=iterations_per_call)
        checks.at_least("num_members", num_members, 1)
        checks.at_least("iterations_per_round", iterations_per_round, 1)
        checks.at_least("max_rounds_recorded", max_rounds_recorded, 1)
        checks.one_of("fitness", fitness, FITNESS)
        checks.one_of("compile", compile, ("auto", *MODES))
        checks.instance("workflow", workflow, Workflow, "a workflow that trains one member")
        _check_stacks(workflow)
        self.workflow = workflow
        self.hyperparameters = _checked(hyperparameters)
        self.num_members, self.iterations_per_round = num_members, iterations_per_round
        self.exploit, self.explore = exploit or Truncation(), explore or Perturb()
        for name, operator in (("exploit", self.exploit), ("explore", self.explore)):
            expected = "an operator of tfrl.evolution.pbt, or a function"
            checks.function(f"PBTWorkflow.{name}", operator, expected, classes=False)
        self.fitness_kind, self.max_rounds_recorded = fitness, max_rounds_recorded
        self.compile = compile
        self.agent, self.env, self.evaluator = workflow.agent, workflow.env, workflow.evaluator

    # Setup.

    def setup_agent_and_optimizer(self, key: tf.Tensor) -> tuple[Any, PBTState]:
        """Sets up every member, with hyperparameters drawn from their ranges.

        Replay buffers are filled: each member has played the steps before its first learner step.
        """
        keys = seeding.streams(key, ["members", "hyperparameters"])
        size, count = self.num_members, len(self.hyperparameters)
        states = [self._begun(seeding.fold_in(keys["members"], i)) for i in range(size)]
        members = struct.stack(states)
        values = [
            h.draw(seeding.fold_in(keys["hyperparameters"], i), size)
            for i, h in enumerate(self.hyperparameters)
        ]
        self._check_paths(members)
        lineage = Lineage.start(self.max_rounds_recorded, count, size)
        state = PBTState(
            members=self._with_values(members, values),
            velocity=tf.zeros([count, size]),
            lineage=lineage,
        )
        return struct.take(members.agent_state, 0), state

    def _begun(self, key: tf.Tensor) -> State:
        """Returns a member's state in its last phase, after random play and filling."""
        state = self.workflow.setup(key)
        while (ends := self.workflow.phase_of(state).ends) is not None:
            state = self.workflow.advance(state, ends, until=ends).state
        return struct.values(state)

    def setup_env_state(self, key: tf.Tensor) -> None:
        """None: each member has its environments."""
        return None

    def postsetup_replay_buffer(self, state: State) -> State:
        """Sums the members' env steps and episodes."""
        own = state.opt_state.members.metrics
        metrics = state.metrics.replace(
            env_steps=tf.reduce_sum(own.env_steps), episodes=tf.reduce_sum(own.episodes)
        )
        return state.replace(metrics=metrics)

    def _check_paths(self, members: State) -> None:
        """Raises a UserError for a hyperparameter without leaves that are its own to set."""
        bounds: dict[str, Bound] = {**_BOUNDS, **getattr(self.agent, "bounds", dict)()}
        remedy = "Pass a range of values that the setting may have."
        scheduled = self._scheduled(members)
        set_by: dict[str, str] = {}
        for h in self.hyperparameters:
            bound = bounds.get(h.path.rpartition("/")[2], Bound())
            for end in ("low", "high"):
                name = f"Hyperparameter {h.path!r}: {end}"
                checks.number(name, getattr(h, end), *bound, remedy=remedy)
            leaves = self._leaves_of(members, h)
            wrong = [p for p, x in leaves.items() if not _is_setting(p, x)]
            if not leaves or wrong:
                scalars = [
                    path.partition("/")[2]
                    for path, x in struct.paths(members).items()
                    if _is_setting(path, x)
                ]
                raise UserError(
                    f"Hyperparameter {h.path!r}",
                    expected="the end of the path of a numeric leaf in the state: "
                    + ", ".join(dict.fromkeys(scalars)),
                    got=f"{', '.join(wrong)}: not a float32 setting" if wrong else "no such leaf",
                    remedy="Make an agent's setting a leaf with "
                    "PPO(hyperparameters=('clip', 'discount')); for a setting that changes shapes, "
                    "such as layers or batch sizes, train one population per value.",
                )
            twice = [path for path in leaves if path in set_by]
            if twice:
                raise UserError(
                    f"Hyperparameter {h.path!r}",
                    expected="leaves of its own",
                    got=f"{twice[0]}, which {set_by[twice[0]]!r} sets too",
                    remedy="Remove one of the two.",
                )
            set_by.update(dict.fromkeys(leaves, h.path))
            self._check_constant(h, leaves)
            for path in filter(scheduled.get, leaves):
                raise _set_in_updates(h, path, scheduled[path])

    def _scheduled(self, members: State) -> dict[str, Any]:
        """Returns `{path: agent}` of the leaves that an agent sets in every update."""
        agent: Any = self.agent
        agents = {"agent_state": (agent, members.agent_state)}
        if hasattr(agent, "modules"):
            agents = {
                f"agent_state/{m}": (module, members.agent_state[m])
                for m, module in agent.modules.items()
            }
        result = {}
        for prefix, (module, states) in agents.items():
            if not hasattr(module, "before_update"):  # optional for agents of a user's own
                continue
            before = struct.take(states, 0)
            after = module.before_update(before, tf.constant(0, tf.int64))
            pairs = zip(struct.paths(before).items(), tf.nest.flatten(after), strict=True)
            changed = (f"{prefix}/{path}" for (path, old), new in pairs if new is not old)
            result.update(dict.fromkeys(changed, module))
        return result

    def _check_constant(self, h: Hyperparameter, leaves: Iterable[str]) -> None:
        """Raises a UserError for a learning rate that a schedule sets in every learner step."""
        config = getattr(self.workflow, "learner_config", None)
        if config is None or not h.path.endswith("learning_rate"):
            return
        rates = config.lr if isinstance(config.lr, Mapping) else {"": config.lr}
        parts = {part for path in leaves for part in path.split("/")}
        scheduled = [
            r
            for n, r in rates.items()
            if (not n or n in parts) and not (r is None or isinstance(r, numbers.Real))
        ]
        if scheduled:
            raise UserError(
                f"Hyperparameter {h.path!r}",
                expected="a learning rate of the members that is a number",
                got=repr(scheduled[0]),
                remedy="Set ModuleConfig.lr to a number: the population draws and changes it.",
            )

    def _leaves_of(self, members: State, h: Hyperparameter) -> dict[str, tf.Tensor]:
        """Returns the leaves that a hyperparameter sets, by path."""
        leaves = {}
        for path, leaf in struct.paths(members).items():
            if path == h.path or path.endswith(f"/{h.path}"):
                leaves[path] = leaf
        return leaves

    def _values(self, members: State) -> list[tf.Tensor]:
        """Returns the values of the hyperparameters, float32 [P] each."""
        return [next(iter(self._leaves_of(members, h).values())) for h in self.hyperparameters]

    def _with_values(self, members: State, values: Sequence[tf.Tensor]) -> State:
        """Returns the members with other values of the hyperparameters."""
        leaves = struct.paths(members)
        for h, value in zip(self.hyperparameters, values, strict=True):
            leaves.update(dict.fromkeys(self._leaves_of(members, h), value))
        return tf.nest.pack_sequence_as(members, list(leaves.values()))

    def counters(self, state: State) -> tf.Tensor:
        """Returns the run's counters, with the sum of the members' learner steps."""
        own = state.opt_state.members.metrics.learner.get("learner_steps")
        steps = tf.constant(0, tf.int64) if own is None else tf.reduce_sum(own)
        return tf.concat([state.metrics.counters()[:-1], [steps]], axis=0)

    # A round.

    @tf.autograph.experimental.do_not_convert
    def iterate(self, state: State, key: tf.Tensor) -> tuple[dict[str, tf.Tensor], State]:
        """Runs one round: train, compare, exploit, explore."""
        return self._round(state, key, self.iterations_per_round)

    def _round(
        self, state: State, key: tf.Tensor, iterations: int
    ) -> tuple[dict[str, tf.Tensor], State]:
        keys = seeding.streams(key, ["evaluation", "exploit", "explore"])
        own: PBTState = state.opt_state
        before = own.members.metrics
        members = self.train(own.members, iterations)
        fitness = self.fitness(members, keys["evaluation"])
        ranked = tf.where(tf.math.is_finite(fitness), fitness, -float("inf"))
        metrics, best = fitness_metrics(fitness)
        agent_state = struct.take(members.agent_state, best)
        values = self._values(members)
        # Members have no fitness before their first episode has ended.
        known = tf.reduce_any(tf.math.is_finite(fitness))
        broken = ~tf.math.is_finite(fitness) & (members.metrics.episodes > 0)
        own_place = tf.range(self.num_members)
        parents = tf.where(known, self.exploit(ranked, keys["exploit"]), own_place)
        lineage = own.lineage.noted(state.metrics.iterations, parents, fitness, values)
        members, velocity = self.take_over(members, own.velocity, parents, keys["explore"])
        metrics = {
            **metrics,
            "nonfinite_members": tf.reduce_sum(tf.cast(broken, tf.float32)),
            "taken_over": tf.reduce_sum(tf.cast(parents != own_place, tf.float32)),
            "episode_return": ranked[best],
            **{
                f"best/{h.path}": value[best]
                for h, value in zip(self.hyperparameters, values, strict=True)
            },
        }
        counters = state.metrics.counted(
            env_steps=tf.reduce_sum(members.metrics.env_steps - before.env_steps),
            episodes=tf.reduce_sum(members.metrics.episodes - before.episodes),
            episode_return=ranked[best],
            episode_length=members.metrics.episode_length[best],
        )
        after = PBTState(members=members, velocity=velocity, lineage=lineage)
        return metrics, state.replace(metrics=counters, agent_state=agent_state, opt_state=after)

    def train(self, members: State, iterations: int) -> State:
        """Runs `iterations` iterations of every member."""

        def one(member: State) -> State:
            def body(i: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
                return i + 1, self.workflow.iterate(state, state.iteration_key())[1]

            start = (0, self.workflow.prefetch(member))
            _, member = tf.while_loop(lambda i, _: i < iterations, body, start)
            return member.replace(prefetched=None)

        return self._of_each(one, members)

    def _of_each(self, fn: Callable[[Any], Nest], members: Nest, spec: Any = None) -> Nest:
        """Maps `fn` over the members; on a CPU as many at a time as there are cores.

        XLA runs a program of small operations on one core. So XLA compiles the program of one
        member, and a graph calls it for several members at the same time.
        """
        run_stages = stages.current()
        if run_stages is not None and run_stages.modes.get("members") == "xla":
            fn = tf.function(fn, jit_compile=True, autograph=False)
        # In eager mode, map_fn would convert every function that it calls by autograph.
        fn = tf.autograph.experimental.do_not_convert(fn)
        cores = None if tf.executing_eagerly() else len(os.sched_getaffinity(0))
        return tf.map_fn(fn, members, fn_output_signature=spec, parallel_iterations=cores)

    def fitness(self, members: State, key: tf.Tensor) -> tf.Tensor:
        """Returns the fitness of the members, float32 [P]; a hook."""
        if self.fitness_kind == "training":
            return members.metrics.episode_return
        evaluator: Any = self.evaluator

        def mean_return(agent_state: Nest) -> tf.Tensor:
            return tf.reduce_mean(evaluator.run(agent_state, key)[0])

        spec = tf.TensorSpec([], tf.float32)
        return self._of_each(mean_return, members.agent_state, spec)

    def take_over(
        self, members: State, velocity: tf.Tensor, parents: tf.Tensor, key: tf.Tensor
    ) -> tuple[State, tf.Tensor]:
        """Returns the members after exploitation and exploration, and the velocity.

        A member gets agent, optimizer and normalizer of its parent, and until an episode of its own
        has ended its parent's return. It keeps its environments, keys and counters.
        """
        old = self._values(members)

        def of_parents(nest: Nest) -> Nest:
            return tf.nest.map_structure(lambda x: tf.gather(x, parents), nest)

        taken = {name: of_parents(getattr(members, name)) for name in ("agent_state", "opt_state")}
        returns = ("episode_return", "episode_length")
        taken["metrics"] = members.metrics.replace(
            **{name: of_parents(getattr(members.metrics, name)) for name in returns}
        )
        own = struct.paths(members)
        after = {  # keeps each member's keys: a shared key would repeat the draws
            path: own[path] if path.rpartition("/")[2] == "key" else leaf
            for path, leaf in struct.paths(members.replace(**taken)).items()
        }
        members = tf.nest.pack_sequence_as(members, list(after.values()))
        follows = parents != tf.range(self.num_members)
        values, velocities = [], []
        for i, (h, value) in enumerate(zip(self.hyperparameters, old, strict=True)):
            tried, moved = self.explore(
                h, h.coordinate(value), parents, velocity[i], seeding.fold_in(key, i)
            )
            values.append(tf.where(follows, h.value(tried), value))
            velocities.append(tf.where(follows, moved, velocity[i]))
        velocity = tf.stack(velocities) if velocities else velocity
        return self._with_values(members, values), velocity

    # For the runner.

    def settle_modes(self, state: State, run_stages: Stages) -> None:
        """Settles the mode of a round; "auto" times graph against XLA."""
        run_stages.modes.update(dict.fromkeys(_STAGES, "eager"))  # within a member's program
        if not auto_needs_timing() and self.compile != "eager":  # one program of all members
            run_stages.modes["loop"] = "xla" if self.compile == "auto" else self.compile
            return

        def round_in(mode: str, state: State) -> Any:
            run_stages.modes["members"] = mode
            return self._round(state, state.key, 1)

        graph, xla = (functools.partial(round_in, mode) for mode in ("graph", "xla"))
        mode = choose_loop(self.compile, run_stages, graph, state, xla)
        run_stages.modes.update(members=mode, loop="eager" if mode == "eager" else "graph")

    def compile_choices(self, state: State) -> dict[str, str]:
        """Settles and returns the compile mode of a round."""
        if self.compile != "auto":
            return {"iterations": self.compile}
        modes = self.runner(state).settled(state).modes
        return {"iterations": modes.get("members", modes["loop"])}

    # Looking at a run.

    def warning_of(self, row: Mapping[str, Any]) -> str | None:
        """Returns a warning about members whose episodes have no finite return, or None."""
        number = row["nonfinite_members"]
        if not number:
            return None
        return (
            f"members with non-finite fitness at {int(row['env_steps']):,} env steps: {number:.0f} "
            f"of {self.num_members}. They rank last; the metric nonfinite_members counts them."
        )

    @property
    def screen_metrics(self) -> tuple[str, ...]:
        """The metrics that the progress line shows beside the best member's return."""
        return ("fitness_mean", "fitness_std")

    def describe(self) -> str:
        """Returns a short description: number of members, and the workflow's."""
        return f"PBT of {self.num_members}: {self.workflow.describe()}"

    def write_pictures(self, state: State, folder: pathlib.Path) -> dict[str, pathlib.Path]:
        """Plots the lineage to `lineage.png`, after a round and if matplotlib is installed."""
        rounds = min(int(state.metrics.iterations), self.max_rounds_recorded)
        if not rounds or importlib.util.find_spec("matplotlib") is None:
            return {}
        names = [h.path for h in self.hyperparameters]
        logs = [h.scale == "log" for h in self.hyperparameters]
        path = folder / "lineage.png"
        plot_lineage(struct.slice(state.opt_state.lineage, 0, rounds), names, logs, path)
        return {"Lineage": path}


def _checked(hyperparameters: Sequence[Hyperparameter]) -> tuple[Hyperparameter, ...]:
    """Returns the hyperparameters as a tuple; each path may occur once."""
    entries = hyperparameters if isinstance(hyperparameters, Sequence) else ()
    paths = {h.path for h in entries if isinstance(h, Hyperparameter)}
    if entries is not hyperparameters or len(paths) < len(entries):
        raise UserError(
            "PBTWorkflow.hyperparameters",
            expected="a sequence of Hyperparameter, each with its own path",
            got=repr(hyperparameters),
            remedy="Pass for example [Hyperparameter(path='learning_rate', low=1e-5, high=1e-2)].",
        )
    return tuple(entries)


def _set_in_updates(h: Hyperparameter, path: str, agent: Agent) -> UserError:
    """Returns the error for a leaf that an agent sets in every update."""
    owner, name = type(agent).__name__, path.rpartition("/")[2]
    settings = getattr(agent, "in_state", ())
    remedy = f"Choose one of {owner}.hyperparameters: {', '.join(settings) or 'none'}."
    if name in settings:
        remedy = (
            f"Pass {owner}(hyperparameters=({name!r},)), so that the leaf replaces the schedule."
        )
    return UserError(
        f"Hyperparameter {h.path!r}",
        expected="a leaf that only the population sets",
        got=f"{path}, which {owner} sets in every update from its schedule",
        remedy=remedy,
    )


def _is_setting(path: str, leaf: tf.Tensor) -> bool:
    """Whether a leaf of the members' state is a float32 number for each member that may be set."""
    in_place = path.startswith(("agent_state", "opt_state")) and "/normalizer/" not in path
    return in_place and leaf.dtype == tf.float32 and leaf.shape.rank == 1


# Stages of the members' workflows.
_STAGES = ("rollout", "update", "evaluation", "ask", "play", "tell")


def _check_stacks(workflow: Workflow) -> None:
    stacks = workflow.env is not None and not on_host(workflow.env)
    stacks &= not isinstance(workflow, (ERLWorkflow, PBTWorkflow))  # of variables, of members
    if isinstance(workflow, OffPolicyWorkflow):
        replay = workflow.replay
        stacks &= isinstance(replay, InGraphReplay) and not replay.has_tree
    replicas = getattr(workflow, "replicas", None)
    stacks &= replicas is None or not replicas.several
    if not stacks:
        raise UserError(
            "PBTWorkflow.workflow",
            expected="a workflow whose state stacks: OnPolicyWorkflow, EvolutionWorkflow, or "
            "OffPolicyWorkflow with an InGraphReplay of uniform single items; with environments "
            "on the device, on one replica",
            got=workflow.describe(),
            remedy="Environments on the host and experience on a server are not in the state; "
            "ERL and priorities write in place; a PBTWorkflow has no PBTWorkflow as member.",
        )
