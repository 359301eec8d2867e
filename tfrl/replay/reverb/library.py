"""Reverb itself, imported when it is needed and not before."""

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
    """Holds standard error back while Reverb starts, saves or stops; all other lines come after."""
    return without_lines(_LINE)


def reverb() -> Any:
    """Returns the module `reverb`.

    Raises:
      UserError: Where it is not installed.
    """
    return extras.require_reverb()
