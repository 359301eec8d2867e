"""The pages on evolution run: docs/evolution.md, pbt.md and custom_evolution.md."""

import re
import sys

import pytest

from tests.docs_helpers import ROOT, blocks, session, write_files

PAGE = (ROOT / "docs" / "evolution.md").read_text()
EXPECTED = {
    "Ask and tell by hand": [],
    "Genetic searches": [],
    "Several objectives": ["front.png"],
    "Diversity": ["arm.png"],
}


@pytest.mark.parametrize("section", EXPECTED)
def test_example(section, tmp_path, monkeypatch):
    if EXPECTED[section]:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(code, section, "exec"), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == EXPECTED[section]


@pytest.mark.parametrize("page, files, least", [("pbt", [], 20), ("custom_evolution", 1, 40)])
def test_page(page, files, least, tmp_path, monkeypatch, capsys):
    if page == "pbt":
        pytest.importorskip("matplotlib")
    found = blocks((ROOT / "docs" / f"{page}.md").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written = write_files(found, tmp_path)
    if files:
        assert len((tmp_path / written[0]).read_text().splitlines()) < 60
    try:
        exec(compile("\n".join(session(found)), page, "exec"), {})
    finally:
        for name in written:
            sys.modules.pop(name.removesuffix(".py"), None)
    assert float(capsys.readouterr().out.split()[0]) > least
