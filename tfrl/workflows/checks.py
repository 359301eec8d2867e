"""Checks of the settings of workflows, and the sizes of minibatches."""

import fractions
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast

from tfrl import checks, seeding, struct
from tfrl.agents.core import ALGORITHMS, Agent, algorithm_names
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.multi_agent import MultiAgentEnv
from tfrl.errors import UserError
from tfrl.evaluation.evaluator import Evaluator
from tfrl.evolution.core import EvoOptimizer
from tfrl.learners.external_update import only_external_updates
from tfrl.learners.minibatches import MinibatchPlan, Remainder
from tfrl.learning import leaves
from tfrl.replay import InGraphReplay, ReplayFactory, ReverbReplay, TableConfig
from tfrl.storage.checkpoint_format import check_fits
from tfrl.traces import logic_key
from tfrl.types import Nest, ReplayAgent


def check_agent(agent: object) -> None:
    """Raises a UserError for an agent that does not learn from replayed transitions."""
    if not getattr(agent, "learns_from_replay", False):
        raise UserError(
            "agent",
            expected="an agent that learns from replayed transitions: "
            + algorithm_names(from_replay=True),
            got=f"{algorithm_name(agent)}, which learns from its own rollouts",
            remedy="Train it with OnPolicyWorkflow.",
        )


def check_search(optimizer: object) -> EvoOptimizer:
    """Returns a search; raises a UserError for anything else."""
    return checks.instance(
        "optimizer",
        optimizer,
        EvoOptimizer,
        "a search of tfrl.evolution",
        remedy="Pass for example OpenES(pop_size=128).",
    )


def check_counts(**counts: Any) -> None:
    """Raises a UserError unless every count is an integer of at least 0."""
    for name, value in counts.items():
        checks.at_least(name, value, 0, remedy="Count in env steps.")


def check_batch_size(batch_size: Any, num_replicas: int) -> None:
    """Raises a UserError for a batch size below 1, or one that the replicas do not divide."""
    remedy = "Typical values are 256, or 32 to 128 for DQN."
    checks.at_least("batch_size", batch_size, 1, remedy=remedy)
    if batch_size % num_replicas:
        below = batch_size // num_replicas * num_replicas
        near = [str(n) for n in (below, below + num_replicas) if n]
        raise UserError(
            "batch_size",
            expected=f"a multiple of the {num_replicas} replicas",
            got=batch_size,
            remedy=f"The nearest are {' and '.join(near)}.",
        )


def updates_ratio(updates_per_step: Any) -> fractions.Fraction:
    """Returns learner steps per env step as a fraction.

    Raises:
      UserError: Unless it is a number above 0 and up to 1000.
    """
    number = isinstance(updates_per_step, int | float) and not isinstance(updates_per_step, bool)
    if not number or not 0 < updates_per_step <= 1000:
        raise UserError(
            "updates_per_step",
            expected="a number above 0 and at most 1000",
            got=repr(updates_per_step),
            remedy="Use 1.0 for one learner step per env step, 0.25 for one per four.",
        )
    ratio = fractions.Fraction(updates_per_step).limit_denominator(100_000)
    if not ratio:
        raise UserError(
            "updates_per_step",
            expected="at least one learner step per 100,000 env steps",
            got=updates_per_step,
            remedy="Use 1.0 for one learner step per env step, 0.25 for one per four.",
        )
    return ratio


def check_room(replay: ReplayFactory, batch_size: int) -> None:
    """Raises a UserError for a buffer that may lack a whole batch even when it is full.

    The last steps of an unfinished episode do not yet form items of n steps.
    """
    items = sampled(replay)
    needed, why = batch_size, f"batch_size={batch_size}"
    if isinstance(items, InGraphReplay) and items.sequence_length is None:
        needed += (items.n_step - 1) * items.num_envs
        if needed > batch_size:
            why += f" and the {items.n_step - 1} last steps of {items.num_envs} environments"
    if (items.capacity or 1) < needed:
        raise UserError(
            "replay.capacity",
            expected=f"at least {needed} items, for {why}",
            got=items.capacity,
            remedy="Raise the capacity; typical values are 1,000,000, or 100,000 for small tasks.",
        )


