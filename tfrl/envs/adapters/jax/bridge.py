"""Pure JAX environments as environments of TensorFlow tensors."""

import dataclasses
import functools
import pathlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.envs.adapters.jax import versions
from tfrl.envs.core import Env, initial_state
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class JaxTask(struct.Struct):
    """One JAX environment, without a batch axis.

    Attributes:
      name: Its name in messages.
      reset: `reset(key) -> (state, obs, info)`; the key is uint32 [2], the state any pytree.
      step: `step(state, action) -> (state, obs, reward, termination, truncation, info)`.
      obs_spec: Nest of specs of one observation.
      action_spec: Nest of specs of one action.
      render: `render(state) -> uint8 [H, W, 3]` of a state of NumPy arrays, or None.
      scene: `scene(states) -> html` of a list of such states, or None.
      source: The library's environment, or None.
    """

    name: str
    reset: Callable[..., Any]
    step: Callable[..., Any]
    obs_spec: Nest
    action_spec: Nest
    render: Callable[[Any], np.ndarray] | None = None
    scene: Callable[[list[Any]], str] | None = None
    source: Any = None


@struct.logic_dataclass
class JaxEnv(Env):
    """A batch of JAX environments; a bare environment.

    `reset(key)` is `jax.vmap(reset)(jax.random.split(key, num_envs))`: the key has the bits of
    JAX's raw key. `env_state` is the tuple of the leaves of JAX's state, keys as int32.

    The first call converts both functions, once for equal tasks and numbers of environments.

    Attributes:
      task: The JAX environment.
      num_envs: B.
    """

    task: JaxTask
    num_envs: int = 1

    @property
    def obs_spec(self) -> Nest:
        """The task's."""
        return self.task.obs_spec

    @property
    def action_spec(self) -> Nest:
        """The task's."""
        return self.task.action_spec

    @property
    def steps_in_xla(self) -> bool:
        """True: `jax2tf` produces XLA programs."""
        return True

    @tf.autograph.experimental.do_not_convert
    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        env_state, obs, info = _converted(self.task, self.num_envs).reset(key)
        return initial_state(self, env_state=env_state, obs=obs, info=info)

    @tf.autograph.experimental.do_not_convert
    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        converted = _converted(self.task, self.num_envs)
        action = tf.nest.map_structure(lambda s, a: tf.cast(a, s.dtype), self.action_spec, action)
        env_state, obs, reward, termination, truncation, info = converted.step(
            state.env_state, action
        )
        return EnvState(
            env_state=env_state,
            obs=obs,
            reward=reward,
            termination=termination,
            truncation=truncation,
            info=info,
        )

    def jax_state(self, state: EnvState, index: int = 0) -> Any:
        """Returns JAX's own state of environment `index`, as a pytree of NumPy arrays.

        Args:
          state: A state of this bare environment, outside compiled code.
          index: Which environment.
        """
        leaves = [np.asarray(x[index]) for x in state.env_state]
        return _converted(self.task, self.num_envs).layout.decode(leaves, np)

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Renders environment `index` with the library's own renderer."""
        if self.task.render is None:
            raise NotImplementedError(f"{self.task.name} has no renderer")
        return np.asarray(self.task.render(self.jax_state(state, index)), np.uint8)

    @property
    def has_scenes(self) -> bool:
        """Whether the library writes HTML scenes."""
        return self.task.scene is not None

    def write_scene(self, states: Sequence[EnvState], path: pathlib.Path) -> None:
        """Writes the library's HTML scene of the states of environment 0."""
        if self.task.scene is None:
            raise NotImplementedError(f"{self.task.name} has no scenes")
        path.write_text(self.task.scene([self.jax_state(state) for state in states]))


def wrap(
    reset: Callable[..., Any],
    step: Callable[..., Any],
    *,
    action_spec: Nest,
    obs_spec: Nest = None,
    num_envs: int = 1,
    render: Callable[[Any], np.ndarray] | None = None,
    name: str = "",
) -> JaxEnv:
    """Creates a bare environment from pure JAX functions of one environment.

    A registration adds time limit, statistics and autoreset:

        register("my:Task", functools.partial(wrap, reset, step, action_spec=DiscreteSpec(3)),
                 max_episode_steps=200)
        env = tfrl.make_env("my:Task", num_envs=64)

    Args:
      reset: `reset(key) -> (state, obs)` or `(state, obs, info)`, with a raw key uint32 [2] as from
        `jax.random.PRNGKey`. A random step keeps a key in its state.
      step: `step(state, action) -> (state, obs, reward, termination, truncation)`, or with `info`
        last. If only `step` returns info, it is zeros after a reset. The functions must not
        autoreset: the last observation of an episode is the terminal one.
      action_spec: Nest of specs of one action, without batch axis.
      obs_spec: Nest of specs of one observation; None infers unbounded specs. In it, a NamedTuple
        or a dataclass is a dict.
      num_envs: B.
      render: `render(state) -> uint8 [H, W, 3]`, or None.
      name: Its name in messages; by default the name of `step`.

    Raises:
      UserError: For a missing or incompatible JAX, functions with other results, and specs that
        do not match the results of `reset`.
    """
    jax = versions.load("jax")
    name = name or getattr(step, "__qualname__", "step")
    padded_reset = functools.partial(_with_info, name, "reset", reset, 3)
    padded_step = functools.partial(_with_info, name, "step", step, 6)
    shapes = jax.eval_shape(lambda k: as_nest(padded_reset(k)[1]), jax.random.PRNGKey(0))
    task = JaxTask(
        name=name,
        reset=padded_reset,
        step=padded_step,
        obs_spec=fit_spec(name, obs_spec, shapes),
        action_spec=action_spec,
        render=render,
    )
    return JaxEnv(task=task, num_envs=num_envs)


