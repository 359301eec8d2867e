"""The verdict on runs with faults, and what a kind hurts."""

import subprocess

import pytest

from tests.faults import roles


def outcome(**changes):
    values = {"kind": "collect", "faults": 1, "code": 0, "left": [], "env_steps": [50, 100]}
    output = "collector-1 has ended with exit code 137; started again in 1 s (1 of 3)."
    values |= {"summary": {"env_steps": 100}, "output": output}
    return roles.Outcome(**{**values, **changes})


def test_the_verdict():
    assert roles.problems(outcome()) == []
    good = outcome(summary={"eval_return_mean": 480.0, "env_steps": 100})
    assert roles.problems(good, 475.0) == []
    assert roles.problems(good, 490.0) == ["a return of 480 for 490"]
    for value in ({}, {"eval_return_mean": float("nan")}):
        assert len(roles.problems(outcome(summary={**value, "env_steps": 100}), 475.0)) == 1
    assert roles.problems(outcome(faults=2)) == ["1 lines about 2 faults"]
    assert roles.problems(outcome(kind="stop:learn", output="")) == []
    assert roles.problems(outcome(env_steps=[100, 50, 100])) == [
        "env steps are counted twice: [(100, 50)]"
    ]
    assert roles.problems(outcome(summary={})) == ["env steps [100], in the summary None"]
    none = outcome(faults=0, code=75, left=["python"])
    assert roles.problems(none) == [
        "exit code 75",
        "1 processes were left",
        "no fault: it ended before, or there was no process to hurt",
    ]


@pytest.mark.parametrize(
    "kind, program",
    [
        ("variable-server", "variable_server.py"),
        ("stop:variable-server", "variable_server.py"),
        ("stop:reverb-server", "launch.py"),
    ],
)
def test_a_run_has_the_server_that_is_hurt(kind, program, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    roles.Run(kind, tmp_path, roles.IMPALA, (), (), 1.0)
    assert started[0][1].endswith(f"/{program}")
