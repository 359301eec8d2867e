"""What gin can reach, and that every shipped gin file stands."""

import pathlib
import pickle

import gin
import gymnasium
import pytest
import tensorflow as tf

from tests.agents import registered
from tfrl import networks, specs
from tfrl.agents import ActorCritic, MultiAgent, OffPolicy
from tfrl.distributions import SquashedGaussian
from tfrl.envs import wrappers
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.launch import api, gin_files, gin_registry, settings
from tfrl.ops import schedules
from tfrl.workflows import (
    ERLWorkflow,
    EvolutionWorkflow,
    OffPolicyWorkflow,
    OnPolicyWorkflow,
    PBTWorkflow,
)

FOLDER = gin_files.package_gin_dir()
# Shared parts are called base; each must be included by a file that runs.
SHIPPED = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*.gin"))
# Those in tune/ are search spaces.
TASKS = [n for n in SHIPPED if not n.endswith("base.gin") and not n.startswith("tune/")]
OF_EVOLUTION = {"erl": ERLWorkflow, "evolution": EvolutionWorkflow, "pbt": PBTWorkflow}
REPLAYED = {cls.__name__.lower() for cls in registered.OFF_POLICY}


def _families(name):
    """Algorithm; suite and kind of task. Files that share them differ in numbers only."""
    kind = next((k for k in ("minatar", "_ant") if k in name), "")
    algorithm, _, file = name.partition("/")
    if algorithm == "tf_agents":  # the agents are theirs
        return {algorithm}
    return {algorithm, (file.partition("_")[0], kind)}


def _needs_jax(name):
    return "env_id = 'jax/" in (FOLDER / name).read_text()


def _one_of_each():
    seen, chosen = set(), set()
    for name in sorted((n for n in TASKS if not _needs_jax(n)), key=len):
        if not _families(name) <= seen:
            seen |= _families(name)
            chosen.add(name)
    return chosen


# Every algorithm and every suite but JAX's, which may be absent; the slow tests build the others.
BUILT = _one_of_each()


@pytest.mark.parametrize("name", TASKS)
def test_shipped_files_name_what_exists(name):
    gin_files.parse([name])
    assert any("total_env_steps" in bindings for bindings in gin_registry.bound().values())


@pytest.mark.parametrize(
    "name", [n if n in BUILT else pytest.param(n, marks=pytest.mark.slow) for n in TASKS]
)
def test_shipped_files_build_and_their_operative_configuration_builds_the_same(name, tmp_path):
    if _needs_jax(name):
        pytest.importorskip("jax", reason="the extra 'jax' is not installed")
    if name.startswith("tf_agents/"):
        pytest.importorskip("tf_agents", reason="the extra 'tf-agents' is not installed")
    made = settings.assemble([name])
    if name.split("/")[0] in REPLAYED:
        assert isinstance(made.workflow, OffPolicyWorkflow)
        assert isinstance(made.workflow.agent, OffPolicy)
    elif name.split("/")[0] in OF_EVOLUTION:
        assert isinstance(made.workflow, OF_EVOLUTION[name.split("/")[0]])
    elif name.startswith("tf_agents/"):
        kind = OffPolicyWorkflow if made.workflow.agent.learns_from_replay else OnPolicyWorkflow
        assert isinstance(made.workflow, kind)
        assert made.workflow.agent.algorithm in ("DdqnAgent", "PPOClipAgent", "SacAgent")
    else:
        assert isinstance(made.workflow, OnPolicyWorkflow)
        assert isinstance(made.workflow.agent, ActorCritic | MultiAgent)
    first = gin_registry.operative_config()
    stored = tmp_path / "operative_config.gin"
    stored.write_text(first)
    again = settings.assemble([str(stored)])
    assert gin_registry.operative_config() == first
    if name.startswith("tf_agents/"):  # an agent of theirs is an object, and equals itself only
        assert again.workflow.agent.algorithm == made.workflow.agent.algorithm
    else:
        assert again.workflow.agent == made.workflow.agent
    if isinstance(made.workflow.env, HostEnv):  # two things on the host are never one
        assert repr(again.workflow.env) == repr(made.workflow.env)
    else:
        assert again.workflow.env == made.workflow.env
    assert again.workflow.describe() == made.workflow.describe()
    assert again.replace(workflow=made.workflow) == made
    api.check_environments(made.workflow, seed=0)
    for workflow in (made.workflow, again.workflow):
        workflow.close()


@pytest.mark.parametrize(
    "bindings",
    [
        {"make_env.num_envs": 4, "PPO.discount": 0.9, "OnPolicyWorkflow.agent": "@PPO"},
        ["make_env.num_envs = 4", "PPO.discount = 0.9", "OnPolicyWorkflow.agent = @PPO"],
    ],
)
def test_a_workflow_from_files_and_bindings(bindings):
    made = settings.build_from_config(pathlib.Path("ppo/tf_cartpole.gin"), bindings)
    assert (made.env.num_envs, made.agent.discount) == (4, 0.9)
    lines = ["make_env.num_envs = 4", "PPO.discount = 0.9"]
    same = settings.assemble(["ppo/tf_cartpole.gin"], lines).workflow
    assert (made.agent, made.env, made.describe()) == (same.agent, same.env, same.describe())
    with pytest.raises(UserError, match="PPO.discont"):
        settings.build_from_config(["ppo/tf_cartpole.gin"], {"PPO.discont": 0.9})


