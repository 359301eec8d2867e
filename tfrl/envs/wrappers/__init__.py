"""Wrappers of device environments.

The order, from the task outwards:

1. the bare environment;
2. wrappers that belong *below* time limit and autoreset, in the order given (`wrappers` of
   `make_env`): `ActionRepeat`, `CentralState`, `ObservationStack`; and last `ActionMask`, which
   `make_env` adds where the task gives a mask;
3. `Episode`: time limit, episode statistics and autoreset, one layer;
4. wrappers that belong *above* it (`outer_wrappers`): `RewardSparse`, `RewardNormalize`.

`ActionClip`, `ActionRescale`, `AgentId`, `ObservationCast`, `ObservationFlatten`, `RewardActive`,
`RewardClip` and `RewardScale` work on both sides; below, episode statistics count the changed
rewards, above, the task's own. A wrapper on the wrong side is a UserError. Every wrapper is a
`struct.logic_dataclass` with keyword arguments: `ActionRepeat(env=env, repeat=4)`.

A wrapper's `step` reads only `env_state`, and passes the wrapped environment its part of it.
"""

from tfrl.envs.wrappers.action_mask import ActionMask
from tfrl.envs.wrappers.actions import ActionClip, ActionRepeat, ActionRescale
from tfrl.envs.wrappers.episode import Episode, EpisodeState
from tfrl.envs.wrappers.observations import (
    AgentId,
    CentralState,
    ObservationCast,
    ObservationFlatten,
    ObservationStack,
)
from tfrl.envs.wrappers.rewards import (
    RewardActive,
    RewardAndEnergy,
    RewardClip,
    RewardNormalize,
    RewardScale,
    RewardSparse,
)

__all__ = [
    "ActionClip",
    "ActionMask",
    "ActionRepeat",
    "ActionRescale",
    "AgentId",
    "CentralState",
    "Episode",
    "EpisodeState",
    "ObservationCast",
    "ObservationFlatten",
    "ObservationStack",
    "RewardActive",
    "RewardAndEnergy",
    "RewardClip",
    "RewardNormalize",
    "RewardScale",
    "RewardSparse",
]
