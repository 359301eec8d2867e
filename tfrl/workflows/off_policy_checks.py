"""What an off-policy workflow checks of its arguments."""

import fractions
import re
import warnings
from typing import Any

from tfrl import struct
from tfrl.agents.registry import algorithm_names
from tfrl.errors import UserError
from tfrl.replay.reverb import ReverbReplay
from tfrl.workflows.checks import name_of


def check_agent(agent: Any) -> None:
    """Raises a UserError for an agent that does not learn from replayed transitions."""
    if not getattr(agent, "learns_from_replay", False):
        raise UserError(
            "agent",
            expected="one that learns from replayed transitions: "
            + algorithm_names(from_replay=True),
            got=f"{name_of(agent)}, which learns from its own rollouts",
            remedy="Train it by OnPolicyWorkflow.",
        )


def check_counts(**counts: Any) -> None:
    """Raises a UserError for a count that is no whole number of at least 0."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UserError(
                name,
                expected="a whole number of at least 0",
                got=repr(value),
                remedy="Counts are in env steps.",
            )


def check_batch_size(batch_size: Any, num_replicas: int) -> None:
    """Raises a UserError for a batch that is none, or that the replicas do not divide."""
    whole = isinstance(batch_size, int) and not isinstance(batch_size, bool)
    if not whole or batch_size < 1:
        raise UserError(
            "batch_size",
            expected="a whole number of at least 1",
            got=repr(batch_size),
            remedy="256 is usual, 32 to 128 for DQN.",
        )
    if batch_size % num_replicas:
        below = batch_size // num_replicas * num_replicas
        near = [str(n) for n in (below, below + num_replicas) if n]
        raise UserError(
            "batch_size",
            expected=f"a multiple of the {num_replicas} replicas that divide it",
            got=batch_size,
            remedy=f"The nearest are {' and '.join(near)}.",
        )


def updates_ratio(updates_per_step: Any) -> fractions.Fraction:
    """Returns learner steps per env step as a fraction.

    Raises:
      UserError: For what is no number above 0.
    """
    number = isinstance(updates_per_step, int | float) and not isinstance(updates_per_step, bool)
    if not number or not 0 < updates_per_step <= 1000:
        raise UserError(
            "updates_per_step",
            expected="a number above 0, up to 1000",
            got=repr(updates_per_step),
            remedy="1.0 for a learner step per env step, 0.25 for one in four.",
        )
    ratio = fractions.Fraction(updates_per_step).limit_denominator(100_000)
    if not ratio:
        raise UserError(
            "updates_per_step",
            expected="at least a learner step in 100,000 env steps",
            got=updates_per_step,
            remedy="1.0 for a learner step per env step, 0.25 for one in four.",
        )
    return ratio


def check_room(replay: Any, batch_size: int) -> None:
    """Raises a UserError for a buffer in which there is not always a whole batch once it is full.

    The last steps of an episode that goes on are no items of n steps yet.
    """
    items = sampled(replay)
    needed, why = batch_size, f"batch_size={batch_size}"
    if items is replay and getattr(items, "sequence_length", None) is None:
        needed += (items.n_step - 1) * items.num_envs
        if needed > batch_size:
            why += f" and the {items.n_step - 1} last steps of {items.num_envs} environments"
    if items.capacity < needed:
        raise UserError(
            "replay.capacity",
            expected=f"at least {needed}, for {why}, or nothing might ever be learnt",
            got=items.capacity,
            remedy="Raise the capacity; a million is usual, 100,000 for small tasks.",
        )


def made_replay(replay: Any, **specs: Any) -> Any:
    """Returns the maker of a buffer that a function makes of the workflow's specs.

    Raises:
      UserError: For what is no such function.
    """
    try:
        return replay(**specs)
    except TypeError as error:
        raise UserError(
            "replay",
            expected=f"a function that takes {', '.join(specs)}, and needs nothing else",
            got=f"{replay!r}: {error}",
            remedy="Give functools.partial(InGraphReplay, capacity=100_000), or in gin "
            "OffPolicyWorkflow.replay = @InGraphReplay and InGraphReplay.capacity = 100_000.",
        ) from error


def warn_of_no_updates(total_env_steps: int | None, learning_start: int, done: int) -> None:
    """Warns of a run that plays on, `done` env steps behind it, and ends before a learner step."""
    if total_env_steps is not None and done < total_env_steps <= learning_start:
        warnings.warn(
            f"This run learns nothing: it ends at total_env_steps={total_env_steps}, and its "
            f"learner steps begin after {learning_start}. Raise the one, or lower "
            "OffPolicyWorkflow.random_steps or learning_starts.",
            stacklevel=3,
        )


_PLACES = {
    "replay/tables": "in Reverb in the training's process",
    "replay/server": "in a Reverb server",
}
_OF_A_PROCESS = re.compile(r"^replay/worker_(\d+)/")


def check_place_of_replay(checkpoint: str, want: set[str], have: set[str]) -> None:
    """Raises a UserError where the experience of a checkpoint was kept elsewhere."""

    def place(paths: set[str]) -> str | None:
        parts = {int(m[1]) for m in map(_OF_A_PROCESS.match, paths) if m}
        words = f", of {len(parts)} processes each" if parts else ""
        paths = {_OF_A_PROCESS.sub("replay/", path) for path in paths}
        found = [name + words for path, name in _PLACES.items() if path in paths]
        graph = "in the graph" if any(p.startswith("replay/") for p in paths) else None
        return found[0] if found else graph

    wanted, got = place(want), place(have)
    if wanted and got and wanted != got:
        raise UserError(
            f"the experience of the checkpoint {checkpoint}",
            expected=f"one that was {wanted}, as this run's is to be",
            got=f"one that was {got}",
            remedy="Give --replay_server (or leave it out) and --strategy as the run had them, or "
            "fill the buffer anew with "
            "--gin_bindings='OffPolicyWorkflow.checkpoint_replay = False'.",
        )


def check_replay(replay: Any, agent: Any, num_envs: int) -> None:
    """Raises a UserError unless a buffer holds what an agent learns from.

    Args:
      replay: The maker of the buffer.
      agent: The agent.
      num_envs: Of the training environments.
    """
    wanted = {"n_step": agent.n_step, "discount": agent.discount, "num_envs": num_envs}
    for name, value in wanted.items():
        if getattr(replay, name) != value:
            raise UserError(
                f"replay.{name}",
                expected=f"{value}, as of the {'environments' if name == 'num_envs' else 'agent'}",
                got=getattr(replay, name),
                remedy="Give the class, or a functools.partial of it: the workflow fills it in.",
            )
    items = sampled(replay)
    own = isinstance(replay, ReverbReplay) and not items.is_sequence
    if own and items.n_step != agent.n_step:
        raise UserError(
            f"replay, n_step of table {items.name!r}",
            expected=f"{agent.n_step}, as of the agent, which learns from this table, the first",
            got=items.n_step,
            remedy="Leave it out, or give the table that the agent learns from first.",
        )
    if items.kind == "prioritized" and not getattr(agent, "tells_td_errors", True):
        name = getattr(agent, "algorithm", type(agent).__name__)
        raise UserError(
            "replay.kind",
            expected=f"'uniform': {name} tells no TD errors that could be priorities, or ignores "
            "importance weights",
            got="'prioritized'",
            remedy="Leave it out.",
        )
    lengths = [name for name in ("sequence_length", "episode_length") if getattr(items, name, None)]
    wanted_sequences = getattr(agent, "takes_sequences", False)
    if wanted_sequences and "sequence_length" not in lengths:
        raise UserError(
            "replay.sequence_length",
            expected="a number of steps: the agent has a memory and learns from sequences",
            got="None",
            remedy="Give functools.partial(InGraphReplay, sequence_length=20), "
            "or InGraphReplay.sequence_length = 20 in gin.",
        )
    if lengths and not wanted_sequences:
        raise UserError(
            f"replay.{lengths[0]}",
            expected="None: the agent learns from single items",
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
                remedy="Give the agent's specs.",
            )


def sampled(replay: Any) -> Any:
    """Returns what says how items are sampled: a maker, or the first of its tables on Reverb."""
    return replay.table() if isinstance(replay, ReverbReplay) else replay


def on_server(replay: Any, address: str) -> Any:
    """Returns the maker of a buffer whose items live in the server at an address.

    Raises:
      UserError: For an address of another form, or a buffer that Reverb cannot hold.
    """
    from tfrl.replay.reverb.arrival import check_address

    check_address(address)
    return on_reverb(replay).replace(address=address)


def on_reverb(replay: Any) -> ReverbReplay:
    """Returns a maker of the same items that live in Reverb.

    Raises:
      UserError: For a buffer that Reverb cannot hold.
    """
    if hasattr(replay, "make_tables"):
        return replay  # type: ignore[no-any-return]
    if hasattr(replay, "on_reverb"):
        return replay.on_reverb()  # type: ignore[no-any-return]
    raise UserError(
        "The replay buffer",
        expected="ReverbReplay or InGraphReplay, whose items a Reverb server can hold",
        got="none" if replay is None else type(replay).__name__,
        remedy="Leave the server out, or write OffPolicyWorkflow.replay = @ReverbReplay in the "
        "gin file.",
    )
