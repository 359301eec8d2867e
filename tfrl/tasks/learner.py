"""A task's model in a `Learner`: a module over the model's variables."""

import functools
from collections.abc import Callable
from typing import Any, cast

import tensorflow as tf

from tfrl import keras, struct
from tfrl.agents.core import ExternalUpdate, Update
from tfrl.errors import UserError
from tfrl.learners import Learner
from tfrl.learners.external_update import only_external_updates
from tfrl.learners.modules import Module
from tfrl.learners.optimizers import ALL_MODULES, DEFAULT_OPTIMIZER, check_optimizer
from tfrl.learners.parameters import ParamDict, group_variables
from tfrl.tasks.samples import Samples
from tfrl.tasks.task import CallForms, RLTask, call_forms, check_trainable, has_own_train_model
from tfrl.tasks.training_state import TrainingState
from tfrl.types import AgentState, Nest

# Metrics of an update beside the metrics of `compute_loss`.
OWN_METRICS = ("loss", "gradient_norm", "finite")
_GROUP = "model"
# Prefix that separates a task's metrics from the Learner's.
_TASKS = "task/"


class RunProgress:
    """The state of the run while an update is traced or runs; None otherwise."""

    state: TrainingState | None = None


@struct.logic_dataclass
class TaskModule(Module):
    """A task's model as a module; its loss reads the model's variables directly.

    Attributes:
      task: The task.
      model: The result of `get_model`.
      forms: Which methods of the task take the `TrainingState`.
      progress: Has that state while an update is traced, since a Learner passes none to losses.
    """

    task: RLTask
    model: Any
    forms: CallForms
    progress: RunProgress

    over_variables = True

    def variables(self) -> dict[str, tf.Variable]:
        """Returns the model's variables by position and role: `000_kernel`, `001_bias`, ...

        Keras' names would depend on the number of layers made earlier in the process.
        """
        return {
            f"{i:03d}_{v.name.split(':')[0].split('/')[-1]}": v
            for i, v in enumerate(map(keras.tf_variable, self.model.variables))
        }

    def init_params(self, key: tf.Tensor) -> dict[str, Any]:
        """Returns the model's variables; gradients train those under "params"."""
        trained = {keras.tf_variable(v).ref() for v in self.model.trainable_variables}
        parts: dict[str, dict[str, Any]] = {"params": {}, "state": {}}
        for name, v in self.variables().items():
            parts["params" if v.ref() in trained else "state"][name] = v
        return {_GROUP: parts}

    def init(self, key: tf.Tensor) -> AgentState:
        """Returns the model's variables unchanged."""
        return AgentState(params=self.init_params(key))

    def forward(self, params: dict[str, Any], batch: Nest, key: tf.Tensor) -> Any:
        """Runs the model with the counts of a fresh run."""
        return _run_model(self.task, self.forms, self.model, batch, TrainingState.start())

    @property
    def updates(self) -> tuple[Any, ...]:
        """One update: by `compute_loss` and a gradient, or by `train_model`."""
        if has_own_train_model(self.task):
            return (ExternalUpdate(name="train_model", step=self._train_model),)
        return (Update(name=DEFAULT_OPTIMIZER, groups=(_GROUP,), loss=self.update_loss),)

    def update_loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the loss of `compute_loss`, plus the layers' regularisers, and its metrics."""
        state_of_run = self.progress.state
        result = _called(_compute_loss, self.task, self.forms, self.model, batch, state_of_run)
        loss, metrics = _checked_loss(self.task, result)
        loss = tf.add_n([loss, *getattr(self.model, "losses", ())])
        return loss, {f"{_TASKS}{name}": x for name, x in metrics.items()}

    def _train_model(self, state: AgentState, batch: Samples, key: tf.Tensor) -> dict[str, Any]:
        return _called(_train_model, self.task, self.model, batch)


