"""A few kills of each training; `python -m tests.faults` makes a hundred."""

import random

import pytest

from tests.faults import kills
from tests.storage import fake_gcs


@pytest.mark.slow
@pytest.mark.parametrize("name", kills.RUNS)
def test_killed_trainings_end_as_if_they_were_not(name, tmp_path):
    place = kills.Place(tmp_path)
    assert not [(m, w) for m, w in kills.chain(name, 8, place, random.Random(1)) if w]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "dqn_reverb"])
def test_so_do_those_in_a_bucket(name, tmp_path):
    with fake_gcs.serve(tmp_path, busy=0.02) as server:
        chain = kills.chain(name, 8, kills.Place.of(server), random.Random(1))
        assert not [(m, w) for m, w in chain if w]
