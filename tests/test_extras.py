import pathlib
import re
import sys

import pytest
import tensorflow as tf

import tfrl
from tfrl import extras
from tfrl.compat import tf_agents_factories
from tfrl.errors import UserError
from tfrl.replay import ReverbReplay


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


def _absent(monkeypatch, module):
    """Makes imports of a module fail as where it is not installed."""
    for name in [n for n in sys.modules if n.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    usual = extras.importlib.import_module

    def missing(name, *args):
        if name.partition(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return usual(name, *args)

    monkeypatch.setattr(extras.importlib, "import_module", missing)


def test_reverb_names_the_replay_that_needs_none(monkeypatch):
    _absent(monkeypatch, "reverb")
    spec = tf.TensorSpec([])
    replay = ReverbReplay(obs_spec=spec, action_spec=spec, capacity=3, num_envs=1)
    with pytest.raises(UserError) as error:
        replay.make_tables()
    assert str(error.value) == (
        "Replay on Reverb: expected the extra 'reverb' to be installed, got no module named "
        "reverb. Install it with: pip install 'tfrl[reverb]' on Linux with Python 3.10 or 3.11, "
        "where it brings TensorFlow 2.15; or use tfrl.replay.InGraphReplay, which needs no server."
    )


def test_environments_of_tf_agents(monkeypatch):
    _absent(monkeypatch, "tf_agents")
    with pytest.raises(UserError, match="pip install 'tfrl\\[tf-agents\\]'") as error:
        tfrl.make_env("tf_agents:suite_gym/CartPole-v1", num_envs=1)
    assert str(error.value).startswith("environment tf_agents:suite_gym/CartPole-v1: expected")


def test_agents_of_tf_agents(monkeypatch):
    _absent(monkeypatch, "tf_agents")
    monkeypatch.delitem(sys.modules, "tfrl.compat.tf_agents", raising=False)
    monkeypatch.delattr(sys.modules["tfrl.compat"], "tf_agents", raising=False)
    spec = tfrl.specs.BoundedTensorSpec([4], "float32", -1.0, 1.0)
    with pytest.raises(UserError) as error:
        tf_agents_factories.make_dqn(spec, tfrl.specs.DiscreteSpec(2))
    assert str(error.value) == (
        "tfrl.compat.tf_agents: expected the extra 'tf-agents' to be installed, got no module "
        "named tf_agents. Install it with: pip install 'tfrl[tf-agents]' on Linux with Python 3.10 "
        "or 3.11, where it brings TensorFlow 2.15; or use tfrl's own agents, networks and "
        "environments, which need none of it."
    )


def test_tf_agents_needs_keras_2(tmp_path, monkeypatch):
    (tmp_path / "tf_agents.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tf_agents", raising=False)
    monkeypatch.setattr(tf.keras, "__version__", "3.15.1", raising=False)
    with pytest.raises(UserError) as error:
        extras.require_tf_agents("tfrl.compat.tf_agents")
    assert str(error.value) == (
        "tfrl.compat.tf_agents: expected Keras 2 as tf.keras, for which TF-Agents is written, got "
        "Keras 3.15.1. Set TF_USE_LEGACY_KERAS=1 before the program imports TensorFlow."
    )
    monkeypatch.setattr(tf.keras, "__version__", "2.15.0")
    assert extras.require_tf_agents("tfrl.compat.tf_agents") is sys.modules.pop("tf_agents")


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
