"""Numbers of `info` as metrics: means over ended episodes, of their last steps."""

import math

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.adapters import gymnasium_fakes
from tfrl.agents import RandomAgent
from tfrl.envs import registry, testing
from tfrl.envs.adapters import gymnasium
from tfrl.errors import UserError
from tfrl.workflows import OnPolicyWorkflow

gymnasium_fakes.register()
MODES = ("SAME_STEP", "NEXT_STEP")


class Aged(testing.ScriptedEnv):
    """`info` has the episode's age; environment 0 ends at step 3, environment 1 at step 2 or 4."""

    def reset(self, key):
        return super().reset(key).replace(info={"age": tf.zeros([self.num_envs])})

    def step(self, state, action):
        new = super().step(state, action)
        return new.replace(info={"age": new.obs[:, 0] + 0.5})


TABLES = {
    "rewards": (0.0,) * 3,
    "terminations": ((False, False), (False, True), (True, False)),
}


def trained(env, steps):
    agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
    workflow = OnPolicyWorkflow(
        env=env, agent=agent, rollout_length=1, eval_episodes=4, compile="eager", num_minibatches=1
    )
    state, rows = workflow.setup(0), []
    for _ in range(steps):
        row, state = workflow.step(state)
        rows.append(float(row["episode_age"]))
    evaluated, _ = workflow.evaluate(state)
    workflow.close()
    return rows, evaluated


def test_on_the_device():
    env = registry.finish(
        Aged(num_envs=2, **TABLES),
        autoreset=tfrl.envs.Autoreset.SAME_STEP,
        max_episode_steps=10,
        task_limit=None,
        info_fields=("age",),
    )
    rows, evaluated = trained(env, 4)
    # Ends: none, environment 1, environment 0, environment 1 again.
    np.testing.assert_array_equal(rows, [math.nan, 2.5, 3.5, 2.5])
    assert evaluated["eval_age_mean"] == evaluated["eval_length_mean"] + 0.5 == 3.0


@pytest.mark.parametrize("mode", MODES)
def test_on_the_host(mode):
    gymnasium_fakes.register()
    options = {"num_envs": 3, "autoreset": mode, "max_episode_steps": 6, "vectorization": "sync"}
    with tfrl.make_env("gymnasium:tfrl_fakes/Scripted-v0", info_fields=("age",), **options) as env:
        assert env.info_fields == ("age",)
        rows, evaluated = trained(env, 3)
    assert any(not math.isnan(x) and x % 1 in (0.5, 0.0, 0.25, 0.75) for x in rows)
    np.testing.assert_allclose(evaluated["eval_age_mean"], evaluated["eval_length_mean"] + 0.5)


@pytest.mark.parametrize("vectorization", ["sync", "native"])
@pytest.mark.parametrize("mode", MODES)
def test_a_field_that_no_episode_has(mode, vectorization, monkeypatch):
    """It counts as 0, and one warning has the keys that are there."""
    monkeypatch.setattr(gymnasium, "_warned", set())
    task = f"Native{mode.title().replace('_', '')}" if vectorization == "native" else "Scripted"
    options = {"num_envs": 3, "autoreset": mode, "vectorization": vectorization}
    keys = "age, text" if vectorization == "sync" else ".*"
    with (
        tfrl.make_env(
            f"gymnasium:tfrl_fakes/{task}-v0",
            info_fields=("aeg",),
            max_episode_steps=6 if vectorization == "sync" else None,
            **options,
        ) as env,
        pytest.warns(
            UserWarning, match=f"no ended episode had 'aeg' so far, .* episode: {keys}."
        ) as warned,
    ):
        state = env.reset(0)
        values = []
        for _ in range(5):
            state = env.step(state, np.zeros(3, np.int64))
            values += state.info["aeg"].tolist()
    assert set(values) == {0.0} and len(warned) == 1
    tfrl.envs.check_env(env.copy(3))


def test_a_field_that_is_not_there():
    with pytest.raises(UserError) as error:
        tfrl.make_env("tf:Catch", num_envs=2, info_fields=("success",))
    assert str(error.value).startswith("info_fields of Catch(")
    assert "expected names in the task's info, which has none, got success." in str(error.value)
