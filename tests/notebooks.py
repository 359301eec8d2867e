"""The notebooks of docs/tutorials/, made of the pages beside them.

    python -m tests.notebooks

writes them. A block of a page that is a file becomes a cell that writes the file; commands of a
shell stay text.
"""

import json
import re

from tests.docs_helpers import FILE_NAME, ROOT

FOLDER = ROOT / "docs" / "tutorials"
NAMES = ("first_run", "my_environment", "my_network", "reading_the_curves")
WRITE = "%%writefile "
_BLOCK = re.compile(r"^```(python|gin)\n(.*?)^```\n", flags=re.DOTALL | re.MULTILINE)


def cells(page):
    """Yields (type, text) of the cells of a page."""
    at = 0
    for block in _BLOCK.finditer(page):
        yield "markdown", page[at : block.start()].strip()
        code = block[2].rstrip()
        if named := FILE_NAME.match(code):
            code = f"{WRITE}{named[1]}\n{code[named.end() :]}"
        yield "code", code
        at = block.end()
    yield "markdown", page[at:].strip()


def notebook(page):
    """Returns the text of the notebook of a page."""
    made = []
    for kind, text in cells(page):
        if not text:
            continue
        cell = {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    found = {
        "cells": made,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def program(text):
    """Returns the code of a notebook as a program of Python, without a kernel of Jupyter."""
    lines = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        if source.startswith(WRITE):
            first, _, code = source.partition("\n")
            source = f"open({first.removeprefix(WRITE)!r}, 'w').write({code + chr(10)!r})"
        lines.append(source)
    return "\n".join(lines)


def main():
    """Writes all notebooks."""
    for name in NAMES:
        page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        (FOLDER / f"{name}.ipynb").write_text(notebook(page), encoding="utf-8")


if __name__ == "__main__":
    main()
