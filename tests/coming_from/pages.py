"""The tables of the guides for readers of other libraries, made of the lists beside this file.

    python -m tests.coming_from.pages

writes them between the markers of the pages. The tests of each list run what it says.
"""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Rows:
    """Notes which rows of a list the tests run: `@rows("a part of their names", ...)`."""

    def __init__(self, items):
        """Keeps the list; rows whose second part begins with "none" need no test."""
        self._names = [name for name, *_ in items]
        self._left = {name for name, here, _ in items if not here.startswith("none")}

    def __call__(self, *parts):
        """Returns a decorator of a test that runs the rows whose names contain a part."""
        for part in parts:
            found = {name for name in self._names if part in name}
            assert found, part
            self._left -= found
        return lambda test: test

    def not_run(self):
        """Returns the names of the rows that no test runs."""
        return sorted(self._left)


def table(source, items):
    """Returns a list of (their name, tfrl's name, difference and reason) as a Markdown table."""
    lines = [f"| {source} | tfrl | what differs |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in items)])


def between(name):
    """Returns the marker lines that a table stands between."""
    return f"<!-- coming_from:{name} -->", f"<!-- /coming_from:{name} -->"


def shown(path, name):
    """Returns the table that a page has."""
    text = (ROOT / path).read_text(encoding="utf-8")
    start, end = between(name)
    return text.partition(start)[2].partition(end)[0].strip()


def write(path, name, source, items):
    """Puts the table of a list into a page."""
    page = ROOT / path
    start, end = between(name)
    head, _, rest = page.read_text(encoding="utf-8").partition(start)
    tail = rest.partition(end)[2]
    page.write_text(f"{head}{start}\n{table(source, items)}\n{end}{tail}", encoding="utf-8")


def main():
    """Writes all tables."""
    from tests.coming_from import evorl_items, ml_items, rllib_items

    write("docs/coming_from_evorl.md", "evorl", "EvoRL", evorl_items.ITEMS)
    write("docs/coming_from_ml.md", "ml", "ml", ml_items.ITEMS)
    write("docs/learner.md", "rllib", "RLlib", rllib_items.ITEMS)


if __name__ == "__main__":
    main()
