"""Which columns a writer has, and which of them each item is made of."""

import dataclasses
from typing import TYPE_CHECKING

from tfrl.replay.reading import STATE_IN
from tfrl.replay.reverb.signature import item_signature, leaves, state_in_spec
from tfrl.replay.reverb.table_config import TableConfig

if TYPE_CHECKING:
    from tfrl.replay.reverb.maker import ReverbReplay

_STATE = f"policy_extras/{STATE_IN}"


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of a writer, in the order in which it appends them.

    Observations come first: a row holds the observation *after* its step, so that an item is whole
    as soon as its last step is there, and each observation is stored once. An episode begins with
    a row of its first observation alone.

    Attributes:
      obs: Paths of the observations; their columns are the first ones.
      step: Paths of what is appended with every step.
      state: Paths of the recurrent state, appended with the steps that begin a sequence.
      state_always: Whether it is appended with every step, because n-step items have it too.
      reward: The column of the reward; None where no table has sequences.
      flags: The column of a step's flags; None likewise.
      targets: The column of the n-step return, by n; that of its discount is the next one.
      size: How many columns there are.
    """

    obs: tuple[str, ...]
    step: tuple[str, ...]
    state: tuple[str, ...]
    state_always: bool
    reward: int | None
    flags: int | None
    targets: dict[int, int]
    size: int

    def column(self, path: str) -> int:
        """Returns the number of the column of a path of a step."""
        return (*self.obs, *self.step, *self.state).index(path)


def make_layout(replay: "ReverbReplay") -> Layout:
    """Returns the columns that the tables of a maker need."""
    obs = tuple(leaves("obs", replay.obs_spec))
    step = list(leaves("action", replay.action_spec))
    for name in ("policy_extras", "env_extras"):
        step += leaves(name, getattr(replay, f"{name}_spec"))
    state = tuple(leaves(_STATE, state_in_spec(replay)))
    step = [path for path in step if path not in state]
    at = len(obs) + len(step) + len(state)
    configs = replay.table_configs
    has_sequences = any(config.is_sequence for config in configs)
    reward, flags = (at, at + 1) if has_sequences else (None, None)
    at += 2 * has_sequences
    steps = sorted({config.n_step or 1 for config in configs if not config.is_sequence})
    targets = {n: at + 2 * i for i, n in enumerate(steps)}
    size = at + 2 * len(steps)
    always = bool(steps)
    return Layout(obs, tuple(step), state, always, reward, flags, targets, size)


def transition_plan(
    replay: "ReverbReplay", layout: Layout, config: TableConfig
) -> list[tuple[str, int]]:
    """Returns (row, column) for each leaf of the signature of n-step items.

    The row is "before" (the one that ends with o_t), "first" (that of step t), "last" (that of step
    t + k - 1) or "target" (that holds the return).
    """
    target = layout.targets[config.n_step or 1]
    plan = []
    for path in item_signature(replay, config):
        field, _, rest = path.partition("/")
        if field == "obs":
            plan.append(("before", layout.column(path)))
        elif field == "next_obs":
            plan.append(("last", layout.column("/".join(("obs", *filter(None, [rest]))))))
        elif field in ("reward", "discount"):
            plan.append(("target", target + (field == "discount")))
        else:
            plan.append(("first", layout.column(path)))
    return plan


def sequence_plan(
    replay: "ReverbReplay", layout: Layout, config: TableConfig
) -> list[tuple[str, int]]:
    """Returns (rows, column) for each leaf of the signature of sequences.

    The rows are "obs" (one more than there are steps), "steps", "flags" or "first".
    """
    plan: list[tuple[str, int]] = []
    for path in item_signature(replay, config):
        field = path.partition("/")[0]
        if field == "obs":
            plan.append(("obs", layout.column(path)))
        elif field == STATE_IN:
            plan.append(("first", layout.column(f"policy_extras/{path}")))
        elif field == "reward":
            plan.append(("steps", layout.reward or 0))
        elif field == "flags":
            plan.append(("flags", layout.flags or 0))
        else:
            plan.append(("steps", layout.column(path)))
    return plan
