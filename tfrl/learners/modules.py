"""Modules of a Learner: agents, and objects with parameters, a pure forward pass and a loss."""

import abc
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from tfrl import keras, networks, seeding, struct
from tfrl.agents.core import OLD_HOOKS, Agent, Update, alias_old_hooks
from tfrl.errors import UserError
from tfrl.learners.loss_checks import scalar_loss
from tfrl.learners.optimizers import ALL_MODULES, DEFAULT_OPTIMIZER, check_name
from tfrl.types import AgentState, Nest

# A loss's result: the scalar, or the scalar and `{name: scalar}`.
LossResult = Any


class Module(abc.ABC):
    """Parameters, a pure forward pass and, for training, a pure loss.

    A subclass defines `init_params`, `forward` and `loss`; a Learner saves a module without `loss`
    but does not train it. Preferably make it a `struct.logic_dataclass`. Other methods are those of
    an agent, with the same defaults: override `init` for target networks or other state, and the
    hooks to change it.
    """

    # Whether the loss reads the learner's tf.Variables itself instead of the values in `params`,
    # e.g. models of tasks.
    over_variables = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Supports the old names of hooks."""
        super().__init_subclass__(**kwargs)
        alias_old_hooks(cls)

    @abc.abstractmethod
    def init_params(self, key: tf.Tensor) -> dict[str, Any]:
        """Makes fresh parameters.

        Args:
          key: int32 [2].

        Returns:
          `{group: nest of tensors}`.
        """

    @abc.abstractmethod
    def forward(self, params: dict[str, Any], batch: Nest, key: tf.Tensor) -> Any:
        """Computes the outputs for a batch; pure.

        Args:
          params: Values like those of `init_params`.
          batch: Rows `[N, ...]`, or sequences `[B, T, ...]`.
          key: int32 [2], for random layers.
        """

    def loss(self, params: dict[str, Any], batch: Nest, outputs: Any, key: tf.Tensor) -> LossResult:
        """Computes the loss of a batch; pure. Trained modules override it.

        Args:
          params: Values, for losses of the parameters themselves.
          batch: The batch of `forward`; a bool leaf `mask` marks the valid rows.
          outputs: The result of `forward`.
          key: int32 [2].

        Returns:
          A scalar, or a scalar and metrics `{name: scalar}`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def init(self, key: tf.Tensor) -> AgentState:
        """Makes a fresh state with only the parameters of `init_params`."""
        return AgentState(params=_checked_params(type(self).__name__, self.init_params(key)))

    @property
    def has_loss(self) -> bool:
        """Whether there is a loss."""
        return type(self).loss is not Module.loss or isinstance(self, SelfSupervisedLossAPI)

    @functools.cached_property
    def groups(self) -> tuple[str, ...]:
        """The trained parameter groups: those with floats in `init`.

        Override it to freeze groups, or to avoid the call of `init` that finds them.
        """
        with tf.init_scope():
            params = self.init(seeding.key(0)).params
        return tuple(g for g, nest in params.items() if any(map(_floating, _trained(nest))))

    @property
    def updates(self) -> tuple[Update, ...]:
        """One update of all groups; none without a loss or without trainable parameters."""
        if not self.has_loss or not self.groups:
            return ()
        return (Update(name=DEFAULT_OPTIMIZER, groups=self.groups, loss=self.update_loss),)

    def update_loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss as the Learner calls it: `forward`, then `loss`, or the self-supervised one."""
        if isinstance(self, SelfSupervisedLossAPI):
            loss = self.compute_self_supervised_loss(params, state, batch, key)
        else:
            keys = seeding.streams(key, ["forward", "loss"])
            outputs = self.forward(params, batch, keys["forward"])
            loss = self.loss(params, batch, outputs, keys["loss"])
        return scalar_loss(type(self).__name__, loss)

    # The hooks of an agent, with the same defaults; an overridden `should_stop` tells the Learner
    # to check it.
    should_stop: Callable[..., tf.Tensor | None] = Agent.should_stop

    @property
    def may_stop(self) -> bool:
        """Whether `should_stop` may ever return True; if not, an update carries no flag."""
        return type(self).should_stop is not Agent.should_stop

    def before_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """Runs in the compiled call before the gradient steps, see `Agent.before_update`."""
        return state

    def after_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """As `before_update`, after the gradient steps."""
        return state

    def after_update_due(self, state: AgentState, timesteps: tf.Tensor) -> tf.Tensor | None:
        """Whether to call `after_update` this time, see `Agent.after_update_due`."""
        return None

    def on_update_metrics(self, state: AgentState, metrics: dict[str, tf.Tensor]) -> AgentState:
        """Before `after_update`, with the metrics of the update, see `Agent.on_update_metrics`."""
        return state

    def prepare_minibatch(
        self, state: AgentState, batch: Nest, all_reduce_sum: Callable[[Nest], Nest]
    ) -> Nest:
        """Returns a minibatch in the loss's form, see `Agent.prepare_minibatch`."""
        return batch