class TaskLearner(Learner):
    """A `Learner` of a task's one model; its variables are the model's."""

    def __init__(self, task: RLTask):
        """Makes the model and the optimizer.

        Args:
          task: The task.

        Raises:
          UserError: For a task without a model, actions or a loss, for a model that is not built,
            or an optimizer that is not fresh.
        """
        check_trainable(task)
        self._task = task
        self._module_id = type(task).__name__
        self._progress = RunProgress()
        module = TaskModule(
            task=task,
            model=_checked_model(task),
            forms=call_forms(task),
            progress=self._progress,
        )
        super().__init__({self._module_id: module})
        self.build()

    @property
    def module(self) -> TaskModule:
        """The module over the model."""
        return cast(TaskModule, self.modules[self._module_id])

    @property
    def model(self) -> Any:
        """The result of `get_model`."""
        return self.module.model

    def train(
        self, batch: Samples, counts: tf.Tensor, epoch_steps: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Takes one step on a batch of clips; traced.

        Args:
          batch: Clips.
          counts: int64 [2], iterations and env steps so far; the learning rate follows env steps.
          epoch_steps: int64 scalar, updates of the iteration so far.

        Returns:
          Scalars: `loss`, `gradient_norm`, `finite`, and the metrics of `compute_loss`. For a task
          with `train_model`: `loss`, `finite` and the metrics of `train_model`.
        """
        key = tf.constant([0, 0])  # a task draws from the global seeds
        timesteps = counts[1]
        self._progress.state = TrainingState(
            iterations=counts[0],
            env_steps=timesteps,
            learner_steps=tf.identity(self.learner_state.counters["learner_steps"]),
            epoch_steps=epoch_steps,
        )
        try:
            results = self.update(batch, key=key, timesteps=timesteps, shuffle=False)
        finally:
            self._progress.state = None
        metrics = results[self._module_id]
        row = {"loss": metrics["loss"], "finite": tf.equal(metrics["skipped_steps"], 0.0)}
        if only_external_updates(self.module):
            taken = ("loss", "skipped_steps", "gradient_steps")
            own = {n: x for n, x in metrics.items() if n not in taken and "nonfinite/" not in n}
            return {**own, **row}
        own = {n.removeprefix(_TASKS): x for n, x in metrics.items() if n.startswith(_TASKS)}
        return {**own, **row, "gradient_norm": metrics["grad_norm"]}

    def saved_variables(self) -> dict[str, tf.Variable]:
        """Returns the variables of model and optimizer for checkpoints, by path."""
        names = {v.ref(): name for name, v in self.module.variables().items()}
        saved = {f"model/{name}": v for name, v in self.module.variables().items()}
        for _, _, entry in self.optimizer_entries():
            saved.update({f"optimizer/{n}": v for n, v in entry.own_variables().items()})
            for slot in entry.slots().values():
                saved[f"optimizer/{slot.name}/{names[slot.param.ref()]}"] = slot.variable
        return saved

    # Overrides of `Learner`.

    def _make_state(self, module_id: str) -> None:
        self.module_states[module_id] = self.modules[module_id].init(self.key)

    def configure_optimizers_for_module(self, module_id: str) -> None:
        """Registers the task's optimizer, with the task's learning rate."""
        if only_external_updates(self.module):
            return
        optimizer = self._task.get_optimizer()
        check_optimizer(f"get_optimizer of {module_id}", optimizer)
        params = group_variables(module_id, self.module_states[module_id], (_GROUP,))
        rate = self._task.get_learning_rate()
        self.register_optimizer(module_id, DEFAULT_OPTIMIZER, optimizer, params, rate)

    def compute_gradients(
        self, loss_per_module: Any, gradient_tape: tf.GradientTape, params: ParamDict
    ) -> ParamDict:
        """Raises a UserError for a loss without a gradient for any variable."""
        loss = loss_per_module[ALL_MODULES]
        gradients = gradient_tape.gradient(loss, list(params.values()))
        if all(g is None for g in gradients):
            raise UserError(
                f"compute_loss of {self._module_id}",
                expected="a loss that depends on the model's trainable variables",
                got="a loss without a gradient for these variables",
                remedy="Compute it with TensorFlow from the result of run_model.",
            )
        return {
            ref: tf.zeros_like(v) if g is None else tf.convert_to_tensor(g)
            for (ref, v), g in zip(params.items(), gradients, strict=True)
        }


def _run_model(task: Any, forms: CallForms, model: Any, batch: Samples, state: Any) -> Any:
    return task.run_model(model, batch, state) if forms.run_model else task.run_model(model, batch)


def _compute_loss(task: Any, forms: CallForms, model: Any, batch: Samples, state: Any) -> Any:
    output = _run_model(task, forms, model, batch, state)
    if forms.compute_loss:
        loss = task.compute_loss(model, batch, state, output)
    else:
        loss = task.compute_loss(output, batch)
    return loss


def _train_model(task: Any, model: Any, batch: Samples) -> Any:
    return task.train_model(model, batch)


def _called(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of this file; in a graph with AutoGraph, as in a user's tf.function."""
    return (function if tf.executing_eagerly() else _converted(function))(*args)


@functools.cache
def _converted(function: Callable[..., Any]) -> Any:
    return tf.autograph.to_graph(function)


def _checked_model(task: RLTask) -> Any:
    model = task.get_model()
    thing = f"get_model of {type(task).__name__}"
    if not (isinstance(model, tf.Module) or keras.is_model(model)):
        raise UserError(
            thing,
            expected="a tf.keras.Model or tf.Module",
            got=type(model).__name__,
            remedy="Return the built model.",
        )
    built = getattr(model, "built", True)
    if not built or not model.trainable_variables:
        raise UserError(
            thing,
            expected="a model with trainable variables",
            got="an unbuilt model" if not built else "a model without trainable variables",
            remedy="Add an Input, or call the model once on a batch of observations.",
        )
    compiled = keras.is_model(model) and getattr(model, "optimizer", None) is not None
    if has_own_train_model(task) and compiled:
        # The slots of its optimizer would be neither saved nor restored.
        raise UserError(
            thing,
            expected="a model whose `variables` include all variables that train_model changes",
            got="a compiled Keras model, whose optimizer has additional variables",
            remedy="Define compute_loss and get_optimizer instead of train_model, or return a "
            "tf.Module whose `variables` include the model's and the optimizer's.",
        )
    return model


def _checked_loss(task: RLTask, result: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    loss, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    thing = f"compute_loss of {type(task).__name__}"
    if loss is None:
        raise UserError(
            thing,
            expected="a scalar loss",
            got="None",
            remedy="Return the loss, or a pair of the loss and a dict of metrics.",
        )
    values = {"the loss": tf.convert_to_tensor(loss)}
    values.update({f"metric {n!r}": tf.convert_to_tensor(x) for n, x in metrics.items()})
    for name, value in values.items():
        if value.shape.rank != 0 or value.dtype == tf.string:
            raise UserError(
                thing,
                expected=f"a scalar for {name}",
                got=f"{value.dtype.name} {value.shape}",
                remedy="Take the mean over the batch: tf.reduce_mean(...).",
            )
    taken = [name for name in metrics if name in OWN_METRICS]
    if taken:
        raise UserError(
            thing,
            expected="unreserved metric names",
            got=f"the reserved name {taken[0]!r}",
            remedy=f"Choose names other than {', '.join(OWN_METRICS)}.",
        )
    return values["the loss"], {n: values[f"metric {n!r}"] for n in metrics}