def make_replay(name: str, replay: Callable[..., ReplayFactory], **specs: Any) -> ReplayFactory:
    """Calls the argument `name`, a function of specs, for the factory of a buffer.

    Raises:
      UserError: For a function that does not take these specs.
    """
    try:
        return replay(**specs)
    except TypeError as error:
        raise UserError(
            name,
            expected=f"a function of {', '.join(specs)}, without other required arguments",
            got=f"{replay!r}: {error}",
            remedy="Pass functools.partial(InGraphReplay, capacity=100_000), or set in gin "
            f"OffPolicyWorkflow.{name} = @InGraphReplay and InGraphReplay.capacity = 100_000.",
        ) from error


def warn_of_no_updates(total_env_steps: int | None, learning_start: int, done: int) -> None:
    """Warns of a run, now at `done` env steps, that ends before its first learner step."""
    if total_env_steps is not None and done < total_env_steps <= learning_start:
        warnings.warn(
            f"This run never trains: it ends at total_env_steps={total_env_steps}, but its "
            f"learner steps begin after {learning_start}. Raise total_env_steps, or lower "
            "OffPolicyWorkflow.random_steps or learning_starts.",
            stacklevel=3,
        )


_PLACES = {
    "replay/tables": "in Reverb in the training's process",
    "replay/server": "in a Reverb server",
}
_OF_A_PROCESS = re.compile(r"^replay/worker_(\d+)/")


def check_variables(thing: str, nest: Nest, why: str) -> None:
    """Raises a UserError for a part of a state of tensors; the part is changed in place."""
    if not leaves.in_place(nest):
        raise UserError(
            thing,
            expected=f"a state of variables, {why}",
            got="a state of tensors",
            remedy="Use workflow.step, which copies it into variables.",
        )


def check_place_of_replay(checkpoint: str, want: set[str], have: set[str]) -> None:
    """Raises a UserError if the replay of a checkpoint has another place than this run's."""

    def place(paths: set[str]) -> str | None:
        parts = {int(m[1]) for m in map(_OF_A_PROCESS.match, paths) if m}
        words = f", of {len(parts)} processes each" if parts else ""
        paths = {_OF_A_PROCESS.sub("replay/", path) for path in paths}
        places = [name + words for path, name in _PLACES.items() if path in paths]
        graph = "in the graph" if any(p.startswith("replay/") for p in paths) else None
        return places[0] if places else graph

    wanted, got = place(want), place(have)
    if wanted and got and wanted != got:
        raise UserError(
            f"the experience of the checkpoint {checkpoint}",
            expected=f"experience stored {wanted}, as configured for this run",
            got=f"experience stored {got}",
            remedy="Use the original --replay_server and --strategy, or refill the buffer with "
            "--gin_bindings='OffPolicyWorkflow.checkpoint_replay = False'.",
        )