def _trained(nest: Nest) -> list[Any]:
    return networks.split_leaves(nest)[0]


def _floating(leaf: Any) -> bool:
    return tf.as_dtype(leaf.dtype).is_floating


def _checked_params(name: str, params: Any) -> dict[str, Any]:
    """Parameters by group, as tensors."""
    if not isinstance(params, Mapping) or not all(isinstance(g, str) for g in params):
        raise UserError(
            f"{name}.init",
            expected="a dict {group: nest of tensors} of parameters",
            got=repr(sorted(params, key=str)) if isinstance(params, Mapping) else repr(params),
            remedy="Return {'net': ...}.",
        )
    return tf.nest.map_structure(tf.convert_to_tensor, dict(params))


@struct.logic_dataclass
class DuckModule(Module):
    """Wraps an object with `init` and `forward`, and optionally `loss`, as a Module.

    Other attributes are forwarded to the object.

    Attributes:
      module: The object. `init(key)` returns `{group: nest}` or an AgentState.
    """

    module: Any

    def __post_init__(self) -> None:
        """Exposes the object's methods: `isinstance` of an API needs them from Python 3.12."""
        for name in dir(self.module):
            if not name.startswith("_") and not hasattr(type(self), name):
                method = getattr(self.module, name, None)
                if callable(method):
                    self.__dict__[name] = method

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the object."""
        if name.startswith("_") or "module" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.module, name)

    def init_params(self, key: tf.Tensor) -> dict[str, Any]:
        """The object's parameters."""
        return self.init(key).params

    def init(self, key: tf.Tensor) -> AgentState:
        """The object's state."""
        state = self.module.init(key)
        if isinstance(state, AgentState):
            return state
        return AgentState(params=_checked_params(type(self.module).__name__, state))

    def forward(self, params: dict[str, Any], batch: Nest, key: tf.Tensor) -> Any:
        """The object's forward pass."""
        return self.module.forward(params, batch, key)

    def loss(self, params: dict[str, Any], batch: Nest, outputs: Any, key: tf.Tensor) -> LossResult:
        """The object's loss."""
        return self.module.loss(params, batch, outputs, key)

    @property
    def has_loss(self) -> bool:
        """Whether the object has a loss."""
        return callable(getattr(self.module, "loss", None)) or isinstance(
            self.module, SelfSupervisedLossAPI
        )

    def _hook(self, name: str, otherwise: Any, *args: Any) -> Any:
        old = next((old for old, new in OLD_HOOKS.items() if new == name), name)
        hook = getattr(self.module, name, None) or getattr(self.module, old, None)
        return otherwise if hook is None else hook(*args)

    def before_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """The object's hook, if it has one."""
        return self._hook("before_update", state, state, timesteps)

    def after_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """The object's hook, if it has one."""
        return self._hook("after_update", state, state, timesteps)

    def after_update_due(self, state: AgentState, timesteps: tf.Tensor) -> tf.Tensor | None:
        """The object's hook, if it has one."""
        return self._hook("after_update_due", None, state, timesteps)

    def on_update_metrics(self, state: AgentState, metrics: dict[str, tf.Tensor]) -> AgentState:
        """The object's hook, if it has one."""
        return self._hook("on_update_metrics", state, state, metrics)

    def prepare_minibatch(
        self, state: AgentState, batch: Nest, all_reduce_sum: Callable[[Nest], Nest]
    ) -> Nest:
        """The object's hook, if it has one."""
        return self._hook("prepare_minibatch", batch, state, batch, all_reduce_sum)

    @property
    def may_stop(self) -> bool:
        """Whether the object has the hook."""
        return callable(getattr(self.module, "should_stop", None))

    def should_stop(self, metrics: dict[str, tf.Tensor]) -> tf.Tensor | None:
        """The object's hook, if it has one."""
        return self._hook("should_stop", None, metrics)


