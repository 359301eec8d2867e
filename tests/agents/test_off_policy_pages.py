"""The pages of the off-policy agents: their snippets run, their tables are those of a learner."""

import re

import pytest

from tests.agents import off_policy_cases as cases
from tests.agents import registered
from tests.docs_helpers import ROOT, blocks, session

NAMES = sorted({registered.folder(cls) for cls in registered.OFF_POLICY})
PAGES = {n: (ROOT / "docs" / "algorithms" / f"{n}.md").read_text() for n in NAMES}
INDEX = (ROOT / "docs" / "algorithms" / "README.md").read_text()


def listed(page):
    """The names in the first column of a page's table of metrics, without those of no sound run."""
    table = page[page.index("## Metrics") :].split("\n\n")
    rows = next(part for part in table if part.startswith("| name"))
    cells = re.findall(r"^\| (`.*?`) \|", rows, flags=re.MULTILINE)
    return sorted(n for c in cells for n in re.findall(r"`(\S+)`", c) if "<" not in n)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_and_what_its_snippet_reports(name):
    names = {"__name__": name}
    exec("\n".join(session(blocks(PAGES[name]))), names)
    agent = names["agent"].replace(hidden=(4,))
    report = cases.learner(agent).update_from_batch(cases.transitions(agent), key=cases.KEY)
    counts = ("num_", "weights_seq_no", "module_train_batch_size_mean")  # of every module
    found = {n for n in report["default_policy"] if not n.startswith(counts)}
    # Where the loss is finite nothing else is counted.
    assert found == set(listed(PAGES[name]))


def test_the_plain_case_of_the_page_is_ddpg():
    names = {"__name__": "td3"}
    exec("\n".join(session(blocks(PAGES["td3"]))), names)
    assert type(names["plain"]).__name__ == "DDPG"


@pytest.mark.parametrize("name", PAGES)
def test_the_index_has_the_page(name):
    assert f"({name}.md)" in INDEX
