"""Processes of a distributed run are killed and stopped; the run ends as if nothing had been."""

import pytest

from tests.faults import roles

DQN = "dqn/gymnasium_cartpole.gin"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*roles.KINDS, "stop:collect", "stop:learn"])
def test_on_policy(tmp_path, kind):
    outcome = roles.run(kind, 3.0, str(tmp_path / "run"), seed=1)
    assert outcome.code == 0, outcome.output
    assert outcome.left == []
    assert outcome.summary["eval_return_mean"] > 475.0, outcome.output
    assert 1_000_000 <= outcome.summary["env_steps"] < 1_001_024
    if kind in ("collect", "learn", "evaluate", "reverb-server"):
        assert "has ended with exit code 137; started again in 1 s (1 of 3)." in outcome.output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["collect", "reverb-server", "learn", "launch"])
def test_off_policy(tmp_path, kind):
    steps = "train.total_env_steps = 9_000"
    outcome = roles.run(kind, 3.0, str(tmp_path / "run"), gin_file=DQN, bindings=[steps])
    assert outcome.code == 0, outcome.output
    assert outcome.left == []
    # A call of an iteration goes over the budget by what collectors had ahead, at most.
    assert 9_000 <= outcome.summary["env_steps"] < 10_000
