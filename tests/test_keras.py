import ast
import inspect
import pathlib

import pytest
import tensorflow as tf

from tfrl import keras

ROOT = pathlib.Path(__file__).resolve().parents[1]
_NAMES = ("keras", "tf_keras")


def _uses_of_keras(source):
    """Lines of code that import Keras or reach it through TensorFlow."""
    for node in ast.walk(ast.parse(source)):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            modules = ["tensorflow.keras"] * (node.value.id == "tf" and node.attr == "keras")
        private = isinstance(node, ast.Attribute) and "_keras" in node.attr
        for module in modules:
            parts = module.split(".")
            private |= parts[0] in _NAMES or (parts[0] == "tensorflow" and "keras" in parts)
        if private:
            yield node.lineno


@pytest.mark.parametrize(
    "source",
    [
        "import keras.src",
        "from keras import losses",
        "from tensorflow import keras",
        "from tensorflow.python.keras import backend",
        "tf.keras.Model",
        "import tf_keras as k",
        "error._keras_call_info_injected = True",
    ],
)
def test_uses_are_seen(source):
    assert list(_uses_of_keras(source)) == [1]


def test_one_module_uses_keras():
    paths = [p for p in (ROOT / "tfrl").rglob("*.py") if list(_uses_of_keras(p.read_text()))]
    assert paths == [ROOT / "tfrl" / "keras.py"]


def test_types():
    layer = keras.api.layers.Dense(1)
    model = keras.api.Sequential([layer])
    assert keras.is_model(model) and keras.is_layer(model)
    assert keras.is_layer(layer) and not keras.is_model(layer)
    assert not keras.is_layer(tf.Module())


def test_the_folder_has_the_sources():
    path = inspect.getsourcefile(keras.api.Sequential)
    assert pathlib.Path(path).is_relative_to(keras.folder())


def test_losses():
    mean = keras.api.losses.MeanSquaredError()
    assert keras.is_loss(mean) and keras.is_loss(keras.named_loss("mse"))
    assert not keras.is_loss(lambda batch, outputs: 0.0)
    assert keras.is_loss_class(type(mean)) and not keras.is_loss_class(mean)
    total = keras.api.losses.MeanSquaredError(reduction="sum")
    assert keras.sums_rows(total) and not keras.sums_rows(mean)
    rows = keras.loss_of_rows(mean)(tf.zeros([2, 1]), tf.constant([[1.0], [3.0]]))
    assert rows.numpy().tolist() == [1.0, 9.0]
    assert "mse" in keras.loss_names()


@pytest.mark.parametrize("new", [True, False])
def test_optimizers(new):
    adam = keras.api.optimizers.Adam(0.5) if new else keras.legacy_adam(0.5, epsilon=1e-7)
    assert keras.is_optimizer(adam) and not keras.is_used(adam)
    assert float(keras.initial_rate(adam)) == 0.5
    parameter = tf.Variable([1.0], name="weight")
    slots = keras.build_slots(adam, [parameter])
    assert sorted(name for name, _, _ in slots) == ["m", "v"]
    assert all(p is parameter for _, p, _ in slots)
    listed = {v.ref() for v in keras.optimizer_variables(adam)}
    assert {slot.ref() for _, _, slot in slots} <= listed
    keras.apply_gradients(adam, [(tf.constant([2.0]), parameter)])
    assert parameter.numpy()[0] == pytest.approx(0.5, abs=1e-4)
    assert keras.is_used(adam)
    again = keras.fresh(adam)
    assert type(again) is type(adam) and not keras.is_used(again)


def test_the_same_seed_initialises_equally_and_leaves_others_alone():
    def kernel():
        layer = keras.api.layers.Dense(2)
        layer.build([None, 3])
        return layer.kernel.numpy()

    keras.seed_all(3)
    expected = tf.random.uniform([2])
    with keras.seeded(7):
        first = kernel()
    keras.seed_all(3)
    with keras.seeded(7):
        assert (kernel() == first).all()
    keras.seed_all(3)
    assert (tf.random.uniform([2]) == expected).numpy().all()
