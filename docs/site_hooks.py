"""Hooks of the site's build: it fails where a page would load something from another host.

It also fails on a link to an excluded file.
"""

import html.parser
import posixpath
import re

from mkdocs.exceptions import PluginError

# What a browser loads by itself: attributes of elements. A link that a reader clicks is none.
_LOADED = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "img": ("src", "srcset"),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "video": ("src", "poster"),
}
_ELSEWHERE = re.compile(r"\s*(?:[a-z]+:)?//", re.IGNORECASE)
_IN_STYLES = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")\s]+)")


class _Loads(html.parser.HTMLParser):
    """Collects what a page loads from other hosts."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "link" and given.get("rel") in ("canonical", "next", "prev", "edit"):
            return
        for name in _LOADED.get(tag, ()):
            if _ELSEWHERE.match(given.get(name) or ""):
                self.found.append(given[name])
        self.found += _IN_STYLES.findall(given.get("style") or "")


def loads_from_elsewhere(page):
    """Returns the addresses of other hosts that a page loads when it is opened."""
    parser = _Loads()
    parser.feed(page)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", page, flags=re.DOTALL)
    return [*parser.found, *(url for style in styles for url in _IN_STYLES.findall(style))]


def on_page_markdown(markdown, page, config, files):
    """Refuses a link to a file that the site excludes; MkDocs only mentions it."""
    for target in re.findall(r"\]\(([^()\s#]+)", markdown):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target))
        file = files.get_file_from_path(path)
        if file is not None and file.inclusion.is_excluded():
            raise PluginError(f"{page.file.src_path} links to {target}, which the site excludes")


def on_post_page(output, page, config):
    """Refuses a page that loads something from elsewhere."""
    found = loads_from_elsewhere(output)
    if found:
        raise PluginError(f"{page.file.src_path} loads from other hosts: {', '.join(found)}")
    return output
