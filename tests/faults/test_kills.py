"""A few kills of each training; `python -m tests.faults` makes a hundred."""

import random

import pytest

from tests.faults import kills


@pytest.mark.slow
@pytest.mark.parametrize("name", kills.RUNS)
def test_killed_trainings_end_as_if_they_were_not(name, tmp_path):
    wrong = [(m, w) for m, w in kills.chain(name, 8, tmp_path, random.Random(1)) if w]
    assert not wrong
