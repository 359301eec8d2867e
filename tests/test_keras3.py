"""Models, losses and optimizers of Keras 3, which is `tf.keras` from TensorFlow 2.16 on."""

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.tasks import small_tasks
from tfrl import distributions, keras, keras3, networks, seeding, struct
from tfrl.agents import PPO
from tfrl.errors import UserError
from tfrl.learners import KerasModule, Learner, Module, ModuleConfig
from tfrl.rollout import rollout
from tfrl.tasks import TaskWorkflow

KEY = seeding.key(5)
SPEC = tf.TensorSpec([2])
is_3 = tf.keras.Model is not keras.api.Model
only_3 = pytest.mark.skipif(not is_3, reason="needs Keras 3: TensorFlow 2.16 or later")
# Each Keras that there is.
KERAS = [keras.api, tf.keras] if is_3 else [keras.api]
X = seeding.normal(seeding.key(1), [64, 2])
LINE = {"x": X, "y": X[:, 0] - 2.0 * X[:, 1] + 0.5}


def small(K):
    """The net of `Native` in a Keras."""
    return K.Sequential([K.Input([2]), K.layers.Dense(8, "tanh"), K.layers.Dense(1)])


@struct.logic_dataclass
class Native(Module):
    """The same net in native layers."""

    net = networks.MLP(hidden=(8,))
    head = networks.MLP(hidden=(1,), activate_final=False)

    def init_params(self, key):
        keys = seeding.split(key, 2)
        hidden = tf.TensorSpec([8])
        return {
            "model": {"net": self.net.init(keys[0], SPEC), "head": self.head.init(keys[1], hidden)}
        }

    def forward(self, params, batch, key):
        params = params["model"]
        return self.head.apply(params["head"], self.net.apply(params["net"], batch["x"]))

    def loss(self, params, batch, outputs, key):
        return tf.reduce_mean(tf.square(outputs[:, 0] - batch["y"]))


def trained(module, start):
    """Losses of eight minibatch steps from given kernels and biases, and the values after them."""
    learner = Learner(module, config=ModuleConfig(lr=0.05, grad_clip=None))
    learner.build(KEY)
    params = learner.state.params["model"]
    for variable, value in zip(tf.nest.flatten(_ordered(params)), start, strict=True):
        variable.assign(value)
    losses = [
        learner.update_from_batch(LINE, num_epochs=2)["default_policy"]["loss"] for _ in range(4)
    ]
    return losses, [v.numpy() for v in tf.nest.flatten(_ordered(params))]


def _ordered(params):
    if "params" in params:
        return list(params["params"].values())
    layers = [params["net"]["layer_0"], params["head"]["layer_0"]]
    return [layer[name] for layer in layers for name in ("kernel", "bias")]