def as_nest(tree: Any) -> Nest:
    """Turns a pytree into dicts and tuples; a NamedTuple or dataclass becomes a dict of fields."""
    if isinstance(tree, Mapping):
        return {str(k): as_nest(v) for k, v in tree.items()}
    if hasattr(tree, "_fields"):
        return {name: as_nest(getattr(tree, name)) for name in tree._fields}
    if dataclasses.is_dataclass(tree):
        return {f.name: as_nest(getattr(tree, f.name)) for f in dataclasses.fields(tree)}
    if isinstance(tree, tuple | list):
        return tuple(as_nest(x) for x in tree)
    return tree


def fit_spec(name: str, spec: Nest, shapes: Nest) -> Nest:
    """Returns the specs of JAX's shapes, with the bounds of `spec` if given.

    Args:
      name: The environment's name in messages.
      spec: Nest of specs, or None.
      shapes: Nest of `jax.ShapeDtypeStruct`.
    """

    def unbounded(x: Any) -> Any:
        return tf.TensorSpec(x.shape, tf.as_dtype(x.dtype))

    if spec is None:
        return tf.nest.map_structure(unbounded, shapes)
    try:
        tf.nest.assert_same_structure(spec, shapes)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"obs_spec of {name}",
            expected=f"the structure {tf.nest.map_structure(unbounded, shapes)}",
            got=repr(spec),
        ) from error
    for (path, s), x in zip(struct.paths(spec).items(), struct.paths(shapes).values(), strict=True):
        if tuple(s.shape) != tuple(x.shape) or s.dtype != tf.as_dtype(x.dtype):
            raise UserError(
                f"obs_spec of {name}" + (f", {path}" if path else ""),
                expected=f"{np.dtype(x.dtype).name} {list(x.shape)}, as returned by reset",
                got=f"{s.dtype.name} {s.shape.as_list()}",
            )
    return spec


def _with_info(name: str, method: str, fn: Callable[..., Any], size: int, *args: Any) -> tuple:
    """Calls a user's function; a missing info becomes an empty one."""
    result = fn(*args)
    if not isinstance(result, tuple) or len(result) not in (size - 1, size):
        parts = "state, obs" + (", reward, termination, truncation" if size == 6 else "")
        raise UserError(
            f"{method} of {name}",
            expected=f"a tuple ({parts}) or ({parts}, info)",
            got=f"{len(result)} items" if isinstance(result, tuple) else type(result).__name__,
        )
    return result if len(result) == size else (*result, {})


