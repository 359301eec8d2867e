"""The page docs/host_environments.md: its snippets run, and its tables tell what is there."""

import contextlib
import dataclasses
import io
import re

import pytest

from tests.docs_helpers import ROOT, blocks, session
from tfrl.envs.adapters import envpool as adapter
from tfrl.envs.adapters.gymnasium_env import AtariOptions
from tfrl.envs.adapters.gymnasium_vector import VECTORIZATIONS

PAGE = (ROOT / "docs" / "host_environments.md").read_text()


def test_snippets():
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        for code in session(blocks(PAGE)):
            exec(compile(code, "host_environments.md", "exec"), names)  # noqa: S102
    lines = printed.getvalue()
    assert lines.startswith("(8, 4) [")
    assert "[ True  True] (2, 3) [" in lines
    assert lines.count("\n") >= 5


def test_the_table_of_atari_options():
    table = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, re.MULTILINE))
    for field in dataclasses.fields(AtariOptions):
        assert table.pop(field.name) == str(field.default)
    pytest.importorskip("ale_py")
    assert table == {"repeat_action_probability": "0.25"}


def test_the_table_of_vectorizations():
    section = PAGE.partition("## Vectorization")[2].partition("##")[0]
    assert tuple(re.findall(r"^\| `(\w+)`(?: \(default\))? \|", section, re.MULTILINE)[1:]) == (
        VECTORIZATIONS
    )


def test_envpools_defaults():
    envpool = pytest.importorskip("envpool")
    config = envpool.make_spec("Pong-v5").config
    assert config.use_fire_reset and config.repeat_action_probability == 0
    assert adapter._NOT_DRAWN == "envpool.mujoco"
