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


def table_counts(client: Any, timeout: int) -> dict[str, Any]:
    """Returns `{table: its TableInfo message}`: sizes and counts, with the signature encoded.

    `client.server_info` decodes the signatures, which takes most of its time.

    Args:
      client: A `reverb.Client`.
      timeout: Seconds.

    Raises:
      DeadlineExceededError: Of Reverb, if the server does not answer in time.
    """
    from reverb.cc import schema_pb2

    try:
        messages = client._client.ServerInfo(timeout)
    except RuntimeError as error:
        if "Deadline Exceeded" not in str(error):
            raise
        raise reverb().errors.DeadlineExceededError(str(error)) from error
    return {info.name: info for info in map(schema_pb2.TableInfo.FromString, messages)}
