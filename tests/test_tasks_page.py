"""The page of the device tasks says what the code does."""

import inspect
import pathlib

import tfrl
from tfrl.envs import env_ids
from tfrl.envs.core import Env
from tfrl.envs.multi_agent import MultiAgentEnv

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "tasks.md"


def shape(spec):
    return f"{spec.dtype.name} {spec.shape.as_list()}"


def cells(env_id):
    env = tfrl.make_env(env_id)
    obs, action = env.obs_spec, env.action_spec
    if isinstance(env.unwrapped, MultiAgentEnv):
        seen = f"{shape(next(iter(obs.values())))}, of {len(obs)} agents"
        action = next(iter(action.values()))
    elif isinstance(obs, dict):
        seen = f"{shape(obs['observation'])} and a mask"
    else:
        seen = shape(obs)
    choices = getattr(action, "num_values", None)
    named = inspect.signature(type(env.unwrapped)).parameters.items()
    options = [f"`{n}={p.default!r}`" for n, p in named if n != "num_envs"]
    return [
        f"`{env_id}`",
        seen,
        str(choices) if choices else shape(action),
        str(env.max_episode_steps or "none"),
        ", ".join(options),
    ]


def test_the_table_is_that_of_the_code():
    rows = [r.strip("|\n ") for r in PAGE.read_text().splitlines() if r.startswith("| `tf:")]
    found = {r.split(" | ")[0]: [c.strip() for c in r.split(" | ")] for r in rows}
    ids = [i for i in env_ids() if i.startswith("tf:")]
    assert sorted(found) == sorted(f"`{i}`" for i in ids)
    for env_id in ids:
        assert found[f"`{env_id}`"] == cells(env_id)


def test_all_can_be_drawn():
    for env_id in env_ids():
        if env_id.startswith("tf:"):
            env = tfrl.make_env(env_id).unwrapped
            assert type(env).render is not Env.render, env_id
