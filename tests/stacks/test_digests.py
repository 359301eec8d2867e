"""Training ends with the recorded parameters: no change of the code has changed a bit."""

import json
import platform

import pytest

from tests.stacks import digests, make

pytestmark = pytest.mark.usefixtures("grappler")

RECORDED = json.loads(digests.PATH.read_text())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="recorded on x86-64")
@pytest.mark.parametrize("name", list(digests.RUNS))
def test_runs_end_with_the_recorded_parameters(name):
    if make.stack() not in RECORDED:
        pytest.skip(f"no digests of {make.stack()} were recorded")
    recorded = RECORDED[make.stack()][name]
    digest, mean = digests.result(name)
    # A processor that is not recorded may round differently, and no more.
    assert digest in recorded["digests"] or mean == pytest.approx(recorded["mean"], rel=1e-5)