class _StateConverter:
    """Converts JAX's state to a tuple of arrays for TensorFlow and checkpoints, and back.

    Keys become their data, and unsigned words int32, which every operation supports.
    """

    def __init__(self, state: Any):
        """Takes a state, or its shapes."""
        jax = versions.load("jax")

        leaves, self.tree = jax.tree_util.tree_flatten(state)
        self.kinds = [jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
        self.dtypes = [None if key else x.dtype for x, key in zip(leaves, self.kinds, strict=True)]

    def encode(self, state: Any) -> tuple[Any, ...]:
        """Returns the leaves of a batched state."""
        jax = versions.load("jax")

        def encoded(x: Any, is_key: bool) -> Any:
            x = jax.random.key_data(x) if is_key else x
            return jax.lax.bitcast_convert_type(x, np.int32) if x.dtype == np.uint32 else x

        leaves = jax.tree_util.tree_leaves(state)
        return tuple(map(encoded, leaves, self.kinds))

    def decode(self, leaves: Any, numpy: Any = None) -> Any:
        """Rebuilds the state from its leaves; `numpy` keeps NumPy arrays unchanged."""
        jax = versions.load("jax")

        def decoded(x: Any, is_key: bool, dtype: Any) -> Any:
            if is_key or dtype == np.uint32:
                x = x.view(np.uint32) if numpy else jax.lax.bitcast_convert_type(x, np.uint32)
            return jax.random.wrap_key_data(x) if is_key else x

        return jax.tree_util.tree_unflatten(
            self.tree, [decoded(*x) for x in zip(leaves, self.kinds, self.dtypes, strict=True)]
        )


@dataclasses.dataclass(frozen=True)
class _Converted:
    """The TensorFlow functions of a batch."""

    layout: _StateConverter
    reset: Any
    step: Any


_converting = threading.RLock()  # each replica traces in its own thread


def _converted(task: JaxTask, num_envs: int) -> _Converted:
    with _converting:
        return _convert(task, num_envs)


@functools.lru_cache(maxsize=64)
def _convert(task: JaxTask, num_envs: int) -> _Converted:
    """Vectorises and converts both functions; all traces share the result."""
    jax = versions.load("jax")
    versions.check_devices(jax.default_backend(), bool(tf.config.list_logical_devices("GPU")))
    reset_shapes = jax.eval_shape(
        jax.vmap(task.reset), jax.ShapeDtypeStruct((num_envs, 2), np.uint32)
    )
    actions = tf.nest.map_structure(
        lambda s: jax.ShapeDtypeStruct((num_envs, *s.shape), s.dtype.as_numpy_dtype),
        task.action_spec,
    )
    layout = _StateConverter(reset_shapes[0])
    info: dict[str, Any] = {}  # zeros like a step's info, filled when step is traced

    def step(leaves: Any, action: Any) -> Any:
        result = jax.vmap(task.step)(layout.decode(leaves), action)
        _check_step(task.name, reset_shapes, result)
        state, obs, reward, termination, truncation, own = result
        own = as_nest(own)
        info.update(jax.tree_util.tree_map(lambda x: np.zeros(x.shape, x.dtype), own))
        return (
            layout.encode(state),
            as_nest(obs),
            reward.astype(np.float32),
            termination.astype(bool),
            truncation.astype(bool),
            own,
        )

    def reset(key: Any) -> Any:
        key = jax.lax.bitcast_convert_type(key, np.uint32)
        state, obs, own = jax.vmap(task.reset)(jax.random.split(key, num_envs))
        if unknown := sorted(set(own) - set(info)):
            raise UserError(
                f"reset of {task.name}",
                expected=f"no info items other than those of step ({', '.join(info) or 'none'})",
                got=", ".join(unknown),
            )
        return layout.encode(state), as_nest(obs), {**info, **as_nest(own)}

    leaves = jax.eval_shape(layout.encode, reset_shapes[0])
    converted_step = _as_tensorflow(step, (leaves, actions))
    converted_reset = _as_tensorflow(reset, (jax.ShapeDtypeStruct((2,), np.int32),))
    return _Converted(layout=layout, reset=converted_reset, step=converted_step)


def _as_tensorflow(fn: Callable[..., Any], args: Any) -> Any:
    """Lowers a JAX function to a concrete function of nests of tensors."""
    jax2tf = versions.load("jax.experimental.jax2tf")

    def lower(**options: Any) -> Any:
        inside = jax2tf.convert(fn, with_gradient=False, **options)  # natively, by default
        with tf.init_scope():
            return tf.function(inside, autograph=False).get_concrete_function(
                *tf.nest.map_structure(_spec, args)
            )

    converted = lower()
    modules = [o.get_attr("module") for o in converted.graph.get_operations() if o.type == _CALL]
    if any(kernel in module for module in modules for kernel in _JAXLIB_KERNELS):
        # Linear algebra uses kernels of jaxlib, which TensorFlow lacks. The TPU lowering rules
        # leave it to XLA, and their programs run on any device.
        everywhere = (jax2tf.DisabledSafetyCheck.platform(),)
        converted = lower(
            native_serialization_platforms=("tpu",),
            native_serialization_disabled_checks=everywhere,
        )
    return converted


_CALL = "XlaCallModule"
_JAXLIB_KERNELS = (b"lapack_", b"blas_", b"cusolver_", b"cublas_", b"cu_threefry")


def _spec(x: Any) -> tf.TensorSpec:
    return tf.TensorSpec(x.shape, tf.as_dtype(x.dtype))


def _check_step(name: str, before: Any, after: Any) -> None:
    """Refuses a step whose state or observation differs in structure from a reset's."""
    jax = versions.load("jax")

    for thing, a, b in (("state", before[0], after[0]), ("obs", before[1], after[1])):
        expected, got = (
            {
                jax.tree_util.keystr(path): f"{x.dtype} {list(x.shape)}"
                for path, x in jax.tree_util.tree_leaves_with_path(tree)
            }
            for tree in (a, b)
        )
        for path in [*expected, *got]:
            if expected.get(path) != got.get(path):
                raise UserError(
                    f"step of {name}, {thing}{path}",
                    expected=f"{expected.get(path, 'nothing')}, as returned by reset",
                    got=got.get(path, "nothing"),
                )
    for thing, x in zip(("reward", "termination", "truncation"), after[2:5], strict=True):
        if len(getattr(x, "shape", (0, 0))) != 1:
            raise UserError(
                f"step of {name}, {thing}",
                expected="a scalar",
                got=f"shape {list(x.shape[1:])}" if hasattr(x, "shape") else type(x).__name__,
            )
