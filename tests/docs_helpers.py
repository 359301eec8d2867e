"""What the tests of pages of docs/ share: their blocks, and processes that run them."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
# A block that begins with a comment of a file name is that file of the user's folder.
FILE_NAME = re.compile(r"# (\S+\.(?:py|gin))\n")


def blocks(page):
    """Returns the (kind, code) of every block of a page."""
    return re.findall(r"```(\w+)\n(.*?)```", page, flags=re.DOTALL)


def session(page_blocks):
    """Returns the Python blocks that are no files."""
    return [c for kind, c in page_blocks if kind == "python" and not FILE_NAME.match(c)]


def write_files(page_blocks, folder):
    """Writes the blocks that are files; returns their names."""
    named = {match[1]: c for _, c in page_blocks if (match := FILE_NAME.match(c))}
    for name, code in named.items():
        (folder / name).write_text(code)
    return sorted(named)


def run(command, folder):
    """Returns what a command prints, which must succeed."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
