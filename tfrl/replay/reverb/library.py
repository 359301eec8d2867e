"""Imports Reverb only when it is needed."""

import re
from contextlib import AbstractContextManager
from typing import Any

from tfrl import extras
from tfrl._log_filter import without_lines

# "[reverb/cc/platform/default/server.cc:71] Started replay server on port 8000"
_LINE = re.compile(
    rb"\[reverb/cc/((platform|reverb_service_impl)[^\]]*\]|client\.cc:\d+\] Sampler and server are)"
)


def without_progress_lines() -> AbstractContextManager[None]:
    """Drops Reverb's progress lines from standard error; prints all other lines at the end."""
    return without_lines(_LINE)


def reverb() -> Any:
    """Returns the module `reverb`.

    Raises:
      UserError: If it is not installed.
    """
    return extras.require_reverb()
