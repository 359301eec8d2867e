"""The page docs/compat_tf_agents_out.md: its snippets run, and its names are there."""

import contextlib
import inspect
import io
import re

from tests.docs_helpers import ROOT, blocks, session
from tfrl.compat import tf_agents as compat

PAGE = (ROOT / "docs" / "compat_tf_agents_out.md").read_text()


def test_snippets():
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        for code in session(blocks(PAGE)):
            exec(compile(code, "compat_tf_agents_out.md", "exec"), names)  # noqa: S102
    assert printed.getvalue().splitlines() == ["5 True", "2 4.0", "(2,) int64"]


def test_arguments_are_those_of_the_functions():
    known = {
        name
        for function in (compat.as_tf_agent, compat.as_tf_policy)
        for name in inspect.signature(function).parameters
    }
    told = set(re.findall(r"`(\w+)(?:=[^`]*)?`:|\| `(\w+)` \|", PAGE))
    told = {a or b for a, b in told} - {"learner", "training_data_spec", "train_sequence_length"}
    told -= {"LossInfo", "loss", "extra"}
    assert told <= known, told - known
    for name in ("env_steps", "weights", "learner_config", "train_step_counter"):
        assert name in PAGE
