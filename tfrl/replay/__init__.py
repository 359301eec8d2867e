"""Experience to learn from again: buffers that are added trajectories and sampled items.

Those on Reverb import it when a table is made, and not before.
"""

from tfrl.replay.core import ReplayBuffer
from tfrl.replay.in_graph import InGraphBuffer, InGraphReplay
from tfrl.replay.replicated import ReplicatedBuffer
from tfrl.replay.reverb.factory import ReverbReplay, TableConfig

__all__ = [
    "InGraphBuffer",
    "InGraphReplay",
    "ReplayBuffer",
    "ReplicatedBuffer",
    "ReverbReplay",
    "TableConfig",
]
