"""The page docs/tf_agents_environments.md: its snippets run, and it tells what is there."""

import contextlib
import io
import re

from tf_agents.environments import suite_gym  # noqa: F401  (gym's notices come before the snippets)

from tests.docs_helpers import ROOT, blocks, session
from tfrl.compat import tf_agents as compat

PAGE = (ROOT / "docs" / "tf_agents_environments.md").read_text()


def test_snippets():
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        for code in session(blocks(PAGE)):
            exec(compile(code, "tf_agents_environments.md", "exec"), names)  # noqa: S102
    lines = printed.getvalue().splitlines()
    assert lines[0].startswith("(4, 4) [")
    assert lines[1] == "10 [ True  True] [False False]"
    assert lines[2].startswith("tf.Tensor(4")
    assert 1 <= int(lines[3]) <= 20


def test_names():
    told = set(re.findall(r"from tfrl\.compat\.tf_agents import (.*)", PAGE))
    imported = {name for line in told for name in line.split(", ")}
    assert imported <= set(compat.__all__)
    assert {"as_py_environment", "as_tf_environment", "split_action_mask"} <= imported
