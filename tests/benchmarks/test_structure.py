"""The counts of benchmarks/structure.py, and the runs of benchmarks/digests.py."""

import pathlib

from benchmarks import digests, structure
from tfrl.launch import gin_files

SOURCE = '''"""A module's docstring,
of two lines."""

import os  # counts


def check_name(name):
    """Not code."""
    # Nor this.
    if not name:
        raise ValueError(
            "two lines of a string"
        )
    return """a string
    of two lines"""
'''


def test_code_lines_leave_out_comments_docstrings_and_blank_lines(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    assert structure.code_lines(path) == 8
    assert structure._check_lines(path) == 9  # the function, its docstring and comment included


def test_the_gin_files_of_all_digests_are_there():
    for gin_file, *_ in digests.RUNS.values():
        if not gin_file.startswith("examples/"):
            assert gin_files.resolve(gin_file).is_file()
        else:
            assert pathlib.Path(structure.ROOT, gin_file).is_file()
