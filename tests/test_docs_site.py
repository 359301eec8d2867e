"""Links of all pages, the navigation of the site, and what it loads."""

import html
import importlib
import json
import pathlib
import re
import subprocess
import sys
import sysconfig
import types

import pytest
import yaml

from tests import api_pages, test_docs_questions
from tests.docs_helpers import ROOT
from tests.docs_links import anchors, links, section, slug

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
REPOSITORY = "https://github.com/tfrl/tfrl"


class _Config(yaml.SafeLoader):
    """Reads mkdocs.yml without making the objects that it names."""


_Config.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(), _Config)  # noqa: S506


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(DOCS).as_posix())
def test_links_lead_somewhere(page):
    for target in links(page.read_text()):
        if target.startswith(REPOSITORY):
            path = re.sub(r"^/(?:blob|tree)/main/", "", target.removeprefix(REPOSITORY))
            assert not path or (ROOT / path.partition("#")[0]).exists(), target
        elif not target.startswith(("http://", "https://", "mailto:")):
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            assert file.is_file() and file.resolve().is_relative_to(DOCS), target
            if anchor and file.suffix == ".md":
                assert anchor in anchors(file.read_text()), target


def listed(nav):
    """Yields the pages of a navigation."""
    for item in nav:
        if isinstance(item, str):
            yield item
        else:
            for value in item.values():
                yield from [value] if isinstance(value, str) else listed(value)


def test_every_page_is_in_the_navigation():
    found = list(listed(CONFIG["nav"]))
    assert sorted(found) == sorted(p.relative_to(DOCS).as_posix() for p in PAGES)


def test_anchors_are_those_of_github():
    assert slug("5. Callbacks, and going on") == "5-callbacks-and-going-on"
    assert slug("8. `check_env`") == "8-check_env"
    text = "# A\n\n```\n# no heading\n```\n\n## B c\n\nx\n\n### D\n\ny\n\n## E\n"
    assert anchors(text) == {"a", "b-c", "d", "e"}
    assert section(text, "b-c").splitlines()[-2:] == ["y", ""]
    assert links("[a](b.md#c) ![d](e.png) `[f](g)`") == ["b.md#c", "e.png"]


def test_the_theme_loads_no_fonts_and_asks_no_host():
    assert CONFIG["theme"]["font"] is False
    assert not {"repo_url", "extra_javascript"} & set(CONFIG)
    assert CONFIG["strict"] is True


def hooks():
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("site_hooks")
    finally:
        sys.path.remove(str(DOCS))


@pytest.mark.needs("mkdocs")
def test_what_a_page_loads_from_elsewhere_is_found():
    loads = hooks().loads_from_elsewhere
    inside = '<link rel="stylesheet" href="../a.css"><img src="b.png"><script src="c.js"></script>'
    clicked = '<a href="https://x.org">x</a><link rel="canonical" href="https://x.org/a">'
    assert loads(inside + clicked) == []
    for page, found in {
        '<script src="https://cdn.x/a.js"></script>': "https://cdn.x/a.js",
        '<img src="//x.org/a.png">': "//x.org/a.png",
        '<link rel="preconnect" href="https://fonts.gstatic.com">': "https://fonts.gstatic.com",
        "<style>@import 'https://x.org/a.css';</style>": "https://x.org/a.css",
        '<p style="background: url(https://x.org/b)">': "https://x.org/b",
    }.items():
        assert loads(page) == [found], page


@pytest.mark.needs("mkdocs")
def test_a_link_to_an_excluded_file_is_an_error():
    from mkdocs.config import load_config
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import get_files

    config = load_config(str(ROOT / "mkdocs.yml"))
    files = get_files(config)
    page = types.SimpleNamespace(file=files.get_file_from_path("evolution.md"))
    check = hooks().on_page_markdown
    check((DOCS / "evolution.md").read_text() + "[a](results.md#b)", page, config, files)
    with pytest.raises(PluginError, match="links to results/evolution_quality.json, which"):
        check("[a](results/evolution_quality.json)", page, config, files)


@pytest.mark.needs("tf_agents", "reverb")
def test_the_api_pages_are_those_of_the_code():
    for name, text in api_pages.pages().items():
        assert (api_pages.FOLDER / name).read_text() == text, f"python -m tests.api_pages: {name}"


def test_every_public_name_is_on_an_api_page():
    text = "".join(path.read_text() for path in api_pages.FOLDER.glob("*.md"))
    for module_name in api_pages.public_modules():
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", ()):
            where = None if name in api_pages.OLD else api_pages.home(module, name)
            assert where is None or f"::: {where}\n" in text, f"{module_name}.{name}"


@pytest.mark.slow
def test_the_site_is_built_and_asks_no_host(tmp_path):
    mkdocs = pathlib.Path(sysconfig.get_path("scripts"), "mkdocs")
    command = [mkdocs, "build", "--strict", "--quiet", "--site-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        assert hooks().loads_from_elsewhere(page.read_text()) == [], page
    for style in tmp_path.rglob("*.css"):
        found = re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*", style.read_text())
        assert not found, (style, found)
    index = json.loads((tmp_path / "search" / "search_index.json").read_text())
    titles = {html.unescape(entry["title"]) for entry in index["docs"]}
    assert {question for question, *_ in test_docs_questions.QUESTIONS} <= titles
    agents = (tmp_path / "api" / "agents.html").read_text()
    _, heading, ppo = agents.partition('id="tfrl.agents.ppo.agent.PPO"')
    signature, _, rest = ppo.partition("Bases:")  # with a field of its base
    assert heading and "gae_lambda" in signature and "gae_lambda" in rest.partition("</table>")[0]
