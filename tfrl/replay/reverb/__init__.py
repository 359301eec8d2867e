"""Replay on Reverb: a server in this process or on another machine stores the experience.

Reverb itself is imported only when a table is created.
"""

from tfrl.replay.reverb.factory import ReverbReplay, TableConfig

__all__ = ["ReverbReplay", "TableConfig"]
