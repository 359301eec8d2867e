"""A Keras model and a loss function as a module of the Learner."""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import keras, networks, ops, seeding, struct
from tfrl.agents.core import PARAM_UPDATES
from tfrl.errors import UserError, did_you_mean
from tfrl.learners.batches import counted, field
from tfrl.learners.loss_checks import scalar_loss
from tfrl.learners.modules import LossResult, Module
from tfrl.types import AgentState, Nest

# Keras' names for the arguments of losses.
_KERAS_ARGUMENTS = ("y_true", "y_pred")
_GROUP = "model"


def check_model(model: Any, model_fn: Any) -> None:
    """Checks that exactly one of model and model function is given.

    Args:
      model: See `KerasModule`.
      model_fn: See `KerasModule`.

    Raises:
      UserError: With the correct call.
    """
    if (model is None) == (model_fn is None):
        raise UserError(
            "KerasModule",
            expected="either model_fn=make_model or model=model",
            got="neither" if model is None else "both",
            remedy="Pass one of them; model_fn creates fresh parameters for every key.",
        )
    thing, expected = "KerasModule.model_fn", "a function without arguments that returns a model"
    if model_fn is None:
        if keras.is_model(model):
            return
        thing, expected = "KerasModule.model", "a tf.keras.Model"
        got = repr(model)
        remedy = "Write model=model, or model_fn=make_model for a function that returns a model."
    elif keras.is_model(model_fn):
        got = f"the model {model_fn.name!r} itself"
        remedy = "Write model=model."
    elif not callable(model_fn):
        got = repr(model_fn)
        remedy = "Write model_fn=make_model, without parentheses."
    elif not _takes(model_fn, 0):
        got = f"a function of {inspect.signature(model_fn)}"
        remedy = "Bind the arguments: model_fn=lambda: make_model(...)."
    else:
        return
    raise UserError(thing, expected=expected, got=got, remedy=remedy)


def _takes(fn: Any, count: int) -> bool:
    """Whether a function accepts `count` arguments; True if unknown."""
    try:
        inspect.signature(fn).bind(*range(count))
    except ValueError:
        return True  # builtins have no signature
    except TypeError:
        return False
    return True


def _check_arguments(loss_fn: Any) -> None:
    """Rejects a function that does not accept (batch, outputs), or takes targets first."""
    of_keras = False
    if _takes(loss_fn, 2):
        try:
            names = list(inspect.signature(loss_fn).parameters)
        except ValueError:
            return
        of_keras = any(name in _KERAS_ARGUMENTS for name in names[:2])
        if not of_keras:
            return
    name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
    name = "my_loss" if name == "<lambda>" else name
    remedy = "Write loss_fn(batch, outputs), where outputs are the model's outputs for the batch."
    if of_keras:
        remedy = f"Write loss_fn=lambda batch, outputs: {name}(batch['y'], outputs)."
    raise UserError(
        "KerasModule.loss_fn",
        expected="a function of two arguments, (batch, outputs)",
        got=f"a function of {inspect.signature(loss_fn)}",
        remedy=remedy,
    )


def row_loss(loss_fn: Any) -> Any:
    """Returns a Keras loss as `(y_true, y_pred) -> loss of each row`.

    Args:
      loss_fn: See `KerasModule`.

    Returns:
      None without a loss, or for a user's function.

    Raises:
      UserError: For an object that is not a loss, a class instead of an object, a loss with a sum
        reduction, or a function with other arguments than batch and outputs.
    """
    if loss_fn is None:
        return None
    if keras.is_loss_class(loss_fn):
        raise UserError(
            "KerasModule.loss_fn",
            expected="an instance of a Keras loss",
            got=f"the class {loss_fn.__name__}",
            remedy=f"Pass an instance: loss_fn=tf.keras.losses.{loss_fn.__name__}().",
        )
    if callable(loss_fn) and not keras.is_loss(loss_fn):
        _check_arguments(loss_fn)
        return None
    if isinstance(loss_fn, str):
        try:
            loss_fn = keras.named_loss(loss_fn)
        except ValueError:
            raise UserError(
                "KerasModule.loss_fn",
                expected="the name of a loss in tf.keras.losses",
                got=repr(loss_fn),
                remedy=did_you_mean(loss_fn, keras.loss_names()),
            ) from None
    if keras.sums_rows(loss_fn):
        raise UserError(
            "KerasModule.loss_fn",
            expected="a loss that is a mean over the rows",
            got=f"{type(loss_fn).__name__}(reduction='sum')",
            remedy="Leave the reduction out and raise the learning rate, or write a function "
            "(batch, outputs).",
        )
    if callable(loss_fn):
        return keras.loss_of_rows(loss_fn)
    raise UserError(
        "KerasModule.loss_fn",
        expected="a function (batch, outputs), a Keras loss, or the name of one",
        got=repr(loss_fn),
        remedy="Pass one of these, or None for a model that is not trained.",
    )


