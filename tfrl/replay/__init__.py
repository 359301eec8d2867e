"""Replay buffers: add trajectories, sample items.

Reverb is imported only when a table is created.
"""

from tfrl.replay.core import ReplayBuffer
from tfrl.replay.in_graph import InGraphBuffer, InGraphReplay
from tfrl.replay.replicated import ReplicatedBuffer
from tfrl.replay.reverb.factory import ReverbReplay, TableConfig

# The settings of a replay buffer; its `init` makes the buffer.
ReplayFactory = InGraphReplay | ReverbReplay

__all__ = [
    "InGraphBuffer",
    "InGraphReplay",
    "ReplayBuffer",
    "ReplayFactory",
    "ReplicatedBuffer",
    "ReverbReplay",
    "TableConfig",
]
