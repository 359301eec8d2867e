"""What the tests of several processes share."""

import pytest

from tests.distribute import processes


@pytest.fixture(name="free_port")
def fixture_free_port():
    """A port of this machine on which nobody listens."""
    return processes.free_ports(1)[0]