def test_one_net_in_every_keras_and_in_native_layers_trains_alike():
    shapes = [(2, 8), (8,), (8, 1), (1,)]
    rng = np.random.default_rng(0)
    start = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    losses, values = trained(Native(), start)
    assert losses[-1] < losses[0] / 2
    for K in KERAS:
        own, after = trained(KerasModule(model=small(K), loss_fn="mse"), start)
        np.testing.assert_allclose(own, losses, rtol=1e-4)
        for a, b in zip(after, values, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("K", KERAS)
def test_names_of_parameters_are_those_of_keras_2(K):
    def model():
        return K.Sequential([K.Input([2]), K.layers.Dense(3), K.layers.BatchNormalization()])

    params = networks.KerasNetwork(model_fn=model, spec=SPEC).init(KEY)
    assert list(params["params"]) == ["000_kernel", "001_bias", "002_gamma", "003_beta"]
    assert list(params["state"]) == ["000_moving_mean", "001_moving_variance"]
    again = networks.KerasNetwork(model_fn=model, spec=SPEC).init(KEY)
    tf.nest.map_structure(np.testing.assert_array_equal, params, again)


@only_3
class TestModels:
    def test_batch_normalization_by_hand(self):
        K = tf.keras
        model = K.Sequential(
            [K.Input([2]), K.layers.BatchNormalization(momentum=0.75, epsilon=0.0)]
        )
        network = networks.KerasNetwork(model_fn=lambda: model, spec=SPEC)
        params = network.init(KEY)
        x = tf.constant([[0.0, 1.0], [4.0, 3.0]])  # means 2, 2; variances 4, 1
        output, after = network.apply_training(params, x, KEY)
        np.testing.assert_allclose(output, [[-1, -1], [1, 1]], rtol=1e-5)
        np.testing.assert_allclose(after["state"]["000_moving_mean"], [0.5, 0.5])
        # 0.75 * 1 + 0.25 * the variance of the batch.
        np.testing.assert_allclose(after["state"]["001_moving_variance"], [1.75, 1.0])
        np.testing.assert_allclose(network.apply(params, x), x, rtol=1e-3)  # mean 0, variance 1
        assert np.all(model.layers[0].moving_mean.numpy() == 0.0)  # its own variables stay

    def test_dropout_draws_from_the_key_on_every_path(self):
        K = tf.keras
        network = networks.KerasNetwork(
            model_fn=lambda: K.Sequential([K.Input([100]), K.layers.Dropout(0.5)]),
            spec=tf.TensorSpec([100]),
        )
        params, x = network.init(KEY), tf.ones([3, 100])

        def call(key):
            return network.apply(params, x, training=True, key=key)

        eager = call(KEY).numpy()
        assert set(np.unique(eager)) == {0.0, 2.0} and 0.35 < np.mean(eager == 0) < 0.65
        np.testing.assert_array_equal(call(KEY), eager)
        for jit in (False, True):
            np.testing.assert_array_equal(tf.function(call, jit_compile=jit)(KEY), eager)
        assert np.any(call(seeding.fold_in(KEY, 1)) != eager)
        np.testing.assert_array_equal(network.apply(params, x), x)
        with pytest.raises(UserError, match="^key: expected an int32 key, since the Keras model"):
            network.apply(params, x, training=True)

    def test_two_dropouts_draw_apart(self):
        K = tf.keras
        x = K.Input([50])
        model = K.Model(x, [K.layers.Dropout(0.5)(x), K.layers.Dropout(0.5)(x)])
        network = networks.KerasNetwork(model_fn=lambda: model, spec=tf.TensorSpec([50]))
        one, other = network.apply(network.init(KEY), tf.ones([2, 50]), training=True, key=KEY)
        assert np.any(one != other)

    def test_a_subclassed_model(self):
        class Own(tf.keras.Model):
            def __init__(self):
                super().__init__()
                self.first, self.second = tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)

            def call(self, x):  # without `training`
                return self.second(tf.nn.relu(self.first(x)))

        network = networks.KerasNetwork(model_fn=Own, spec=SPEC)
        params = network.init(KEY)
        a, b, c, d = params["params"].values()
        expected = np.maximum(X @ a + b, 0) @ c + d
        np.testing.assert_allclose(network.apply(params, X), expected, rtol=1e-4, atol=1e-5)
        assert network.output_size(SPEC) == 1

    def test_draws_from_the_global_generator_are_refused(self):
        class Noisy(tf.keras.layers.Layer):
            def call(self, x):
                return x + tf.keras.random.normal([2])

        def model():
            return tf.keras.Sequential([tf.keras.Input([2]), Noisy()])

        network = networks.KerasNetwork(model_fn=model, spec=SPEC)
        with pytest.raises(UserError, match="self.seed = keras.random.SeedGenerator"):
            network.apply(network.init(KEY), X, training=True, key=KEY)

    def test_compiled_call_methods_are_refused(self):
        class Compiled(tf.keras.layers.Layer):
            @tf.function
            def call(self, x):
                return x

        with pytest.raises(UserError, match="expected plain `call` methods"):
            networks.KerasNetwork(
                model_fn=lambda: tf.keras.Sequential([tf.keras.Input([2]), Compiled()]), spec=SPEC
            )

    def test_another_backend_is_refused(self, monkeypatch):
        monkeypatch.setattr(tf.keras.config, "backend", lambda: "jax")
        with pytest.raises(UserError) as error:
            keras3.check_backend()
        assert str(error.value) == (
            "Keras model: expected Keras 3 on TensorFlow, got Keras 3 on jax. Set "
            "KERAS_BACKEND=tensorflow before the program imports keras."
        )

    def test_ppo_with_a_torso_of_keras_3(self):
        env = tfrl.make_env("tf:CartPole-v1", num_envs=4)
        K = tf.keras
        torso = networks.KerasNetwork(
            model_fn=lambda: K.Sequential(
                [
                    K.layers.BatchNormalization(momentum=0.9),
                    K.layers.Dense(8, "tanh"),
                    K.layers.Dropout(0.1),
                ]
            ),
            spec=env.obs_spec,
        )
        agent = PPO(
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            policy=networks.PolicyNetwork(
                torso=torso, distribution=distributions.make_distribution(env.action_spec)
            ),
            value=networks.ValueNetwork(torso=torso),
        )
        learner = Learner(agent, config=ModuleConfig(lr=1e-3))
        learner.build(KEY)
        state = struct.values(learner.state)
        trajectory = rollout(env, agent, env.reset(KEY), state, KEY, 8)[0]
        batch = agent.learner_batch(state, trajectory)[0]
        learner.update_from_batch(batch, num_epochs=2)
        after = learner.state.params["policy"]["torso"]["state"]["000_moving_mean"]
        # Two steps from mean 0 with momentum 0.9: 1 - 0.9^2 = 0.19 of the mean of the rows.
        np.testing.assert_allclose(after, 0.19 * np.mean(batch.obs, axis=0), rtol=1e-4, atol=1e-7)