def check_replay(replay: ReplayFactory, agent: ReplayAgent, num_envs: int) -> None:
    """Raises a UserError unless a buffer's items fit an agent.

    Args:
      replay: The factory of the buffer.
      agent: The agent.
      num_envs: The number of training environments.
    """
    wanted = {"n_step": agent.n_step, "discount": agent.discount, "num_envs": num_envs}
    for name, value in wanted.items():
        if getattr(replay, name) != value:
            raise UserError(
                f"replay.{name}",
                expected=f"{value}, as in the {'environments' if name == 'num_envs' else 'agent'}",
                got=getattr(replay, name),
                remedy="Leave it out of the functools.partial; the workflow sets it.",
            )
    items = sampled(replay)
    if isinstance(items, TableConfig) and not items.is_sequence and items.n_step != agent.n_step:
        raise UserError(
            f"replay, n_step of table {items.name!r}",
            expected=f"{agent.n_step}, as in the agent, which learns from the first table",
            got=items.n_step,
            remedy="Leave it out, or list the agent's table first.",
        )
    if items.kind == "prioritized" and not getattr(agent, "tells_td_errors", True):
        name = getattr(agent, "algorithm", type(agent).__name__)
        raise UserError(
            "replay.kind",
            expected=f"'uniform', since {name} reports no TD errors or ignores importance weights",
            got="'prioritized'",
            remedy="Leave it out.",
        )
    lengths = [name for name in ("sequence_length", "episode_length") if getattr(items, name, None)]
    wanted_sequences = getattr(agent, "takes_sequences", False)
    if wanted_sequences and "sequence_length" not in lengths:
        raise UserError(
            "replay.sequence_length",
            expected="a number of steps, since the agent is recurrent and learns from sequences",
            got="None",
            remedy="Pass functools.partial(InGraphReplay, sequence_length=20), "
            "or InGraphReplay.sequence_length = 20 in gin.",
        )
    if lengths and not wanted_sequences:
        raise UserError(
            f"replay.{lengths[0]}",
            expected="None, since the agent learns from single items",
            got="sequences",
            remedy="Leave it out.",
        )
    for name in ("obs_spec", "action_spec"):
        want, have = (struct.paths(getattr(x, name)) for x in (agent, replay))
        kinds = [{path: (s.shape, s.dtype) for path, s in nest.items()} for nest in (want, have)]
        if kinds[0] != kinds[1]:
            raise UserError(
                f"replay.{name}",
                expected=repr(getattr(agent, name)),
                got=repr(getattr(replay, name)),
                remedy="Pass the agent's specs.",
            )


def sampled(replay: ReplayFactory) -> InGraphReplay | TableConfig:
    """Returns the settings of sampling: the factory, or its first table for Reverb."""
    return replay.table() if isinstance(replay, ReverbReplay) else replay


def on_server(replay: ReplayFactory, address: str) -> ReverbReplay:
    """Returns the factory of a buffer on the Reverb server at an address.

    Raises:
      UserError: For a malformed address, or a buffer that Reverb does not support.
    """
    checks.address(address)
    return on_reverb(replay).replace(address=address)


def on_reverb(replay: ReplayFactory | None) -> ReverbReplay:
    """Returns the factory of a Reverb buffer of the same items.

    Raises:
      UserError: For a buffer that Reverb does not support.
    """
    if isinstance(replay, ReverbReplay):
        return replay
    if isinstance(replay, InGraphReplay):
        return replay.on_reverb()
    raise UserError(
        "The replay buffer",
        expected="ReverbReplay or InGraphReplay, whose items a Reverb server can hold",
        got="no replay buffer" if replay is None else type(replay).__name__,
        remedy="Leave the server out, or set OffPolicyWorkflow.replay = @ReverbReplay in the "
        "gin file.",
    )


def minibatch_sizes(
    modules: Mapping[str, Any],
    members: Mapping[str, tuple[str, ...]],
    *,
    rollout_length: int,
    num_envs: int,
    num_minibatches: int,
    num_epochs: int,
    remainder: Remainder,
) -> dict[str, int]:
    """Returns the minibatch size of each module in rows, summed over replicas.

    Args:
      modules: `{module_id: module}`; `num_rows` of a module returns the rows of a rollout: steps,
        or sequences for a module with memory.
      members: `{module_id: ids of its agents}` for several agents. A module of k agents has k times
        the rows in as many minibatches.
      rollout_length: T.
      num_envs: B.
      num_minibatches: Gradient steps per pass over the rows.
      num_epochs: Passes over the rows.
      remainder: How to treat rows that do not fill a minibatch.

    Raises:
      UserError: For more minibatches than rows, and for rows that they do not divide.
    """
    sizes = {}
    for module_id, module in modules.items():
        count = getattr(module, "num_rows", None)
        steps = rollout_length * num_envs
        rows = steps if count is None else count(rollout_length, num_envs)
        words = f"{rollout_length} steps x {num_envs} environments"
        if rows != steps:
            words = f"sequences of {steps // rows} steps of {num_envs} environments"
        agents = len(members.get(module_id, "1"))
        sizes[module_id] = agents * _size(rows, words, num_minibatches, num_epochs, remainder)
    return sizes


