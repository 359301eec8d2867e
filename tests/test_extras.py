import pathlib
import re
import sys

import pytest

from tfrl import extras
from tfrl.errors import UserError


def test_installed_module_is_returned():
    assert extras.require("json", "dev") is sys.modules["json"]
    assert extras.require("os.path", "dev") is sys.modules["os.path"]


@pytest.mark.parametrize("name", ["no_such_simulator", "no_such_simulator.envs"])
def test_missing_module_names_the_install_command(name):
    with pytest.raises(UserError) as error:
        extras.require(name, "mujoco")
    assert str(error.value) == (
        f"Optional dependency {name}: expected the extra 'mujoco' to be installed, got no module "
        "named no_such_simulator. Install it with: pip install 'tfrl[mujoco]'"
    )


def test_error_inside_an_installed_module_stays(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("import no_such_dependency_of_it\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency_of_it") as error:
        extras.require("broken_extra", "mujoco")
    assert not isinstance(error.value, UserError)


def test_the_library_reads_every_extra():
    root = pathlib.Path(__file__).resolve().parents[1]
    names = re.findall(r'^    "([\w-]+)": \[', (root / "setup.py").read_text(), re.MULTILINE)
    code = "".join(path.read_text() for path in (root / "tfrl").rglob("*.py"))
    assert "video" in names and "dev" in names
    unread = [n for n in names if f'"{n}"' not in code and f"tfrl[{n}]" not in code]
    # What tests, the site and machines with a GPU need.
    assert set(unread) == {"evolution-references", "dev", "docs", "cuda"}