def test_a_keras_optimizer_of_gin():
    bindings = {"ModuleConfig.optimizer": "@keras.optimizers.Adagrad()"}
    made = settings.build_from_config("ppo/tf_cartpole.gin", bindings)
    assert type(made.learner_config.optimizer).__name__ == "Adagrad"


def test_references_in_dicts_and_tuples():
    bindings = {
        "ModuleConfig.optimizer": {"ppo": "@optimizers.RMSprop()"},
        "make_env.wrappers": ("@wrappers.RewardScale",),
        "RewardScale.scale": 2.0,
    }
    made = settings.build_from_config("ppo/tf_cartpole.gin", bindings)
    assert type(made.learner_config.optimizer["ppo"]).__name__ == "RMSprop"


@pytest.mark.parametrize("bindings", [None, 3])
def test_what_is_no_binding(bindings):
    with pytest.raises(UserError, match="bindings: expected a sequence of names, got"):
        settings.build_from_config("ppo/tf_cartpole.gin", bindings)


def test_every_base_file_is_included():
    included = "\n".join((FOLDER / name).read_text() for name in SHIPPED)
    for name in [n for n in SHIPPED if n.endswith("base.gin")]:
        assert f"include '{name}'" in included
    assert {"ppo/tf_cartpole.gin", "ppo/tf_pendulum.gin"} <= set(TASKS)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_cite_their_source_and_name_units(name):
    text = (FOLDER / name).read_text()
    assert "https://" in text or "base.gin" in text.split("\n\n")[0]
    for line in text.splitlines():
        if "env_steps =" in line or "interval =" in line:
            assert "# agent steps" in line


@pytest.mark.needs("tf_agents")
def test_a_name_of_ours_is_ours_though_tf_agents_has_it_too():
    from tf_agents.environments import wrappers as theirs

    made = settings.assemble(
        ["ppo/tf_cartpole.gin"],
        ["make_env.wrappers=(@ActionRepeat,)", "ActionRepeat.repeat=2"],
    )
    assert isinstance(made.workflow.env.env, wrappers.ActionRepeat)
    found = gin_registry.find("tf_agents.environments.wrappers.ActionRepeat", "here")
    assert found.wrapped is not wrappers.ActionRepeat and theirs.ActionRepeat is not None


def test_every_wrapper_can_be_named():
    names = [name for name in wrappers.__all__ if not name.startswith("Episode")]
    references = ", ".join(f"@wrappers.{name}" for name in names)
    gin_files.parse(
        ["ppo/tf_pendulum.gin"],
        [f"make_env.wrappers=({references})", "ObservationStack.num=3", "RewardScale.scale=0.25"],
    )
    assert len(names) >= 10
    with pytest.raises(UserError, match="a parameter of ActionRepeat, got 'env'"):
        gin_files.parse([], ["ActionRepeat.env=3"])


def test_one_wrapper_without_brackets_is_told():
    with pytest.raises(UserError) as error:
        settings.assemble(["ppo/tf_cartpole.gin"], ["make_env.wrappers=@ActionRepeat"])
    assert str(error.value).startswith(
        "make_env.wrappers: expected a tuple of wrappers, innermost first, got "
    )
    assert "Write (@ClipAction,) for one wrapper, with parentheses and a comma." in str(error.value)


def test_wrappers_of_gin_can_go_to_processes():
    made = settings.assemble(
        ["ppo/gymnasium_pendulum.gin"],
        ["make_env.num_envs=2", "make_env.wrappers=(@RescaleAction, @ClipAction)"]
        + ["RescaleAction.min_action=-1", "RescaleAction.max_action=1"],
    )
    sent = pickle.loads(pickle.dumps(made.workflow.env.backend._source.wrappers))
    made.workflow.close()
    assert [wrap.func for wrap in sent] == [
        gymnasium.wrappers.RescaleAction,
        gymnasium.wrappers.ClipAction,
    ]
    assert sent[0].keywords == {"min_action": -1, "max_action": 1}


def test_games_are_evaluated_whole():
    made = settings.assemble(["ppo/envpool_breakout.gin"], ["eval/make_env.num_envs=2"])
    found = [env.backend._arguments[2] for env in (made.workflow.env, made.workflow.eval_env)]
    made.workflow.close()
    assert found == [{"episodic_life": True, "reward_clip": True}, {}]


def test_wrappers_are_put_around_the_environment():
    made = settings.assemble(
        ["ppo/tf_pendulum.gin"],
        [
            "make_env.wrappers=(@ActionRepeat,)",
            "make_env.outer_wrappers=(@RewardScale,)",
            "ActionRepeat.repeat=4",
            "RewardScale.scale=0.25",
        ],
    )
    outer = made.workflow.env
    assert isinstance(outer, wrappers.RewardScale)
    assert isinstance(outer.env, wrappers.Episode)
    assert isinstance(outer.env.env, wrappers.ActionRepeat)
    assert outer.env.env.repeat == 4
    assert outer.max_episode_steps == 50


