"""The verdict on runs with faults, and what a kind hurts."""

import subprocess

import pytest

from tests.faults import roles


def outcome(**changes):
    values = {"kind": "collect", "faults": 1, "code": 0, "summary": {}, "output": "", "left": []}
    return roles.Outcome(**{**values, **changes})


def test_the_verdict():
    assert roles.problems(outcome()) == []
    good = outcome(summary={"eval_return_mean": 480.0})
    assert roles.problems(good, 475.0) == []
    assert roles.problems(good, 490.0) == ["a return of 480 for 490"]
    for value in ({}, {"eval_return_mean": float("nan")}):
        assert len(roles.problems(outcome(summary=value), 475.0)) == 1
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
