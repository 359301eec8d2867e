"""The snippets of docs/replay_reverb.md are run as they stand and print what their comments say."""

import re
import sys

from tests.docs_helpers import ROOT, blocks, run, session


def test_the_page_is_run(tmp_path):
    page = blocks((ROOT / "docs" / "replay_reverb.md").read_text())
    assert {kind for kind, _ in page} == {"python"}
    code = "\n".join(session(page))
    comments = re.findall(r"^ *print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
    assert code.count("print(") == len(comments) == 7
    printed = run([sys.executable, "-c", code], tmp_path).splitlines()
    twice = comments.index("(64, 4)")  # two batches
    assert printed == comments[: twice + 1] + comments[twice:]