@only_3
class TestModules:
    @pytest.mark.parametrize("form", ["object", "function", "name"])
    def test_losses(self, form):
        forms = {
            "object": tf.keras.losses.Huber(delta=0.5),
            "function": tf.keras.losses.get("mean_squared_error"),
            "name": "mae",
        }
        module = KerasModule(model=small(tf.keras), loss_fn=forms[form])
        params = module.init(KEY).params
        error = module.predict(params, X)[:, 0] - LINE["y"]
        expected = {
            "object": tf.where(
                tf.abs(error) <= 0.5, 0.5 * tf.square(error), 0.5 * tf.abs(error) - 0.125
            ),
            "function": tf.square(error),
            "name": tf.abs(error),
        }[form]
        loss = module.update_loss(params, None, LINE, KEY)[0]
        np.testing.assert_allclose(loss, tf.reduce_mean(expected), rtol=1e-5)

    def test_what_is_no_mean_and_classes_are_refused(self):
        total = tf.keras.losses.MeanSquaredError(reduction="sum")
        for loss, got in ((total, "reduction='sum'"), (tf.keras.losses.Huber, "the class Huber")):
            with pytest.raises(UserError, match=got):
                KerasModule(model=small(tf.keras), loss_fn=loss)

    def test_load_into(self):
        K = tf.keras
        layers = [K.layers.Dense(3), K.layers.BatchNormalization(), K.layers.Dropout(0.5)]
        model = K.Sequential([K.Input([2]), *layers])
        module = KerasModule(model=model, loss_fn=None)
        params = tf.nest.map_structure(lambda x: x + 1.0, module.init(KEY).params)
        module.load_into(model, params)
        np.testing.assert_allclose(model(X), module.predict(params, X), rtol=1e-5)

    def test_regularizers_are_refused(self):
        K = tf.keras
        layer = K.layers.Dense(1, kernel_regularizer="l2")
        with pytest.raises(UserError, match="Add them in loss_fn"):
            KerasModule(model=K.Sequential([K.Input([2]), layer]), loss_fn="mse")

    def test_a_task_trains_its_own_model(self):
        class Task(small_tasks.KerasTask):
            def get_model(self):
                K = tf.keras
                return K.Sequential(
                    [
                        K.Input([4]),
                        K.layers.Dense(8, "tanh"),
                        K.layers.Dropout(0.1),
                        K.layers.Dense(2),
                    ]
                )

            def get_optimizer(self):
                return tf.keras.optimizers.Adam(1e-2)

        workflow = TaskWorkflow(task=Task(small_tasks.config()))
        state = workflow.setup(0)
        before = workflow.state_values(state)
        _, state = workflow.step(state)
        after = workflow.state_values(state)
        names = ["000_kernel", "001_bias", "003_kernel", "004_bias"]
        moved = [n for n in before if n.startswith("model/") and np.any(before[n] != after[n])]
        assert [n for n in moved if "seed" not in n] == [f"model/{name}" for name in names]
        # The seeds of its layers are a part of the state, so that a resumed run draws on.
        assert "model/002_seed_generator_state" in before


@only_3
class TestOptimizers:
    @pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
    def test_steps_are_those_of_keras_3(self, name):
        kind = getattr(tf.keras.optimizers, name)
        theirs, ours = kind(0.1), keras.converted(kind(0.1))
        x = tf.keras.Variable([1.0, -2.0])
        y = tf.Variable([1.0, -2.0])
        keras.build_slots(ours, [y])
        for step in range(3):
            gradient = tf.constant([0.5, -1.0 * step])
            theirs.apply([gradient], [x])
            keras.apply_gradients(ours, [(gradient, y)])
        np.testing.assert_allclose(y, x.value, rtol=1e-5)

    def test_a_learner_takes_one(self):
        config = ModuleConfig(optimizer=tf.keras.optimizers.SGD(0.5), lr=0.1, grad_clip=None)
        learner = Learner(KerasModule(model=small(tf.keras), loss_fn="mse"), config=config)
        learner.build(KEY)
        before = learner.update_from_batch(LINE)["default_policy"]["loss"]
        assert learner.update_from_batch(LINE)["default_policy"]["loss"] < before

    def test_what_keras_2_has_not_is_refused(self):
        with pytest.raises(UserError, match="with gradient_accumulation_steps"):
            keras.converted(tf.keras.optimizers.Adam(gradient_accumulation_steps=2))
        with pytest.raises(UserError, match="Muon of Keras 3: expected an optimizer that Keras 2"):
            keras.converted(tf.keras.optimizers.Muon())
