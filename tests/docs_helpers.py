"""What the tests of pages of docs/ share: their blocks, and processes that run them."""

import pathlib
import re

from tests import forked

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Where no more than the answer is of interest, nothing is compiled by XLA or optimized by grappler.
QUICK = """
import tensorflow as tf
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
from tfrl import workflows
for template in (workflows.OnPolicyWorkflow, workflows.OffPolicyWorkflow):
    template.__init__.__kwdefaults__["compile"] = "graph"
"""
# A block that begins with a comment of a file name is that file of the user's folder.
FILE_NAME = re.compile(r"# (\S+\.(?:py|gin))\n")
# One that begins with the name of another library is a program of theirs, and is not run.
THEIRS = re.compile(r"# (?:Stable-Baselines3|CleanRL|RLlib|EvoRL|ml)\b.*\n")


def search_pages():
    """Names of the pages of docs/algorithms on searches: those of the index's section."""
    index = (ROOT / "docs" / "algorithms" / "README.md").read_text()
    section = index.split("\n## Evolution\n")[1].split("\n## ")[0]
    return re.findall(r"\]\((\w+)\.md\)", section)


def blocks(page):
    """Returns the (kind, code) of every block of a page."""
    return re.findall(r"```(\w+)\n(.*?)```", page, flags=re.DOTALL)


def session(page_blocks):
    """Returns the Python blocks that are no files, and no other library's."""
    code = [c for kind, c in page_blocks if kind == "python"]
    return [c for c in code if not FILE_NAME.match(c) and not THEIRS.match(c)]


def write_files(page_blocks, folder):
    """Writes the blocks that are files; returns their names."""
    named = {match[1]: c for _, c in page_blocks if (match := FILE_NAME.match(c))}
    for name, code in named.items():
        (folder / name).write_text(code)
    return sorted(named)


def run(command, folder):
    """Returns what a Python program prints, which must succeed."""
    done = forked.run(command, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
