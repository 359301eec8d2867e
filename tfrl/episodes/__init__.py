"""Episodes on the host, of one agent or several, in NumPy."""

from tfrl.episodes.episode_files import read_episodes, write_episodes
from tfrl.episodes.lookback_buffer import LookbackBuffer
from tfrl.episodes.multi_agent_episode import DEFAULT_MODULE_ID, MultiAgentEpisode
from tfrl.episodes.single_agent_episode import SingleAgentEpisode

__all__ = [
    "DEFAULT_MODULE_ID",
    "LookbackBuffer",
    "MultiAgentEpisode",
    "SingleAgentEpisode",
    "read_episodes",
    "write_episodes",
]
