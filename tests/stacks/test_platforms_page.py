"""docs/platforms.md: what it says of ranges, commands and facts is so."""

import pathlib
import re

import pytest

from benchmarks import platform_facts

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "platforms.md").read_text()


def test_extras_and_ranges_are_those_of_setup():
    setup = (ROOT / "setup.py").read_text()
    extras = re.findall(r'^    "([\w-]+)": \[|^EXTRAS\["(\w+)"\]', setup, re.MULTILINE)
    known = {name for pair in extras for name in pair if name}
    named = {name for group in re.findall(r"tfrl\[([\w,-]+)\]", PAGE) for name in group.split(",")}
    assert named and named <= known
    for requirement in (
        '"tensorflow>=2.15,!=2.16.*,!=2.17.*,<2.22"',
        '"tensorflow-probability>=0.23,!=0.24.*,<0.26"',
        'python_requires=">=3.10,<3.14"',
    ):
        assert requirement in setup


def test_targets_are_those_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"make ([a-z-]+)", PAGE))
    assert {"venv-current", "train-current", "test-current", "test-newest"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-current.txt"])
def test_pins_are_of_versions_that_setup_allows(name):
    pinned = dict(
        line.split("==")
        for line in (ROOT / name).read_text().splitlines()
        if "==" in line and not line.startswith("#") and ";" not in line
    )
    want = {"constraints.txt": "2.15", "constraints-current.txt": "2.21"}[name]
    for package in ("tensorflow", "tf-keras"):
        assert pinned[package].startswith(f"{want}.")
    assert ("dm-reverb" in pinned, "tf-agents" in pinned) == ((want == "2.15",) * 2)
    assert "pygame-ce" not in pinned


def test_bits_are_as_the_table_says():
    everywhere, not_in_xla = {"graph": True, "xla": True}, {"graph": True, "xla": False}
    assert platform_facts.philox() == {
        "integers": everywhere,
        "uniform": not_in_xla,
        "normal": not_in_xla,
        "tfrl.seeding.uniform": everywhere,
        "tfrl.seeding.normal": everywhere,
    }


def test_a_trace_goes_on_with_its_first_mirrored_variables():
    found = platform_facts.distributed_arguments()
    assert found == {"mirrored": [2.0, 0.0], "plain": [1.0, 1.0]}
