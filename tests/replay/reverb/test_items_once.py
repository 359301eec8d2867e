"""Tables that give each item once, in order."""

import contextlib

import pytest

from tests.replay.reverb import helpers

CHUNKS = (1, 2, 6, 7, 18, 19, 30, 60)  # adds of T = 1, 1, 4, 1, 11, ...
ITEMS = {
    "one_step": {"n_step": 1},
    "n_step": {"n_step": 3},
    "n_step_in_columns": {"n_step": 3, "packed": False},
    "sequences": {"sequence_length": 4, "sequence_period": 2},
    "episodes": {"episode_length": 12},
}


@pytest.mark.parametrize("kind", ["fifo", "lifo"])
@pytest.mark.parametrize("items", ITEMS)
@pytest.mark.variants(3)
def test_items_that_are_given_once(kind, items):
    buffer = helpers.maker(num_envs=1, timeout=0.3, kind=kind, **ITEMS[items]).init()
    with contextlib.closing(buffer):
        for mode in helpers.MODES:
            helpers.begin_anew(buffer)
            expected = helpers.Expected(buffer.replay.table(), 1)
            helpers.add_all(buffer, helpers.streams(mode, 1, 60), expected, CHUNKS)
            buffer.flush()
            wanted = expected.all()
            if kind == "lifo":
                wanted = wanted[::-1]
            helpers.close_to(helpers.take(buffer, len(wanted)), wanted)
            assert int(buffer.size()) == 0