@struct.logic_dataclass
class LossByLearner(DuckModule):
    """A module without a loss, trained by the loss that its Learner computes."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The module's."""
        return self.module.groups

    @property
    def updates(self) -> tuple[Update, ...]:
        """One update of all groups; none without trainable parameters."""
        if not self.groups:
            return ()
        return (Update(name=DEFAULT_OPTIMIZER, groups=self.groups, loss=self.update_loss),)

    def forward(self, params: dict[str, Any], batch: Nest, key: tf.Tensor) -> Any:
        """The module's."""
        return self.module.forward(params, batch, key)


# The Learner's form of a module.
LearnerModule = Agent | Module


def as_module(obj: Any, module_id: str, *, loss_by_learner: bool = False) -> LearnerModule:
    """Returns an object in the Learner's form, with `init`, `updates` and the hooks.

    Args:
      obj: An Agent or a Module, returned unchanged, or an object with `init(key)`,
        `forward(params, batch, key)` and, for training, `loss(params, batch, outputs, key)`.
      module_id: Its id, for messages.
      loss_by_learner: Whether the Learner computes losses itself, so that modules without a loss
        are trained too.

    Raises:
      UserError: For a Keras model without adapter, a class instead of an object, or an object with
        missing methods, which it lists.
    """
    if isinstance(obj, Module) and loss_by_learner and not obj.has_loss:
        return obj if isinstance(obj, LossByLearner) else LossByLearner(module=obj)
    if isinstance(obj, Agent | Module):
        return obj
    expected = "an Agent, a Module, or an object with init(key) and forward(params, batch, key)"
    if keras.is_model(obj):
        raise UserError(
            f"module {module_id!r}",
            expected=expected,
            got=f"the bare Keras model {obj.name!r}",
            remedy="Wrap it with its loss: tfrl.learners.KerasModule(model=model, loss_fn='mse').",
        )
    missing = [m for m in ("init", "forward") if not callable(getattr(obj, m, None))]
    if isinstance(obj, type):
        got, remedy = f"the class {obj.__name__}", "Give an instance of it."
    elif missing:
        got = f"{type(obj).__name__} without {' and '.join(missing)}"
        remedy = "Add these methods, or derive it from tfrl.learners.Module."
    else:
        duck = DuckModule(module=obj)
        return as_module(duck, module_id, loss_by_learner=loss_by_learner)
    raise UserError(f"module {module_id!r}", expected=expected, got=got, remedy=remedy)


def check_module_id(module_id: Any) -> None:
    """Checks a module's id, which is also a folder name in checkpoints.

    Raises:
      UserError: Saying which rule is broken.
    """
    if module_id == ALL_MODULES:
        raise UserError(
            "module id",
            expected="the id of one module",
            got=f"{ALL_MODULES!r}, which stands for all modules",
            remedy="Choose a name such as 'policy_1'.",
        )
    check_name("module id", module_id)


# Protocols that an algorithm may require of its modules.


@runtime_checkable
class ValueFunctionAPI(Protocol):
    """A module with a value function."""

    def compute_values(self, state: AgentState, obs: Nest) -> tf.Tensor:
        """Returns V(obs), float32 `[N]`, for observations `[N, ...]`."""


@runtime_checkable
class TargetNetworkAPI(Protocol):
    """A module that keeps target networks in `AgentState.target_params`."""

    def update_target(self, state: AgentState) -> AgentState:
        """Returns the state with updated target networks."""


@runtime_checkable
class SelfSupervisedLossAPI(Protocol):
    """A module that trains with its own loss instead of the algorithm's."""

    def compute_self_supervised_loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> LossResult:
        """Returns a scalar, or a scalar and metrics `{name: scalar}`."""


def missing_apis(module: object, required: Iterable[type]) -> list[str]:
    """Lists the methods of protocols that a module lacks.

    Args:
      module: A module.
      required: Protocol classes, such as `ValueFunctionAPI`, or any classes with the required
        public methods.

    Returns:
      "<protocol>: <method>" for each missing method.
    """
    return [
        f"{api.__name__}: {name}"
        for api in required
        for name in _methods(api)
        if not callable(getattr(module, name, None))
    ]


def _methods(api: type) -> list[str]:
    """The public methods of a protocol, bases first."""
    bases = [c for c in reversed(api.__mro__) if c not in (object, Protocol)]
    return list(
        dict.fromkeys(
            name
            for c in bases
            for name, value in vars(c).items()
            if callable(value) and not name.startswith("_")
        )
    )
