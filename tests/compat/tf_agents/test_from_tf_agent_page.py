"""The page docs/compat_tf_agents_in.md: its snippets run, and it names what is there."""

import contextlib
import io
import re

from tests.docs_helpers import ROOT, blocks, session
from tfrl.compat import tf_agents_factories
from tfrl.launch import configurables

PAGE = (ROOT / "docs" / "compat_tf_agents_in.md").read_text()


def test_snippet():
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        for code in session(blocks(PAGE)):
            exec(compile(code, "compat_tf_agents_in.md", "exec"), names)  # noqa: S102
    assert printed.getvalue().splitlines()[-2:] == ["300 ['q_network']", "100 50 0.0"]


def test_names():
    told = set(re.findall(r"`(TFAgents\w+)`", PAGE))
    assert told == set(configurables._TF_AGENTS)
    factories = {name for name in vars(tf_agents_factories) if name.startswith("make_")}
    assert factories - {"make_schedule"} == {f.__name__ for f in configurables._TF_AGENTS.values()}
    for path in re.findall(r"tf_agents/\w+\.gin", PAGE):
        assert (ROOT / "gin_configs" / path).exists()