@struct.logic_dataclass
class KerasModule(Module):
    """A `tf.keras.Model` with a loss function.

    The model's parameters become values, as in a `networks.KerasNetwork`: the group "model". In the
    loss the model is in training mode; moving statistics change with each gradient step, and random
    layers draw from the step's key. The given model is only traced: its own variables never change;
    `load_into` copies the trained values into a model.

    Attributes:
      model_fn: Makes the model, without arguments; `init` draws parameters from its initialisers
        with the key.
      model: A model, instead of `model_fn`; `init` then copies its current weights.
      loss_fn: A function `(batch, outputs)` that returns a scalar, a loss for each row `[N]`
        (averaged over the rows valid by `mask`, `loss_mask` and `seq_lens`), or one of these and
        metrics `{name: scalar}`; or a Keras loss or its name, for the column `y` and the outputs;
        or None for an untrained model.
      spec: The nest of specs of one input; None to take it from a model with known inputs.
      x: The input column of the batch, or a nest of columns like `spec`.
      y: The target column, for a Keras loss.
    """

    model_fn: Callable[[], keras.api.Model] | None = None
    model: Any = None
    loss_fn: Any = None
    spec: Nest = None
    x: Any = "x"
    y: str = "y"
    network: networks.KerasNetwork = struct.derived()
    keras_loss: Any = struct.derived()

    def __post_init__(self) -> None:
        """Checks model and loss, and creates the model once.

        Raises:
          UserError: For both or neither of `model_fn` and `model`, or one mistaken for the other, a
            model with unknown inputs, losses inside layers, or an invalid loss.
        """
        check_model(self.model, self.model_fn)
        model = self.model
        make = self.model_fn if model is None else lambda: model
        spec = _input_spec(make()) if self.spec is None else self.spec  # type: ignore[misc]
        self.network = networks.KerasNetwork(model_fn=make, spec=spec)  # type: ignore[arg-type]
        if self.network.template.model.losses:
            raise UserError(
                "Keras model",
                expected="no layer losses (regularizers, add_loss), which would be ignored",
                got=f"{len(self.network.template.model.losses)}",
                remedy="Add them in loss_fn.",
            )
        self.keras_loss = row_loss(self.loss_fn)

    @property
    def has_loss(self) -> bool:
        """Whether there is a loss function."""
        return self.loss_fn is not None

    @property
    def groups(self) -> tuple[str, ...]:
        """The group "model", if the model has trainable weights."""
        return (_GROUP,) if self.network.template.trainable else ()

    def init_params(self, key: tf.Tensor) -> dict[str, Any]:
        """Makes the model's parameters; eagerly, and outside of a strategy's scope."""
        return {_GROUP: self.network.init(key)}

    def forward(self, params: dict[str, Any], batch: Nest, key: tf.Tensor) -> Any:
        """Computes the model's outputs in training mode."""
        return self.network.apply(params[_GROUP], self._inputs(batch), training=True, key=key)

    def predict(self, params: dict[str, Any], x: Nest) -> Any:
        """Computes the model's outputs in inference mode.

        Args:
          params: The parameters, tensors or variables, such as `learner.state.params`.
          x: The inputs, `[N, ...]`.
        """
        return self.network.apply(params[_GROUP], x)

    def loss(self, params: dict[str, Any], batch: Nest, outputs: Any, key: tf.Tensor) -> LossResult:
        """Computes the loss, averaged over valid rows."""
        mask = counted(batch)
        mask = None if mask is None else tf.cast(mask, tf.bool)
        if self.keras_loss is not None:
            target = _column(batch, self.y)
            return _mean(_keras_rows(self.keras_loss, target, outputs, mask), mask)
        loss = self.loss_fn(batch, outputs)
        if isinstance(loss, tuple) and len(loss) == 2:
            return _mean(loss[0], mask), loss[1]
        return _mean(loss, mask)

    def update_loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """The loss in training mode, and the model's updates without gradients."""
        keys = seeding.streams(key, ["forward", "loss"])
        outputs, after = self.network.apply_training(
            params[_GROUP], self._inputs(batch), keys["forward"]
        )
        result = self.loss(params, batch, outputs, keys["loss"])
        loss, metrics = scalar_loss(type(self).__name__, result)
        if after["state"]:
            metrics[PARAM_UPDATES] = {_GROUP: after}
        return loss, metrics

    def load_into(self, model: keras.api.Model, params: dict[str, Any]) -> None:
        """Assigns trained parameters to a built model of the same layers.

        Args:
          model: A model like that of this module.
          params: The parameters, such as `learner.state.params`.

        Raises:
          UserError: If its weights have other shapes.
        """
        weights = [v for part in keras.weights(model) for v in part]
        parts = params[_GROUP]
        values = [parts[part][name] for part in ("params", "state") for name in sorted(parts[part])]
        have = [tuple(w.shape) for w in weights]
        want = [tuple(v.shape) for v in values]
        if have != want:
            raise UserError(
                "load_into",
                expected=f"a model with weights of shapes {want}",
                got=f"{have}",
                remedy="Create it with the same function, and build it first.",
            )
        for weight, value in zip(weights, values, strict=True):
            weight.assign(value)

    def _inputs(self, batch: Nest) -> Nest:
        return tf.nest.map_structure(lambda name: _column(batch, name), self.x)


