"""The faults of `tests.mutations` fit the present sources."""

import pathlib

import pytest

import tfrl
from tests.mutations import FAULTS


@pytest.mark.parametrize(("file", "old", "new", "tests"), FAULTS)
def test_a_fault_replaces_one_text(file, old, new, tests):
    assert (pathlib.Path(tfrl.__file__).parent / file).read_text().count(old) == 1
    assert new != old
    assert all((pathlib.Path(__file__).parent / name).exists() for name in tests.split())
