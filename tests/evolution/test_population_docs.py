"""The examples of docs/evolution.md on populations run, each in a folder of its own."""

import re

import pytest

from tests.docs_helpers import ROOT

PAGE = (ROOT / "docs" / "evolution.md").read_text()
EXPECTED = {"Genetic searches": [], "Several objectives": ["front.png"], "Diversity": ["arm.png"]}


@pytest.mark.parametrize("section", EXPECTED)
def test_example(section, tmp_path, monkeypatch):
    if EXPECTED[section]:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(code, section, "exec"), {})  # noqa: S102
    assert sorted(p.name for p in tmp_path.iterdir()) == EXPECTED[section]
