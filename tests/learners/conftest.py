"""Fixtures of these tests."""

from tests.learners.eager import _eager_updates

__all__ = ["_eager_updates"]
