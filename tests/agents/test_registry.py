"""What follows from the registry: names, gin files and pages of every algorithm."""

import importlib
import pathlib
import sys

import pytest

import tfrl
from tests.agents.registered import ON_POLICY, OWN, cases, folder
from tfrl.agents import ALGORITHMS, Agent, algorithm, core
from tfrl.agents.core import algorithm_names
from tfrl.errors import UserError
from tfrl.launch import gin_files
from tfrl.types import AgentState

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_every_folder_with_the_decorator_is_registered():
    """The names that `dir(tfrl)` reads from the sources are those of the decorators."""
    assert {cls.__name__ for cls in OWN} == tfrl._names_in_sources()
    assert set(tfrl.agents.__all__) >= {cls.__name__ for cls in OWN}


def test_names_without_sources(monkeypatch, tmp_path):
    """In a zip file, `tfrl.agents` is imported for its names."""
    monkeypatch.setattr(tfrl, "__file__", str(tmp_path / "tfrl" / "__init__.pyc"))
    monkeypatch.delitem(sys.modules, "tfrl.agents.core")
    monkeypatch.setattr("importlib.import_module", {"tfrl.agents.core": core}.__getitem__)
    assert tfrl._algorithm_names() == set(ALGORITHMS)


def test_every_package_is_loaded_lazily():
    packages = {p.parent.name for p in (ROOT / "tfrl").glob("[a-z]*/__init__.py")}
    assert packages <= set(tfrl._SUBMODULES)
    assert tfrl.roles.__name__ == "tfrl.roles" and tfrl.serving.__name__ == "tfrl.serving"


def test_what_cannot_be_registered():
    with pytest.raises(UserError, match="tfrl.algorithm: expected the class of an agent, got 3"):
        algorithm(3)
    with pytest.raises(UserError, match="the algorithm PPO: expected a name of its own, got .*ppo"):
        algorithm(type("PPO", (tfrl.PPO,), {"__module__": "__main__"}))
    assert ALGORITHMS["PPO"] is tfrl.PPO


def test_a_cell_of_a_notebook_may_run_again(monkeypatch):
    importlib.import_module("tfrl.launch.configurables")  # gin registers algorithms from now on
    monkeypatch.setattr("tfrl.agents.core.ALGORITHMS", dict(ALGORITHMS))
    for _ in range(2):
        mine = algorithm(type("MineInANotebook", (tfrl.PPO,), {"__qualname__": "f.<locals>.Mine"}))
    assert core.ALGORITHMS[mine.__name__] is mine


@pytest.mark.parametrize("cls", OWN)
def test_an_algorithm_has_a_name_gin_files_and_a_page(cls):
    assert issubclass(cls, Agent) and ALGORITHMS[cls.__name__] is cls
    assert getattr(tfrl, cls.__name__) is getattr(tfrl.agents, cls.__name__) is cls
    assert cls.__name__ in algorithm_names(from_replay=cls.learns_from_replay).split(", ")
    assert list((gin_files.package_gin_dir() / cls.__name__.lower()).glob("*.gin"))
    assert (ROOT / "docs" / "algorithms" / f"{folder(cls)}.md").is_file()
    assert cases([cls])


def test_registration():
    @algorithm
    class Mine(ON_POLICY[0]):
        pass

    try:
        assert tfrl.Mine is Mine and "Mine" in dir(tfrl)
    finally:
        del ALGORITHMS["Mine"], tfrl.Mine


def test_hooks_may_have_their_names_of_version_0_1():
    from tfrl import RandomAgent, struct

    @struct.logic_dataclass
    class Old(RandomAgent):
        def observe(self, state, trajectory):
            return super().observe(state, trajectory).replace(extra=1)

        def adapt(self, state, metrics):
            return super().on_update_metrics(state, metrics).replace(extra=2)

    agent = Old(obs_spec=None, action_spec=None)
    state = AgentState(params={})
    assert agent.update_normalizer(state, None).extra == 1
    assert agent.on_update_metrics(state, {}).extra == 2
