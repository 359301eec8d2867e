"""The update of a task: loss, gradients and optimizer step, compiled once."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import keras
from tfrl.agents import ExternalUpdate
from tfrl.errors import UserError
from tfrl.learners.external_update import take_external_step
from tfrl.learners.optimizers import OptimizerEntry
from tfrl.learning.gradients import gradients_of
from tfrl.tasks.samples import Samples
from tfrl.tasks.task import RLTask, check_trainable, trains_itself
from tfrl.types import AgentState

OWN_METRICS = ("loss", "gradient_norm", "finite")


class TrainingStep:
    """A model and its optimizer, and the compiled function that updates both.

    Attributes:
      model: What the task made.
    """

    def __init__(self, task: RLTask, compile: str):
        """Makes the model and the optimizer.

        Args:
          task: The task.
          compile: "graph", "xla" or "eager".

        Raises:
          UserError: For a task without a model, actions or a loss, for what is no built model, or
            no fresh optimizer.
        """
        check_trainable(task)
        self._task = task
        self.model = _checked_model(task)
        self._trained = list(self.model.trainable_variables)
        if trains_itself(task):
            _check_own_optimizer(task, self.model)
        self._entry: OptimizerEntry | None = None
        step = self._own_step
        if not trains_itself(task):
            thing = f"get_optimizer of {type(task).__name__}"
            self._entry = OptimizerEntry(
                task.get_optimizer(), self._trained, task.get_learning_rate(), thing=thing
            )
            step = self._step
        self._names = {v.ref(): name for name, v in self.model_variables().items()}
        self._update = step
        if compile != "eager":
            self._update = tf.function(step, jit_compile=compile == "xla" or None)

    def model_variables(self) -> dict[str, tf.Variable]:
        """Returns the model's variables by position and role: `000_kernel`, `001_bias`, ..."""
        return keras.named_variables(self.model.variables)

    def variables(self) -> dict[str, tf.Variable]:
        """Returns all that an update changes: `model/...` and `optimizer/...`."""
        found = {f"model/{name}": v for name, v in self.model_variables().items()}
        if self._entry is None:
            return found
        for name, v in self._entry.own_variables().items():
            found[f"optimizer/{name}"] = v
        for slot in self._entry.slots().values():
            found[f"optimizer/{slot.name}/{self._names[slot.param.ref()]}"] = slot.variable
        return found

    def set_learning_rate(self, env_steps: int) -> None:
        """Assigns what the schedule says at so many env steps, where there is one."""
        if self._entry is not None:
            self._entry.set_learning_rate(tf.constant(env_steps, tf.int64))

    def update(self, batch: Samples) -> dict[str, tf.Tensor]:
        """Takes one step on a batch of clips; none where loss or gradients are not finite.

        Returns:
          Scalars: `loss`, `gradient_norm`, `finite`, and what `compute_loss` gave; of a task that
          trains its model by itself `loss`, `finite` and what `train_model` gave.
        """
        return self._update(batch)

    def _step(self, batch: Samples) -> dict[str, tf.Tensor]:
        task = self._task

        def losses_of() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            outputs = task.run_model(self.model, batch)
            loss, metrics = _checked_loss(task, task.compute_loss(outputs, batch))
            # Regularisers of layers, as Keras' own training adds them.
            return tf.add_n([loss, *getattr(self.model, "losses", ())]), metrics

        gradients, total, metrics = gradients_of(
            losses_of, self._trained, lambda total, tape: tape.gradient(total, self._trained)
        )
        pairs = [(g, v) for g, v in zip(gradients, self._trained, strict=True) if g is not None]
        if not pairs:
            raise UserError(
                f"compute_loss of {type(task).__name__}",
                expected="a loss that depends on the model's trainable variables",
                got="one without a gradient for any of them",
                remedy="Compute it from what run_model returns, with TensorFlow.",
            )
        norm = tf.linalg.global_norm([g for g, _ in pairs])
        finite = tf.math.is_finite(norm) & tf.math.is_finite(tf.cast(total, tf.float32))
        tf.cond(finite, lambda: self._apply(pairs), lambda: tf.constant(False))
        return {**metrics, "loss": total, "gradient_norm": norm, "finite": finite}

    def _own_step(self, batch: Samples) -> dict[str, tf.Tensor]:
        """The task's own training step, undone where something is not finite."""
        task = self._task
        update = ExternalUpdate(
            name="train_model", step=lambda *_: task.train_model(self.model, batch)
        )
        row, finite = take_external_step(
            type(task).__name__,
            update,
            AgentState(params={"model": list(self.model.variables)}),
            batch,
            tf.zeros([2], tf.int32),
            guard=True,
            several=False,
        )
        return {**row, "finite": finite}

    def _apply(self, pairs: list[tuple[tf.Tensor, tf.Variable]]) -> tf.Tensor:
        gradients, variables = zip(*pairs, strict=True)
        entry: Any = self._entry
        entry.apply(gradients, variables)
        return tf.constant(True)


def _checked_model(task: RLTask) -> Any:
    model = task.get_model()
    thing = f"get_model of {type(task).__name__}"
    if not isinstance(model, tf.Module):
        raise UserError(
            thing,
            expected="a tf.keras.Model, or another tf.Module",
            got=type(model).__name__,
            remedy="Return the model, built.",
        )
    built = getattr(model, "built", True)
    if not built or not model.trainable_variables:
        raise UserError(
            thing,
            expected="a model with trainable variables",
            got="one that is not built yet" if not built else "one without any",
            remedy="Give it an Input, or call it once on a batch of observations.",
        )
    return model


def _check_own_optimizer(task: RLTask, model: Any) -> None:
    """Refuses a compiled Keras model: its optimizer's slots would be neither saved nor undone."""
    if getattr(model, "optimizer", None) is not None and keras.is_model(model):
        raise UserError(
            f"get_model of {type(task).__name__}",
            expected="a model whose `variables` are all that train_model changes",
            got="a compiled Keras model, whose optimizer has variables of its own",
            remedy="Define compute_loss and get_optimizer instead of train_model, or return a "
            "tf.Module whose `variables` are those of both.",
        )


def _checked_loss(task: RLTask, result: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    loss, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    thing = f"compute_loss of {type(task).__name__}"
    if loss is None:
        raise UserError(
            thing,
            expected="the loss, a number",
            got="None",
            remedy="Return it, or a pair of it and a dict of metrics.",
        )
    values = {"the loss": tf.convert_to_tensor(loss)}
    values.update({f"metric {n!r}": tf.convert_to_tensor(x) for n, x in metrics.items()})
    for name, value in values.items():
        if value.shape.rank != 0 or value.dtype == tf.string:
            raise UserError(
                thing,
                expected=f"a number for {name}",
                got=f"{value.dtype.name} {value.shape}",
                remedy="Take the mean over the batch: tf.reduce_mean(...).",
            )
    taken = [name for name in metrics if name in OWN_METRICS]
    if taken:
        raise UserError(
            thing,
            expected="names for metrics that are free",
            got=f"{taken[0]!r}, which every update has",
            remedy=f"Choose others than {', '.join(OWN_METRICS)}.",
        )
    return values["the loss"], {n: values[f"metric {n!r}"] for n in metrics}


def means(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the mean of every metric over updates."""
    if not rows:
        return {}
    return {name: float(np.mean([float(row[name]) for row in rows])) for name in rows[0]}
