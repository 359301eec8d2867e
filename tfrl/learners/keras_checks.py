"""What a KerasModule is made of: a model or what makes one, and a loss."""

import inspect
from typing import Any

import tensorflow as tf

from tfrl.errors import UserError, did_you_mean

# What Keras calls the arguments of its losses.
_KERAS_ARGUMENTS = ("y_true", "y_pred")


def check_model(model: Any, model_fn: Any) -> None:
    """Checks that there is either a model or a function that makes one.

    Args:
      model: See `KerasModule`.
      model_fn: See `KerasModule`.

    Raises:
      UserError: Saying what to write.
    """
    if (model is None) == (model_fn is None):
        raise UserError(
            "KerasModule",
            expected="either model_fn=make_model or model=model",
            got="neither" if model is None else "both",
            remedy="A function gives fresh parameters for every key.",
        )
    if model_fn is None:
        if isinstance(model, tf.keras.Model):
            return
        thing, expected = "KerasModule.model", "a tf.keras.Model"
        got = repr(model)
        remedy = "Write model=model, or model_fn=make_model for a function that makes one."
    elif isinstance(model_fn, tf.keras.Model):
        thing, expected = "KerasModule.model_fn", "a function without arguments that makes a model"
        got = f"the model {model_fn.name!r} itself"
        remedy = "Write model=model."
    elif not callable(model_fn):
        thing, expected = "KerasModule.model_fn", "a function without arguments that makes a model"
        got = repr(model_fn)
        remedy = "Write model_fn=make_model, without brackets after it."
    elif not _takes(model_fn, 0):
        thing, expected = "KerasModule.model_fn", "a function without arguments that makes a model"
        got = f"one of {inspect.signature(model_fn)}"
        remedy = "Write model_fn=lambda: make_model(...) with the arguments in it."
    else:
        return
    raise UserError(thing, expected=expected, got=got, remedy=remedy)


def _takes(fn: Any, count: int) -> bool:
    """Whether a function can be called with so many arguments; True where nobody knows."""
    try:
        inspect.signature(fn).bind(*range(count))
    except ValueError:
        return True  # builtins do not tell
    except TypeError:
        return False
    return True


def _check_arguments(loss_fn: Any) -> None:
    """Refuses a function that cannot be called as (batch, outputs), or wants targets first."""
    keras = False
    if _takes(loss_fn, 2):
        try:
            names = list(inspect.signature(loss_fn).parameters)
        except ValueError:
            return
        keras = any(name in _KERAS_ARGUMENTS for name in names[:2])
        if not keras:
            return
    name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
    name = "my_loss" if name == "<lambda>" else name
    remedy = "batch is the rows, outputs what the model gives for them."
    if keras:
        remedy = f"Write loss_fn=lambda batch, outputs: {name}(batch['y'], outputs)."
    raise UserError(
        "KerasModule.loss_fn",
        expected="a function of two arguments, (batch, outputs)",
        got=f"one of {inspect.signature(loss_fn)}",
        remedy=remedy,
    )


def row_loss(loss_fn: Any) -> Any:
    """Returns `(y_true, y_pred) -> loss of each row` of what Keras has.

    Args:
      loss_fn: See `KerasModule`.

    Returns:
      None for no loss, and for a function of the user's.

    Raises:
      UserError: For what is no loss, a class in place of an object, a loss that is a sum, and a
        function of other arguments than batch and outputs.
    """
    if loss_fn is None:
        return None
    if isinstance(loss_fn, type) and issubclass(loss_fn, tf.keras.losses.Loss):
        raise UserError(
            "KerasModule.loss_fn",
            expected="a loss of Keras",
            got=f"the class {loss_fn.__name__}",
            remedy=f"Make one of it: loss_fn=tf.keras.losses.{loss_fn.__name__}().",
        )
    if callable(loss_fn) and not _of_keras(loss_fn):
        _check_arguments(loss_fn)
        return None
    if isinstance(loss_fn, str):
        try:
            loss_fn = tf.keras.losses.get(loss_fn)
        except ValueError:
            known = [n for n in dir(tf.keras.losses) if n[0].islower() or n[0].isupper()]
            raise UserError(
                "KerasModule.loss_fn",
                expected="the name of a loss in tf.keras.losses",
                got=repr(loss_fn),
                remedy=did_you_mean(loss_fn, known),
            ) from None
    if isinstance(loss_fn, tf.keras.losses.Loss):
        if loss_fn.reduction == tf.keras.losses.Reduction.SUM:
            raise UserError(
                "KerasModule.loss_fn",
                expected="a loss that is a mean over the rows",
                got=f"{type(loss_fn).__name__}(reduction='sum')",
                remedy="Leave the reduction out and raise the learning rate, or write a function "
                "(batch, outputs).",
            )
        return loss_fn.call
    if callable(loss_fn):
        return loss_fn
    raise UserError(
        "KerasModule.loss_fn",
        expected="a function (batch, outputs), or a loss of Keras or its name",
        got=repr(loss_fn),
        remedy="Give one of these, or None for a model that is not trained.",
    )


def _of_keras(loss_fn: Any) -> bool:
    return isinstance(loss_fn, tf.keras.losses.Loss) or str(
        getattr(loss_fn, "__module__", "")
    ).startswith("keras.")
