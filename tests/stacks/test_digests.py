"""Training has the bits that were recorded: no change of the code has changed one."""

import json
import platform

import pytest

from tests.stacks import digests, make

RECORDED = json.loads(digests.PATH.read_text())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="recorded on x86-64")
@pytest.mark.parametrize("name", list(digests.RUNS))
def test_runs_end_with_the_recorded_parameters(name):
    if make.stack() not in RECORDED:
        pytest.skip(f"no digests of {make.stack()} were recorded")
    assert digests.digest(name) == RECORDED[make.stack()][name]
