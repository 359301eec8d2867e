"""Replay on Reverb: experience in a server, of this process or of another machine.

Reverb itself is imported when a table is made, and not before.
"""

from tfrl.replay.reverb.maker import ReverbReplay
from tfrl.replay.reverb.table_config import TableConfig

__all__ = ["ReverbReplay", "TableConfig"]
