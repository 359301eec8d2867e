"""The pages on evolution run: docs/evolution.md, pbt.md, custom_evolution.md, those of searches."""

import dataclasses
import re
import shlex
import sys

import pytest
import tensorflow as tf

import tfrl
from tests.docs_helpers import ROOT, blocks, search_pages, session, write_files
from tests.evolution.problems import sphere, tell
from tfrl import evolution, seeding
from tfrl.ops.schedules import ExponentialSchedule

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


def rows_of(text, heading):
    """The rows of all tables of a section, each as its cells without backticks."""
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]*)` \| (.*?) ?\|", section, flags=re.MULTILINE)
    return [(name, second.strip("`")) for name, second in rows]


@pytest.mark.parametrize("name", search_pages())
def test_a_page_of_a_search_is_true(name, monkeypatch):
    """Its settings and their defaults, its own metrics, its gin files; its code assembles."""
    text = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()
    for command in [x for kind, code in blocks(text) if kind == "bash" for x in code.splitlines()]:
        _, flag = shlex.split(command)
        assert (ROOT / "gin_configs" / flag.removeprefix("--gin_file=")).is_file(), flag
    for target in re.findall(r"\]\(([^)#:]+\.md)", text):
        assert (ROOT / "docs" / "algorithms" / target).is_file(), target

    budgets = []
    for template in (tfrl.EvolutionWorkflow, tfrl.ERLWorkflow):
        monkeypatch.setattr(template, "learn", lambda *_, **options: budgets.append(options))
        monkeypatch.setattr(template, "setup", lambda self, seed: None)
    names = {}
    exec(compile("\n".join(session(blocks(text))), name, "exec"), names)
    assert len(budgets) == 1
    if isinstance(names["workflow"], tfrl.ERLWorkflow):  # the rest is docs/erl.md's
        return
    searches = [x for x in names.values() if isinstance(x, evolution.EvoOptimizer)]
    searches += [names["workflow"].optimizer]
    known = {**vars(evolution), "ExponentialSchedule": ExponentialSchedule}
    told = dict(rows_of(text, "Settings"))
    fields = {f.name: f.default for s in searches for f in dataclasses.fields(s)}
    assert fields.keys() == told.keys()
    for setting, default in told.items():
        if default:
            assert fields[setting] == eval(default, known), setting

    own = {n for n, _ in rows_of(text, "Metrics")}
    for search in searches:
        state = search.init(tf.zeros([3]), seeding.key(0))
        population, state = search.ask(state)
        state = tell(search, state, population, sphere)
        assert set(search.metrics(state)) == own
        assert all(x.shape == [] and x == x for x in search.metrics(state).values())
