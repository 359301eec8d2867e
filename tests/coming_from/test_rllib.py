"""What readers of RLlib's Learner know, run row by row; and RLlib's own tests in our words.

Left out of `rllib/core/learner/tests/test_learner.py`: the loop over frameworks, since there is
one. Of `utils/metrics/tests`: Ray actors (`merge` and `take` are in tests/metrics), arithmetic on
`Stats` and their reduce history, since results are numbers, values of torch. Of
`test_minibatch_utils.py`: `ShardEpisodesIterator`, since processes give episodes of their own.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.coming_from import pages, rllib_items
from tests.learners.learner_fakes import PLAIN, Dot, built, column, sgd
from tfrl import learners, ops, struct
from tfrl.episodes import SingleAgentEpisode
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import (
    ALL_MODULES,
    DEFAULT_MODULE_ID,
    DEFAULT_OPTIMIZER,
    Learner,
    LearnerConfig,
    ModuleConfig,
    plan_minibatches,
)
from tfrl.learners.minibatches import minibatch_indices
from tfrl.metrics import MetricsLogger

ENV = tfrl.make_env("tf:CartPole-v1")
CONFIG = LearnerConfig("PPO", {"hidden": (8,)}, ModuleConfig(lr=1e-3))
ROWS = {"a": column([1, 2], [3, 4]), "b": column([5, 6], [7, 8])}
rows_with = pages.Rows(rllib_items.ITEMS)


class Hooks(Learner):
    """Notes which hooks run, eagerly."""

    calls = ()

    def _note(self, name):
        self.calls = (*self.calls, name)

    def compute_losses(self, **kwargs):
        self._note("losses")
        return super().compute_losses(**kwargs)

    def compute_loss_for_module(self, module_id, update, params, state, batch, key):
        self._note(f"loss {module_id}")
        self.metrics.log_value((module_id, "loss_value"), tf.reduce_mean(batch["w"]), window=1)
        return super().compute_loss_for_module(module_id, update, params, state, batch, key)

    def compute_gradients(self, loss_per_module, gradient_tape, params):
        self._note("gradients")
        if tf.executing_eagerly():
            losses = [loss_per_module[m] for m in loss_per_module if m != ALL_MODULES]
            np.testing.assert_allclose(loss_per_module[ALL_MODULES], sum(losses))
        return super().compute_gradients(loss_per_module, gradient_tape, params)

    def postprocess_gradients(self, gradients_dict):
        self._note("postprocess")
        return super().postprocess_gradients(gradients_dict)

    def postprocess_gradients_for_module(self, module_id, config, gradients_dict):
        self._note(f"postprocess {module_id}")
        return super().postprocess_gradients_for_module(module_id, config, gradients_dict)

    def apply_gradients(self, gradients_dict):
        self._note("apply")
        super().apply_gradients(gradients_dict)

    def before_gradient_based_update(self, *, timesteps):
        self._note("before")

    def after_gradient_based_update(self, *, timesteps):
        self._note("after")

    def on_update_begin(self, *, timesteps):
        self._note("begin")

    def on_update_end(self, *, timesteps, results):
        self._note("end")


@pytest.fixture(scope="module")
def learner():
    made = built({"a": Dot(), "b": Dot()}, Hooks)
    made.metrics.log_value("own", 3, window=1)
    made.update_from_batch(ROWS, timesteps={"num_env_steps_sampled_lifetime": 9}, compile="eager")
    return made


def test_the_page_has_the_table_of_the_list():
    assert len(rllib_items.ITEMS) == 103  # of the reading of RLlib, line by line
    assert pages.shown("docs/learner.md", "rllib") == pages.table("RLlib", rllib_items.ITEMS)
    for name, here, note in rllib_items.ITEMS:
        assert name and here and "|" not in name + here + note
        assert not (here == "the same" and note), name


def test_every_row_is_run():
    assert rows_with.not_run() == []


@rows_with(
    *("compute_losses(fwd", "compute_loss_for_module", "compute_gradients(", "order: before"),
    *("`postprocess_gradients", "`apply_gradients(", "update(timesteps)"),
)
def test_hooks_in_their_order(learner):
    assert learner.calls == (
        *("begin", "before", "losses", "loss a", "loss b", "gradients"),
        *("postprocess", "postprocess a", "postprocess b", "apply", "after", "end"),
    )


@rows_with(
    *("DEFAULT_OPTIMIZER`, `ALL", "POLICY_LOSS_KEY", "WEIGHTS_SEQ_NO", "NUM_TRAINABLE"),
    *("MODULE_TRAIN", "NUM_MODULE_STEPS", "NUM_ENV_STEPS_TRAINED", "TOTAL_LOSS_KEY`: that"),
    *("returns `metrics.reduce()`", "timesteps={NUM", "`weights_seq_no` += 1", "`metrics`"),
    *("`log_value` in losses", "leaves are", "`MultiAgentBatch`"),
)
def test_metrics_of_an_update(learner):
    found = learner.update_from_batch(ROWS, 2, 1, timesteps=12)
    row, both = found["a"], found[ALL_MODULES]
    assert (DEFAULT_MODULE_ID, DEFAULT_OPTIMIZER) == ("default_policy", "default_optimizer")
    names = ("POLICY_LOSS_KEY", "VF_LOSS_KEY", "ENTROPY_KEY", "LR_KEY", "TOTAL_LOSS_KEY")
    keys = [getattr(learners, n) for n in names]
    assert keys == ["policy_loss", "value_loss", "entropy", "learning_rate", "loss"]
    assert row[learners.NUM_MODULE_STEPS_TRAINED] == 4
    assert row[learners.NUM_MODULE_STEPS_TRAINED_LIFETIME] == 2 + 4
    assert 1 < row[learners.MODULE_TRAIN_BATCH_SIZE_MEAN] < 2  # a moving average
    assert both[learners.NUM_ENV_STEPS_TRAINED] == 4
    assert both[learners.NUM_ENV_STEPS_TRAINED_LIFETIME] == 6
    lifetime = (ALL_MODULES, learners.NUM_ENV_STEPS_TRAINED_LIFETIME)
    assert learner.metrics.peek(lifetime, throughput=True) > 0
    assert row[learners.WEIGHTS_SEQ_NO] == both[learners.WEIGHTS_SEQ_NO] == 2
    assert row[learners.NUM_TRAINABLE_PARAMETERS] == 2
    assert both["env_steps"] == 12 and row["loss_value"] in (1.5, 3.5)
    assert "own" not in found  # in the results of the first update
    root = MetricsLogger()
    root.merge([learner.metrics])
    assert root.peek(("a", learners.NUM_MODULE_STEPS_TRAINED_LIFETIME)) == 6


@pytest.mark.parametrize("mode", ["graph", "xla", "eager"])
@pytest.mark.parametrize("size", [4, 2])
def test_what_two_replicas_log_is_what_one_logs(mode, size):
    class Logging(Learner):
        def compute_loss_for_module(self, module_id, update, params, state, batch, key):
            x = batch["w"][:, 0]
            settings = {"reduce": "sum", "clear_on_reduce": True}
            self.metrics.log_value((module_id, "rows"), tf.shape(x)[0], **settings)
            self.metrics.log_value((module_id, "last"), tf.reduce_mean(x), window=1)
            self.metrics.log_value((module_id, "least"), tf.reduce_min(x), reduce="min")
            self.metrics.log_dict({"greatest": tf.reduce_max(x)}, key=module_id, reduce="max")
            return super().compute_loss_for_module(module_id, update, params, state, batch, key)

    expected = {"rows": 4, "last": {4: 4.0, 2: 6.0}[size], "least": 1.0, "greatest": 7.0}
    rows = column([1, 2], [3, 4], [5, 6], [7, 8])
    for strategy in (None, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
        learner = built(Dot(), Logging, strategy=strategy)
        found = learner.update_from_batch(rows, minibatch_size=size, shuffle=False, compile=mode)
        row = found[DEFAULT_MODULE_ID]
        assert {name: row[name] for name in expected} == expected


@rows_with("`framework`", "`device`", "`distributed`", "`module` (", "`apply(func", "`clone`")
def test_what_a_learner_is(learner):
    assert learner.framework == "tf2" and "CPU" in learner.device and not learner.distributed
    assert list(learner.modules) == ["a", "b"] and learner.module_state("a").params["w"].shape == 2
    assert learner.apply(lambda own, x: own is learner and x, 3) == 3
    other = learner.clone()
    np.testing.assert_array_equal(other.get_parameters("a")[0], learner.get_parameters("a")[0])


@rows_with(
    *("`register_optimizer(", "`_check_registered", "`configure_optimizers", "`get_optimizer"),
    *("`filter_param_dict", "`get_param_ref`", "`get_parameters(", "`_get_optimizer_lr`"),
    *("`get_optimizers_for_module", "schedules `[[0", "learning rates are set", "`log_gradients`"),
)
def test_optimizers():
    class Own(Learner):
        def configure_optimizers(self):
            super().configure_optimizers()
            params = (p for m in ("x", "y") for p in self.get_parameters(m))  # any iterable
            rate = [[0, 1.0], [100, 0.0]]
            optimizer = keras.optimizers.legacy.SGD()
            self.register_optimizer(ALL_MODULES, "joint", optimizer, params, rate)

        def configure_optimizers_for_module(self, module_id):
            if module_id == "z":
                super().configure_optimizers_for_module(module_id)

    learner = built({m: Dot() for m in "xyz"}, Own)
    ((name, joint),) = learner.get_optimizers_for_module()
    assert name == "joint" and joint is learner.get_optimizer(ALL_MODULES, "joint")
    own = learner.get_optimizer("z", DEFAULT_OPTIMIZER)
    assert own is learner.get_optimizer("z") is learner.get_optimizer("z", "z_default_optimizer")
    with pytest.raises(KeyError):
        learner.get_optimizer("z", "other")
    (param,) = learner.get_parameters("x")
    grads = {learner.get_param_ref(p): p for m in "xz" for p in learner.get_parameters(m)}
    assert list(learner.filter_param_dict_for_optimizer(grads, joint)) == [param.ref()]
    found = learner.update_from_batch({"x": column([1, 0])}, timesteps=50, compile="eager")["x"]
    assert found["learning_rate"] == 0.5 and found["grad_norm"] == 1.0  # at 50, before the steps
    np.testing.assert_array_equal(learner.get_parameters("x")[0], [0.5, 1.0])
    learner.get_optimizer("z").learning_rate.assign(0.25)


@rows_with(
    *("`add_module(", "`validate_module_id`", "`remove_module", "`should_module_be_updated("),
    *("`policies_to_train` of", "unknown modules", "modules not to be updated"),
)
def test_modules_come_and_go():
    learner = built({"a": Dot(), "b": Dot()}, Hooks)
    module = Dot()
    assert learner.add_module("c", module, policies_to_train=["c"]) is module
    assert [m for m in "abc" if learner.should_module_be_updated(m)] == ["c"]
    assert learner.update_from_batch({"a": ROWS["a"]}) and learner.calls == ("begin", "end")
    learner.train_only(lambda module_id, rows: module_id == "a")
    assert learner.should_module_be_updated("a") and not learner.should_module_be_updated("b")
    learner.train_only(None)
    learner.update_from_batch({"c": ROWS["a"]}, compile="eager")
    assert learner.remove_module("c") is module and "c" not in learner.metrics.peek()
    for wrong in (
        lambda: learner.add_module("a/b", Dot()),
        lambda: learner.update_from_batch({"c": 1}),
    ):
        with pytest.raises(ValueError):
            wrong()


@rows_with(
    *("`get_state(", "state[", "`weights_seq_no` in", "`set_state`", "`set_state({"),
    *("COMPONENT_OPTIMIZER", "get_ctor_args", "`save_to_path`", "_get_optimizer_state"),
)
def test_state(learner, tmp_path):
    state = learner.get_state()
    assert set(state) >= {learners.COMPONENT_RL_MODULE, "optimizer", "metrics", "weights_seq_no"}
    assert learners.COMPONENT_METRICS_LOGGER in state and learners.COMPONENT_OPTIMIZER in state
    assert state["should_module_be_updated"] is None
    other = built({"a": Dot(), "b": Dot()}, policies_to_train=["b"])
    assert other.get_state("rl_module")["weights_seq_no"] == 0
    other.set_state(state)
    assert other.policies_to_train is None
    weights = {learners.COMPONENT_RL_MODULE: {"a": {"params/w": np.float32([7, 8])}}}
    other.set_state(weights)
    number = int(other.weights_seq_no)
    other.set_state({**state, "weights_seq_no": number}, only_newer_weights=True)
    np.testing.assert_array_equal(other.get_parameters("a")[0], [7, 8])
    other.set_state(learner.get_state("optimizer"))
    learner.save_to_path(tmp_path / "saved")
    other.weights_seq_no.assign(0)
    other.train_only(["a"])
    other.restore_from_path(tmp_path / "saved", component="rl_module/a")
    assert int(other.weights_seq_no) == int(learner.weights_seq_no) > 0
    assert other.policies_to_train == ["a"]
    np.testing.assert_array_equal(other.get_parameters("a")[0], learner.get_parameters("a")[0])
    found = Learner.from_checkpoint(tmp_path / "saved", optimizer_fn=sgd)
    names = [name for name, _ in found.get_checkpointable_components()]
    assert names == ["rl_module/a", "rl_module/b"] + [
        f"optimizer/{m}/default_optimizer" for m in "ab"
    ]


@rows_with(
    *("`update_from_batch(", "`shuffle_batch", "`minibatch_size` need", "`num_epochs` without"),
    *("`_convert_batch_type`", "num_total_minibatches=0", "`_update(batch)`", "sequences are cut"),
)
def test_updates_from_batches():
    learner = built(Dot(), remainder="wrap")
    batch = {"w": np.ones([5, 2]), "i": np.arange(5)}  # of NumPy's dtypes
    options = {"num_total_minibatches": 0, "shuffle_batch_per_epoch": False}
    row = learner.update_from_batch(batch, minibatch_size=2, **options)["default_policy"]
    assert row["gradient_steps"] == 3 and round(row["rows"] * 3) == 1 + 5 + 4
    with pytest.raises(UserError, match="minibatch_size: expected a divisor"):
        learner.update_from_batch(batch, minibatch_size=2, remainder="error")
    row = learner.update_from_batch(batch, num_epochs=3)["default_policy"]
    assert row["gradient_steps"] == 3 and row["num_module_steps_trained"] == 15
    found = learner.update(
        {"w": tf.ones([4, 2])}, key=tf.constant([0, 0]), timesteps=tf.constant(1, tf.int64)
    )
    assert found["default_policy"]["loss"].shape == ()
    sequences = {"w": tf.ones([6, 2]), "seq_lens": tf.constant([3, 1])}  # two of them, T = 3
    assert learner.update_from_batch(sequences, minibatch_size=1, compile="eager")


@rows_with("`update_from_iterator", "DATASET_NUM_ITERS", "`iterator`")
def test_updates_from_iterators():
    learner = built(Dot(), Hooks)
    dataset = tf.data.Dataset.from_tensor_slices({"w": tf.ones([6, 2])}).batch(2)
    found = learner.update_from_iterator(dataset, compile="eager")[ALL_MODULES]
    assert found[learners.DATASET_NUM_ITERS_TRAINED] == 3 and learner.iterator is dataset
    assert [learner.calls.count(x) for x in ("begin", "before", "apply", "end")] == [1, 1, 3, 1]
    found = learner.update_from_iterator(dataset, 5, minibatch_size=1, compile="eager")
    assert found[ALL_MODULES][learners.DATASET_NUM_ITERS_TRAINED_LIFETIME] == 8
    assert found["default_policy"]["gradient_steps"] == 10


@rows_with(
    "`rl_module_is_compatible", "`rl_module_required_apis", "skips modules", "SelfSupervised"
)
def test_what_is_asked_of_modules():
    class Supervised(Dot):
        def compute_self_supervised_loss(self, params, state, batch, key):
            return 5.0 * tf.reduce_sum(params["w"])

    class Needs(Learner):
        @classmethod
        def rl_module_required_apis(cls):
            return [learners.SelfSupervisedLossAPI]

    learner = built({"a": Supervised(), "b": Dot()}, Needs, policies_to_train=["a"])
    assert not learner.rl_module_is_compatible(Dot())
    assert [m for m, *_ in learner.optimizer_entries()] == ["a"]
    assert learner.update_from_batch(ROWS, compile="eager")["a"]["loss"] == 10.0
    with pytest.raises(UserError, match="SelfSupervisedLossAPI"):
        Needs(Dot())


@rows_with("`_get_clip_function`", "`grad_clip`")
def test_clipping_is_a_hook():
    class Signs(Learner):
        def _get_clip_function(self):
            def clip(gradients_dict, *, grad_clip, grad_clip_by):
                gradients_dict.update(
                    {r: grad_clip * tf.sign(g) for r, g in gradients_dict.items()}
                )

            return clip

        def _get_global_norm_function(self):
            return lambda gradients: tf.reduce_max(tf.abs(gradients[0]))

    learner = built(Dot(), Signs, config=PLAIN.with_overrides({"grad_clip": 4.0}))
    row = learner.update_from_batch(column([2, -3]), compile="eager")["default_policy"]
    assert row["grad_norm"] == 3.0
    np.testing.assert_array_equal(learner.get_parameters()[0], [0.5, 1.5])


@rows_with(
    "`update_from_episodes",
    "`SingleAgentEpisode`",
    "learner connectors",
    "connector pipeline",
    "is_stateful",
)
@pytest.mark.parametrize("kind", ["off-policy", "recurrent", "own loss"])
def test_updates_from_episodes(kind):
    @struct.logic_dataclass
    class Own(learners.Module):
        def init_params(self, key):
            return {"w": tf.ones([4])}

        def forward(self, params, batch, key):
            return tf.linalg.matvec(batch["obs"], params["w"])

        def loss(self, params, batch, outputs, key):
            return ops.masked_mean(tf.square(outputs - batch["reward"]), batch["mask"])

    specs = {"obs_spec": ENV.obs_spec, "action_spec": ENV.action_spec, "hidden": (4,)}
    module = {
        "off-policy": lambda: tfrl.agents.DQN(**specs),
        "recurrent": lambda: tfrl.agents.PPO(**specs, memory="gru"),
        "own loss": Own,
    }[kind]()
    learner = Learner(module, config=ModuleConfig(lr=0.1))
    learner.build()
    assert learner.learner_connector is None
    before = [p.numpy() for p in trained(learner)]
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.ones(4, np.float32))
    for t in range(3):
        extra = {"log_prob": np.float32(-0.5)} if kind == "recurrent" else {}
        obs = np.full(4, t, np.float32)
        episode.add_env_step(obs, 1, 1.0, terminated=t == 2, extra_model_outputs=extra)
    row = learner.update_from_episodes([episode], compile="eager")["default_policy"]
    assert np.isfinite(row["loss"]) and "AddNStepTransitions" in str(learner.learner_connector)
    assert any(np.any(x != y) for x, y in zip(before, trained(learner), strict=True))
    assert row[learners.NUM_MODULE_STEPS_TRAINED] == (1 if kind == "recurrent" else 3)
    assert kind != "recurrent" or module.initial_carry(1) is not None
    if kind == "own loss":  # of the steps t: the mean of (4 x - 1)^2, x = 1, 0, 1
        assert row["loss"] == np.float32(19 / 3)


# Their `test_learner.py`.


@pytest.fixture(scope="module")
def agent_learner():
    return CONFIG.build_learner(env=ENV)


def trained(learner):
    return [p for p in learner.get_parameters() if p.dtype.is_floating]


@rows_with(
    *("`Learner(config", "`config.build_learner", "`TfLearner`", "`config.seed`", "`build()`"),
    *("`_check_is_built`", "`LearnerGroup`"),
)
def test_build(agent_learner):
    before = [p.numpy() for p in trained(agent_learner)]
    agent_learner.build(7)  # a second time
    for x, y in zip(before, trained(agent_learner), strict=True):
        np.testing.assert_array_equal(x, y)
    with pytest.raises(ValueError, match="Call learner.build"):
        Learner(Dot()).get_state()
    assert agent_learner.replicas.num_replicas == 1  # a strategy makes more


def test_end_to_end_update():
    class Cloning(Learner):
        def compute_loss_for_module(self, module_id, update, params, state, batch, key):
            policy = self.modules[module_id].policy_network.apply(params["policy"], batch["obs"])
            return -tf.reduce_mean(policy.log_prob(batch["action"]))

    learner = LearnerConfig("PPO", {"hidden": (8,)}, ModuleConfig(lr=0.05), Cloning).build_learner(
        ENV
    )
    obs = tfrl.seeding.normal(tfrl.seeding.key(1), [256, 4])
    rows = struct.TensorDict({"obs": obs, "action": tf.cast(obs[:, 2] > 0, tf.int32)})
    rows["advantage"] = tf.zeros([256])
    first = learner.update_from_batch(rows, minibatch_size=64)["default_policy"]["loss"]
    last = learner.update_from_batch(rows, 20, 64)["default_policy"]["loss"]
    assert first > 0.4 and last < 0.4  # from ln 2 on


def test_compute_gradients(agent_learner):
    params = trained(agent_learner)
    named = {agent_learner.get_param_ref(p): p for p in params}
    with tf.GradientTape() as tape:
        losses = {ALL_MODULES: tf.add_n([tf.reduce_sum(p) for p in params])}
    gradients = agent_learner.compute_gradients(losses, tape, named)
    assert list(gradients) == list(named)
    for g in gradients.values():
        np.testing.assert_array_equal(g, np.ones(g.shape))


@pytest.mark.parametrize(("by", "limit"), [("value", 0.75), ("norm", 1.0), ("global_norm", 5.0)])
def test_postprocess_gradients(agent_learner, by, limit):
    learner = agent_learner.clone()
    config = ModuleConfig(grad_clip=limit, grad_clip_by=by)
    learner.configs = {DEFAULT_MODULE_ID: config}
    given = {p.ref(): p + 1.0 for p in trained(learner)}
    found = learner.postprocess_gradients(given)
    total = math.sqrt(sum(float(tf.reduce_sum(g**2)) for g in given.values()))
    for ref, g in given.items():
        norm = float(tf.norm(g))
        by_hand = {
            "value": np.clip(g, -limit, limit),
            "norm": g * min(1.0, limit / norm),
            "global_norm": g * min(1.0, limit / total),
        }
        np.testing.assert_allclose(found[ref], by_hand[by], rtol=1e-5)


def test_apply_gradients_and_another_module():
    learner = CONFIG.build_learner(env=ENV)
    module = learner.modules[DEFAULT_MODULE_ID]
    learner.add_module("test", module, config_overrides={"lr": 0.5, "optimizer": "sgd"})
    learner.remove_module(DEFAULT_MODULE_ID)
    assert list(learner.modules) == ["test"]
    params = learner.get_parameters("test")
    expected = [p.numpy() - 3 * 0.5 for p in params]
    for _ in range(3):
        learner.apply_gradients({learner.get_param_ref(p): tf.ones_like(p) for p in params})
    for p, x in zip(params, expected, strict=True):
        np.testing.assert_allclose(p, x, rtol=1e-5, atol=1e-6)


def test_save_load_state(agent_learner, tmp_path):
    agent_learner.save_to_path(tmp_path / "one")
    other = LearnerConfig("PPO", {"hidden": (8,)}, seed=9).build_learner(env=ENV)
    other.restore_from_path(tmp_path / "one")
    for path, v in agent_learner.variables().items():
        np.testing.assert_array_equal(v, other.variables()[path])


# Their tests of metrics.


@rows_with("`log_value(key", "`log_dict`")
def test_log_value():
    logger = MetricsLogger()

    def logged(*values, **settings):
        for value in values:
            logger.log_value("key", value, **settings)
        found = logger.peek("key")
        assert logger.reduce()["key"] == found
        left = logger.peek("key")
        logger.delete("key")
        return found, left

    def close(found, expected, left=None):
        np.testing.assert_allclose(found[0], expected)
        np.testing.assert_allclose(found[1], expected if left is None else left)

    close(logged(0.1, 0.2), 0.101)
    close(logged(1.0, 2.0, 3.0, ema_coeff=0.5), 2.25)
    close(logged(0.1, 0.2, clear_on_reduce=True), 0.101, math.nan)
    close(logged(1, 2, 3, 4, window=3), 3.0)
    close(logged(1, 3, 2, 4, window=3, reduce="max"), 4)
    close(logged(1, 2, 3, window=2, reduce="sum"), 5)
    close(logged(1, 2, window=2, reduce="sum", clear_on_reduce=True), 3, 0)
    close(logged(10, 20, 5, 100, reduce="min"), 5)
    close(logged(0.3, 0.1, 0.2, reduce="min", clear_on_reduce=True), 0.1, math.nan)
    close(logged(1, 3, 2, reduce="max"), 3)
    close(logged(10, 20, reduce="sum"), 30)
    close(logged(10, 20, reduce="sum", clear_on_reduce=True), 30, 0)
    close(logged(1, 2, window=math.inf, clear_on_reduce=True), 1.5, math.nan)
    assert logged(5.0, 6.0, 7.0, reduce=None) == ([5, 6, 7], [])
    for wrong in (
        {"reduce": "invalid"},
        {"window": 2, "ema_coeff": 0.1},
        {"reduce": "sum", "ema_coeff": 0.1},
        {"window": math.inf},
        {"with_throughput": True},
    ):
        with pytest.raises(ValueError):
            logger.log_value("wrong", 0.1, **wrong)


def test_keys_dicts_and_times():
    clock = iter(np.arange(0.0, 100.0))
    logger = MetricsLogger(clock=lambda: float(next(clock)))
    logger.log_value(["deeply", "nested", "key"], 0.1)
    logger.log_value(("deeply", "nested", "key"), 0.2)
    np.testing.assert_allclose(logger.peek(("deeply", "nested", "key")), 0.101)
    logger.log_dict({"a": 1.0, "b": {"c": 2.0}}, key="m", window=1)
    logger.log_dict({"a": 3.0}, key=("m",), window=1)
    assert logger.peek("m") == {"a": 3.0, "b": {"c": 2.0}}
    with logger.log_time("seconds", reduce="sum"):
        pass
    with logger.log_time("seconds"):
        pass
    assert logger.peek("seconds") == 2.0
    logger.log_value("count", 10, reduce="sum", with_throughput=True)
    assert logger.peek("count", throughput=True) > 0
    assert logger.peek("absent", default=0.5) == 0.5
    other = MetricsLogger()
    other.set_state(logger.get_state())
    assert other.peek("m") == logger.peek("m")
    logger.delete("m", "b")
    assert logger.peek("m") == {"a": 3.0}
    logger.delete("m", "b", key_error=False)
    with pytest.raises(KeyError):
        logger.delete(("m", "b"))
    logger.reset()
    assert logger.reduce() == {}
    with pytest.raises(KeyError):
        logger.peek("m")


def test_loggers_merge():
    root, one, two = MetricsLogger(), MetricsLogger(), MetricsLogger()
    for logger, values in ((one, (1, 2, 3)), (two, (4, 5, 6))):
        for value in values:
            logger.log_value("window", value, window=3)
            logger.log_value("lifetime", value, reduce="sum")
    root.merge([one, two])
    assert root.peek("window") == (6 + 3 + 5) / 3  # the newest in turn
    one.log_value("lifetime", 9)
    root.merge([one, two.take()])
    assert root.peek("lifetime") == 21 + 9  # each value once


# Their `test_minibatch_utils.py`.


@rows_with("`MiniBatchCyclicIterator`")
@pytest.mark.parametrize(
    ("size", "epochs", "counts"),
    [(256, 30, (1652, 1463)), (128, 10, (1000, 2)), (128, 3, (56, 56)), (128, 10, (56, 3))],
)
def test_minibatches_of_modules_that_go_round(size, epochs, counts):
    rows = {f"pol{i}": n for i, n in enumerate(counts)}
    plan = plan_minibatches(rows, size, num_epochs=epochs, shuffle=False, remainder="wrap")
    # Theirs are ceil(epochs * rows / size) over all epochs; here every epoch has whole minibatches.
    assert plan.steps == epochs * math.ceil(max(counts) / size)
    for m, n in rows.items():
        taken = minibatch_indices(plan.modules[m], tf.constant([0, 0]))[: plan.steps].numpy()
        assert taken.shape == (plan.steps, size) and set(taken.ravel()) == set(range(n))
