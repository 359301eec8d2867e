"""Forms of the Learner that readers of RLlib know: names of optimizers, APIs, configuration."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.learners.learner_fakes import Dot, RegressionAgent, built, column, param, sgd
from tfrl import ops
from tfrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import (
    ALL_MODULES,
    DEFAULT_OPTIMIZER,
    Learner,
    LearnerConfig,
    ModuleConfig,
    ValueFunctionAPI,
)
from tfrl.learners.connectors import default_learner_pipeline
from tfrl.specs import BoundedTensorSpec

ROWS = column([1, 2])


def test_names_of_optimizers():
    learner = built({"a": RegressionAgent(), "b": Dot()})
    critic = learner.get_optimizer("a", "critic")
    assert learner.get_optimizer("a", DEFAULT_OPTIMIZER) is critic  # the first
    assert learner.get_optimizer("a", "a_critic") is critic
    assert learner.get_optimizer(optimizer_name="a_critic") is critic
    assert learner.get_optimizer("b") is learner.get_optimizer("b", DEFAULT_OPTIMIZER)
    assert learner.get_optimizers_for_module() == []
    for wrong in (("a", "actr"), ("c", "critic"), (ALL_MODULES, "critic"), ("a", None)):
        for kind in (KeyError, ValueError, UserError):
            with pytest.raises(kind, match="expected one of"):
                learner.get_optimizer(*wrong)


def test_those_registered_under_all_modules():
    class Joint(Learner):
        def configure_optimizers(self):
            params = [p for m in self.modules for p in self.get_parameters(m)]
            self.register_optimizer(ALL_MODULES, "joint", keras.optimizers.SGD(), params)

    learner = built({"a": Dot(), "b": Dot()}, Joint)
    ((name, found),) = learner.get_optimizers_for_module()
    assert name == "joint" and found is learner.get_optimizer(ALL_MODULES)
    assert learner.get_optimizers_for_module("a") == []


def as_property(self):
    return (ValueFunctionAPI,)


@pytest.mark.parametrize(
    "form", [property(as_property), classmethod(as_property), (ValueFunctionAPI,), as_property]
)
def test_required_apis_in_every_form(form):
    needs = type("Needs", (Learner,), {"rl_module_required_apis": form})
    with pytest.raises(UserError, match="which lacks ValueFunctionAPI"):
        needs(Dot())
    assert not needs({"a": Dot()}, policies_to_train=[]).rl_module_is_compatible(Dot())
    assert Learner.rl_module_required_apis() == () == Learner(Dot()).rl_module_required_apis


def test_a_module_that_is_not_compatible_is_held():
    class Valued(Dot):
        def compute_values(self, state, obs):
            return tf.zeros([1])

    needs = type("Needs", (Learner,), {"rl_module_required_apis": (ValueFunctionAPI,)})
    learner = built({"a": Valued(), "b": Dot()}, needs, policies_to_train=["a"])
    assert [m for m, *_ in learner.optimizer_entries()] == ["a"]
    assert set(learner.update_from_batch({"a": ROWS, "b": ROWS})) == {"a", ALL_MODULES}
    np.testing.assert_array_equal(param(learner, "b"), [1, 1])
    for chosen in (None, ["b"]):
        with pytest.raises(UserError, match="which lacks ValueFunctionAPI"):
            learner.train_only(chosen)
    learner.train_only(lambda module_id, rows: True)
    with pytest.raises(UserError, match="leave it out of policies_to_train"):
        learner.update_from_batch({"b": ROWS})
    learner.train_only(["a"])
    learner.add_module("c", Dot())
    assert learner.get_optimizers_for_module("c") == []


def test_small_things():
    learner = built({"a": Dot()})
    assert learner.framework == "tf2" and "CPU:0" in learner.device
    assert learner.apply(lambda own, x, y: (own, x + y), 1, y=2) == (learner, 3)
    names = [name for name, _ in learner.get_checkpointable_components()]
    assert names == ["rl_module/a", "optimizer/a/default_optimizer"]


def test_a_learner_out_of_settings():
    config = LearnerConfig("PPO", {"hidden": (8,)}, ModuleConfig(lr=0.5), seed=3)
    learner = config.build_learner(env="tf:CartPole-v1")
    learner.build()  # changes nothing
    again = config.build_learner(env=gymnasium.make("CartPole-v1"))
    for x, y in zip(learner.get_parameters(), again.get_parameters(), strict=True):
        np.testing.assert_array_equal(x, y)
    assert learner.configs["default_policy"].lr == 0.5
    env = tfrl.make_env("tf:Pendulum-v1")
    both = LearnerConfig({"a": tfrl.agents.SAC, "b": "TD3"}, learner_class=Learner)
    assert list(both.build_learner(env=env).modules) == ["a", "b"]
    with pytest.raises(UserError, match="Did you mean PPO"):
        LearnerConfig("PPOO").build_learner(env=env)
    with pytest.raises(UserError, match="no obs_spec and no action_spec"):
        config.build_learner()


def test_rows_that_do_not_divide_by_a_setting_of_the_learner(tmp_path):
    learner = built({"a": Dot()}, remainder="wrap")
    assert learner.update_from_batch(column(*[[1, 1]] * 5), 1, 2)["a"]["gradient_steps"] == 3
    learner.save_to_path(tmp_path / "save")
    found = Learner.from_checkpoint(tmp_path / "save", optimizer_fn=sgd)
    assert found.remainder == "wrap"
    with pytest.raises(UserError, match="remainder: expected one of error, pad, drop, wrap"):
        Learner(Dot(), remainder="round")


def test_arguments_as_in_rllib():
    learner = built({"a": Dot()})
    rows = {"w": tf.ones([4, 2]), "i": tf.range(4.0)}
    options = {"minibatch_size": 2, "num_total_minibatches": 1}
    timesteps = {"num_env_steps_sampled_lifetime": 9, "other": 1}
    found = learner.update_from_batch(
        rows, shuffle_batch_per_epoch=False, timesteps=timesteps, **options
    )
    assert found["a"]["rows"] == 1.0 and found[ALL_MODULES]["env_steps"] == 9


def episode(steps, terminated, seed=0, **extras):
    rng = np.random.default_rng(seed)
    made = SingleAgentEpisode()
    made.add_env_reset(np.float32([0, seed]))
    for t in range(steps):
        made.add_env_step(
            np.float32([t + 1, seed]),
            rng.integers(2),
            float(t + 1),
            terminated=terminated and t + 1 == steps,
            truncated=not terminated and t + 1 == steps,
            extra_model_outputs={name: x(t) for name, x in extras.items()},
        )
    return made


SPECS = {
    "obs_spec": tf.TensorSpec([2], tf.float32),
    "action_spec": BoundedTensorSpec([], tf.int32, 0, 1),
}


def test_episodes_of_an_off_policy_agent():
    agent = tfrl.agents.DQN(**SPECS, hidden=(4,), n_step=3, discount=0.5)
    pipeline = default_learner_pipeline({"a": agent})
    state = agent.init(tfrl.seeding.key(0))
    episodes = [episode(5, True), episode(4, False, seed=1)]
    call = dict(modules={"a": agent}, states={"a": state}, batch={}, shared_data={})
    batch = pipeline(episodes=episodes, **call)["a"]
    ended, cut = slice(0, 5), slice(5, 9)
    # r = 1, 2, 3, 4, 5: 1 + 2/2 + 3/4 and so on.
    np.testing.assert_allclose(batch["reward"][ended], [2.75, 4.5, 6.25, 6.5, 5.0])
    np.testing.assert_allclose(batch["discount"][ended], [0.125, 0.125, 0, 0, 0])
    np.testing.assert_allclose(batch["next_obs"][ended, 0], [3, 4, 5, 5, 5])
    np.testing.assert_allclose(batch["discount"][cut], [0.125, 0.125, 0.25, 0.5])
    np.testing.assert_allclose(batch["next_obs"][cut, 0], [3, 4, 4, 4])
    learner = Learner({"a": agent})
    learner.build()
    found = learner.update_from_episodes(episodes, minibatch_size=3)
    assert np.isfinite(found["a"]["loss"]) and found["a"]["gradient_steps"] == 3


def test_episodes_of_off_policy_agents_with_statistics():
    spec = {**SPECS, "action_spec": BoundedTensorSpec([], tf.float32, -1, 1)}
    learner = Learner(tfrl.agents.SAC(**spec, hidden=(4,), normalize_obs=True))
    learner.build()
    before = learner.state.normalizer.count.numpy()
    found = learner.update_from_episodes([episode(6, True)])
    assert np.isfinite(found["default_policy"]["critic/loss"])
    assert learner.state.normalizer.count.numpy() > before


def test_episodes_of_a_module_with_a_loss_of_its_own():
    class Cloning(Dot):
        def loss(self, params, batch, outputs, key):
            return ops.masked_mean(tf.square(outputs - batch["reward"]), batch["mask"])

        def forward(self, params, batch, key):
            return tf.linalg.matvec(batch["obs"], params["w"])

    learner = built(Cloning())
    found = learner.update_from_episodes([episode(3, True)])["default_policy"]
    # w = [1, 1], obs = [t, 0], reward = t + 1.
    assert found["loss"] == 1.0 and found["num_module_steps_trained"] == 3


def test_episodes_of_a_recurrent_agent():
    agent = tfrl.agents.PPO(**SPECS, hidden=(4,), memory="gru", memory_size=3)
    learner = Learner(agent)
    learner.build()
    zeros = tf.nest.map_structure(lambda x: np.asarray(x)[0], agent.initial_carry(1))
    extras = {"log_prob": lambda t: np.float32(-0.69), "state_out": lambda t: zeros}
    found = learner.update_from_episodes([episode(30, True, **extras), episode(5, False, **extras)])
    row = found["default_policy"]
    assert np.isfinite(row["loss"]) and row["num_module_steps_trained"] == 3  # sequences


def test_all_kinds_of_modules_together():
    agents = {
        "q": tfrl.agents.DQN(**SPECS, hidden=(4,)),
        "v": tfrl.agents.PPO(**SPECS, hidden=(4,)),
    }
    learner = Learner(agents)
    learner.build()
    made = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: agent)
    made.add_env_reset({m: np.float32([0, 0]) for m in agents})
    for t in range(4):
        made.add_env_step(
            {m: np.float32([t, 1]) for m in agents},
            dict.fromkeys(agents, 1),
            dict.fromkeys(agents, 1.0),
            terminated={"__all__": t == 3},
            extra_model_outputs={"v": {"log_prob": np.float32(-0.69)}},
        )
    found = learner.update_from_episodes([made])
    assert np.isfinite(found["q"]["loss"]) and np.isfinite(found["v"]["loss"])
