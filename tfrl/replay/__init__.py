"""Experience to learn from again: buffers that are added trajectories and sampled items."""

from tfrl.replay.buffer import InGraphBuffer
from tfrl.replay.core import ReplayBuffer
from tfrl.replay.in_graph import InGraphReplay
from tfrl.replay.replicated import ReplicatedBuffer

__all__ = ["InGraphBuffer", "InGraphReplay", "ReplayBuffer", "ReplicatedBuffer"]
