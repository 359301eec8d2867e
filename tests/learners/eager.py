"""A fixture of the tests that train a Learner for a few steps."""

import functools

import pytest

from tfrl.learners import Learner


@pytest.fixture
def _eager_updates(monkeypatch):
    """Updates are eager where a test does not say how: a trace takes longer than a few steps.

    That the modes give the same is the subject of test_modes.
    """
    update = functools.partialmethod(Learner.update_from_batch, compile="eager")
    monkeypatch.setattr(Learner, "update_from_batch", update)
