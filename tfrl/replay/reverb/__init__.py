"""Replay on Reverb: experience in a server, of this process or of another machine.

Reverb itself is imported when a table is made, and not before.
"""

from tfrl.replay.reverb.factory import ReverbReplay, TableConfig

__all__ = ["ReverbReplay", "TableConfig"]