def test_networks_and_distributions():
    made = settings.assemble(
        ["ppo/tf_pendulum.gin"],
        [
            "PPO.policy=@make_policy",
            "PPO.value=@make_value",
            "make_value.torso=@MLP()",
            "MLP.hidden=(16,)",
            "make_policy.torso=@make_torso",
            "make_torso.hidden=(32, 32)",
            "make_torso.activation='relu'",
            "make_distribution.squash=True",
            "PPO.entropy_coef=[[0, 0.01], [1000, 0.0]]",
        ],
    )
    agent = made.workflow.agent
    assert agent.value_network == networks.ValueNetwork(torso=networks.MLP(hidden=(16,)))
    assert isinstance(agent.policy_network.torso, networks.ObservationTorso)
    assert agent.policy_network.torso.body == networks.MLP(hidden=(32, 32), activation="relu")
    state = made.workflow.setup(0)
    assert isinstance(
        agent.policy_network.apply(
            made.workflow.agent_state(state).params["policy"], state.env_state.obs
        ),
        SquashedGaussian,
    )


@pytest.mark.parametrize("torso", ["NatureCNN", "ImpalaCNN"])
def test_convolutions_can_be_named(torso):
    gin_files.parse([], [f"make_policy.torso=@{torso}()", f"{torso}.hidden=64"])
    policy = gin.get_configurable("make_policy")(
        tf.TensorSpec([84, 84, 4], tf.uint8), specs.to_spec(gymnasium.spaces.Discrete(3))
    )
    assert policy.torso == getattr(networks, torso)(hidden=64)


@pytest.mark.parametrize(
    "binding",
    [
        "LinearSchedule.start=0.1",  # The file has the rest.
        "CosineSchedule:\n  start=1.0\n  end=0.0\n  steps=10",
        "ExponentialSchedule:\n  start=1.0\n  rate=0.5\n  steps=10",
        "PiecewiseLinearSchedule.points=[[0, 1.0], [10, 0.0]]",
    ],
)
def test_schedules(binding, tmp_path):
    name = binding.partition(".")[0].partition(":")[0]
    path = tmp_path / "mine.gin"
    path.write_text(f"include 'ppo/tf_cartpole.gin'\nPPO.entropy_coef = @{name}()\n{binding}\n")
    agent = settings.assemble([str(path)]).workflow.agent
    assert agent.entropy_coef == getattr(schedules, name)(**vars(agent.entropy_coef))


def test_a_replaced_part_of_a_file_may_go_unread():
    made = settings.assemble(["ppo/tf_cartpole.gin"], ["ModuleConfig.lr=1e-3"])
    assert made.workflow.learner_config.lr == 1e-3
    assert "LinearSchedule" not in gin.operative_config_str()
    with pytest.raises(UserError, match="^Gin binding LinearSchedule.steps: expected bindings th"):
        settings.assemble(
            ["ppo/tf_cartpole.gin"], ["ModuleConfig.lr=1e-3", "LinearSchedule.steps=7"]
        )
    with pytest.raises(UserError, match="^Gin binding CosineSchedule.steps: "):
        settings.assemble(["ppo/tf_cartpole.gin"], ["CosineSchedule.steps=7"])


def test_a_random_agent_has_nothing_to_learn_but_is_there():
    assert gin_registry.find("RandomAgent", "test").selector == "agents.RandomAgent"


def test_missing_bindings_are_named():
    with pytest.raises(UserError, match="^Gin bindings train.total_env_steps, train.workflow: "):
        settings.assemble([])
    with pytest.raises(UserError, match="^Gin binding make_env.env_id: expected a value, since"):
        settings.assemble(
            [],
            [
                "train.total_env_steps=1",
                "train.workflow=@OnPolicyWorkflow()",
                "OnPolicyWorkflow.env=@make_env()",
                "OnPolicyWorkflow.agent=@PPO",
            ],
        )


def test_an_error_of_the_code_is_no_mistake_of_the_users():
    def fails():
        raise TypeError("other() missing 1 required positional argument: 'x'")

    with pytest.raises(TypeError):
        gin_files.call(fails)


def test_configurations_compare_values_not_macros():
    bindings = ["n=4", "make_env.num_envs=%n", "make_env.env_id='tf:CartPole-v1'"]
    gin_files.parse([], bindings)
    gin.get_configurable("make_env")()
    with_macro = gin_registry.configuration()
    gin_files.parse([], ["make_env.num_envs=4", "make_env.env_id='tf:CartPole-v1'"])
    gin.get_configurable("make_env")()
    assert gin_registry.configuration() == with_macro == {
        "make_env.num_envs": "4",
        "make_env.env_id": "'tf:CartPole-v1'",
    }  # fmt: skip