def _input_spec(model: Any) -> Nest:
    """The spec of one input of a model with known inputs."""
    if not keras.is_model(model):
        raise UserError(
            "KerasModule",
            expected="a tf.keras.Model, or a function without arguments that returns one",
            got=repr(model),
            remedy="Pass model=model or model_fn=make_model.",
        )
    inputs = getattr(model, "inputs", None)
    if not inputs or any(None in i.shape[1:] for i in inputs):
        raise UserError(
            "KerasModule.spec",
            expected="the spec of one input, since the model's input shape is unknown",
            got="None",
            remedy="Pass spec=tf.TensorSpec([4]), or start the model with a tf.keras.Input.",
        )
    # A Sequential of Keras 3 has no `input`.
    nest = getattr(model, "input", inputs[0])
    return tf.nest.map_structure(lambda i: tf.TensorSpec(i.shape[1:], i.dtype), nest)


def _keras_rows(
    loss: Callable[..., tf.Tensor], target: tf.Tensor, output: Any, mask: tf.Tensor | None
) -> tf.Tensor:
    """The loss of each row; scalar targets and outputs get a last axis."""
    if not tf.is_tensor(output):
        raise UserError(
            "KerasModule.loss_fn",
            expected="a function (batch, outputs), since the model has several outputs",
            got="a Keras loss, which takes one output",
            remedy="Sum the losses of the outputs in a function.",
        )
    target = tf.convert_to_tensor(target)
    rows_rank = 1 if mask is None else mask.shape.rank
    if output.shape.rank == rows_rank:
        output = output[..., tf.newaxis]
    if target.shape.rank == output.shape.rank - 1 and output.shape[-1] == 1:
        target = target[..., tf.newaxis]
    return loss(target, output)


def _mean(loss: Any, mask: tf.Tensor | None) -> Any:
    """The mean over the rows that count; a scalar unchanged."""
    if not tf.is_tensor(loss) or loss.shape.rank == 0:
        return loss
    return ops.masked_mean(loss, mask)


def _column(batch: Nest, name: str) -> Any:
    """A column of a batch that is a dict or a record."""
    column = field(batch, name)
    if column is None:
        raise UserError(
            "the batch of a KerasModule",
            expected=f"a column {name!r}",
            got=f"columns {sorted(struct.paths(batch))}",
            remedy="Name the columns with KerasModule(x=..., y=...).",
        )
    return column
