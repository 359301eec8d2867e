"""What the tests of several processes share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import processes


@pytest.fixture(name="free_port")
def fixture_free_port():
    """A port of this machine on which nobody listens."""
    return processes.free_ports(1)[0]
