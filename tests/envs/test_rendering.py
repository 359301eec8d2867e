"""The renderer's answers where it cannot draw."""

import sys

import pytest

from tfrl import seeding
from tfrl.envs import rendering, testing
from tfrl.errors import UserError


def test_missing_pygame_is_a_user_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    rendering._renderer.cache_clear()
    with pytest.raises(UserError, match=r"rendering CartPole-v1: expected pygame.*pip install"):
        rendering.draw("CartPole-v1")


def test_one_renderer_a_process():
    rendering._renderer.cache_clear()
    assert rendering._renderer("CartPole-v1") is rendering._renderer("CartPole-v1")


def test_an_environment_without_a_renderer_says_so():
    env = testing.Chain(num_envs=1)
    with pytest.raises(NotImplementedError, match="Chain has no renderer"):
        env.render(env.reset(seeding.key(0)))
