"""Replay buffers: add trajectories, sample items.

Reverb is imported only when a table is created.
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
