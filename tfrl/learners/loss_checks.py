"""Checks of a loss's inputs and outputs, while it is traced."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.types import Nest

# Metrics that every update reports for each module.
RESERVED = (
    "loss",
    "grad_norm",
    "learning_rate",
    "gradient_steps",
    "skipped_steps",
    "num_trainable_parameters",
    "num_non_trainable_parameters",
    "num_module_steps_trained",
    "num_module_steps_trained_lifetime",
    "module_train_batch_size_mean",
    "weights_seq_no",
)


@contextlib.contextmanager
def naming_missing_columns(rows: dict[str, Nest]) -> Iterator[None]:
    """A context in which reading a missing column of rows is a UserError that names it.

    Testing for a column with `hasattr`, `getattr(batch, name, None)` or `get` is not an error.

    Args:
      rows: `{module_id: rows}`, passed to modules inside.

    Raises:
      UserError: Names the module, the column, and the available columns.
    """
    try:
        yield
    except (AttributeError, KeyError) as error:
        asked = getattr(error, "obj", None)
        name = error.name if isinstance(error, AttributeError) else error.args[0]
        for module_id, batch in rows.items():
            for path, part in _parts(batch):
                if asked is part or (part is batch and _made_of(asked, batch)):
                    raise _no_column(module_id, path, part, name) from error
            # The error of a plain dict has no reference to the dict.
            if isinstance(error, KeyError) and type(batch) is dict and name not in batch:
                raise _no_column(module_id, "", batch, name) from error
        raise


def in_order(hook: str, gradients: Any, refs: Iterable[Any]) -> list[tf.Tensor]:
    """Returns the gradients that a hook returned, in the order of the parameters.

    Args:
      hook: The hook's name.
      gradients: What it returned; `{param ref: gradient}` if it is correct.
      refs: The parameters' refs.

    Raises:
      UserError: For anything but a dict with a gradient for every parameter.
    """
    refs = list(refs)
    got = type(gradients).__name__
    if isinstance(gradients, Mapping):
        missing = [ref for ref in refs if gradients.get(ref) is None]
        if not missing:
            return [gradients[ref] for ref in refs]
        got = f"none for {len(missing)} of {len(refs)}"
    raise UserError(
        f"what the learner's {hook} returns",
        expected="a dict {param ref: gradient} with a gradient for every parameter",
        got=got,
        remedy="Return a dict with the keys of the parameters that it was given; zeros change "
        "nothing.",
    )


def _parts(nest: Nest, path: str = "") -> Iterator[tuple[str, Nest]]:
    """A batch and all dicts in it, with their paths."""
    yield path, nest
    if isinstance(nest, Mapping):
        for name, item in nest.items():
            if isinstance(item, Mapping):
                yield from _parts(item, f"{path}/{name}" if path else str(name))


def _made_of(result: Any, batch: Nest) -> bool:
    """Whether an object is a `replace` of a batch, i.e. has all its columns."""
    if type(result) is not type(batch):
        return False
    return not isinstance(batch, Mapping) or batch.keys() <= result.keys()


def _no_column(module_id: str, path: str, part: Nest, name: Any) -> UserError:
    thing = f"the batch of module {module_id!r}"
    if path:
        thing = f"{path!r} of {thing}"
    if isinstance(part, Mapping) and name in part:
        return UserError(
            thing,
            expected=f"a record whose columns are attributes, since the module reads batch.{name}",
            got=f"a plain {type(part).__name__}",
            remedy="Pass the rows as tfrl.struct.TensorDict(rows).",
        )
    there = sorted(part) if isinstance(part, Mapping) else sorted(struct.paths(part))
    return UserError(
        thing,
        expected=f"a column {name!r}, which the module's loss or prepare_minibatch reads",
        got=f"the columns {there}",
        remedy="Add it to the rows; for episodes, add it with a connector or pass it to "
        "add_env_step in extra_model_outputs.",
    )


def scalar_loss(name: str, result: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns (loss, metrics) from the result of a user's loss.

    Raises:
      UserError: Unless it is a float scalar, or a scalar and a dict.
    """
    loss, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not tf.is_tensor(loss) or loss.shape.rank != 0 or not loss.dtype.is_floating:
        shown = f"{loss.dtype.name} of shape {loss.shape}" if tf.is_tensor(loss) else repr(loss)
        raise UserError(
            f"the loss of {name}",
            expected="a float scalar",
            got=shown,
            remedy="Reduce it over the rows, with tfrl.ops.masked_mean(loss, mask) if some are "
            "masked.",
        )
    if not isinstance(metrics, Mapping):
        raise UserError(
            f"the loss of {name}",
            expected="metrics {name: scalar} next to the loss",
            got=repr(metrics),
            remedy="Return (loss, {'accuracy': accuracy}).",
        )
    return loss, dict(metrics)


def check_ids(losses: Collection[str], module_ids: Collection[str]) -> None:
    """Checks that `compute_losses` returned a loss of every module, and of no other.

    Args:
      losses: Ids with returned losses.
      module_ids: Ids of the trained modules.

    Raises:
      UserError: Listing both.
    """
    if set(losses) != set(module_ids):
        raise UserError(
            "compute_losses",
            expected=f"a loss for each of the modules {sorted(module_ids)}",
            got=f"losses for {sorted(losses)}",
            remedy="Return a loss shared by several modules for one of them and "
            "tf.constant(0.0) for the rest.",
        )


def check_scalars(module_id: str, metrics: Mapping[str, Any]) -> None:
    """Checks that a loss's metrics are scalars and do not use reserved names.

    Args:
      module_id: The module.
      metrics: `{name: scalar}`.

    Raises:
      UserError: Lists all non-scalars and all reserved names.
    """
    taken = [str(name) for name in metrics if _is_reserved(str(name))]
    if taken:
        raise UserError(
            f"the metrics of module {module_id!r}",
            expected=f"names other than the Learner's own metrics: "
            f"{', '.join(RESERVED)}, grad_norm/..., nonfinite/... and .../learning_rate",
            got=", ".join(map(repr, taken)),
            remedy="Rename them, for example to 'policy_loss'.",
        )
    wrong = [f"{name} {fault}" for name, x in metrics.items() if (fault := _fault(x))]
    if wrong:
        raise UserError(
            f"the metrics of module {module_id!r}",
            expected="numeric scalars",
            got=", ".join(wrong),
            remedy="Reduce them over the rows, with tfrl.ops.masked_mean(x, mask) if some are "
            "masked.",
        )


def _is_reserved(name: str) -> bool:
    return (
        name in RESERVED
        or name.startswith(("nonfinite/", "grad_norm/"))
        or name.endswith("/learning_rate")
    )


def _fault(x: Any) -> str | None:
    """The reason why a metric is not a numeric scalar."""
    try:
        x = tf.convert_to_tensor(x)
    except (TypeError, ValueError):
        return f"of type {type(x).__name__}"
    if x.shape.rank:
        return f"of shape {x.shape}"
    is_number = x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool
    return None if is_number else f"of dtype {x.dtype.name}"