def _size(rows: int, words: str, num_minibatches: int, epochs: int, remainder: Remainder) -> int:
    if num_minibatches > rows:
        raise UserError(
            "num_minibatches",
            expected=f"a number from 1 to the {rows} rows of an iteration ({words})",
            got=num_minibatches,
            remedy="The usual value is 4.",
        )
    if rows % num_minibatches and remainder == "error":
        fits = [n for n in range(1, rows + 1) if rows % n == 0]
        near = sorted(sorted(fits, key=lambda n: abs(n - num_minibatches))[:2])
        raise UserError(
            "num_minibatches",
            expected=f"a divisor of the {rows} rows of an iteration ({words})",
            got=num_minibatches,
            remedy=f"The nearest divisors are {' and '.join(map(str, near))}; or choose "
            "remainder='pad', 'drop' or 'wrap'.",
        )
    size = -(-rows // num_minibatches) if remainder != "drop" else rows // num_minibatches
    MinibatchPlan(rows=rows, size=size, epochs=epochs, remainder=remainder)
    return size


def check_divided(
    parts: int, num_envs: Mapping[str, int], minibatch_sizes: Mapping[str, int]
) -> None:
    """Raises a UserError unless the replicas divide environments and minibatches.

    Args:
      parts: The number of replicas.
      num_envs: `{name for messages: number of environments}`.
      minibatch_sizes: `{module_id: rows}`, as from `minibatch_sizes`.
    """
    for name, number in num_envs.items():
        if number % parts:
            near = {n for n in (number // parts * parts, -(-number // parts) * parts)}
            raise UserError(
                name,
                expected=f"a multiple of the {parts} replicas, which split the environments",
                got=number,
                remedy=f"The nearest are {' and '.join(str(n) for n in sorted(near) if n)}.",
            )
    wrong = [size for size in minibatch_sizes.values() if size % parts]
    if wrong:
        raise UserError(
            "num_minibatches",
            expected=f"minibatches that divide evenly over the {parts} replicas",
            got=f"{wrong[0]} rows",
            remedy="Choose num_minibatches so that the rows of each minibatch "
            f"are a multiple of {parts}.",
        )


def check_whole(**sizes: Any) -> None:
    """Raises a UserError unless every size is an integer of at least 1."""
    for name, value in sizes.items():
        checks.at_least(name, value, 1, remedy="Pass a positive integer.")


def check_evaluator(evaluator: object, eval_env: object) -> None:
    """Raises a UserError for wrong types, and if both are given; each may be None."""
    if eval_env is not None:
        check_episodes("eval_env", eval_env)
    if evaluator is None:
        return
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
            expected="None with an evaluator, which has its own environments",
            got=repr(eval_env),
            remedy="Pass only one of the two.",
        )


def check_evaluated(evaluator: Evaluator | None, agent: Agent) -> None:
    """Raises a UserError for an evaluator of an algorithm with other parameters than an agent's."""
    own = None if evaluator is None else evaluator.agent
    if type(own) not in ALGORITHMS.values() or hasattr(agent, "modules"):
        return  # functions and wrappers may act on any state
    if logic_key(own) != logic_key(agent):
        wanted, trained = (a.init(seeding.key(0)).params for a in (cast(Agent, own), agent))
        check_fits(
            "the agent of the evaluator",
            struct.paths(wanted),
            struct.paths(trained),
            expected="an agent with the parameters of the workflow's",
            remedy="Make the evaluator with the workflow's agent.",
        )


def algorithm_name(agent: object) -> str:
    """Returns the name of an agent's algorithm: its class, or the class of a wrapped agent."""
    return getattr(agent, "algorithm", None) or type(agent).__name__


def make_agent(agent: Agent | Callable[..., Agent], env: Env) -> Agent:
    """Returns an agent; a class or a function is called with the specs of `env`.

    Raises:
      UserError: For any other argument.
    """
    if hasattr(agent, "compute_actions") and not isinstance(agent, type):
        return cast(Agent, agent)
    if not callable(agent):
        raise _no_agent(f"a {type(agent).__name__}")
    specs = {"obs_spec": env.obs_spec, "action_spec": env.action_spec}
    try:
        inspect.signature(agent).bind(**specs)
    except (TypeError, ValueError) as error:
        name = getattr(agent, "__name__", type(agent).__name__)
        raise _no_agent(f"{name}, which takes other arguments ({error})") from error
    created = agent(**specs)
    if not hasattr(created, "compute_actions"):
        raise _no_agent(f"a function that returned a {type(created).__name__}")
    return created


def _no_agent(got: str) -> UserError:
    return UserError(
        "agent",
        expected="an agent, or a class or function that creates one from obs_spec and action_spec",
        got=got,
        remedy="Pass functools.partial(DQN, hidden=(64,)) or an agent for this environment; "
        "convert a TF-Agents agent with tfrl.compat.tf_agents.from_tf_agent.",
    )


def check_config(agent: object, learner_config: object) -> None:
    """Raises a UserError for a `learner_config` if the agent has its own optimizers."""
    if learner_config is not None and only_external_updates(agent):
        raise UserError(
            "learner_config",
            expected=f"None, since {algorithm_name(agent)} trains with its own optimizers",
            got=repr(learner_config),
            remedy="Leave it out, and set the learning rate in the agent's constructor.",
        )


def check_on_policy(agent: object) -> None:
    """Raises a UserError for an agent that learns only from replayed transitions."""
    for module in getattr(agent, "modules", {}).values():
        check_on_policy(module)
    if getattr(agent, "learns_from_replay", False):
        raise UserError(
            "agent",
            expected="an agent that learns from its own rollouts: "
            + algorithm_names(from_replay=False),
            got=f"{algorithm_name(agent)}, which learns from replayed transitions",
            remedy="Train it with OffPolicyWorkflow.",
        )


def check_episodes(name: str, env: object) -> Env:
    """Returns `env`; raises a UserError unless it is an environment with episodes.

    Args:
      name: The argument's name, for the message.
      env: The argument.
    """
    if not isinstance(env, Env):
        raise UserError(
            name,
            expected="environments from tfrl.make_env",
            got=type(env).__name__,
            remedy="Create it from its id, for example tfrl.make_env('gymnasium:CartPole-v1').",
        )
    if env.autoreset is None:
        raise UserError(
            name,
            expected="environments with a time limit and autoreset",
            got=f"the bare {type(env).__name__}",
            remedy="Register it with tfrl.envs.register and create it with tfrl.make_env.",
        )
    return env


def check_resets(env: Env) -> None:
    """Raises a UserError for training environments that stop after their first episodes."""
    if env.autoreset is Autoreset.DISABLED:
        raise UserError(
            "autoreset of the training environments",
            expected="NEXT_STEP, SAME_STEP or SAME_STEP_CACHED",
            got="DISABLED, which ends after the first episodes",
            remedy="Use DISABLED for evaluation only.",
        )


def check_ends(env: Env) -> None:
    """Raises a UserError for evaluation environments whose episodes may never end."""
    if env.max_episode_steps is None:
        name = getattr(getattr(env, "backend", None), "name", type(env.unwrapped).__name__)
        raise UserError(
            "max_episode_steps of the evaluation's environments",
            expected="a number of steps, so that evaluations end",
            got=f"None: {name} has no time limit of its own",
            remedy="Pass max_episode_steps to make_env (in gin: make_env.max_episode_steps and "
            "eval/make_env.max_episode_steps).",
        )


def check_fit(agent: Agent, envs: Mapping[str, Env]) -> None:
    """Raises a UserError unless an agent can act in environments.

    Args:
      agent: The agent.
      envs: `{argument's name: environments}`; "env" names the training environments.
    """
    if isinstance(envs["env"].unwrapped, MultiAgentEnv) and not hasattr(agent, "modules"):
        raise UserError(
            "agent",
            expected="a multi-agent policy, as the environment has several agents",
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
                    expected=f"the agent's, {want}",
                    got=str(have),
                    remedy="Train and evaluate on the same task, with an agent created for it; "
                    "the macro env_id of the shipped gin files sets both.",
                )


def _leaves(spec: Nest) -> dict[str, tuple[Any, ...]]:
    """Returns shapes and dtypes by path, which must agree. Bounds may differ, as with a wrapper."""
    leaves = struct.paths(spec).items()
    return {path: (tuple(leaf.shape), leaf.dtype.name) for path, leaf in leaves}
